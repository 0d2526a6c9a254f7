//! The log on a medium that loses power, with frames torn and bits flipped. The keeper does not run here: its work is done at chosen moments.

mod loose;
mod merge;
mod power;
mod torn;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::medium::{Medium, Random};
use super::{Core, replay};
use crate::Durability;
use crate::kv::{Batch, KvError, View};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Small, so that a few commits fill it.
const SEGMENT: u64 = 6 * 4096;

fn open(medium: &Medium) -> Result<Core, KvError> {
    replay::open(Box::new(medium.clone()), SEGMENT, Durability::Disk)
}

/// All pairs but the mark.
fn all(core: &Core) -> Map {
    everything(&*core.view().unwrap())
}

fn everything(view: &dyn View) -> Map {
    let mut map = Map::new();
    view.scan(&[1], &[0xff; 4], &mut |key, value| {
        let before = map.insert(key.to_vec(), value.to_vec());
        assert!(before.is_none(), "{key:?} was shown twice");
        ControlFlow::Continue(())
    })
    .unwrap();
    map
}

fn apply(map: &mut Map, batch: &Batch) {
    for (key, value) in batch {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}

impl Random {
    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = self.below(most);
        (0..length).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// A few keys of forty; now and then more than a segment takes.
    fn batch(&mut self) -> Batch {
        let most = match self.below(40) {
            0 => 4 * SEGMENT,
            1..10 => 6000,
            _ => 300,
        };
        (0..=self.below(8))
            .map(|_| {
                let key = vec![b'a', u8::try_from(self.below(40)).unwrap()];
                let value = (self.below(4) > 0).then(|| self.bytes(most));
                (key, value)
            })
            .collect()
    }
}
