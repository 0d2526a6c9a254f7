use safetensors::SafeTensors;

use super::*;

fn golden(name: &str) -> Vec<u8> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/gguf/");
    std::fs::read(format!("{dir}{name}")).unwrap()
}

#[test]
fn every_kind_of_block_is_read_as_llama_cpp_reads_it() {
    let bytes = golden("blocks.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut seen = 0;
    for number in 0..64 {
        let Some(block) = BlockType::of(number) else {
            continue;
        };
        if block == BlockType::F32 {
            continue;
        }
        seen += 1;
        let row = tensors.tensor(&format!("{}.bytes", block.name())).unwrap();
        let want = tensors.tensor(&format!("{}.values", block.name())).unwrap();
        let want = want.data().as_chunks::<4>().0;
        let mut got = vec![0.0; want.len()];
        block.read(row.data(), &mut got);
        let want: Vec<f32> = want.iter().map(|word| f32::from_le_bytes(*word)).collect();
        let most = want.iter().fold(0_f32, |most, x| most.max(x.abs()));
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            // A scale and a minimum are added in another order.
            assert!(
                (got - want).abs() <= 1e-6 * most,
                "{} element {at}: {got}, not {want}",
                block.name()
            );
        }
    }
    assert_eq!(seen, 10);
}

#[test]
fn a_file_of_the_package_gguf_is_read_whole() {
    let bytes = golden("q4_0.gguf");
    let gguf = Gguf::parse("q4_0.gguf", &bytes).unwrap();
    assert_eq!(gguf.architecture().unwrap(), "llama");
    assert_eq!(gguf.head_dim().unwrap(), 8);
    assert_eq!(gguf.tensors().len(), 11);
    let value = &gguf.tensors()["blk.0.attn_v.weight"];
    assert_eq!(
        (value.shape.as_slice(), value.block),
        ([16, 32].as_slice(), BlockType::Q4_0)
    );
    assert_eq!(value.bytes.len(), 16 * 18);
    let Some(Value::Strings(tokens)) = gguf.get("tokenizer.ggml.tokens") else {
        panic!("no tokens");
    };
    assert_eq!(tokens[0], "<s>");
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused_with_the_place() {
    let whole = golden("q8_0.gguf");
    let end = Gguf::parse("cut", &whole)
        .unwrap()
        .tensors()
        .values()
        .map(|place| place.bytes.end)
        .max()
        .unwrap();
    // Every byte of the header, and some of the data.
    for length in (0..2600)
        .chain((2600..end).step_by(97))
        .filter(|length| *length < end)
    {
        let error = Gguf::parse("cut.gguf", &whole[..length])
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"cut.gguf\""), "{length}: {error}");
    }
}

