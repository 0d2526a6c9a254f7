//! How many replicas each version needs, and what may be taken away.

use std::collections::BTreeMap;

use crate::VersionId;
use crate::decide::observation::Lease;
use crate::decide::state::State;
use crate::plan::Reserve;
use crate::record::{Attempt, Phase, Room};

/// Replicas that `weight` percent of the load of `whole` replicas need, rounded up.
pub fn need(weight: u32, whole: u32) -> u32 {
    let replicas = (u64::from(weight) * u64::from(whole)).div_ceil(100);
    u32::try_from(replicas).expect("at most the whole for at most 100 percent")
}

/// As [`need`], where versions are exchanged one replica at a time: weights are whole percents, so c of N replicas take
/// ⌊100·c/N⌋ and leave the others up to a percent more than their exact share. That excess is no replica, or an exchange of
/// three (33 and 67 percent) would never end.
pub fn need_in_exchange(weight: u32, whole: u32) -> u32 {
    let excess = u64::from(whole.saturating_sub(1)).min(99);
    let share = u64::from(weight) * u64::from(whole);
    let replicas = share.saturating_sub(excess).div_ceil(100);
    u32::try_from(replicas).expect("at most the whole for at most 100 percent")
}

/// Occupancy at which one replica less still carries the load.
const REDUCED_OCCUPANCY_PERCENT: u64 = 90;
/// How long the rollback version keeps all its replicas after a promotion.
const FULL_RESERVE_MS: u64 = 3_600_000;

