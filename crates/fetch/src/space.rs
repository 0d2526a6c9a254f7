//! What goes when there is no room. Pure.

use std::collections::{BTreeMap, BTreeSet};

use weir_manifest::Digest;

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name in the cache.
    pub name: String,
    /// When it was last used, on any scale.
    pub used: u64,
    /// Whether somebody serves or fetches it now.
    pub is_held: bool,
    /// Its files.
    pub blobs: BTreeSet<Digest>,
}

/// What is to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eviction {
    /// Models, least recently used first.
    pub models: Vec<String>,
    /// Blobs that no model is left for.
    pub blobs: BTreeSet<Digest>,
    /// What is left in bytes.
    pub left: u64,
}

/// Chooses what goes so that no more than `room` bytes are left: first blobs that belong to no model, then models by least recent use,
/// never one that is held. What is left may be more than asked for: the caller compares.
pub fn evict(models: &[Kept], sizes: &BTreeMap<Digest, u64>, room: u64) -> Eviction {
    let mut eviction = Eviction {
        left: sizes.values().sum(),
        ..Eviction::default()
    };
    let mut order: Vec<&Kept> = models.iter().collect();
    order.sort_by_key(|kept| (kept.used, &kept.name));
    if eviction.left > room {
        drop_unowned(&mut eviction, &order, sizes);
    }
    let mut gone = BTreeSet::new();
    for kept in order.iter().filter(|kept| !kept.is_held) {
        if eviction.left <= room {
            break;
        }
        gone.insert(&kept.name);
        eviction.models.push(kept.name.clone());
        let rest: Vec<&Kept> = order
            .iter()
            .filter(|kept| !gone.contains(&kept.name))
            .copied()
            .collect();
        drop_unowned(&mut eviction, &rest, sizes);
    }
    eviction
}

fn drop_unowned(eviction: &mut Eviction, models: &[&Kept], sizes: &BTreeMap<Digest, u64>) {
    for (digest, size) in sizes {
        let is_owned = models.iter().any(|kept| kept.blobs.contains(digest));
        if !is_owned && eviction.blobs.insert(*digest) {
            eviction.left -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digest(n: u8) -> Digest {
        Digest::from_bytes([n; 32])
    }

    fn kept(name: &str, used: u64, is_held: bool, blobs: &[u8]) -> Kept {
        Kept {
            name: name.to_owned(),
            used,
            is_held,
            blobs: blobs.iter().map(|n| digest(*n)).collect(),
        }
    }

    #[test]
    fn the_least_recently_used_goes_first_and_shared_files_stay() {
        let sizes = (1..=4).map(|n| (digest(n), 10)).collect();
        let models = [
            kept("old", 1, false, &[1, 2]),
            kept("new", 3, false, &[2, 3]),
            kept("held", 0, true, &[4]),
        ];
        let blobs = |ns: &[u8]| ns.iter().map(|n| digest(*n)).collect::<BTreeSet<_>>();
        for (room, gone, files, left) in [
            (40, vec![], vec![], 40),
            (39, vec!["old"], vec![1], 30),
            (29, vec!["old", "new"], vec![1, 2, 3], 10),
            (0, vec!["old", "new"], vec![1, 2, 3], 10),
        ] {
            let eviction = evict(&models, &sizes, room);
            assert_eq!(eviction.models, gone, "room {room}");
            assert_eq!(
                (eviction.blobs, eviction.left),
                (blobs(&files), left),
                "room {room}"
            );
        }
    }

    #[test]
    fn what_belongs_to_nobody_goes_before_any_model() {
        let sizes = [(digest(1), 10), (digest(9), 10)].into();
        let eviction = evict(&[kept("a", 1, false, &[1])], &sizes, 10);
        assert_eq!((eviction.models.len(), eviction.left), (0, 10));
        assert!(eviction.blobs.contains(&digest(9)));
    }

    proptest! {
        #[test]
        fn nothing_that_is_held_loses_a_file(
            models in proptest::collection::vec((0_u64..5, any::<bool>(), proptest::collection::btree_set(0_u8..12, 0..5)), 0..8),
            sizes in proptest::collection::btree_map(0_u8..12, 1_u64..100, 0..12),
            room in 0_u64..600,
        ) {
            let models: Vec<Kept> = models.iter().enumerate().map(|(index, (used, is_held, blobs))| {
                kept(&index.to_string(), *used, *is_held, &blobs.iter().copied().collect::<Vec<_>>())
            }).collect();
            let sizes: BTreeMap<Digest, u64> = sizes.into_iter().map(|(n, size)| (digest(n), size)).collect();
            let eviction = evict(&models, &sizes, room);
            let left: u64 = sizes.iter().filter(|(digest, _)| !eviction.blobs.contains(*digest)).map(|(_, size)| size).sum();
            prop_assert_eq!(left, eviction.left);
            for kept in models.iter().filter(|kept| !eviction.models.contains(&kept.name)) {
                prop_assert!(kept.blobs.is_disjoint(&eviction.blobs));
            }
            prop_assert!(models.iter().all(|kept| !kept.is_held || !eviction.models.contains(&kept.name)));
            prop_assert!(eviction.left <= room || models.iter().all(|kept| kept.is_held || eviction.models.contains(&kept.name)));
        }
    }
}
