//! On a Kubernetes API server. `cargo xtask e2e --layer api` builds what it needs.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test that is skipped says so; what is not as it must be is a panic"
)]

mod admission;
mod argocd;
mod chart;
mod chart_full;
mod chart_values;
mod definitions;
mod documents;
mod elsewhere;
mod fetch;
mod fetched;
mod gitops;
mod ground;
mod identities;
mod install;
mod load;
mod neighbours;
mod operator;
mod people;
mod permissions;
mod places;
mod plane;
mod pods;
mod refusals;
mod release;
mod released;
mod rules;
mod scale;
mod shadow;
mod shared;
mod stage;
mod steps;
mod tampered;
