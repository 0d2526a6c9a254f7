//! The operator: verifies, plans and applies; never on the request path.
