"""A Llama decoder in plain PyTorch, with the parameter names of Hugging Face's LlamaForCausalLM.

Written out here rather than imported, so that training does not depend on `transformers`; evaluate.py --parity
shows that both give the same greedy text.
"""

from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 1024
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def to_dict(self) -> dict:
        return asdict(self)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, the two halves of a head paired (the layout that Hugging Face stores)."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def attend(q, k, v, mask):
    """Causal attention, (batch, heads, length, head_dim). Short rows are written out: on a CPU the compiler fuses that better
    than PyTorch's flash kernel runs; long rows would need the whole score matrix, so they take the kernel."""
    length = q.shape[2]
    if mask is not None or length > 256:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -1e30).softmax(-1).to(v.dtype) @ v


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        kv = c.num_key_value_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, c.hidden_size, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(c.hidden_size, c.hidden_size, bias=False)

    def forward(self, x, cos, sin, cache=None, mask=None):
        batch, length, _ = x.shape
        split = lambda t, heads: t.view(batch, length, heads, self.c.head_dim).transpose(1, 2)
        q = rotate(split(self.q_proj(x), self.c.num_attention_heads), cos, sin)
        k = rotate(split(self.k_proj(x), self.c.num_key_value_heads), cos, sin)
        v = split(self.v_proj(x), self.c.num_key_value_heads)
        if cache is not None:
            k, v = cache.append(self, k, v)
        groups = self.c.num_attention_heads // self.c.num_key_value_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = attend(q.to(v.dtype), k.to(v.dtype), v, mask)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x, *rest):
        x = x + self.self_attn(self.input_layernorm(x), *rest)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)


class Llama(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.model = Decoder(c)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                # Smaller where a layer writes into the residual stream (GPT-2's rule), so that depth adds no variance.
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 / (2 * c.num_hidden_layers) ** 0.5 if writes else 0.02)

    def rope(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions: (length) or (batch, length) -> cos, sin broadcastable over (batch, heads, length, head_dim)."""
        half = torch.arange(0, self.c.head_dim, 2).float() / self.c.head_dim
        angles = positions.float()[..., None] * self.c.rope_theta**-half
        angles = torch.cat((angles, angles), -1)
        if angles.dim() == 3:
            angles = angles[:, None]
        return angles.cos(), angles.sin()

    def hidden(self, ids: torch.Tensor, positions=None, cache=None, mask=None) -> torch.Tensor:
        """ids: (batch, length) -> (batch, length, hidden_size), normalised."""
        cos, sin = self.rope(torch.arange(ids.shape[1]) if positions is None else positions)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, cache, mask)
        return self.model.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Tied embeddings: the table that reads tokens also writes them."""
        return F.linear(hidden, self.model.embed_tokens.weight)
