//! What the parent knows, and what it demands of a store that was killed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use weir_run::{Run, RunId, RunStatus, Sequence};
use weir_store::{Engine, Store, open};

use crate::support::{DAY_S, NOW, event};

/// One run as the child told of it.
#[derive(Clone, Debug, Default)]
struct Told {
    tenant: String,
    /// Its admission was acknowledged, or seen after a crash.
    there: bool,
    refused: bool,
    cancelled: bool,
    /// Last sequence acknowledged, and the end if that was the last.
    last: u64,
    end: Option<String>,
    /// Last sequence and end of the append in flight.
    tried: Option<(u64, Option<String>)>,
}

#[derive(Default)]
pub(super) struct Known {
    runs: BTreeMap<RunId, Told>,
    /// Runs told of since the last check.
    touched: Vec<RunId>,
    pub(super) acknowledged: u64,
    /// Writes that a kill met unanswered.
    pub(super) in_flight: u64,
    /// Of these, the ones that were done all the same.
    done_unheard: u64,
    pub(super) refusals: u64,
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs, {} acknowledged writes, {} refusals, {} in flight of which {} done",
            self.runs.len(),
            self.acknowledged,
            self.refusals,
            self.in_flight,
            self.done_unheard
        )
    }
}

impl Known {
    /// Takes in a line of the child; the test harness's own lines are not ours.
    pub(super) fn hear(&mut self, line: &str) {
        // The harness prints the test's name without a line end before the first of ours.
        let start = ["try ", "ack "]
            .iter()
            .filter_map(|word| line.find(word))
            .min();
        let words: Vec<&str> = line[start.unwrap_or(line.len())..].split(' ').collect();
        let [said, what, id, tenant, rest @ ..] = &words[..] else {
            return;
        };
        let Ok(id) = id.parse::<RunId>() else {
            return;
        };
        let told = self.runs.entry(id).or_default();
        (*tenant).clone_into(&mut told.tenant);
        self.touched.push(id);
        self.acknowledged += u64::from(*said == "ack");
        match (*said, *what, rest) {
            ("ack", "admit", _) => (told.there, told.last) = (true, 1),
            ("ack", "refuse", _) => {
                told.refused = true;
                self.refusals += 1;
            }
            ("ack", "cancel", _) => told.cancelled = true,
            (_, "append", [last, end]) => {
                let last = last.parse().unwrap();
                let end = (*end != "-").then(|| (*end).to_owned());
                if *said == "try" {
                    told.tried = Some((last, end));
                } else {
                    (told.last, told.end, told.tried) = (last, end, None);
                }
            }
            _ => {}
        }
    }

    /// Opens the store that the child left behind and holds it against what is known.
    pub(super) async fn check(&mut self, folder: &Path, engine: Engine, place: &str) {
        let store = open(folder, engine).unwrap_or_else(|error| panic!("{place}: {error}"));
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort();
        touched.dedup();
        for id in touched {
            self.check_run(&*store, id, place).await;
        }
        let open_runs = store.open_runs().await.unwrap();
        for run in &open_runs {
            let known = self.runs.get(&run.run.id);
            assert!(
                known.is_some_and(|told| told.there),
                "{place}: {:?} from nowhere",
                run.run.id
            );
        }
        let mut live = 0;
        for (tenant, limit) in [("acme", 100_000_000), ("globex", 1_500)] {
            let usage = store
                .usage(tenant, vec![DAY_S], 0, u64::MAX, NOW)
                .await
                .unwrap();
            assert!(usage.consistent, "{place}: {tenant}: {usage:?}");
            let window = &usage.budget.windows[0];
            assert!(
                window.used_tokens + window.reserved_tokens <= limit,
                "{place}: {window:?}"
            );
            live += usage.budget.live_runs;
        }
        assert_eq!(live, open_runs.len() as u64, "{place}");
    }

    async fn check_run(&mut self, store: &dyn Store, id: RunId, place: &str) {
        let told = self.runs.get_mut(&id).unwrap();
        let place = format!("{place}: {id} {told:?}");
        let key = format!(
            "key-{:x}",
            u128::from_be_bytes(id.to_bytes()) & ((1 << 80) - 1)
        );
        let run = store.run(&told.tenant, id).await.unwrap();
        let Some(run) = run else {
            assert!(!told.there, "{place}: an acknowledged run is lost");
            self.in_flight += u64::from(!told.refused);
            let events = store.events(id, Sequence(0), 9).await.unwrap();
            assert!(
                events.is_empty(),
                "{place}: events of a run that is not there"
            );
            return;
        };
        assert!(!told.refused, "{place}: a refused run is there");
        let found = run
            .request_key
            .as_deref()
            .map(|key| store.run_by_key(&told.tenant, key));
        assert_eq!(
            found.unwrap().await.unwrap().as_ref(),
            Some(&run),
            "{place} {key}"
        );
        let last = run.last_sequence.0;
        match &told.tried {
            Some((tried, end)) => {
                self.in_flight += 1;
                self.done_unheard += u64::from(last == *tried);
                assert!(
                    last == told.last || last == *tried,
                    "{place}: torn at {last}"
                );
                if last == *tried {
                    told.end.clone_from(end);
                }
            }
            None if told.there => assert_eq!(last, told.last, "{place}"),
            None => assert_eq!(last, 1, "{place}: more than was tried"),
        }
        let ended = run
            .status
            .is_terminal()
            .then(|| run.status.as_str().to_owned());
        assert_eq!(ended, told.end, "{place}: {:?}", run.status);
        if told.cancelled && ended.is_none() {
            assert_eq!(run.status, RunStatus::Cancelling, "{place}");
        }
        check_events(store, &run, &place).await;
        (told.there, told.last, told.tried) = (true, last, None);
    }
}

/// Gap-free from 1, byte for byte, billed as logged, and a terminal event exactly at the end of a run that has ended.
async fn check_events(store: &dyn Store, run: &Run, place: &str) {
    let events = store.events(run.id, Sequence(0), usize::MAX).await.unwrap();
    assert_eq!(events.len() as u64, run.last_sequence.0, "{place}");
    let mut deltas = 0;
    for (event_, number) in events.iter().zip(1..) {
        assert_eq!(*event_, event(run.id, number, event_.kind), "{place}");
        deltas += u64::from(event_.kind == "delta");
        let terminal = RunStatus::TERMINAL
            .iter()
            .any(|s| s.as_str() == event_.kind);
        let last = number == run.last_sequence.0 && run.status.is_terminal();
        assert_eq!(terminal, last, "{place}: {} at {number}", event_.kind);
    }
    assert_eq!(run.output_tokens, deltas, "{place}");
}
