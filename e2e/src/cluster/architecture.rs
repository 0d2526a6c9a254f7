//! The families of processors that images are made for.

use anyhow::{Result, bail};

/// A family of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Architecture {
    /// The one of this program.
    pub const HERE: Self = if cfg!(target_arch = "aarch64") {
        Self::Arm64
    } else {
        Self::Amd64
    };

    /// By its name in images: `amd64` or `arm64`.
    ///
    /// # Errors
    /// It is neither.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "amd64" => Ok(Self::Amd64),
            "arm64" => Ok(Self::Arm64),
            _ => bail!("there are no images for {name:?}, only for amd64 and arm64"),
        }
    }

    /// Its name in images.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// What Rust compiles for.
    pub fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// What a setting of cargo's for it is called in the environment, as `LINKER`.
    pub fn setting(self, name: &str) -> String {
        let target = self.target().to_uppercase().replace('-', "_");
        format!("CARGO_TARGET_{target}_{name}")
    }

    /// What its C compiler and tools begin with.
    fn gnu(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// A tool that writes or reads its programs, as `gcc` or `strip`.
    pub fn tool(self, tool: &str) -> String {
        if self == Self::HERE {
            tool.to_owned()
        } else {
            format!("{}-{tool}", self.gnu())
        }
    }

    /// Runs its programs where they are foreign; the C library is looked for in the folder after `-L`.
    pub fn emulator(self) -> &'static str {
        match self {
            Self::Amd64 => "qemu-x86_64-static",
            Self::Arm64 => "qemu-aarch64-static",
        }
    }
}
