//! Keys: a letter for the family, then big-endian numbers and length-prefixed names, so that ranges are prefixes.
//!
//! | family | key | value |
//! |---|---|---|
//! | `m` | name | format version, identity |
//! | `a` | tenant | account |
//! | `k` | tenant, request key | run id |
//! | `i` | run id | tenant |
//! | `r` | tenant, run id | run |
//! | `o` | tenant, run id | reservation of a live run |
//! | `w` | run id | work order of a live run |
//! | `e` | run id, first sequence | a chunk of events and the run's progress after them |
//! | `l` | tenant, accepted at, run id | ledger entry of a terminal run, never changed |
//! | `d` | space, owner, name | an object: its version and its bytes |
//! | `g` | run id | which gateway has a live run; only where several share the store |
//! | `q` | run id | a live run is meant to end; only where several share the store |
//! | `c` | chain, number | a link of a hash chain, never changed |
//! | `h` | chain | the chain's head |
//! | `y` | chain, day | the first number of a day and the hash before it |
//! | `x` | due at, run id | what retention drops next: events, then the row |

use weir_ledger::{Chain, Day};
use weir_run::{RunId, Sequence};

/// Bytes that sort as the table says.
pub type Key = Vec<u8>;

/// Longest tenant name: keys carry its length in two bytes, and no name in Kubernetes is longer.
pub(crate) const MAX_TENANT_BYTES: usize = 253;
/// Longest request key.
pub(crate) const MAX_REQUEST_KEY_BYTES: usize = 1024;

/// The family of reservations of live runs.
pub const OPEN: u8 = b'o';
/// The family of accounts.
pub const ACCOUNT: u8 = b'a';
/// The family of chains' heads.
pub const HEAD: u8 = b'h';
/// The family of events.
pub const CHUNK: u8 = b'e';
/// The family of owners of live runs.
pub const BELONGS: u8 = b'g';
/// The family of cancellations.
pub const CANCELLING: u8 = b'q';

pub(crate) fn meta(name: &str) -> Key {
    let mut key = vec![b'm'];
    key.extend_from_slice(name.as_bytes());
    key
}

/// A tenant's account.
pub fn account(tenant: &str) -> Key {
    of_tenant(ACCOUNT, tenant)
}

pub(crate) fn request_key(tenant: &str, request_key: &str) -> Key {
    let mut key = of_tenant(b'k', tenant);
    key.extend_from_slice(request_key.as_bytes());
    key
}

/// Whose a run is.
pub fn owner(run: RunId) -> Key {
    of_run(b'i', run)
}

/// A run's row.
pub fn run(tenant: &str, run: RunId) -> Key {
    of_tenant_run(b'r', tenant, run)
}

/// A live run's reservation.
pub fn open(tenant: &str, run: RunId) -> Key {
    of_tenant_run(OPEN, tenant, run)
}

/// A live run's work order.
pub fn work(run: RunId) -> Key {
    of_run(b'w', run)
}

/// Which gateway a live run belongs to.
pub fn belongs(run: RunId) -> Key {
    of_run(BELONGS, run)
}

/// A live run whose end was asked for.
pub fn cancelling(run: RunId) -> Key {
    of_run(CANCELLING, run)
}

pub(crate) fn chunk(run: RunId, first: Sequence) -> Key {
    let mut key = of_run(CHUNK, run);
    key.extend_from_slice(&first.0.to_be_bytes());
    key
}

/// All chunks of a run.
pub fn chunks(run: RunId) -> (Key, Key) {
    prefix(of_run(CHUNK, run))
}

pub(crate) fn ledger(tenant: &str, accepted_at_ms: u64, run: RunId) -> Key {
    let mut key = ledger_from(tenant, accepted_at_ms);
    key.extend_from_slice(&run.to_bytes());
    key
}

/// Where a tenant's ledger entries accepted at or after a moment begin.
pub(crate) fn ledger_from(tenant: &str, accepted_at_ms: u64) -> Key {
    let mut key = of_tenant(b'l', tenant);
    key.extend_from_slice(&accepted_at_ms.to_be_bytes());
    key
}

/// When the run of a ledger entry was accepted.
pub(crate) fn ledger_moment(key: &[u8]) -> Option<u64> {
    let (head, _run) = key.split_last_chunk::<16>()?;
    head.last_chunk::<8>().map(|at| u64::from_be_bytes(*at))
}

/// The end of a tenant's ledger.
pub(crate) fn ledger_end(tenant: &str) -> Key {
    prefix(of_tenant(b'l', tenant)).1
}

/// A tenant's live runs.
pub(crate) fn open_of(tenant: &str) -> (Key, Key) {
    prefix(of_tenant(OPEN, tenant))
}

/// A whole family.
pub fn family(letter: u8) -> (Key, Key) {
    prefix(vec![letter])
}

pub(crate) fn object(space: &str, owner: &str, name: &str) -> Key {
    let mut key = of_owner(space, owner);
    key.extend_from_slice(name.as_bytes());
    key
}

/// All objects of one owner in a space.
pub(crate) fn objects_of(space: &str, owner: &str) -> (Key, Key) {
    prefix(of_owner(space, owner))
}

