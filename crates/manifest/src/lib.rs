//! Digests, signatures and trust of model artifacts; no async, no network.
