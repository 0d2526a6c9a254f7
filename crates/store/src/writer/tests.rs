//! The writer over an engine that fails on demand.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_run::testing::accepted_run;
use weir_run::{Price, Run, RunId, Sequence, WorkOrder};

use crate::embedded::Embedded;
use crate::kv::{Batch, Kv, KvError, Pair, View, Visit};
use crate::{Admission, Admit, EventRecord, Store, StoreError};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Memory that keeps what was committed, and fails the commits it is told to.
#[derive(Clone, Default)]
struct Frail {
    durable: Arc<Mutex<Map>>,
    fail_next: Arc<Mutex<Option<KvError>>>,
    commits: Arc<Mutex<usize>>,
}

struct Snapshot(Map);

impl Kv for Frail {
    fn scrub(&self) -> Result<crate::Scrub, KvError> {
        Ok(crate::Scrub::Done)
    }

    fn view(&self) -> Result<Box<dyn View + '_>, KvError> {
        Ok(Box::new(Snapshot(self.durable.lock().clone())))
    }

    fn commit_with(&self, batch: &Batch, publish: &mut dyn FnMut()) -> Result<(), KvError> {
        *self.commits.lock() += 1;
        if let Some(error) = self.fail_next.lock().take() {
            return Err(error);
        }
        let mut durable = self.durable.lock();
        publish();
        for (key, value) in batch {
            match value {
                Some(value) => durable.insert(key.clone(), value.clone()),
                None => durable.remove(key),
            };
        }
        Ok(())
    }
}

impl View for Snapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        let range = self.0.range(from.to_vec()..to.to_vec());
        for (key, value) in range {
            if visit(key, value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Pair>, KvError> {
        let last = self.0.range(from.to_vec()..to.to_vec()).next_back();
        Ok(last.map(|(key, value)| (key.clone(), value.clone())))
    }
}

fn store(frail: &Frail) -> (Embedded, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let lock = std::fs::File::create(folder.path().join("lock")).unwrap();
    let again = frail.clone();
    let reopen = Box::new(move || Ok(Arc::new(again.clone()) as Arc<dyn Kv>));
    let kv = Arc::new(frail.clone());
    let path = folder.path().to_owned();
    let store = Embedded::start(path, "test".into(), kv, lock, reopen).unwrap();
    (store, folder)
}

fn admission(number: u128) -> Admission {
    let id = RunId::new(1, number);
    Admission {
        run: Run {
            id,
            request_key: Some(format!("key-{number}")),
            pool: "p".into(),
            prompt_tokens: 1,
            reserved_tokens: 3,
            reserved_micros: 0,
            price: Price::default(),
            ..accepted_run()
        },
        work: WorkOrder {
            prompt: vec![1],
            submit: vec![],
            priority: 0,
            max_queue_ms: None,
            attended: false,
        },
        ask: weir_budget::Ask {
            prompt_tokens: 1,
            output_tokens: 2,
            micros: 0,
            output_micros_per_token: 0,
            pool: "p".into(),
        },
        limits: weir_budget::Limits::default(),
        accepted: EventRecord {
            sequence: Sequence(1),
            kind: "accepted",
            data: "{}".into(),
        },
        attachment: None,
        now_ms: 1,
    }
}

#[tokio::test]
async fn after_a_failed_sync_every_write_is_refused_and_reads_go_on() {
    let frail = Frail::default();
    let (store, _folder) = store(&frail);
    assert!(matches!(
        store.admit(admission(1)).await,
        Ok(Admit::Admitted)
    ));
    *frail.fail_next.lock() = Some(KvError::Io("input/output error".into()));
    let error = store.admit(admission(2)).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Write { cause, .. } if cause.contains("input/output")),
        "{error}"
    );
    let commits = *frail.commits.lock();
    for n in 3..6 {
        let error = store.admit(admission(n)).await.unwrap_err();
        assert!(matches!(error, StoreError::Write { .. }), "{error}");
    }
    assert_eq!(
        *frail.commits.lock(),
        commits,
        "a poisoned writer does not touch the engine"
    );
    let run = store.run("acme", RunId::new(1, 1)).await.unwrap();
    assert!(run.is_some());
    assert_eq!(store.run("acme", RunId::new(1, 2)).await.unwrap(), None);
}

#[tokio::test]
async fn a_commit_that_runs_out_of_space_is_refused_and_the_next_one_is_done() {
    let frail = Frail::default();
    let (store, _folder) = store(&frail);
    *frail.fail_next.lock() = Some(KvError::Full);
    let error = store.admit(admission(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(store.budget("acme", vec![], 1).await.unwrap().live_runs, 0);
    assert_eq!(store.run_by_key("acme", "key-1").await.unwrap(), None);
    let answer = store.admit(admission(1)).await.unwrap();
    assert!(
        matches!(answer, Admit::Admitted),
        "the refused admission left no trace: {answer:?}"
    );
}

#[tokio::test]
async fn a_damaged_record_is_reported_and_not_served() {
    let frail = Frail::default();
    let (store, _folder) = store(&frail);
    store.admit(admission(1)).await.unwrap();
    for (key, value) in frail.durable.lock().iter_mut() {
        if key[0] == b'e' {
            value[4] ^= 1;
        }
    }
    let events = store.events(RunId::new(1, 1), Sequence(0), 9).await;
    let error = events.unwrap_err().to_string();
    assert!(
        error.contains("checksum") && error.contains("run_"),
        "{error}"
    );
}
