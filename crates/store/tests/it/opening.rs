//! Opening, locking, closing.

use std::time::Duration;

use weir_run::RunStatus;
use weir_store::{Engine, StoreError, open};

use crate::support::*;

#[test]
fn a_second_opening_is_told_that_the_store_is_in_use() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let error = open(bed.path(), bed.engine).err().unwrap();
        assert!(matches!(error, StoreError::Locked { .. }), "{error}");
        assert!(
            error.to_string().contains("in use by another process"),
            "{error}"
        );
        drop(store);
        bed.open();
    });
}

#[test]
fn a_store_of_one_engine_is_not_opened_as_another() {
    on_every_engine(|bed| async move {
        drop(bed.open());
        let other = ENGINES
            .into_iter()
            .find(|engine| *engine != bed.engine)
            .unwrap();
        let error = open(bed.path(), other).err().unwrap().to_string();
        assert!(
            error.contains(bed.engine.as_str()) && error.contains("choose"),
            "{error}"
        );
        bed.open();
    });
}

/// As a process does that was forked while the store was open, until it is another program.
#[test]
fn a_lock_that_is_held_for_a_moment_more_is_waited_for() {
    on_every_engine(|bed| async move {
        drop(bed.open());
        let own = ["lock", "weir.redb", "sled/db"].map(|name| bed.path().join(name));
        let held: Vec<_> = own
            .iter()
            .filter_map(|path| std::fs::File::open(path).ok())
            .collect();
        assert!(!held.is_empty());
        for file in &held {
            file.lock().unwrap();
        }
        let freed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            drop(held);
        });
        bed.open();
        freed.join().unwrap();
    });
}

#[test]
fn closing_finishes_what_was_begun_and_refuses_what_comes_after() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let run = admit(&*store, &spec(1)).await;
        let appending = store.append(vec![next(&run).started().deltas(3).append()]);
        let closing = store.close(Duration::from_secs(5));
        let (appended, closed) = tokio::join!(appending, closing);
        closed.unwrap();
        let appended = appended.unwrap();
        assert_eq!(appended, [weir_store::Appended::Done(RunStatus::Running)]);
        let error = store.take_over(run.id).await.unwrap_err();
        assert!(matches!(error, StoreError::Closed), "{error}");
        store.close(Duration::from_secs(5)).await.unwrap();
        drop(store);
        let store = bed.open();
        let run = store.run("acme", run.id).await.unwrap().unwrap();
        assert_eq!(run.output_tokens, 3);
    });
}

#[test]
fn engines_are_named_in_configuration() {
    for engine in ENGINES {
        assert_eq!(engine.as_str().parse(), Ok(engine));
    }
    let error = "rocks".parse::<Engine>().unwrap_err();
    assert!(error.contains("log, redb and sled"), "{error}");
}
