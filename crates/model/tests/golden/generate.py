"""Writes tiny random models and their reference logits (fp32, CPU) beside this script."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).parent
TOKENS = 33
GENERATED = 12
# 20 and 28 are no multiples of the kernels' sixteen lanes.
SHAPE = dict(
    vocab_size=40,
    hidden_size=20,
    intermediate_size=28,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


def randomise(model):
    """Weights large enough that every part of the network shows in the logits."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if "norm" in name:
                parameter.normal_(1.0, 0.2)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif "embed" in name:
                parameter.normal_(0.0, 1.0)
            else:
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)


def old_style(path):
    """The keys as transformers 4 wrote them."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")


def make(name, model_class, config, dtype=torch.float32, shard=None, old=False):
    torch.manual_seed(sum(name.encode()))
    model = model_class(config).eval()
    randomise(model)
    model = model.to(dtype)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=shard or "1GB")
    (folder / "generation_config.json").unlink()
    if old:
        old_style(folder / "config.json")
    # The reference computes in fp32 with the weights as stored. Loaded again, because a conversion would also have rounded the
    # rotary frequencies, which are never stored.
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = torch.randint(0, config.vocab_size, (1, TOKENS))
    with torch.no_grad():
        logits = model(prompt).logits[0]
        tokens = prompt
        for _ in range(GENERATED):
            best = model(tokens).logits[0, -1].argmax()
            tokens = torch.cat([tokens, best.view(1, 1)], dim=1)
    assert logits.std() > 0.5, f"{name}: logits too flat to show errors"
    save_file(
        {
            "prompt": prompt[0].to(torch.int32).contiguous(),
            "greedy": tokens[0, TOKENS:].to(torch.int32).contiguous(),
            "logits": logits.float().contiguous(),
        },
        folder / "golden.safetensors",
    )
    print(name, sum(file.stat().st_size for file in folder.iterdir()))


bf16, f16 = torch.bfloat16, torch.float16
one_kv = {**SHAPE, "num_key_value_heads": 1}
make("llama-f32", LlamaForCausalLM, LlamaConfig(**SHAPE))
make("llama3-rope", LlamaForCausalLM, LlamaConfig(**SHAPE, rope_parameters=LLAMA3, tie_word_embeddings=True), bf16)
make("llama3-rope-old-keys", LlamaForCausalLM, LlamaConfig(**SHAPE, rope_parameters=LLAMA3), bf16, old=True)
make("llama-f16-sharded", LlamaForCausalLM, LlamaConfig(**SHAPE), f16, shard="8KB")
make("llama-biases", LlamaForCausalLM, LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True), bf16)
make("mistral-gqa", MistralForCausalLM, MistralConfig(**one_kv, sliding_window=None), bf16)
make("mistral-window", MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=8), bf16)
make("qwen2", Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=True), bf16)
make(
    "qwen2-window",
    Qwen2ForCausalLM,
    Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    bf16,
)
make("qwen3", Qwen3ForCausalLM, Qwen3Config(**{**SHAPE, "head_dim": 16}), bf16)
