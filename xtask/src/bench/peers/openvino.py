"""A streaming /v1/completions in front of OpenVINO GenAI's continuous batching (PyPI: openvino-genai): openvino.py MODEL.gguf PORT."""
import json
import os
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openvino_genai as ov

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


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        q = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        out = queue.Queue()
        incoming.put((q["prompt"], q["max_tokens"], out))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for text in iter(out.get, None):
            self.wfile.write(b"data: " + json.dumps({"choices": [{"index": 0, "text": text}]}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, *_):
        pass


threading.Thread(target=engine, daemon=True).start()
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
