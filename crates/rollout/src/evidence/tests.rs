//! Merge laws, lives of gateways, falling counters, histograms and strata.

use proptest::prelude::*;

use super::*;
use crate::VersionId;
use crate::routing::{Share, Table, TableOrder, Thresholds};

const ORDER: TableOrder = TableOrder {
    epoch: 1,
    generation: 2,
    emergency: false,
};

fn counts(settled: u64, bad: u64) -> Counts {
    Counts {
        assigned: settled,
        errors: Judged { runs: settled, bad },
        ..Counts::default()
    }
}

fn snapshot(gateway: &str, boot: &str, sequence: u64, counts: Counts) -> Snapshot {
    let key = EntryKey {
        table: ORDER,
        attempt: "v2-1".into(),
        digest: "sha256:2".into(),
    };
    Snapshot {
        gateway: gateway.into(),
        boot: boot.into(),
        sequence,
        entries: vec![(key, counts)],
    }
}

fn total(ledger: &Ledger) -> Judged {
    ledger.total(ORDER, "v2-1", "sha256:2").errors
}

#[test]
fn a_new_life_of_a_gateway_keeps_the_counts_of_the_old_one() {
    let mut ledger = Ledger::default();
    ledger.merge(&snapshot("a", "1", 9, counts(10, 1))).unwrap();
    ledger.merge(&snapshot("a", "2", 1, counts(3, 0))).unwrap();
    assert_eq!(total(&ledger), Judged { runs: 13, bad: 1 });
}

#[test]
fn a_counter_that_falls_rejects_the_snapshot_and_is_never_clamped() {
    let mut ledger = Ledger::default();
    ledger.merge(&snapshot("a", "1", 1, counts(10, 2))).unwrap();
    let before = ledger.clone();
    let fallen = ledger.merge(&snapshot("a", "1", 2, counts(11, 1)));
    assert_eq!(
        fallen,
        Err(MergeError::Fallen {
            gateway: "a".into(),
            counter: "errors.bad"
        })
    );
    assert_eq!(ledger, before);
}

#[test]
fn counts_that_cannot_be_are_left_out() {
    let mut histogram = Counts {
        assigned: 5,
        ..Counts::default()
    };
    histogram.ttft.record(BUCKETS, 1);
    let cases = [
        ("more bad than judged", counts(3, 4), "errors"),
        (
            "more judged than assigned",
            Counts {
                assigned: 2,
                ..counts(3, 0)
            },
            "errors",
        ),
        ("a bucket that does not exist", histogram, "ttft"),
    ];
    for (name, counts, want) in cases {
        let got = Ledger::default().merge(&snapshot("a", "1", 1, counts));
        let want = MergeError::Impossible {
            gateway: "a".into(),
            counter: want,
        };
        assert_eq!(got, Err(want), "{name}");
    }
}

#[test]
fn retired_tables_are_forgotten() {
    let mut ledger = Ledger::default();
    ledger.merge(&snapshot("a", "1", 1, counts(10, 2))).unwrap();
    ledger.retire_before(TableOrder::new(1, 3));
    assert_eq!(ledger, Ledger::default());
}

#[test]
fn edges_of_times_are_quarter_octaves() {
    let cases = [
        (0, 0),
        (1_000, 0),
        (1_001, 1),
        (1_189, 1),
        (1_190, 2),
        (2_000, 4),
        (500_000, 36),
    ];
    for (us, bucket) in cases {
        assert_eq!(bucket_of_us(us), bucket, "{us}");
    }
    assert_eq!(bucket_of_us(u64::MAX), BUCKETS - 1);
    assert_eq!(
        [0, 1, 2, 3, 4, 1023, 1024].map(bucket_of_length),
        [0, 1, 2, 2, 3, 10, 11]
    );
}

