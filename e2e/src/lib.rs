//! Tests on real processes.
