"""mistral.rs (PyPI: mistralrs) on a GGUF file: serve_mistral.py MODEL.gguf PORT. It streams only chats, so that a chat template comes around each
prompt (a dozen tokens)."""
import pathlib
import sys

import mistralrs as m

from completions import serve

path = pathlib.Path(sys.argv[1]).resolve()
runner = m.Runner(
    which=m.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name),
    max_seqs=16,
    prefix_cache_n=0,
    token_source="none",
    no_paged_attn=True,
)


def generate(prompt, max_tokens):
    request = m.ChatCompletionRequest(messages=prompt, model="default", max_tokens=max_tokens, temperature=0.0, stream=True)
    for chunk in runner.send_chat_completion_request(request):
        yield chunk.choices[0].delta.content or "?"


serve(generate, int(sys.argv[2]))
