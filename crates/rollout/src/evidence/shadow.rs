//! What gateways counted in the shadow, merged: late and doubled reports change nothing.

use std::collections::BTreeMap;

use crate::evidence::Snapshot;
use crate::report::ShadowReport;
use crate::statistics::ShadowCounts;

/// An attempt, a gateway and its life.
type Life = (String, String, String);

/// Counts of the shadow, the newest of each life of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShadowLedger {
    lives: BTreeMap<Life, (u64, ShadowCounts)>,
}

impl ShadowLedger {
    /// Takes a report, told with the snapshot `of` the same gateway: of each life the highest sequence counts.
    pub fn merge(&mut self, of: &Snapshot, report: &ShadowReport) {
        let life = (report.attempt.clone(), of.gateway.clone(), of.boot.clone());
        let is_newer = self
            .lives
            .get(&life)
            .is_none_or(|(sequence, _)| *sequence <= of.sequence);
        if is_newer {
            self.lives
                .insert(life, (of.sequence, report.counts.clone()));
        }
    }

    /// Forgets every attempt but this one.
    pub fn keep(&mut self, attempt: Option<&str>) {
        self.lives
            .retain(|(of, _, _), _| Some(of.as_str()) == attempt);
    }

    /// The sum of what was counted for an attempt. Each gateway asks the references by itself and hears the same answers, so that only
    /// those of the one that is furthest count; until a gateway has taken the version in, they are all due.
    pub fn total(&self, attempt: &str) -> ShadowCounts {
        let mut total = ShadowCounts {
            references_due: 1,
            ..ShadowCounts::default()
        };
        let mut furthest: Option<&ShadowCounts> = None;
        for (_, (_, counts)) in self.lives.iter().filter(|((of, _, _), _)| of == attempt) {
            total.add(counts);
            let is_further = furthest.is_none_or(|known| {
                (counts.references_due, known.reference_pairs)
                    < (known.references_due, counts.reference_pairs)
            });
            if is_further {
                furthest = Some(counts);
            }
        }
        if let Some(furthest) = furthest {
            total.references = furthest.references;
            total.reference_pairs = furthest.reference_pairs;
            total.references_due = furthest.references_due;
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(gateway: &str, boot: &str, sequence: u64) -> Snapshot {
        Snapshot {
            gateway: gateway.to_owned(),
            boot: boot.to_owned(),
            sequence,
            entries: Vec::new(),
        }
    }

    fn report(pairs: u64, refused: u64, [answered, due]: [u64; 2]) -> ShadowReport {
        ShadowReport {
            attempt: "v3-1".to_owned(),
            counts: ShadowCounts {
                pairs,
                refusal: [refused, 0],
                references: [answered, 0],
                reference_pairs: answered,
                references_due: due,
                ..ShadowCounts::default()
            },
        }
    }

    #[test]
    fn gateways_and_their_earlier_lives_add_up_but_references_count_once() {
        let mut ledger = ShadowLedger::default();
        assert_eq!(ledger.total("v3-1").references_due, 1, "nobody began");
        ledger.merge(&told("a", "1", 5), &report(10, 2, [4, 20]));
        ledger.merge(&told("b", "1", 9), &report(7, 1, [24, 0]));
        ledger.merge(&told("a", "1", 4), &report(8, 1, [2, 22]));
        ledger.merge(&told("a", "2", 1), &report(3, 0, [1, 23]));
        ledger.merge(&told("a", "2", 1), &report(3, 0, [1, 23]));
        let total = ledger.total("v3-1");
        assert_eq!((total.pairs, total.refusal), (20, [3, 0]));
        assert_eq!((total.references, total.reference_pairs), ([24, 0], 24));
        assert_eq!(total.references_due, 0, "one gateway asked them all");
        assert_eq!(ledger.total("v3-2").pairs, 0, "another attempt's");
        ledger.keep(Some("v3-2"));
        assert_eq!(ledger, ShadowLedger::default());
    }
}
