//! How much the medium still takes.

use std::path::Path;

/// Below this much free space nothing is written: an engine that runs out of space in mid-commit has to be opened again.
const APPEND_RESERVE_BYTES: u64 = 4 << 20;
/// Below this much no run is let in, so that the live ones can end.
const ADMIT_RESERVE_BYTES: u64 = 16 << 20;
/// Of a small disk no more than these parts are kept back: it would be full from the first write on.
const APPEND_RESERVE_PART: u64 = 32;
const ADMIT_RESERVE_PART: u64 = 8;

/// Free space and what is kept back of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    free: u64,
    append_reserve: u64,
    admit_reserve: u64,
}

impl Space {
    /// Of the file system that a folder is on; one that does not say has enough.
    pub(crate) fn of(folder: &Path) -> Self {
        let (total, free) = rustix::fs::statvfs(folder).map_or((u64::MAX, u64::MAX), |fs| {
            let bytes = |blocks: u64| blocks.saturating_mul(fs.f_frsize);
            (bytes(fs.f_blocks), bytes(fs.f_bavail))
        });
        Self::new(total, free)
    }

    fn new(total: u64, free: u64) -> Self {
        Self {
            free,
            append_reserve: APPEND_RESERVE_BYTES.min(total / APPEND_RESERVE_PART),
            admit_reserve: ADMIT_RESERVE_BYTES.min(total / ADMIT_RESERVE_PART),
        }
    }

    /// Whether a commit of this size may be begun.
    pub(crate) fn takes(&self, bytes: u64) -> bool {
        self.free >= self.append_reserve.saturating_add(bytes)
    }

    /// Whether new runs may be let in.
    pub(crate) fn admits(&self) -> bool {
        self.free >= self.admit_reserve
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_small_disk_is_used_and_a_large_one_keeps_a_fixed_reserve() {
        for (name, total, free, admits, takes) in [
            (
                "half of a small one is free",
                24 * MIB,
                13 * MIB,
                true,
                true,
            ),
            ("a tiny one", 8 * MIB, 2 * MIB, true, true),
            ("a tiny one, nearly full", 8 * MIB, MIB / 2, false, true),
            ("a tiny one, full", 8 * MIB, MIB / 8, false, false),
            ("a large one", 1 << 40, 15 * MIB, false, true),
            ("a large one, nearly full", 1 << 40, 3 * MIB, false, false),
            ("one that does not say", u64::MAX, u64::MAX, true, true),
        ] {
            let space = Space::new(total, free);
            assert_eq!((space.admits(), space.takes(0)), (admits, takes), "{name}");
        }
        assert!(!Space::new(1 << 40, 5 * MIB).takes(2 * MIB));
    }
}
