//! Migrations and partitions.

use weir_run::{RunId, RunStatus, Sequence};

use crate::support::*;

#[test]
fn gateways_that_start_together_migrate_once_and_have_one_identity() {
    on_every_engine(|bed| async move {
        let opening = (0..6).map(|_| {
            let bed = bed.clone();
            tokio::spawn(async move { bed.open().identity() })
        });
        let mut identities = vec![];
        for one in opening.collect::<Vec<_>>() {
            identities.push(one.await.unwrap());
        }
        identities.dedup();
        assert_eq!(identities.len(), 1, "{identities:?}");
        assert_eq!(bed.sql("SELECT count(*) FROM weir.schema"), "1");
    });
}

#[test]
fn a_later_schema_is_refused_and_left_alone() {
    on_every_engine(|bed| async move {
        drop(bed.open());
        bed.sql("INSERT INTO weir.schema (version) VALUES (99)");
        let error = bed.try_gateway(None).err().unwrap().to_string();
        assert!(
            error.contains("version 99") && error.contains("later one"),
            "{error}"
        );
        assert_eq!(bed.sql("SELECT max(version) FROM weir.schema"), "99");
    });
}

#[test]
fn a_server_that_is_not_there_is_named_without_its_password() {
    runtime().block_on(async {
        let url = "postgres://weir:secret@127.0.0.1:1/x".to_owned();
        let error = Bed { url }.try_gateway(None).err().unwrap();
        assert!(
            matches!(error, weir_store::StoreError::Away { .. }),
            "{error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
    });
}

#[test]
fn a_partition_is_dropped_when_the_retention_of_all_in_it_is_over() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let partitions =
            || bed.sql("SELECT count(*) FROM pg_inherits WHERE inhparent = 'weir.chunk'::regclass");
        // NOW is long ago: its partition takes no new runs.
        let mut ids = vec![];
        for n in 0..3 {
            let run = admit(&*store, &spec(n)).await;
            ids.push(run.id);
            done(
                &*store,
                next(&run).started().deltas(2).end(RunStatus::Completed),
            )
            .await;
        }
        let live = admit(&*store, &spec(9)).await;
        let before = partitions();
        let over = NOW + 2 * DAY_S * 1000;
        assert_eq!(store.expire(over, 99).await.unwrap(), 3);
        assert_eq!(
            bed.sql("SELECT coalesce(weir.drop_partition(), 'kept')"),
            "kept",
            "a live run is in it"
        );
        assert_eq!(
            store.events(live.id, Sequence(0), 9).await.unwrap().len(),
            1
        );
        assert!(
            store
                .events(ids[0], Sequence(0), 9)
                .await
                .unwrap()
                .is_empty()
        );
        done(&*store, next(&live).end(RunStatus::Cancelled)).await;
        assert_eq!(store.expire(over, 99).await.unwrap(), 1);
        let dropped = bed.sql("SELECT weir.drop_partition()");
        assert!(dropped.starts_with("chunk_"), "{dropped:?}");
        assert_ne!(partitions(), before);
        assert_eq!(bed.sql("SELECT count(*) FROM weir.expired"), "0");
        let kept = store.run("acme", ids[0]).await.unwrap().unwrap();
        assert_eq!(kept.status, RunStatus::Completed, "the row stays");
        let late = Spec {
            id: RunId::new(NOW + 1, 77),
            ..spec(0)
        };
        admit(&*store, &late).await;
        assert_eq!(
            store.events(late.id, Sequence(0), 9).await.unwrap().len(),
            1,
            "made again when needed"
        );
    });
}
