//! When a run counts, and as what.

use weir_rollout::VersionId;
use weir_rollout::evidence::{Judged, Ledger, bucket_of_us};
use weir_rollout::routing::TableOrder;

use super::*;
use crate::clock::new_run_id;

const DIGEST: &str = "sha256:1";

fn table(generation: u64) -> Table {
    let mut table = Table::all_to(TableOrder::new(1, generation), VersionId::new(1, DIGEST));
    table.attempt = Some("v2-1".to_owned());
    table.thresholds.ttft_limit_ms = Some(500);
    table.thresholds.inter_token_limit_ms = Some(100);
    table
}

/// A clock of its own, in ms.
struct Site {
    evidence: Evidence,
    begun: Instant,
    table: Table,
}

impl Site {
    fn new() -> Self {
        let times = Times {
            settle: Duration::from_secs(10),
            warm_up: Duration::from_secs(30),
        };
        Self {
            evidence: Evidence::new("gateway-0".to_owned(), times),
            begun: Instant::now(),
            table: table(1),
        }
    }

    fn at(&self, ms: u64) -> Instant {
        self.begun + Duration::from_millis(ms)
    }

    fn assigned(&self) -> Assigned<'_> {
        Assigned {
            model: "m",
            digest: DIGEST,
            tenant: "acme",
            table: &self.table,
            since: Some(self.begun),
        }
    }

    /// A run assigned and sent at `ms`.
    fn run(&self, ms: u64) -> RunId {
        let run = new_run_id();
        self.evidence.assigned(run, &self.assigned(), self.at(ms));
        self.evidence.sent(run, Some(self.at(ms)));
        run
    }

    fn counts(&self) -> Counts {
        let snapshot = self.evidence.snapshot("m");
        let mut ledger = Ledger::default();
        ledger.merge(&snapshot).unwrap();
        ledger.total(self.table.order, "v2-1", DIGEST)
    }

    fn settle(&self, ms: u64) -> Counts {
        self.evidence.settle(self.at(ms));
        self.counts()
    }
}

const GOOD: End = End::Completed(Output {
    tokens: 3,
    is_odd: false,
    is_refusal: false,
});

#[test]
fn ends_count_as_the_table_says() {
    let good = Judged { runs: 1, bad: 0 };
    let bad = Judged { runs: 1, bad: 1 };
    let none = Judged::default();
    // End, errors, failed so far, neutral, overload.
    let cases = [
        (GOOD, good, 0, 0, 0),
        (End::Failed, bad, 1, 0, 0),
        (End::Neutral, none, 0, 1, 0),
        (End::Overload, none, 0, 0, 1),
    ];
    for (end, errors, failed, neutral, overload) in cases {
        let site = Site::new();
        let run = site.run(0);
        site.evidence.ended(run, end, site.at(100));
        site.evidence.ended(run, End::Failed, site.at(200));
        let before = site.settle(9_999);
        assert_eq!(
            (before.assigned, before.errors),
            (1, none),
            "{end:?}: too young"
        );
        assert_eq!(before.failed_so_far, failed, "{end:?}: at once");
        let counts = site.settle(10_000);
        let got = (
            counts.errors,
            counts.failed_so_far,
            counts.neutral,
            counts.overload,
        );
        assert_eq!(got, (errors, failed, neutral, overload), "{end:?}");
        assert_eq!(site.settle(60_000).errors, errors, "{end:?}: once");
    }
}

#[test]
fn a_run_without_a_token_for_long_is_bad_at_that_moment() {
    let site = Site::new();
    let silent = site.run(0);
    let talking = site.run(0);
    let waiting = new_run_id();
    site.evidence
        .assigned(waiting, &site.assigned(), site.at(0));
    site.evidence.shown(talking, 1, site.at(9_000));
    let counts = site.settle(10_000);
    assert_eq!((counts.failed_so_far, counts.errors.bad), (1, 1));
    // What comes later changes nothing; one that waits in the queue is not stalled.
    site.evidence.ended(silent, GOOD, site.at(11_000));
    site.evidence.ended(talking, GOOD, site.at(12_000));
    site.evidence.ended(waiting, End::Overload, site.at(12_000));
    let counts = site.settle(13_000);
    assert_eq!(
        (counts.errors, counts.overload),
        (Judged { runs: 2, bad: 1 }, 1)
    );
    assert_eq!(counts.failed_so_far, 1);
}