/// The name of an object's key.
pub(crate) fn object_name(key: &[u8]) -> Option<&str> {
    let mut rest = key.get(1..)?;
    for _ in 0..2 {
        let (length, after) = rest.split_first_chunk::<2>()?;
        rest = after.get(usize::from(u16::from_be_bytes(*length))..)?;
    }
    std::str::from_utf8(rest).ok()
}

fn of_owner(space: &str, owner: &str) -> Key {
    let mut key = of_tenant(b'd', space);
    let length = u16::try_from(owner.len()).unwrap_or(u16::MAX);
    key.extend_from_slice(&length.to_be_bytes());
    key.extend_from_slice(owner.as_bytes());
    key
}

pub(crate) fn due(at_ms: u64, run: RunId) -> Key {
    let mut key = due_from(at_ms);
    key.extend_from_slice(&run.to_bytes());
    key
}

pub(crate) fn due_from(at_ms: u64) -> Key {
    let mut key = vec![b'x'];
    key.extend_from_slice(&at_ms.to_be_bytes());
    key
}

/// The run id that ends a key of any family that has one there.
pub fn trailing_run(key: &[u8]) -> Option<RunId> {
    key.last_chunk::<16>().map(|id| RunId::from_bytes(*id))
}

/// The tenant of a key of a family that begins with one.
pub fn tenant(key: &[u8]) -> Option<&str> {
    let (length, rest) = key.get(1..)?.split_first_chunk::<2>()?;
    let name = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
    std::str::from_utf8(name).ok()
}

/// The first sequence of a chunk's key.
pub(crate) fn first_sequence(key: &[u8]) -> Option<Sequence> {
    key.last_chunk::<8>()
        .map(|first| Sequence(u64::from_be_bytes(*first)))
}

/// A link; with number 0, before all of them.
pub(crate) fn link(chain: &Chain, number: u64) -> Key {
    let mut key = of_tenant(b'c', &chain.name());
    key.extend_from_slice(&number.to_be_bytes());
    key
}

pub(crate) fn links_end(chain: &Chain) -> Key {
    prefix(of_tenant(b'c', &chain.name())).1
}

/// The number that ends the key of a link.
pub(crate) fn link_number(key: &[u8]) -> Option<u64> {
    key.last_chunk::<8>()
        .map(|number| u64::from_be_bytes(*number))
}

pub(crate) fn head(chain: &Chain) -> Key {
    of_tenant(HEAD, &chain.name())
}

pub(crate) fn chain_day(chain: &Chain, day: Day) -> Key {
    let mut key = of_tenant(b'y', &chain.name());
    key.extend_from_slice(&day.0.to_be_bytes());
    key
}

/// The days after one.
pub(crate) fn chain_days_after(chain: &Chain, day: Day) -> (Key, Key) {
    let from = chain_day(chain, Day(day.0.saturating_add(1)));
    (from, prefix(of_tenant(b'y', &chain.name())).1)
}

/// A tenant's runs, after one of them.
pub(crate) fn runs_after(tenant: &str, after: Option<RunId>) -> (Key, Key) {
    let (first, end) = prefix(of_tenant(b'r', tenant));
    let next = after.map(|id| {
        let mut key = run(tenant, id);
        key.push(0);
        key
    });
    (next.unwrap_or(first), end)
}

fn of_run(letter: u8, run: RunId) -> Key {
    let mut key = Vec::with_capacity(25);
    key.push(letter);
    key.extend_from_slice(&run.to_bytes());
    key
}

fn of_tenant(letter: u8, tenant: &str) -> Key {
    let length = u16::try_from(tenant.len()).unwrap_or(u16::MAX);
    let mut key = Vec::with_capacity(3 + tenant.len() + 24);
    key.push(letter);
    key.extend_from_slice(&length.to_be_bytes());
    key.extend_from_slice(tenant.as_bytes());
    key
}

fn of_tenant_run(letter: u8, tenant: &str, run: RunId) -> Key {
    let mut key = of_tenant(letter, tenant);
    key.extend_from_slice(&run.to_bytes());
    key
}

/// Everything that begins with these bytes.
fn prefix(from: Key) -> (Key, Key) {
    let mut to = from.clone();
    // No family letter is 0xff, so a byte that can grow is found.
    while let Some(last) = to.pop() {
        if let Some(next) = last.checked_add(1) {
            to.push(next);
            break;
        }
    }
    (from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_right_after_its_last_key() {
        assert_eq!(prefix(vec![b'a', 1]), (vec![b'a', 1], vec![b'a', 2]));
        assert_eq!(prefix(vec![b'a', 0xff]), (vec![b'a', 0xff], vec![b'b']));
    }

    #[test]
    fn no_tenant_s_range_holds_a_key_of_another() {
        let id = RunId::new(7, u128::MAX);
        for (one, other) in [("a", "ab"), ("ab", "a"), ("a", "b"), ("", "a")] {
            let (from, to) = open_of(one);
            assert!((from..to).contains(&open(one, id)));
            let (from, to) = open_of(one);
            assert!(!(from..to).contains(&open(other, id)), "{one} {other}");
        }
        assert_eq!(tenant(&open("acme", id)), Some("acme"));
        assert_eq!(trailing_run(&open("acme", id)), Some(id));
        assert_ne!(request_key("ab", "c"), request_key("a", "bc"));
    }
}