impl State<'_> {
    /// Replicas that carry the whole load: one less while a pool without any spare one exchanges them.
    pub(super) fn basis(&self) -> u32 {
        let wanted = self.wanted();
        match self.attempt().and_then(|attempt| attempt.room) {
            Some(Room::Reduced) => wanted.saturating_sub(1).max(1),
            _ => wanted,
        }
    }

    /// What the pool wants; an attempt needs at least one replica to judge.
    fn wanted(&self) -> u32 {
        let least = u32::from(self.head.attempt.is_some());
        self.seen.wanted.max(least)
    }

    pub(super) fn need(&self, weight: u32) -> u32 {
        match self.attempt().and_then(|attempt| attempt.room) {
            Some(Room::Surge | Room::Reduced) => need_in_exchange(weight, self.basis()),
            _ => need(weight, self.basis()),
        }
    }

    /// The room there is for two versions. None while the pool, its lease or the load does not allow any.
    pub(super) fn room(&self, attempt: &Attempt) -> Option<Room> {
        let wanted = self.wanted();
        let room = self.fitting_room(attempt, wanted)?;
        let is_mine = self.seen.lease == Lease::Mine;
        (room == Room::Beside || is_mine).then_some(room)
    }

    /// The room there would be, if the pool's lease were this attempt's.
    pub(super) fn fitting_room(&self, attempt: &Attempt, wanted: u32) -> Option<Room> {
        let capacity = self.seen.capacity;
        let relieved = u64::from(self.seen.occupancy_percent) * u64::from(wanted)
            <= REDUCED_OCCUPANCY_PERCENT * u64::from(wanted.saturating_sub(1));
        // To return to a version that served is urgent: it does not wait for a quiet hour.
        let is_urgent = attempt.phase == Phase::Reverting;
        if self.head.stable.is_none() || capacity >= 2 * wanted {
            Some(Room::Beside)
        } else if capacity > wanted {
            Some(Room::Surge)
        } else if capacity == wanted && wanted >= 2 && (relieved || is_urgent) {
            Some(Room::Reduced)
        } else if capacity == wanted && wanted == 1 && attempt.plan.downtime {
            Some(Room::Downtime)
        } else {
            None
        }
    }

    /// The least a version may have: what any table that a live gateway may still run gives it. None when that is not known.
    pub(super) fn floor(&self, id: &VersionId) -> Option<u32> {
        let is_refuge = self.is_emergency() && self.head.refuge() == Some(id);
        let tables = self.usable_tables()?;
        let heaviest = tables.iter().map(|table| table.weight(&id.digest)).max();
        Some(self.need(if is_refuge {
            100
        } else {
            heaviest.unwrap_or(0)
        }))
    }

    /// How many replicas each version should have now: what the head wants, bounded by room, and by what may be taken away.
    pub(super) fn desired(&self) -> BTreeMap<VersionId, u32> {
        let mut wanted = match self.attempt() {
            None => self.idle_wants(),
            Some(attempt) => self.attempt_wants(attempt),
        };
        for view in &self.seen.replicas {
            wanted.entry(view.id.clone()).or_insert(0);
        }
        let guarded = |(id, want): (VersionId, u32)| {
            let allowed = self.guarded(&id, want);
            (id, allowed)
        };
        wanted.into_iter().map(guarded).collect()
    }

    /// A version is made smaller only when every live gateway acknowledged a table that needs it no longer, and to nothing only
    /// when its runs ended or had their time to.
    fn guarded(&self, id: &VersionId, want: u32) -> u32 {
        let Some(view) = self.replicas(id) else {
            return want;
        };
        if want >= view.desired {
            return want;
        }
        let Some(floor) = self.floor(id) else {
            return view.desired;
        };
        let is_exchange = self
            .attempt()
            .is_some_and(|a| a.room == Some(Room::Downtime));
        if is_exchange && want == 0 {
            // The one exception, which the plan allows by name: the only replica goes before its successor starts. It ends
            // its runs itself before it exits, and gateways hold new ones.
            return 0;
        }
        let is_in_use = view.live_runs > 0 && !view.is_drain_over;
        if (want == 0 && is_in_use) || !self.is_acknowledged() {
            return view.desired;
        }
        want.max(floor).min(view.desired)
    }

    fn idle_wants(&self) -> BTreeMap<VersionId, u32> {
        let wanted = self.seen.wanted;
        let mut wants = BTreeMap::new();
        if let Some(stable) = &self.head.stable {
            wants.insert(stable.clone(), wanted);
        }
        if let Some(rollback) = &self.head.rollback_to {
            // The serving version comes first where the pool is tight.
            let spare = self.seen.capacity.saturating_sub(wanted);
            wants.insert(rollback.clone(), self.reserve(wanted).min(spare));
        }
        wants
    }

    /// What the rollback version keeps by the plan it was left under.
    pub(super) fn reserve(&self, wanted: u32) -> u32 {
        let since = self.now_ms.saturating_sub(self.head.promoted_at_ms);
        match self.head.reserve {
            Reserve::Full => wanted,
            Reserve::FullThenOne if since < FULL_RESERVE_MS => wanted,
            Reserve::FullThenOne | Reserve::One => wanted.min(1),
        }
    }

    fn attempt_wants(&self, attempt: &Attempt) -> BTreeMap<VersionId, u32> {
        let whole = self.wanted();
        let capacity = self.seen.capacity;
        let target = &attempt.target;
        let Some(stable) = &self.head.stable else {
            // Nothing of a version is created before it is verified, which comes before it has room.
            let may_run = attempt.phase != Phase::RollingBack && attempt.room.is_some();
            let want = if may_run { whole } else { 0 };
            return BTreeMap::from([(target.clone(), want)]);
        };
        let others: u32 = self
            .seen
            .replicas
            .iter()
            .filter(|view| view.id != *stable && view.id != *target)
            .map(|view| view.existing)
            .sum();
        let left = capacity.saturating_sub(others);
        let floor = |id| self.floor(id).unwrap_or(0);
        if attempt.phase == Phase::RollingBack {
            let spare = left
                .saturating_sub(self.existing(target))
                .max(floor(stable));
            return BTreeMap::from([(stable.clone(), whole.min(spare)), (target.clone(), 0)]);
        }
        let want = if attempt.room.is_some() {
            self.need(self.goal_weight(attempt))
        } else {
            0
        };
        // Stable leaves once every gateway sends everything to the version before; a promotion has its own record for that.
        let is_left = attempt.phase == Phase::Reverting && self.head.weight(&target.digest) == 100;
        let (of_stable, of_target) = match attempt.room {
            Some(_) if is_left => (0, want),
            None | Some(Room::Beside) => (whole, want),
            Some(Room::Surge | Room::Reduced) => {
                let of_stable = left.saturating_sub(want).max(floor(stable)).min(whole);
                let spare = left.saturating_sub(self.existing(stable));
                (of_stable, want.min(spare).max(floor(target)))
            }
            Some(Room::Downtime) => {
                let spare = left.saturating_sub(self.existing(stable));
                (0, want.min(spare).max(floor(target)))
            }
        };
        BTreeMap::from([(stable.clone(), of_stable), (target.clone(), of_target)])
    }

    /// The weight that the present phase is about.
    #[expect(
        clippy::unused_self,
        reason = "a question about a state, like its neighbours"
    )]
    pub(super) fn goal_weight(&self, attempt: &Attempt) -> u32 {
        let step = match attempt.phase {
            Phase::Step => attempt.step,
            Phase::Preparing | Phase::Shadow => 1,
            Phase::Final | Phase::Reverting | Phase::Idle | Phase::RollingBack => return 100,
        };
        if attempt.room == Some(Room::Downtime) {
            return 100;
        }
        attempt
            .plan
            .step(step)
            .map_or(100, |step| step.weight_percent)
    }
}
