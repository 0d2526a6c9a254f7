"""Greedy decoding of a batch of prompts with our own model and a KV cache."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from tokenizers import Tokenizer

import tokenizer as tok
from model import Config, Llama


class Cache:
    """Keys and values of each layer, (batch, kv_heads, tokens so far, head_dim)."""

    def __init__(self):
        self.of = {}

    def append(self, layer, k, v):
        if layer in self.of:
            k, v = torch.cat((self.of[layer][0], k), 2), torch.cat((self.of[layer][1], v), 2)
        self.of[layer] = k, v
        return k, v


def load(directory: Path) -> tuple[Llama, Tokenizer]:
    saved = json.loads((directory / "config.json").read_text())
    model = Llama(Config(**{k: saved[k] for k in Config().to_dict()}))
    weights = {n: w.float() for n, w in load_file(directory / "model.safetensors").items()}
    model.load_state_dict(weights)
    return model.eval(), Tokenizer.from_file(str(directory / "tokenizer.json"))


@torch.inference_mode()
def greedy(model: Llama, prompts: list[list[int]], limit: int) -> list[list[int]]:
    """The tokens after each prompt, up to <|end|> (left out) or `limit`. Prompts are padded on the left."""
    width = max(map(len, prompts))
    end = tok.SPECIAL.index(tok.END)
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    real = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts])
    positions = (real.long().cumsum(1) - 1).clamp(min=0)
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    # Padding sees itself, so that no row of the softmax is empty.
    mask = (causal & real[:, None, :] | torch.eye(width, dtype=torch.bool))[:, None]
    cache, out, alive = Cache(), [[] for _ in prompts], torch.ones(len(prompts), dtype=torch.bool)
    hidden = model.hidden(ids, positions, cache, mask)[:, -1]
    for _ in range(limit):
        best = model.logits(hidden).argmax(-1)
        alive &= best != end
        for i in alive.nonzero()[:, 0].tolist():
            out[i].append(best[i].item())
        if not alive.any():
            break
        real = F.pad(real, (0, 1), value=True)
        positions = positions[:, -1:] + 1
        hidden = model.hidden(best[:, None], positions, cache, real[:, None, None, :])[:, -1]
    return out


def answers(model: Llama, tokenizer: Tokenizer, conversations: list[list[dict]], limit: int, batch: int = 64) -> list[str]:
    """The greedy answer to each conversation, in the given order."""
    prompts = [tokenizer.encode(tok.render(c), add_special_tokens=False).ids for c in conversations]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    for i in range(0, len(order), batch):
        part = order[i : i + batch]
        for j, ids in zip(part, greedy(model, [prompts[j] for j in part], limit)):
            texts[j] = tokenizer.decode(ids)
    return texts
