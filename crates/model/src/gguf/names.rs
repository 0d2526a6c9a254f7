//! Names of tensors in GGUF files and in the network, and the order of their rows.

/// A tensor of the network by its name in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// As the network names it.
    pub(crate) name: String,
    /// Whose heads' rows are interleaved, where they are.
    pub(crate) heads: Option<Heads>,
}

/// Rotated rows of the architecture `llama` are interleaved in GGUF: row 2j and 2j + 1 of a head are rows j and j + half of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heads {
    /// Of queries.
    Query,
    /// Of keys.
    Key,
}

/// The network's name for a file's tensor; `None` where the network has no such place.
pub(crate) fn named(architecture: &str, name: &str) -> Option<Named> {
    let plain = |name: &str| {
        Some(Named {
            name: name.to_owned(),
            heads: None,
        })
    };
    match name {
        "token_embd.weight" => return plain("model.embed_tokens.weight"),
        "output_norm.weight" => return plain("model.norm.weight"),
        "output.weight" => return plain("lm_head.weight"),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (part, kind) = part.rsplit_once('.')?;
    if kind != "weight" && kind != "bias" {
        return None;
    }
    let (to, heads) = match part {
        "attn_norm" => ("input_layernorm", None),
        "ffn_norm" => ("post_attention_layernorm", None),
        "attn_q" => ("self_attn.q_proj", Some(Heads::Query)),
        "attn_k" => ("self_attn.k_proj", Some(Heads::Key)),
        "attn_v" => ("self_attn.v_proj", None),
        "attn_output" => ("self_attn.o_proj", None),
        "attn_q_norm" => ("self_attn.q_norm", None),
        "attn_k_norm" => ("self_attn.k_norm", None),
        "ffn_gate" => ("mlp.gate_proj", None),
        "ffn_up" => ("mlp.up_proj", None),
        "ffn_down" => ("mlp.down_proj", None),
        _ => return None,
    };
    Some(Named {
        name: format!("model.layers.{layer}.{to}.{kind}"),
        heads: heads.filter(|_| architecture == "llama"),
    })
}

/// The file's row for a row of the network, in heads of `head_dim` rows.
pub(crate) fn interleaved(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let half = head_dim / 2;
    head * head_dim + within % half * 2 + within / half
}
