//! When certificates are renewed and when an authority takes its next step: arithmetic on times, and nothing else.

use std::time::Duration;

/// A certificate's life, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) begin_s: u64,
    pub(crate) end_s: u64,
}

/// How long things live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lives {
    /// A workload's certificate.
    pub(crate) certificate: Duration,
}

/// An authority lives for so many lives of a certificate: its exchange is rare, and never the work of a moment.
const AUTHORITY: u32 = 12;
/// What was changed has reached every pod after this long. A kubelet needs two minutes for a Secret.
const LONGEST_SPREAD: Duration = Duration::from_hours(1);
/// Of a certificate's life, where that is short.
const SPREAD_SHARE: u32 = 6;
/// Clocks of nodes are apart by less than this.
pub(crate) const SKEW: Duration = Duration::from_mins(5);

impl Lives {
    pub(crate) fn authority(self) -> Duration {
        self.certificate * AUTHORITY
    }

    /// From one step of an exchange to the next.
    pub(crate) fn spread(self) -> Duration {
        (self.certificate / SPREAD_SHARE).min(LONGEST_SPREAD)
    }
}

impl Life {
    /// At two thirds: what cannot be renewed then has a third left to be mended.
    pub(crate) fn renewal_s(self) -> u64 {
        let whole = self.end_s.saturating_sub(self.begin_s);
        self.begin_s + whole / 3 * 2
    }

    pub(crate) fn is_due(self, now_s: u64) -> bool {
        now_s >= self.renewal_s()
    }

    pub(crate) fn is_over(self, now_s: u64) -> bool {
        now_s >= self.end_s
    }
}

/// What an authority does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is none, or it is over: one is made, and nobody trusts what was before.
    Begin,
    /// A next one is made: it is trusted from now on, and issues nothing yet.
    Announce,
    /// The next one issues; the one before is trusted still.
    Exchange,
    /// The one before is trusted no more.
    Forget,
    /// Nothing is due.
    Rest,
}

/// Whether what follows from the last step was written to every Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// It was, and reaches pods in time.
    Begun,
    /// One lacks something: however long ago the step was, it is not known to have reached anybody.
    Incomplete,
}

/// Where an authority stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) current: Option<Life>,
    pub(crate) has_next: bool,
    pub(crate) has_old: bool,
    /// When its last step was, or what followed from it was written last.
    pub(crate) changed_s: u64,
    pub(crate) spread: Spread,
}

impl Standing {
    pub(crate) fn step(self, lives: Lives, now_s: u64) -> Step {
        let Some(current) = self.current.filter(|life| !life.is_over(now_s)) else {
            return Step::Begin;
        };
        let has_spread =
            self.spread == Spread::Begun && now_s >= self.changed_s + lives.spread().as_secs();
        match (self.has_next, self.has_old) {
            (true, _) if has_spread => Step::Exchange,
            (false, true) if has_spread => Step::Forget,
            (false, false) if current.is_due(now_s) => Step::Announce,
            _ => Step::Rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVES: Lives = Lives {
        certificate: Duration::from_hours(720),
    };
    const HOUR: u64 = 3_600;

    #[test]
    fn a_certificate_is_due_at_two_thirds_of_its_life_and_not_before() {
        for (begin_s, end_s, due_s) in [(0, 300, 200), (1_000, 1_090, 1_060), (5, 5, 5), (9, 3, 9)]
        {
            let life = Life { begin_s, end_s };
            assert_eq!(life.renewal_s(), due_s);
            assert!(life.is_due(due_s), "{life:?}");
            assert!(due_s == 0 || !life.is_due(due_s - 1), "{life:?}");
        }
        let life = Life {
            begin_s: 0,
            end_s: 10,
        };
        assert!(!life.is_over(9) && life.is_over(10));
    }

    #[test]
    fn steps_of_an_exchange_are_as_far_apart_as_pods_need() {
        assert_eq!(LIVES.spread(), Duration::from_hours(1));
        let short = Lives {
            certificate: Duration::from_hours(1),
        };
        assert_eq!(short.spread(), Duration::from_mins(10));
        // It is renewed with a third of its life left, which must hold all steps of an exchange and the renewal itself.
        for lives in [LIVES, short] {
            assert!(lives.spread() * 2 <= lives.certificate / 3);
        }
    }

    #[test]
    fn an_authority_goes_through_its_steps_and_rests_between_them() {
        let life = Life {
            begin_s: 0,
            end_s: LIVES.authority().as_secs(),
        };
        let due = life.renewal_s();
        let standing = |has_next, has_old, changed_s| Standing {
            current: Some(life),
            has_next,
            has_old,
            changed_s,
            spread: Spread::Begun,
        };
        let incomplete = |standing| Standing {
            spread: Spread::Incomplete,
            ..standing
        };
        for (standing, now_s, want) in [
            (standing(false, false, 0), due - 1, Step::Rest),
            (standing(false, false, 0), due, Step::Announce),
            (standing(true, false, due), due + HOUR - 1, Step::Rest),
            (standing(true, false, due), due + HOUR, Step::Exchange),
            (standing(false, true, due), due + HOUR - 1, Step::Rest),
            (standing(false, true, due), due + HOUR, Step::Forget),
            (standing(true, true, due), life.end_s, Step::Begin),
            (incomplete(standing(false, false, 0)), due, Step::Announce),
            (
                incomplete(standing(true, false, due)),
                due + 9 * HOUR,
                Step::Rest,
            ),
            (
                incomplete(standing(false, true, due)),
                due + 9 * HOUR,
                Step::Rest,
            ),
        ] {
            assert_eq!(standing.step(LIVES, now_s), want, "{standing:?} at {now_s}");
        }
        let none = Standing {
            current: None,
            ..standing(false, false, 0)
        };
        assert_eq!(none.step(LIVES, 7), Step::Begin);
    }
}
