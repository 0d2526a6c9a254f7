//! The three Kubernetes kinds and the vocabulary they share; no client, no runtime.
