//! The coin: one flip per run, keyed, so that no tenant can steer itself, and the gateway's own rule for versions without
//! workers.

use crate::VersionId;
use crate::routing::{Share, Table};

/// Where a run goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// The version.
    pub id: &'a VersionId,
    /// Whether the coin alone chose, so that the run is evidence.
    pub is_evidence: bool,
}

/// 64 fair bits for a run. Equal everywhere: BLAKE3 with the table's salt as key, first eight bytes, little-endian.
pub fn coin(run_id: &str, coin_salt: &str) -> u64 {
    // A salt that is no key (a table outside attempts has none) is hashed into one, so that every table has a coin.
    let mut key = [0_u8; 32];
    if hex::decode_to_slice(coin_salt, &mut key).is_err() {
        key = blake3::derive_key("weir.dev 2026 coin salt", coin_salt.as_bytes());
    }
    let hash = blake3::keyed_hash(&key, run_id.as_bytes());
    let (first, _) = hash
        .as_bytes()
        .split_first_chunk()
        .expect("a hash has 32 bytes");
    u64::from_le_bytes(*first)
}

/// A salt for an attempt from entropy that the caller keeps secret.
pub fn salt(entropy: &[u8; 32], attempt: &str) -> String {
    hex::encode(blake3::keyed_hash(entropy, attempt.as_bytes()).as_bytes())
}

/// The version for a flip. `is_ready` says whether a version (by digest) has a worker that takes runs. None when nothing in
/// sight is ready.
///
/// A version without a ready worker takes no part: its share goes to the rollback version, else to any that is ready. As
/// long as one is missing no run is evidence: a comparison with one arm cut off is none.
pub fn choose(table: &Table, flip: u64, is_ready: impl Fn(&str) -> bool) -> Option<Choice<'_>> {
    let picked = pick(table, flip);
    let whole = table.entries.iter().all(|entry| is_ready(&entry.id.digest));
    if is_ready(&picked.digest) {
        return Some(Choice {
            id: picked,
            is_evidence: whole,
        });
    }
    let stand_ins = table
        .rollback
        .iter()
        .chain([&table.stable])
        .chain(table.entries.iter().map(|entry| &entry.id));
    let id = stand_ins.into_iter().find(|id| is_ready(&id.digest))?;
    Some(Choice {
        id,
        is_evidence: false,
    })
}

/// The version whose part of the unit interval holds `flip` / 2^64: those on trial from 0 in the table's order, stable last.
fn pick(table: &Table, flip: u64) -> &VersionId {
    let on_trial = |entry: &&Share| entry.id != table.stable;
    let mut edge = 0_u32;
    for entry in table.entries.iter().filter(on_trial) {
        edge += entry.weight;
        // flip / 2^64 < edge / 100, without rounding.
        if u128::from(flip) * 100 < u128::from(edge) << 64 {
            return &entry.id;
        }
    }
    let rest = table.entries.iter().find(|entry| entry.id == table.stable);
    rest.or(table.entries.last())
        .map_or(&table.stable, |entry| &entry.id)
}
