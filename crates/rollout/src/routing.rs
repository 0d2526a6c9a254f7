//! What gateways do with new runs: tables, their order, and the coin.

mod coin;
mod table;

pub use coin::{Choice, choose, coin, salt};
pub use table::{Share, Table, TableError, TableOrder, Thresholds};

#[cfg(test)]
mod tests;
