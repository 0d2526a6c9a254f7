//! The power goes at any write or sync; what was acknowledged is there when it comes back, and nothing is half there.

use super::*;

struct Life {
    seed: u64,
    random: Random,
    medium: Medium,
    /// Everything acknowledged.
    model: Map,
    /// With the commit in flight, which may be there or not.
    or: Option<Map>,
    commits: u64,
    cuts: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            random: Random(seed),
            medium: Medium::new(seed ^ 0x5555),
            model: Map::new(),
            or: None,
            commits: 0,
            cuts: 0,
        }
    }

    /// From opening to the next cut or kill; an error says what was wrong after the one before.
    fn live(&mut self) -> Result<(), String> {
        // Some cuts meet the opening.
        let fuel = 1 + self
            .random
            .below([12, 80, 400][usize::try_from(self.cuts % 3).unwrap()]);
        self.medium.set(|state| state.fuel = Some(fuel));
        let core = match open(&self.medium) {
            Ok(core) => Some(core),
            // No power: what is there is seen when it comes back.
            Err(KvError::Io(_)) => None,
            Err(error) => return Err(format!("seed {}: {error}", self.seed)),
        };
        if let Some(core) = core {
            self.check(&core)?;
            self.write(&core);
        }
        if self.random.below(4) == 0 {
            self.medium.kill();
        } else {
            self.medium.cut_power();
        }
        self.cuts += 1;
        let core = open(&self.medium).map_err(|error| format!("seed {}: {error}", self.seed))?;
        self.check(&core)
    }

    fn write(&mut self, core: &Core) {
        loop {
            if self.random.below(5) == 0 && core.keep_up().is_err() {
                return;
            }
            let batch = self.random.batch();
            let mut after = self.model.clone();
            apply(&mut after, &batch);
            if core.commit(&batch).is_err() {
                self.or = Some(after);
                let again = core.commit(&batch);
                assert!(again.is_err(), "a fault is not forgotten");
                return;
            }
            self.model = after;
            self.commits += 1;
        }
    }

    /// Reading may be without power: then nothing is known yet.
    fn check(&mut self, core: &Core) -> Result<(), String> {
        let mut found = Map::new();
        let read = core.view().and_then(|view| {
            view.scan(&[1], &[0xff; 4], &mut |key, value| {
                found.insert(key.to_vec(), value.to_vec());
                ControlFlow::Continue(())
            })
        });
        if read.is_err() {
            return Ok(());
        }
        if found != self.model && Some(&found) != self.or.as_ref() {
            let cuts = self.cuts;
            return Err(format!("seed {}, cut {cuts}: another state", self.seed));
        }
        self.model = found;
        self.or = None;
        Ok(())
    }
}

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("WEIR_POWER_CUT_SEEDS").map_or(40, |text| text.parse().unwrap());
    let first = std::env::var("WEIR_SEED").map_or(1, |text| text.parse().unwrap());
    first..first + count
}

#[test]
fn a_power_cut_at_any_write_or_sync_loses_nothing_acknowledged_and_tears_nothing() {
    let (mut commits, mut cuts) = (0, 0);
    for seed in seeds() {
        let mut life = Life::new(seed);
        for _ in 0..8 {
            life.live().unwrap();
        }
        commits += life.commits;
        cuts += life.cuts;
    }
    println!("{cuts} cuts and kills, {commits} commits acknowledged");
    assert!(commits > 5 * cuts, "too little traffic: {commits}");
}

#[test]
fn a_medium_that_lies_about_its_syncs_is_found_out_by_this_test() {
    let caught = seeds().take(30).any(|seed| {
        let mut life = Life::new(seed);
        life.medium.set(|state| state.lies = true);
        (0..8).any(|_| life.live().is_err())
    });
    assert!(caught, "the test above could not fail");
}

#[test]
fn without_space_for_a_segment_a_commit_is_refused_before_it_begins_and_done_later() {
    let medium = Medium::new(1);
    let core = open(&medium).unwrap();
    medium.set(|state| state.full = true);
    let batch = Batch::from([(b"akey".to_vec(), Some(vec![1; 10]))]);
    assert!(matches!(core.commit(&batch), Err(KvError::Full)));
    assert!(all(&core).is_empty());
    medium.set(|state| state.full = false);
    core.commit(&batch).unwrap();
    medium.set(|state| state.full = true);
    // Steady state overwrites: segments go round without new ones.
    medium.set(|state| state.full = false);
    core.keep_up().unwrap();
    medium.set(|state| state.full = true);
    for n in 0..100_u8 {
        let batch = Batch::from([(vec![b'b', n], Some(vec![n; 3000]))]);
        core.commit(&batch).unwrap();
    }
    assert!(medium.contents().len() <= 3, "{}", medium.contents().len());
    assert_eq!(all(&core).len(), 101);
}
