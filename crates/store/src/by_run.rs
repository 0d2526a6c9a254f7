//! Maps by run.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use weir_run::RunId;

/// A map by run. Its hash is of the id's random bits as they are: ids are made by gateways, so nobody can choose ones that collide, and such
/// maps are looked into several times for each event.
pub type RunMap<V> = HashMap<RunId, V, BuildHasherDefault<RunHasher>>;

/// See [`RunMap`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RunHasher(u64);

impl Hasher for RunHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u128(u128::from(*byte));
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits are the random ones"
    )]
    fn write_u128(&mut self, id: u128) {
        // Multiplied, so that ids whose low bits alone differ, as in tests, are spread too.
        self.0 = (self.0.rotate_left(5) ^ id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