/// A header with one key and one tensor of 32 F32 numbers, and its data.
struct Made {
    version: u32,
    tensor_count: u64,
    key_count: u64,
    keys: Vec<(&'static str, Vec<u8>)>,
    dimensions: Vec<u64>,
    kind: u32,
    offsets: Vec<u64>,
}

impl Made {
    fn new() -> Self {
        Self {
            version: 3,
            tensor_count: 1,
            key_count: 0,
            keys: Vec::new(),
            dimensions: vec![32],
            kind: 0,
            offsets: vec![0],
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        };
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend((self.key_count + self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            text(&mut out, key);
            out.extend(value);
        }
        for (at, offset) in self.offsets.iter().enumerate() {
            text(&mut out, &format!("t{at}"));
            out.extend(u32::try_from(self.dimensions.len()).unwrap().to_le_bytes());
            for size in &self.dimensions {
                out.extend(size.to_le_bytes());
            }
            out.extend(self.kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend([0; 256]);
        out
    }
}

/// What an error must say, and how the header is broken; the eight bytes are the largest number.
type Hostile = (&'static str, fn(&mut Made, &[u8; 8]));

/// A value of a kind: its number and its bytes.
fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [kind.to_le_bytes().as_slice(), bytes].concat()
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn hostile_headers_are_refused_with_place_cause_and_remedy() {
    assert_eq!(
        Gguf::parse("good", &Made::new().bytes())
            .unwrap()
            .tensors()
            .len(),
        1
    );
    let huge = u64::MAX.to_le_bytes();
    let cases: [Hostile; 16] = [
        ("version 1, which nobody writes", |made, _| made.version = 1),
        ("big-endian", |made, _| made.version = 3_u32.swap_bytes()),
        ("version 9; 2 and 3 are read", |made, _| made.version = 9),
        ("in the count of tensors", |made, _| {
            made.tensor_count = u64::MAX;
        }),
        ("in the count of keys", |made, _| made.key_count = 1 << 40),
        ("in a tensor's name", |made, _| made.tensor_count = 2),
        (
            "in key \"k\": 18446744073709551615 of them",
            |made, huge| {
                made.keys.push(("k", value(8, huge)));
            },
        ),
        ("in key \"k\": type 77 is unknown", |made, _| {
            made.keys.push(("k", value(77, &[])));
        }),
        ("a list of lists", |made, _| {
            made.keys.push((
                "k",
                value(
                    9,
                    &[
                        9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,
                    ],
                ),
            ));
        }),
        ("it is there twice", |made, _| {
            made.keys = vec![("k", value(0, &[1])), ("k", value(0, &[1]))];
        }),
        ("\"general.alignment\" must be a power of two", |made, _| {
            made.keys
                .push(("general.alignment", value(4, &[3, 0, 0, 0])));
        }),
        ("5 dimensions are not 1 to 4", |made, _| {
            made.dimensions = vec![1; 5];
        }),
        ("a dimension of 0", |made, _| made.dimensions = vec![0]),
        ("does not lie in the file", |made, _| {
            made.dimensions = vec![1 << 31, 1 << 31, 8];
        }),
        (
            "which is not read; convert the model to one of F32, F16",
            |made, _| made.kind = 10,
        ),
        ("which Q4_K blocks of 256 do not fill", |made, _| {
            made.kind = 12;
        }),
    ];
    for (want, change) in cases {
        let mut made = Made::new();
        change(&mut made, &huge);
        let error = Gguf::parse("bad.gguf", &made.bytes())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(want) && error.contains("\"bad.gguf\""),
            "{want}: {error}"
        );
    }
    for (offset, want) in [
        (64, "overlaps"),
        (4, "does not lie"),
        (u64::MAX, "does not lie"),
        (4096, "does not lie"),
    ] {
        let mut made = Made::new();
        made.tensor_count = 2;
        made.offsets = vec![0, offset];
        let error = Gguf::parse("bad.gguf", &made.bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains(want), "{offset}: {error}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn models_that_are_not_supported_say_which_key_and_what_would_be() {
    type Case = (&'static str, &'static str, Value);
    let cases: [Case; 6] = [
        (
            "general.architecture",
            "supported are llama, qwen2, qwen3",
            Value::String("bert".to_owned()),
        ),
        (
            "llama.expert_count",
            "mixture of experts",
            Value::Unsigned(8),
        ),
        (
            "llama.rope.scaling.type",
            "only \"none\" is",
            Value::String("yarn".to_owned()),
        ),
        (
            "llama.attention.sliding_window",
            "safetensors",
            Value::Unsigned(4096),
        ),
        (
            "llama.rope.dimension_count",
            "partly rotated",
            Value::Unsigned(4),
        ),
        (
            "llama.block_count",
            "must be an integer from 1 on",
            Value::Unsigned(0),
        ),
    ];
    let bytes = golden("q8_0.gguf");
    for (key, want, value) in cases {
        let mut gguf = Gguf::parse("m.gguf", &bytes).unwrap();
        gguf.metadata.insert(key.to_owned(), value);
        let error = gguf.config_json(&bytes).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(want), "{error}");
    }
    for (key, want, value) in [
        (
            "tokenizer.ggml.model",
            "put the model's tokenizer.json beside",
            Value::String("bert".to_owned()),
        ),
        (
            "tokenizer.ggml.pre",
            "put the model's tokenizer.json beside",
            Value::String("falcon".to_owned()),
        ),
        (
            "tokenizer.ggml.tokens",
            "must be a list of texts",
            Value::Bool(true),
        ),
        (
            "tokenizer.ggml.token_type",
            "must be a list of 33 integers",
            Value::Integers(vec![1]),
        ),
        (
            "tokenizer.ggml.merges",
            "two tokens and a space",
            Value::Strings(vec!["ab".to_owned()]),
        ),
        (
            "tokenizer.ggml.bos_token_id",
            "add_bos_token is true",
            Value::Unsigned(99),
        ),
    ] {
        let mut gguf = Gguf::parse("m.gguf", &bytes).unwrap();
        gguf.metadata.insert(key.to_owned(), value);
        let error = gguf.tokenizer_json().unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(want), "{error}");
    }
}

/// A `SentencePiece` vocabulary as converters write it.
fn sentence_piece() -> Gguf {
    let mut tokens: Vec<(String, f32, i64)> = vec![
        ("<unk>".to_owned(), 0.0, 2),
        ("<s>".to_owned(), 0.0, 3),
        ("</s>".to_owned(), 0.0, 3),
    ];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6)));
    for (rank, piece) in [
        "\u{2581}t",
        "he",
        "\u{2581}the",
        "\u{2581}",
        "t",
        "h",
        "e",
        "c",
        "a",
        "at",
    ]
    .iter()
    .enumerate()
    {
        let rank = f32::from(u8::try_from(rank).unwrap());
        tokens.push(((*piece).to_owned(), -rank, 1));
    }
    let mut gguf = Gguf::parse("m.gguf", &Made::new().bytes()).unwrap();
    let mut set =
        |key: &str, value: Value| gguf.metadata.insert(format!("tokenizer.ggml.{key}"), value);
    set("model", Value::String("llama".to_owned()));
    set(
        "tokens",
        Value::Strings(tokens.iter().map(|(text, ..)| text.clone()).collect()),
    );
    set(
        "scores",
        Value::Floats(tokens.iter().map(|(_, score, _)| *score).collect()),
    );
    set(
        "token_type",
        Value::Integers(tokens.iter().map(|(.., kind)| *kind).collect()),
    );
    set("bos_token_id", Value::Unsigned(1));
    set("eos_token_id", Value::Unsigned(2));
    set("unknown_token_id", Value::Unsigned(0));
    gguf
}

#[test]
fn a_sentence_piece_vocabulary_tokenizes_with_byte_fallback() {
    use crate::tokenizer::{SpecialTokens, Tokenizer};

    let json = sentence_piece().tokenizer_json().unwrap();
    let tokenizer = Tokenizer::from_bytes(&json).unwrap();
    let id = |text: &str| tokenizer.token_id(text).unwrap();
    let plain = tokenizer.encode("the cat", SpecialTokens::Plain).unwrap();
    assert_eq!(
        plain,
        [id("\u{2581}the"), id("\u{2581}"), id("c"), id("at")]
    );
    let ends = tokenizer
        .encode_with_ends("the", SpecialTokens::Plain)
        .unwrap();
    assert_eq!(ends, [1, id("\u{2581}the")]);
    for text in ["the cat", "t\u{e9}a", "the\nhat"] {
        let tokens = tokenizer.encode(text, SpecialTokens::Plain).unwrap();
        assert_eq!(tokenizer.decode(&tokens), text);
    }
    assert!(
        tokenizer.table().is_special(1)
            && tokenizer.encode("</s>", SpecialTokens::Parse).unwrap() == [2]
    );
}
