//! Commits that did not wait for a sync: a killed process loses none, a power cut only the newest, and never one from the middle.

use super::*;

/// Every state there was, oldest first, and the one that was synced last.
struct Loose {
    random: Random,
    medium: Medium,
    states: Vec<Map>,
    synced: usize,
    lost: usize,
}

impl Loose {
    fn open(&self, durability: Durability) -> Core {
        replay::open(Box::new(self.medium.clone()), SEGMENT, durability).unwrap()
    }

    /// The state found must be one of those that may be there; what came after it is forgotten.
    fn check(&mut self, core: &Core, from: usize) {
        let found = all(core);
        let place = self.states[from..]
            .iter()
            .rposition(|state| *state == found);
        let place = from + place.expect("a state from the past, no older than what was synced");
        self.lost += self.states.len() - 1 - place;
        self.states.truncate(place + 1);
        // Opening has synced what it read.
        self.synced = place;
    }

    fn live(&mut self) {
        let core = self.open(Durability::Memory);
        for _ in 0..=self.random.below(30) {
            match self.random.below(8) {
                0 => core.keep_up().unwrap(),
                1 => {
                    core.sync_written().unwrap();
                    self.synced = self.states.len() - 1;
                }
                _ => {
                    let batch = self.random.batch();
                    let mut state = self.states.last().unwrap().clone();
                    apply(&mut state, &batch);
                    core.commit(&batch).unwrap();
                    self.states.push(state);
                }
            }
        }
        drop(core);
        let durability = if self.random.below(2) == 0 {
            Durability::Memory
        } else {
            Durability::Disk
        };
        let from = if self.random.below(3) == 0 {
            self.medium.kill();
            self.states.len() - 1
        } else {
            self.medium.cut_power();
            self.synced
        };
        let core = self.open(durability);
        self.check(&core, from);
        if durability == Durability::Disk {
            // From here on each commit is safe again, also against what a gap has left in the segments.
            let batch = self.random.batch();
            let mut state = self.states.last().unwrap().clone();
            apply(&mut state, &batch);
            core.commit(&batch).unwrap();
            self.states.push(state);
            drop(core);
            self.medium.cut_power();
            let core = self.open(Durability::Disk);
            self.check(&core, self.states.len() - 1);
        }
    }
}

#[test]
fn a_kill_loses_nothing_and_a_power_cut_only_the_newest_commits() {
    let mut lost = 0;
    for seed in 1..16 {
        let mut loose = Loose {
            random: Random(seed),
            medium: Medium::new(seed ^ 0x7777),
            states: vec![Map::new()],
            synced: 0,
            lost: 0,
        };
        for _ in 0..8 {
            loose.live();
        }
        lost += loose.lost;
    }
    assert!(lost > 30, "the medium lost next to nothing: {lost}");
}