#[test]
fn latencies_count_after_the_warm_up_and_exactly_at_the_limit() {
    let site = Site::new();
    for begun in [0, 30_000] {
        for first in [500, 501] {
            let run = site.run(begun);
            let mut at = begun + first;
            site.evidence.shown(run, 1, site.at(at));
            for _ in 0..10 {
                // Two tokens each 201 ms: over the limit of 100 ms a token.
                at += if first == 501 { 201 } else { 200 };
                site.evidence.shown(run, 2, site.at(at));
            }
            site.evidence.ended(run, GOOD, site.at(at));
        }
    }
    let counts = site.settle(60_000);
    assert_eq!(counts.assigned, 4);
    assert_eq!(counts.ttft_limit, Judged { runs: 2, bad: 1 });
    assert_eq!(counts.inter_token_limit, Judged { runs: 2, bad: 1 });
    assert_eq!(counts.ttft.quantile(50), Some(bucket_of_us(500_000)));
    assert_eq!(counts.inter_token.quantile(50), Some(bucket_of_us(100_000)));
    assert_eq!(counts.length.total(), 4, "lengths need no warming up");
}

#[test]
fn odd_outputs_refusals_and_refused_requests_count() {
    let site = Site::new();
    let end = |tokens, is_odd, is_refusal| {
        let run = site.run(0);
        site.evidence.shown(run, 1, site.at(10));
        let output = Output {
            tokens,
            is_odd,
            is_refusal,
        };
        site.evidence
            .ended(run, End::Completed(output), site.at(20));
    };
    end(10, false, false);
    end(0, false, false);
    end(10, true, false);
    end(10, false, true);
    site.evidence
        .failed_at_once(new_run_id(), &site.assigned(), site.at(0));
    site.evidence.overloaded(&site.assigned());
    let counts = site.settle(20_000);
    assert_eq!(counts.output, Judged { runs: 4, bad: 2 });
    assert_eq!(counts.refusal, Judged { runs: 4, bad: 1 });
    assert_eq!(counts.errors, Judged { runs: 5, bad: 1 });
    assert_eq!((counts.assigned, counts.overload), (5, 1));
}

#[test]
fn a_tenants_runs_are_judged_in_blocks_of_ten_seconds() {
    let site = Site::new();
    for nth in 0..4 {
        let run = site.run(0);
        let end = if nth == 0 { End::Failed } else { GOOD };
        site.evidence.ended(run, end, site.at(1));
    }
    assert_eq!(
        site.settle(10_000).error_blocks,
        [0; 17],
        "the block is open"
    );
    let counts = site.settle(20_000);
    assert_eq!(counts.error_blocks[4], 1, "a quarter is four sixteenths");
    assert_eq!(counts.error_blocks.iter().sum::<u64>(), 1);
}

#[test]
fn eight_tables_of_two_versions_are_kept_and_no_counter_falls() {
    let mut site = Site::new();
    let mut ledger = Ledger::default();
    let late = site.run(0);
    for generation in 2..40 {
        site.table = table(generation);
        let run = site.run(generation * 100);
        site.evidence.ended(run, GOOD, site.at(generation * 100));
        site.evidence.settle(site.at(generation * 100));
        ledger.merge(&site.evidence.snapshot("m")).unwrap();
    }
    // Its table is forgotten: it must not come back with smaller counts.
    site.evidence.ended(late, End::Failed, site.at(4_000));
    site.evidence.settle(site.at(20_000));
    let snapshot = site.evidence.snapshot("m");
    ledger.merge(&snapshot).unwrap();
    assert_eq!(snapshot.entries.len(), Ledger::MAX_ENTRIES);
    assert_eq!(snapshot.entries[0].0.table.generation, 24);
    assert!(site.evidence.snapshot("other").entries.is_empty());
}
