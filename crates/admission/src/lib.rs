//! The pure core of admission: bounded queues, wait estimates, fairness and routing; no clock, no I/O.
