//! Objects: all of a batch or nothing, versions, order, and what goes with a run's events.

use weir_run::{RunId, RunStatus};
use weir_store::{
    Expect, MAX_OBJECT_BYTES, ObjectRange, ObjectWrite, RUN_SPACE, Store, StoreError, Written,
};

use crate::support::{NOW, admission, done, next, on_every_engine, run, spec};

fn put(name: &str, expect: Expect, data: &str) -> ObjectWrite {
    write("acme", name, expect, Some(data))
}

fn write(owner: &str, name: &str, expect: Expect, data: Option<&str>) -> ObjectWrite {
    ObjectWrite {
        space: "file",
        owner: owner.to_owned(),
        name: name.to_owned(),
        expect,
        data: data.map(|data| data.to_owned().into()),
    }
}

async fn names(store: &dyn Store, range: ObjectRange) -> Vec<String> {
    let found = store.objects(range).await.unwrap();
    found.into_iter().map(|object| object.name).collect()
}

fn all(owner: &str) -> ObjectRange {
    ObjectRange {
        space: "file",
        owner: owner.to_owned(),
        after: String::new(),
        before: None,
        descending: false,
        limit: 100,
    }
}

#[test]
fn a_batch_of_writes_is_done_whole_or_not_at_all_and_survives() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let both = vec![put("a", Expect::Absent, "1"), put("b", Expect::Any, "2")];
        assert_eq!(store.write_objects(both).await.unwrap(), Written::Done);
        let refused = vec![
            put("c", Expect::Absent, "3"),
            put("a", Expect::Absent, "other"),
        ];
        assert_eq!(
            store.write_objects(refused).await.unwrap(),
            Written::Conflict(1)
        );
        let stale = vec![put("a", Expect::Version(2), "stale")];
        assert_eq!(
            store.write_objects(stale).await.unwrap(),
            Written::Conflict(0)
        );
        let next = vec![
            put("a", Expect::Version(1), "new"),
            write("acme", "b", Expect::Any, None),
        ];
        assert_eq!(store.write_objects(next).await.unwrap(), Written::Done);
        drop(store);
        let store = bed.open();
        let a = store.object("file", "acme", "a").await.unwrap().unwrap();
        assert_eq!((a.version, &a.data[..]), (2, &b"new"[..]));
        assert_eq!(store.object("file", "acme", "b").await.unwrap(), None);
        assert_eq!(store.object("file", "globex", "a").await.unwrap(), None);
        assert_eq!(names(&*store, all("acme")).await, ["a"]);
    });
}

#[test]
fn a_list_is_of_one_owner_in_order_of_names_from_either_end() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let mut writes: Vec<ObjectWrite> = ["c", "a", "d", "b"]
            .iter()
            .map(|name| put(name, Expect::Absent, "x"))
            .collect();
        writes.push(write("acm", "e", Expect::Any, Some("other")));
        writes.push(write("acmee", "a", Expect::Any, Some("other")));
        store.write_objects(writes).await.unwrap();
        let list = |after: &str, before: Option<&str>, descending, limit| ObjectRange {
            after: after.to_owned(),
            before: before.map(str::to_owned),
            descending,
            limit,
            ..all("acme")
        };
        let cases = [
            (list("", None, false, 9), vec!["a", "b", "c", "d"]),
            (list("b", None, false, 9), vec!["c", "d"]),
            (list("b", None, false, 1), vec!["c"]),
            (list("", Some("c"), true, 9), vec!["b", "a"]),
            (list("", None, true, 2), vec!["d", "c"]),
            (list("a", Some("b"), false, 9), vec![]),
            (list("", None, false, 0), vec![]),
        ];
        for (range, want) in cases {
            assert_eq!(names(&*store, range.clone()).await, want, "{range:?}");
        }
    });
}

#[test]
fn an_object_that_is_too_large_or_nameless_is_refused() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let huge = "x".repeat(MAX_OBJECT_BYTES + 1);
        for bad in [put("a", Expect::Any, &huge), put("", Expect::Any, "x")] {
            let error = store.write_objects(vec![bad]).await.unwrap_err();
            assert!(matches!(error, StoreError::Contract(_)), "{error}");
        }
    });
}

#[test]
fn what_a_client_sent_with_a_run_is_kept_as_long_as_its_events() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let mut first = admission(&spec(1));
        first.attachment = Some("{\"input\":\"hi\"}".into());
        let id = first.run.id;
        store.admit(first).await.unwrap();
        let name = id.to_string();
        let kept = store.object(RUN_SPACE, "acme", &name).await.unwrap();
        assert_eq!(&kept.unwrap().data[..], b"{\"input\":\"hi\"}");
        let plain = admission(&spec(2));
        store.admit(plain).await.unwrap();
        let other = RunId::new(NOW, 2).to_string();
        assert_eq!(store.object(RUN_SPACE, "acme", &other).await.unwrap(), None);
        let run = run(&*store, &spec(1)).await;
        let until = done(&*store, next(&run).started().end(RunStatus::Completed))
            .await
            .events_expire_at_ms;
        store.expire(until - 1, 9).await.unwrap();
        let kept = store.object(RUN_SPACE, "acme", &name).await.unwrap();
        assert!(kept.is_some());
        store.expire(until, 9).await.unwrap();
        assert_eq!(store.object(RUN_SPACE, "acme", &name).await.unwrap(), None);
    });
}
