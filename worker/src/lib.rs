//! The worker: one engine, the models it was given, and the session with its gateways.
