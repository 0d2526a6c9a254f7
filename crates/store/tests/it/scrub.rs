//! What was deleted is unreadable in an engine's own files too.

use weir_run::RunStatus;
use weir_store::{Engine, Purge, Scrub};

use crate::support::*;

/// Bytes of a folder's files that hold a text.
fn holds(folder: &std::path::Path, text: &str) -> Vec<String> {
    let mut found = vec![];
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                if bytes
                    .windows(text.len())
                    .any(|part| part == text.as_bytes())
                {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    found
}

#[test]
fn a_scrub_after_a_purge_leaves_no_byte_of_it_in_the_files_and_the_store_goes_on() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let canary = "canary-4f1c9b";
        for n in 0..30 {
            let run = admit(&*store, &spec(n)).await;
            let mut append = next(&run)
                .started()
                .deltas(20)
                .end(RunStatus::Completed)
                .append();
            for event in &mut append.events {
                event.data = format!("{{\"text\":\"{canary} {n}\"}}").into();
            }
            store.append(vec![append]).await.unwrap();
        }
        let live = admit(&*store, &spec(99)).await;
        assert!(
            !holds(bed.path(), canary).is_empty(),
            "the test sees what is there"
        );
        let purge = Purge {
            tenant: "acme".into(),
            before_ms: u64::MAX,
            after: None,
            limit: 1000,
            now_ms: NOW,
        };
        assert_eq!(store.purge(purge).await.unwrap().runs, 30);
        let scrubbed = store.scrub().await.unwrap();
        if bed.engine == Engine::Sled {
            assert!(matches!(scrubbed, Scrub::Later(_)));
        } else {
            assert_eq!(scrubbed, Scrub::Done);
            assert_eq!(holds(bed.path(), canary), Vec::<String>::new());
        }
        let live = done(&*store, next(&live).started().deltas(2)).await;
        drop(store);
        let store = bed.open();
        assert_eq!(store.run("acme", live.id).await.unwrap().unwrap(), live);
        done(&*store, next(&live).end(RunStatus::Completed)).await;
        let usage = store
            .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        assert!(usage.consistent);
        assert_eq!(store.runs("acme", None, 99).await.unwrap().len(), 31);
    });
}
