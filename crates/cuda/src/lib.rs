//! The CUDA backend; the only crate that touches a GPU.
