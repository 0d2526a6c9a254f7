"""llama.cpp's own HTTP server (PyPI: xllamacpp) on a GGUF file: serve_llama.py MODEL.gguf PORT. 16 slots of 2,304 positions."""
import os
import sys
import threading

import xllamacpp as llama

p = llama.CommonParams()
p.model.path = sys.argv[1]
p.hostnames = ["127.0.0.1"]
p.port = int(sys.argv[2])
p.n_parallel = 16
p.n_ctx = 16 * 2304
p.kv_unified = False
p.cpuparams.n_threads = os.cpu_count()
p.cpuparams_batch.n_threads = os.cpu_count()
p.fit_params = False
p.cache_ram_mib = 0  # no prompt cache beside the slots: every prompt here is new
server = llama.Server(p)
threading.Event().wait()
