//! A hash table that never allocates after it was made: 64-bit keys to 32-bit values, several values per key allowed.

/// Marks an empty place; never a value.
const EMPTY: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    value: u32,
}

/// Open addressing with linear probing; removal shifts back instead of leaving tombstones, so lookups never degrade.
pub(crate) struct Table {
    entries: Vec<Entry>,
    shift: u32,
    len: usize,
}

impl Table {
    /// Room for `capacity` entries at a load of at most one half.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let size = (capacity.max(4) * 2).next_power_of_two();
        let empty = Entry {
            key: 0,
            value: EMPTY,
        };
        Self {
            entries: vec![empty; size],
            shift: 64 - size.trailing_zeros(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first value under `key` that `is` accepts.
    pub(crate) fn find(&self, key: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mut place = self.home(key);
        loop {
            let entry = self.entries[place];
            if entry.value == EMPTY {
                return None;
            }
            if entry.key == key && is(entry.value) {
                return Some(entry.value);
            }
            place = self.after(place);
        }
    }

    pub(crate) fn insert(&mut self, key: u64, value: u32) {
        assert!(value != EMPTY, "the empty mark is not a value");
        assert!(
            self.len * 2 < self.entries.len(),
            "the table holds more than it was sized for"
        );
        let mut place = self.home(key);
        while self.entries[place].value != EMPTY {
            place = self.after(place);
        }
        self.entries[place] = Entry { key, value };
        self.len += 1;
    }

    /// Removes exactly this pair; it must be there.
    pub(crate) fn remove(&mut self, key: u64, value: u32) {
        let mut hole = self.home(key);
        while self.entries[hole].key != key || self.entries[hole].value != value {
            assert!(
                self.entries[hole].value != EMPTY,
                "removed an entry that is not in the table"
            );
            hole = self.after(hole);
        }
        let mut place = self.after(hole);
        while self.entries[place].value != EMPTY {
            let wanted = self.home(self.entries[place].key);
            // The entry may move back into the hole unless its home lies after the hole, cyclically.
            let mask = self.entries.len() - 1;
            if (place.wrapping_sub(wanted) & mask) >= (place.wrapping_sub(hole) & mask) {
                self.entries[hole] = self.entries[place];
                hole = place;
            }
            place = self.after(place);
        }
        self.entries[hole].value = EMPTY;
        self.len -= 1;
    }

    /// Fibonacci hashing: sequence ids count up, so the high bits of the product spread them.
    fn home(&self, key: u64) -> usize {
        let index = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift;
        usize::try_from(index).expect("below the table's size")
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.entries.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn table_agrees_with_a_set_of_pairs(steps in prop::collection::vec((0_u64..12, 0_u32..6, any::<bool>()), 1..300)) {
            let mut table = Table::with_capacity(72);
            let mut model = BTreeSet::new();
            for (key, value, add) in steps {
                // Keys that differ only in high bits share few homes; multiply to hit the same ones often.
                let key = key << 61 | key;
                if add && model.insert((key, value)) {
                    table.insert(key, value);
                } else if !add && model.remove(&(key, value)) {
                    table.remove(key, value);
                }
                prop_assert_eq!(table.len(), model.len());
                for k in 0..12_u64 {
                    for v in 0..6 {
                        let k = k << 61 | k;
                        prop_assert_eq!(table.find(k, |found| found == v).is_some(), model.contains(&(k, v)));
                    }
                }
            }
        }
    }
}
