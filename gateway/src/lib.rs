//! The gateway: authenticates, admits, routes, streams, replays and bills.
