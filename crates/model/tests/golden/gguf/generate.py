"""Writes blocks of every type and what the package `gguf` (llama.cpp's own) makes of them, and a whole small file it wrote."""

from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

HERE = Path(__file__).parent
TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"]


def blocks():
    random = np.random.default_rng(7)
    out = {}
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        count = 512 // elements
        raw = random.integers(0, 256, (count, size), dtype=np.uint8)
        half = lambda scale: np.abs(random.normal(0, scale, count)).astype(np.float16).view(np.uint8).reshape(count, 2)
        # Scales must be numbers; everything else may be any bits.
        if name.startswith("Q"):
            at = size - 2 if name == "Q6_K" else 0
            raw[:, at : at + 2] = half(0.02)
            if name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
                raw[:, 2:4] = half(0.02)
        elif name == "F16":
            raw = random.normal(0, 1, count).astype(np.float16).view(np.uint8).reshape(count, size)
        else:
            raw = (random.normal(0, 1, count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(count, size)
        values = gguf.quants.dequantize(raw.reshape(1, -1), kind).astype(np.float32).reshape(-1)
        assert values.shape == (512,) and np.isfinite(values).all()
        out[name + ".bytes"], out[name + ".values"] = raw.reshape(-1), values
    save_file(out, HERE / "blocks.safetensors")


def forward(tensors, tokens, heads, kv_heads, eps=1e-5, base=10000.0):
    """Logits after every token, in f32, with rotations as llama.cpp has them for "llama": pairs (2j, 2j + 1)."""
    t = {name: values.astype(np.float32) for name, values in tensors.items()}
    norm = lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * w
    x = t["token_embd.weight"][tokens]
    width = t["blk.0.attn_q.weight"].shape[0] // heads
    angles = np.arange(len(tokens))[:, None] * base ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angles)[:, None].astype(np.float32), np.sin(angles)[:, None].astype(np.float32)

    def rotated(y, count):
        y = y.reshape(len(tokens), count, width)
        a, b = y[..., 0::2], y[..., 1::2]
        out = np.empty_like(y)
        out[..., 0::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
        return out

    h = norm(x, t["blk.0.attn_norm.weight"])
    q = rotated(h @ t["blk.0.attn_q.weight"].T, heads)
    k = rotated(h @ t["blk.0.attn_k.weight"].T, kv_heads)
    v = (h @ t["blk.0.attn_v.weight"].T).reshape(len(tokens), kv_heads, width)
    k, v = (np.repeat(y, heads // kv_heads, axis=1) for y in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(width)
    scores += np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("hqk,khd->qhd", weights, v).reshape(len(tokens), -1) @ t["blk.0.attn_output.weight"].T
    h = norm(x, t["blk.0.ffn_norm.weight"])
    gate = h @ t["blk.0.ffn_gate.weight"].T
    x = x + (gate / (1 + np.exp(-gate)) * (h @ t["blk.0.ffn_up.weight"].T)) @ t["blk.0.ffn_down.weight"].T
    return (norm(x, t["output_norm.weight"]) @ t["token_embd.weight"].T).astype(np.float32)


def whole(file, width, kinds):
    """A tiny llama with a byte-level tokenizer, written by the package, and its logits from what the package reads back."""
    random = np.random.default_rng(8)
    writer = gguf.GGUFWriter(HERE / f"{file}.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // 4)
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    tokens = ["<s>", "</s>", "Ġ"] + letters + ["th", "the", "Ġthe", "an"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["t h", "th e", "Ġ the", "a n"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    read = {}

    def add(name, shape, kind="F32"):
        kind = gguf.GGMLQuantizationType[kind]
        if kind in (gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K):
            # The package cannot write these, so the bits are random and the scales small.
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            raw = random.integers(0, 256, (shape[0], shape[1] // elements, size), dtype=np.uint8)
            scale = lambda mean: np.abs(random.normal(mean, mean / 4, raw.shape[:2] + (1,))).astype(np.float16).view(np.uint8)
            if kind == gguf.GGMLQuantizationType.Q4_K:
                raw[..., 0:2], raw[..., 2:4] = scale(0.0004), scale(0.003)
            else:
                raw[..., -2:] = scale(0.00004)
            raw = raw.reshape(shape[0], -1)
        else:
            values = random.normal(0, 1.5 / np.sqrt(shape[-1]), shape).astype(np.float32)
            if "norm" in name:
                values = np.abs(random.normal(1, 0.2, shape)).astype(np.float32)
            if "embd" in name:
                values = random.normal(0, 1, shape).astype(np.float32)
            raw = gguf.quants.quantize(values, kind)
        read[name] = gguf.quants.dequantize(raw, kind).reshape(shape)
        writer.add_tensor(name, raw, raw_dtype=kind)

    half = width // 2
    add("token_embd.weight", (len(tokens), width), kinds[0])
    add("output_norm.weight", (width,))
    add("blk.0.attn_norm.weight", (width,))
    add("blk.0.ffn_norm.weight", (width,))
    add("blk.0.attn_q.weight", (width, width), kinds[1])
    add("blk.0.attn_k.weight", (half, width), kinds[1])
    add("blk.0.attn_v.weight", (half, width), kinds[2])
    add("blk.0.attn_output.weight", (width, width), kinds[1])
    add("blk.0.ffn_gate.weight", (width, width), kinds[2])
    add("blk.0.ffn_up.weight", (width, width), kinds[3])
    add("blk.0.ffn_down.weight", (width, width), kinds[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ids = random.integers(0, len(tokens), 20)
    logits = forward(read, ids, 4, 2)
    assert np.isfinite(logits).all()
    print(file, "spread of logits", logits.std())
    save_file({"tokens": ids.astype(np.int32), "logits": logits}, HERE / f"{file}.safetensors")


blocks()
whole("f16", 32, ["F16", "F16", "F16", "BF16"])
whole("q8_0", 32, ["Q8_0"] * 4)
whole("q4_0", 32, ["Q8_0", "Q4_0", "Q4_0", "Q5_0"])
whole("q4_k", 256, ["Q6_K", "Q4_K", "Q6_K", "Q4_K"])