#[test]
fn quantiles_and_tails_of_a_histogram() {
    let mut histogram = Histogram::default();
    for (bucket, count) in [(3, 50), (5, 40), (9, 10)] {
        histogram.record(bucket, count);
    }
    assert_eq!(histogram.quantile(50), Some(3));
    assert_eq!(histogram.quantile(51), Some(5));
    assert_eq!(histogram.quantile(90), Some(5));
    assert_eq!((histogram.above(5), histogram.below(5)), (10, 50));
    assert_eq!(Histogram::default().quantile(50), None);
}

#[test]
fn a_stratum_counts_both_arms_by_the_rules_of_its_table() {
    let (stable, target) = (VersionId::new(1, "s"), VersionId::new(2, "c"));
    let shares = [(&stable, 75), (&target, 25)];
    let table = Table {
        entries: shares
            .map(|(id, weight)| Share {
                id: id.clone(),
                weight,
            })
            .into(),
        step: 2,
        thresholds: Thresholds {
            ttft_edges: Some([10, 20]),
            length_edges: Some([4, 8]),
            ..Thresholds::default()
        },
        ..Table::all_to(ORDER, stable.clone())
    };
    let mut canary = counts(10, 1);
    let mut control = counts(30, 2);
    for (bucket, count) in [(10, 4), (12, 3), (13, 2), (23, 1)] {
        canary.ttft.record(bucket, count);
        control.ttft.record(bucket, count);
    }
    canary.length.record(10, 2);
    canary.length.record(9, 3);
    control.length.record(2, 5);
    let got = stratum(&table, "c", &canary, &control).unwrap();
    assert_eq!((got.step, got.weight, got.assigned), (2, 25, [10, 30]));
    let tally = |canary, stable| Tally { canary, stable };
    assert_eq!(got.tally(Sign::Errors), tally([1, 10], [2, 30]));
    assert_eq!(got.tally(Sign::TtftMedian), tally([3, 10], [6, 10]));
    assert_eq!(got.tally(Sign::TtftTail), tally([1, 10], [1, 10]));
    assert_eq!(got.tally(Sign::Length), tally([2, 5], [5, 5]));
    assert!(
        !got.signs.contains_key(&Sign::TtftLimit),
        "no limit, no sign"
    );
    assert_eq!(
        stratum(&Table::all_to(ORDER, target), "c", &canary, &control),
        None
    );
}

/// Snapshots of honest gateways: within a life counters only grow.
fn histories() -> impl Strategy<Value = Vec<Snapshot>> {
    let life = (
        0_u8..3,
        0_u8..2,
        proptest::collection::vec((0_u64..5, 0_u64..3), 1..5),
    );
    proptest::collection::vec(life, 1..5).prop_map(|lives| {
        let mut snapshots = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for (gateway, boot, growth) in lives {
            if !seen.insert((gateway, boot)) {
                continue;
            }
            let (mut runs, mut bad) = (0, 0);
            for (sequence, (good, worse)) in growth.into_iter().enumerate() {
                runs += good + worse;
                bad += worse;
                let name = gateway.to_string();
                snapshots.push(snapshot(
                    &name,
                    &boot.to_string(),
                    sequence as u64 + 1,
                    counts(runs, bad),
                ));
            }
        }
        snapshots
    })
}

fn merged<'a>(snapshots: impl IntoIterator<Item = &'a Snapshot>) -> Ledger {
    let mut ledger = Ledger::default();
    for snapshot in snapshots {
        ledger.merge(snapshot).unwrap();
    }
    ledger
}

proptest! {
    #[test]
    fn merging_does_not_depend_on_order_or_repetition(
        (history, shuffled) in histories().prop_flat_map(|h| (Just(h.clone()), Just(h).prop_shuffle())),
        again in any::<prop::sample::Index>(),
    ) {
        let want = merged(&history);
        prop_assert_eq!(&merged(&shuffled), &want);
        let doubled = again.get(&history);
        prop_assert_eq!(&merged(shuffled.iter().chain([doubled])), &want);
    }
}
