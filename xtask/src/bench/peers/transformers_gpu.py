"""What `transformers` does with random weights of the shapes that `gpu speed` measures, in bf16 on the same GPU: transformers_gpu.py SHAPE...
One line of JSON for each figure, named as Weir's. TRANSFORMERS_DEVICE names another device (cpu, to try the script), on which the shape "tiny"
is what takes no time."""
import json
import os
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

DEVICE = os.environ.get("TRANSFORMERS_DEVICE", "cuda")
PROMPT, STEPS, WARM = 512, 40, 3
LLAMA = dict(vocab_size=128256, max_position_embeddings=131072, rope_theta=500000.0)
SHAPES = {
    "tiny": lambda: LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=1000),
    "0.5B": lambda: Qwen2Config(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
                                vocab_size=151936, max_position_embeddings=32768, rope_theta=1000000.0, tie_word_embeddings=True),
    "1B": lambda: LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                              tie_word_embeddings=True, **LLAMA),
    "8B": lambda: LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                              tie_word_embeddings=False, **LLAMA),
}


def seconds(work):
    """Of one call, until the device has done it."""
    synchronize = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    synchronize()
    begin = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begin


def prompts(config, rows):
    return torch.randint(0, config.vocab_size, (rows, PROMPT), device=DEVICE)


def say(shape, what, rows, median, tokens):
    line = {"peer": "transformers", "shape": shape, what: rows, "step_us": round(median * 1e6), "tokens_per_second": round(tokens / median, 1)}
    print(json.dumps(line), flush=True)


@torch.inference_mode()
def measure(shape):
    config = SHAPES[shape]()
    torch.set_default_device(DEVICE)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    for rows in (1, 8, 64, 256):
        state = model(prompts(config, rows), use_cache=True, logits_to_keep=1)

        def step():
            nonlocal state
            token = state.logits[:, -1:].argmax(-1)
            state = model(token, past_key_values=state.past_key_values, use_cache=True, logits_to_keep=1)

        times = [seconds(step) for _ in range(WARM + STEPS)][WARM:]
        say(shape, "decode_rows", rows, statistics.median(times), rows)
        del state
    prompt = prompts(config, 8)
    times = [seconds(lambda: model(prompt, use_cache=True, logits_to_keep=1)) for _ in range(WARM + STEPS)][WARM:]
    say(shape, "prefill_tokens", 8 * PROMPT, statistics.median(times), 8 * PROMPT)


for shape in sys.argv[1:]:
    measure(shape)
