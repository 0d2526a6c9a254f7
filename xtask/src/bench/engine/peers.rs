//! Other engines, started from their Python packages.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::repo;

/// An engine to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    LlamaCpp,
    OpenVino,
    MistralRs,
    Vllm,
}

/// What a peer reads a model from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The quantized file.
    Gguf,
    /// The directory that Weir reads too.
    Directory,
}

impl Peer {
    pub(super) const ALL: [Self; 4] = [Self::LlamaCpp, Self::OpenVino, Self::MistralRs, Self::Vllm];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::OpenVino => "OpenVINO GenAI",
            Self::MistralRs => "mistral.rs",
            Self::Vllm => "vLLM, f32",
        }
    }

    pub(super) fn source(self) -> Source {
        match self {
            Self::Vllm => Source::Directory,
            Self::LlamaCpp | Self::OpenVino | Self::MistralRs => Source::Gguf,
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::LlamaCpp => "xllamacpp",
            Self::OpenVino => "openvino_genai",
            Self::MistralRs => "mistralrs",
            Self::Vllm => "vllm",
        }
    }

    fn script(self) -> PathBuf {
        let file = match self {
            Self::LlamaCpp => "serve_llama.py",
            Self::OpenVino => "serve_openvino.py",
            Self::MistralRs => "serve_mistral.py",
            Self::Vllm => "serve_vllm.py",
        };
        repo::root().join("xtask/src/bench/peers").join(file)
    }

    /// Whether this Python has it.
    pub(super) fn is_installed(self, python: &Path) -> bool {
        let import = format!("import {}", self.package());
        let status = Command::new(python)
            .args(["-c", &import])
            .stderr(Stdio::null())
            .status();
        let is_there = status.is_ok_and(|status| status.success());
        if !is_there {
            println!(
                "{} is not measured: {} has no {}",
                self.name(),
                python.display(),
                self.package()
            );
        }
        is_there
    }
}

/// A running peer; it ends with this.
pub(super) struct PeerServer {
    child: Child,
    port: u16,
}

impl PeerServer {
    pub(super) fn start(peer: Peer, python: &Path, model: &Path) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new(python)
            .arg(peer.script())
            .arg(model)
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", peer.name()))?;
        Ok(Self { child, port })
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("process numbers are small")
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        // It has nothing to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
