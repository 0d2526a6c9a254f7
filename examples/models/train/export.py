"""Writes a trained model in the Hugging Face layout: bf16 weights, config, tokenizer, generation defaults."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

import tokenizer as tok
from model import Llama


# Low, because most questions have one right answer; stories stay lively enough.
GENERATION = {"do_sample": True, "temperature": 0.3, "top_p": 0.9}


def export(model: Llama, tokenizer, directory: Path):
    """All files or none: written beside, then renamed. Other files of an older directory (the model card) stay."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".export-", dir=directory.parent))
    c, ids = model.c, {s: i for i, s in enumerate(tok.SPECIAL)}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", **c.to_dict(), "head_dim": c.head_dim, "hidden_act": "silu", "attention_bias": False,
        "attention_dropout": 0.0, "mlp_bias": False, "rope_scaling": None, "tie_word_embeddings": True, "initializer_range": 0.02, "use_cache": True,
        "bos_token_id": ids[tok.BOS], "eos_token_id": ids[tok.END], "pad_token_id": ids[tok.PAD], "torch_dtype": "bfloat16",
    }
    # A user turn ends an answer too: a model that forgets <|end|> does not talk to itself.
    generation = {"bos_token_id": ids[tok.BOS], "eos_token_id": [ids[tok.END], ids[tok.USER]], "pad_token_id": ids[tok.PAD], **GENERATION}
    (new / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (new / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tok.save(tokenizer, new)
    save_file({n: p.detach().to(torch.bfloat16).contiguous() for n, p in model.named_parameters()}, new / "model.safetensors", {"format": "pt"})
    if directory.exists():
        for f in directory.iterdir():
            if not (new / f.name).exists():
                shutil.copy2(f, new / f.name)
        shutil.rmtree(directory)
    os.chmod(new, 0o755)
    for f in new.iterdir():
        os.chmod(f, 0o644)
    new.rename(directory)
