//! Which instructions kernels use.

/// Instructions a table of kernels uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Any machine.
    Plain,
    /// ARM with NEON, as every 64-bit one; quantized products also use the dot product of bytes, where it has it.
    Neon,
    /// x86 with AVX2, FMA and F16C.
    Avx2,
    /// x86 with AVX-512F as well; quantized products also use BW and VNNI, where it has them.
    Avx512,
    /// x86 with AVX-512 and, for quantized products, AMX for bytes.
    Amx,
}

impl Level {
    /// The best this machine has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 && is_x86_feature_detected!("avx512f") {
                return if super::quant::amx::has() {
                    Self::Amx
                } else {
                    Self::Avx512
                };
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        if cfg!(target_arch = "aarch64") {
            Self::Neon
        } else {
            Self::Plain
        }
    }

    /// Its short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }
}
