//! The kernels: their sources, and what of them is compiled for a model.

/// A `.cu` file: kernels that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name, without the ending.
    pub name: &'static str,
    /// Its source.
    pub source: &'static str,
    /// What its variants differ in.
    pub options: Options,
}

/// What the variants of a family differ in, besides the type of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Options {
    /// Nothing.
    None,
    /// How wide a head is, and how keys and values are stored.
    Cache,
}

/// All families.
pub const FAMILIES: [Family; 8] = [
    family("norm", include_str!("../kernels/norm.cu"), Options::None),
    family("embed", include_str!("../kernels/embed.cu"), Options::None),
    family(
        "swiglu",
        include_str!("../kernels/swiglu.cu"),
        Options::None,
    ),
    family("quant", include_str!("../kernels/quant.cu"), Options::None),
    family(
        "sample",
        include_str!("../kernels/sample.cu"),
        Options::None,
    ),
    family("qkv", include_str!("../kernels/qkv.cu"), Options::Cache),
    family(
        "prefill",
        include_str!("../kernels/prefill.cu"),
        Options::Cache,
    ),
    family(
        "decode",
        include_str!("../kernels/decode.cu"),
        Options::Cache,
    ),
];

/// What the families include, by name.
pub const HEADERS: [(&str, &str); 5] = [
    ("device.cuh", include_str!("../kernels/device.cuh")),
    ("common.cuh", include_str!("../kernels/common.cuh")),
    ("kv.cuh", include_str!("../kernels/kv.cuh")),
    ("attend.cuh", include_str!("../kernels/attend.cuh")),
    ("quant.cuh", include_str!("../kernels/quant.cuh")),
];

const fn family(name: &'static str, source: &'static str, options: Options) -> Family {
    Family {
        name,
        source,
        options,
    }
}

/// Type of activations and of 16-bit weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActType {
    /// `bfloat16`
    Bf16,
    /// IEEE half
    F16,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// As activations are.
    Act,
    /// fp8 (e4m3), with a scale for each position and head.
    Fp8,
}

/// What the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// Type of activations.
    pub act: ActType,
    /// How keys and values are stored.
    pub cache: CacheType,
    /// Numbers of a head.
    pub head_dim: usize,
}

impl Variant {
    /// The macros that a family is compiled with.
    pub fn defines(&self, options: Options) -> Vec<(&'static str, usize)> {
        let act = ("ACT", usize::from(self.act == ActType::F16));
        match options {
            Options::None => vec![act],
            Options::Cache => vec![
                act,
                ("KV", usize::from(self.cache == CacheType::Fp8)),
                ("HEAD_DIM", self.head_dim),
            ],
        }
    }
}

/// Declares the kernels, with the family of each.
macro_rules! kernels {
    ($($variant:ident = $name:literal in $family:literal,)*) => {
        /// A kernel. What it does and what it takes is said in its file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "documented where they are written")]
        pub enum Kernel { $($variant,)* }

        impl Kernel {
            /// All of them; a kernel's place is its number.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The function's name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The name of its family.
            pub fn family(self) -> &'static str {
                match self { $(Self::$variant => $family,)* }
            }
        }
    };
}

kernels! {
    RmsNorm = "rms_norm" in "norm",
    Embed = "embed" in "embed",
    EmbedInt8 = "embed_int8" in "embed",
    EmbedInt4 = "embed_int4" in "embed",
    UpdateTables = "update_tables" in "embed",
    Swiglu = "swiglu" in "swiglu",
    QkvFinish = "qkv_finish" in "qkv",
    PagedPrefill = "paged_prefill" in "prefill",
    PagedDecode = "paged_decode" in "decode",
    Combine = "combine" in "decode",
    Int8Gemv1 = "int8_gemv_1" in "quant",
    Int8Gemv2 = "int8_gemv_2" in "quant",
    Int8Gemv4 = "int8_gemv_4" in "quant",
    Int8Gemv8 = "int8_gemv_8" in "quant",
    Int4Gemv1 = "int4_gemv_1" in "quant",
    Int4Gemv2 = "int4_gemv_2" in "quant",
    Int4Gemv4 = "int4_gemv_4" in "quant",
    Int4Gemv8 = "int4_gemv_8" in "quant",
    Int8Gemm = "int8_gemm" in "quant",
    Int4Gemm = "int4_gemm" in "quant",
    Int8Dequantize = "int8_dequantize" in "quant",
    Int4Dequantize = "int4_dequantize" in "quant",
    Sample = "sample" in "sample",
    CountTokens = "count_tokens" in "sample",
}
