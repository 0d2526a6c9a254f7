//! Runs to put into a store.

use std::collections::BTreeMap;

use weir_budget::{Ask, Limits, WindowLimit};
use weir_run::testing::accepted_run;
use weir_run::{FinishReason, Price, Run, RunId, RunStatus, Sequence, Usage, WorkOrder};
use weir_store::{Admission, Admit, Append, Appended, EventRecord, Store, Terminal};

pub(crate) const NOW: u64 = 1_700_000_000_000;
pub(crate) const DAY_S: u64 = 86_400;

/// A run's worth of arguments; change what a test is about.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) id: RunId,
    pub(crate) tenant: &'static str,
    pub(crate) request_key: Option<String>,
    pub(crate) payload: u8,
    pub(crate) prompt: u64,
    pub(crate) output: u64,
    pub(crate) replaces: Option<RunId>,
    pub(crate) limits: Limits,
    pub(crate) now_ms: u64,
}

pub(crate) fn spec(number: u128) -> Spec {
    Spec {
        id: RunId::new(NOW, number),
        tenant: "acme",
        request_key: None,
        payload: 1,
        prompt: 10,
        output: 50,
        replaces: None,
        limits: day_of(1_000_000),
        now_ms: NOW,
    }
}

pub(crate) fn day_of(tokens: u64) -> Limits {
    Limits {
        windows: vec![WindowLimit {
            period_s: DAY_S,
            tokens: Some(tokens),
            micros: Some(4 * tokens),
        }],
        ..Limits::default()
    }
}

pub(crate) fn price() -> Price {
    Price {
        prompt_micros_per_token: 1,
        cached_micros_per_token: 0,
        output_micros_per_token: 4,
    }
}

pub(crate) fn admission(spec: &Spec) -> Admission {
    let ask = Ask {
        prompt_tokens: spec.prompt,
        output_tokens: spec.output,
        micros: price().worst_case(spec.prompt, spec.output),
        output_micros_per_token: 4,
        pool: "small".into(),
    };
    let run = Run {
        id: spec.id,
        tenant: spec.tenant.into(),
        request_key: spec.request_key.clone(),
        payload_hash: [spec.payload; 32],
        prompt_tokens: spec.prompt,
        reserved_tokens: ask.tokens(),
        reserved_micros: ask.micros,
        price: price(),
        created_at_ms: spec.now_ms,
        replaces: spec.replaces,
        events_expire_at_ms: spec.now_ms + DAY_S * 1000,
        metadata: BTreeMap::from([("team".into(), "search".into())]),
        caller: Some("ci".into()),
        ..accepted_run()
    };
    Admission {
        work: WorkOrder {
            prompt: vec![1, 300, 70_000],
            submit: vec![9; 20],
            priority: 1,
            max_queue_ms: Some(2000),
            attended: false,
        },
        ask,
        limits: spec.limits.clone(),
        accepted: event(spec.id, 1, "accepted"),
        attachment: None,
        now_ms: spec.now_ms,
        run,
    }
}

/// What an event holds follows from its run and number, so that a replay can be checked byte for byte.
pub(crate) fn event(run: RunId, sequence: u64, kind: &'static str) -> EventRecord {
    let text = format!("{{\"sequence\":{sequence},\"text\":\"{kind} of {run}\",\"tokens\":1}}");
    EventRecord {
        sequence: Sequence(sequence),
        kind,
        data: text.into(),
    }
}

/// An append that continues a run.
pub(crate) struct Next {
    run: Run,
    append: Append,
}

pub(crate) fn next(run: &Run) -> Next {
    Next {
        run: run.clone(),
        append: Append {
            run: run.id,
            epoch: run.epoch,
            events: vec![],
            output_tokens: 0,
            output_index: run.output_index,
            started: None,
            terminal: None,
            verdicts: vec![],
            now_ms: NOW + 5,
        },
    }
}

impl Next {
    fn push(&mut self, kind: &'static str) {
        self.run.last_sequence.0 += 1;
        let event = event(self.run.id, self.run.last_sequence.0, kind);
        self.append.events.push(event);
    }

    pub(crate) fn started(mut self) -> Self {
        self.push("started");
        self.append.started = Some(weir_run::Start {
            cached_tokens: 3,
            worker: "worker-1".into(),
            ..weir_run::Start::default()
        });
        self.run.cached_tokens = 3;
        self.run.started_at_ms = Some(self.append.now_ms);
        self
    }

    pub(crate) fn deltas(mut self, count: u64) -> Self {
        for _ in 0..count {
            self.push("delta");
        }
        self.run.output_tokens += count;
        self.append.output_tokens += count;
        self.append.output_index += count;
        self
    }

    pub(crate) fn end(mut self, status: RunStatus) -> Self {
        self.push(status.as_str());
        let completed = status == RunStatus::Completed;
        self.append.terminal = Some(Terminal {
            status,
            finish_reason: completed.then_some(FinishReason::Stop),
            error: (!completed).then(|| "why".into()),
            usage: self.usage(),
        });
        self
    }

    pub(crate) fn at(mut self, now_ms: u64) -> Self {
        self.append.now_ms = now_ms;
        self
    }

    pub(crate) fn usage(&self) -> Usage {
        self.run.usage()
    }

    pub(crate) fn append(self) -> Append {
        self.append
    }
}

pub(crate) async fn admit(store: &dyn Store, spec: &Spec) -> Run {
    let answer = store.admit(admission(spec)).await.unwrap();
    assert!(matches!(answer, Admit::Admitted), "{answer:?}");
    run(store, spec).await
}

pub(crate) async fn run(store: &dyn Store, spec: &Spec) -> Run {
    store.run(spec.tenant, spec.id).await.unwrap().unwrap()
}

/// Appends, expects it done, and answers with the run.
pub(crate) async fn done(store: &dyn Store, next: Next) -> Run {
    let (tenant, id) = (next.run.tenant.clone(), next.run.id);
    let answers = store.append(vec![next.append()]).await.unwrap();
    assert!(matches!(answers[..], [Appended::Done(_)]), "{answers:?}");
    store.run(&tenant, id).await.unwrap().unwrap()
}
