//! The process that is killed. Says `try …` before a write and `ack …` after its answer, one line each.

use std::path::Path;

use weir_run::{Run, RunId, RunStatus};
use weir_store::{Admit, Appended, Store, open};

use super::random::Random;
use crate::support::{NOW, Spec, admission, day_of, next, runtime, spec};

/// Writers at once, so that commits carry several runs.
const WRITERS: u64 = 6;

pub(super) fn run(arguments: &str) {
    let mut parts = arguments.splitn(3, '|');
    let engine = parts.next().unwrap().parse().unwrap();
    let seed: u64 = parts.next().unwrap().parse().unwrap();
    let store = open(Path::new(parts.next().unwrap()), engine).unwrap();
    runtime().block_on(async move {
        pick_up(&*store, seed).await;
        let mut writers = tokio::task::JoinSet::new();
        for n in 0..WRITERS {
            let store = store.clone();
            writers.spawn(async move {
                let mut random = Random(seed ^ n);
                loop {
                    live_one(&*store, &mut random).await;
                }
            });
        }
        // They only end when they fail, or when this process is killed.
        let ended: Option<Result<(), _>> = writers.join_next().await;
        panic!("a writer ended: {ended:?}");
    });
}

/// What a gateway does after a restart: takes every open run over and ends it.
async fn pick_up(store: &dyn Store, seed: u64) {
    let mut random = Random(seed);
    for open in store.open_runs().await.unwrap() {
        let Some(epoch) = store.take_over(open.run.id).await.unwrap() else {
            panic!("an open run can be taken over");
        };
        let mut run = open.run;
        run.epoch = epoch;
        if run.started_at_ms.is_some() && run.output_tokens < 50 && random.below(2) == 0 {
            run = add(store, next(&run).deltas(1), &run).await;
        }
        let end = next(&run).end(RunStatus::Interrupted);
        add(store, end, &run).await;
    }
}

async fn live_one(store: &dyn Store, random: &mut Random) {
    let number = (u128::from(random.next()) << 64) | u128::from(random.next());
    let tenant = if random.below(2) == 0 {
        "acme"
    } else {
        "globex"
    };
    // globex runs out of budget in mid-test: refusals must hold after a crash too.
    let limits = day_of(if tenant == "acme" { 100_000_000 } else { 1_500 });
    let one = Spec {
        id: RunId::new(NOW, number),
        tenant,
        request_key: Some(format!("key-{number:x}")),
        limits,
        ..spec(0)
    };
    println!("try admit {} {tenant}", one.id);
    match store.admit(admission(&one)).await.unwrap() {
        Admit::Admitted => println!("ack admit {} {tenant}", one.id),
        Admit::Refused(_) => return println!("ack refuse {} {tenant}", one.id),
        other => panic!("{other:?}"),
    }
    let mut run = admission(&one).run;
    if random.below(8) > 0 {
        run = add(store, next(&run).started(), &run).await;
        for _ in 0..random.below(12) {
            run = add(store, next(&run).deltas(1 + random.below(3)), &run).await;
        }
        if random.below(6) == 0 {
            println!("try cancel {} {tenant}", one.id);
            store.cancel(tenant, one.id, NOW).await.unwrap().unwrap();
            println!("ack cancel {} {tenant}", one.id);
        }
    }
    if random.below(20) == 0 {
        // Stays open: the next life picks it up.
        return;
    }
    let end = if run.started_at_ms.is_none() {
        RunStatus::Expired
    } else {
        RunStatus::TERMINAL[usize::try_from(random.below(5)).unwrap()]
    };
    let last = next(&run).end(end);
    add(store, last, &run).await;
}

async fn add(store: &dyn Store, next: crate::support::Next, run: &Run) -> Run {
    let append = next.append();
    let last = append.events.last().unwrap().sequence.0;
    let end = append
        .terminal
        .as_ref()
        .map_or("-", |end| end.status.as_str());
    println!("try append {} {} {last} {end}", run.id, run.tenant);
    let answers = store.append(vec![append]).await.unwrap();
    assert!(matches!(answers[..], [Appended::Done(_)]), "{answers:?}");
    println!("ack append {} {} {last} {end}", run.id, run.tenant);
    store.run(&run.tenant, run.id).await.unwrap().unwrap()
}
