"""OpenVINO GenAI's continuous batching (PyPI: openvino-genai) on a GGUF file: serve_openvino.py MODEL.gguf PORT."""
import os
import queue
import sys
import threading

import openvino_genai as ov

from completions import serve

scheduler = ov.SchedulerConfig()
scheduler.cache_size = 2
scheduler.max_num_seqs = 16
scheduler.enable_prefix_caching = False
scheduler.dynamic_split_fuse = True
pipe = ov.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", {"INFERENCE_NUM_THREADS": os.cpu_count()})
tokenizer = pipe.get_tokenizer()
incoming, ids = queue.Queue(), iter(range(1 << 60))


def engine():
    live = {}
    while True:
        while not live or not incoming.empty():
            prompt, max_tokens, out = incoming.get()
            conf = ov.GenerationConfig()
            conf.max_new_tokens, conf.ignore_eos, conf.do_sample = max_tokens, True, False
            conf.apply_chat_template = False
            live[pipe.add_request(next(ids), prompt, conf)] = out
        pipe.step()
        for handle, out in list(live.items()):
            while handle.can_read():
                for result in handle.read().values():
                    out.put(tokenizer.decode(list(result.generated_ids)) or "?")
            if handle.get_status() != ov.GenerationStatus.RUNNING:
                out.put(None)
                del live[handle]


def generate(prompt, max_tokens):
    out = queue.Queue()
    incoming.put((prompt, max_tokens, out))
    yield from iter(out.get, None)


threading.Thread(target=engine, daemon=True).start()
serve(generate, int(sys.argv[2]))
