//! The pure core of rollouts: records, evidence and decisions; no clock, no I/O.
