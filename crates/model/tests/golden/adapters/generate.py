"""Writes random adapters of the models beside this folder, as `peft` saves them, and the logits `transformers` computes with each."""

import json
import os
import shutil
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
# The path of the base stands in what is written.
os.chdir(HERE.parent)
TOKENS = 33
GENERATED = 12
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
FEED_FORWARD = ["gate_proj", "up_proj", "down_proj"]


def load(base):
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()


def make(name, base, dtype=torch.float32, **config):
    torch.manual_seed(sum(name.encode()))
    model = get_peft_model(load(base), LoraConfig(task_type="CAUSAL_LM", **config))
    for parameter_name, parameter in model.named_parameters():
        if "lora_" in parameter_name:
            # Both matrices: `peft` begins with zeros in one of them, and large enough to show in the logits.
            with torch.no_grad():
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
            parameter.data = parameter.data.to(dtype)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config_file = folder / "adapter_config.json"
    written = json.loads(config_file.read_text())
    if isinstance(written["target_modules"], list):
        # A set, in an order of the day.
        written["target_modules"].sort()
    config_file.write_text(json.dumps(written, indent=2) + "\n")
    plain = load(base)
    model = PeftModel.from_pretrained(load(base), folder).float().eval()
    prompt = torch.randint(0, plain.config.vocab_size, (1, TOKENS))
    with torch.no_grad():
        logits = model(input_ids=prompt).logits[0]
        change = (logits - plain(prompt).logits[0]).std()
        tokens = prompt
        for _ in range(GENERATED):
            best = model(input_ids=tokens).logits[0, -1].argmax()
            tokens = torch.cat([tokens, best.view(1, 1)], dim=1)
    assert change > 0.3, f"{name}: changes too little ({change}) to show errors"
    save_file(
        {
            "prompt": prompt[0].to(torch.int32).contiguous(),
            "greedy": tokens[0, TOKENS:].to(torch.int32).contiguous(),
            "logits": logits.float().contiguous(),
        },
        folder / "golden.safetensors",
    )
    print(name, float(change), sum(file.stat().st_size for file in folder.iterdir()))


make("all", "llama-f32", r=4, lora_alpha=8, target_modules=ATTENTION + FEED_FORWARD)
make("attention", "qwen2", r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"])
make("rslora", "qwen3", torch.bfloat16, r=20, lora_alpha=20, use_rslora=True, target_modules=ATTENTION + FEED_FORWARD)
make("last-layer", "llama3-rope", torch.float16, r=2, lora_alpha=3, target_modules=FEED_FORWARD, layers_to_transform=[1])
make("expression", "llama-f32", torch.bfloat16, r=8, lora_alpha=4, target_modules=r".*\.(q_proj|up_proj)")
