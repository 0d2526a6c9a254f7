//! Files that change while connections are open.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio_util::sync::CancellationToken;
use weir_identity::{Identity, Reload, Role};

use crate::authority::{Authority, call, passes, serve};

#[tokio::test]
async fn an_authority_is_replaced_while_streams_are_open_and_the_old_one_is_refused_in_the_end() {
    let (old, new) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let (worker, gateway, left) = (
        dir.path().join("w"),
        dir.path().join("g"),
        dir.path().join("left"),
    );
    old.fill(&worker, Role::Worker, &[&old]);
    old.fill(&gateway, Role::Gateway, &[&old]);
    old.fill(&left, Role::Gateway, &[&old, &new]);
    let mut served = serve(&worker).await;
    let mut open = vec![];
    // Both are trusted before anybody shows a certificate of the new one; the old one goes when nobody shows one of it.
    let steps: [&dyn Fn(); 5] = [
        &|| {},
        &|| old.fill(&worker, Role::Worker, &[&old, &new]),
        &|| old.fill(&gateway, Role::Gateway, &[&old, &new]),
        &|| new.fill(&worker, Role::Worker, &[&old, &new]),
        &|| new.fill(&gateway, Role::Gateway, &[&old, &new]),
    ];
    for (step, change) in steps.into_iter().enumerate() {
        change();
        let looked = served.identity.look();
        assert!(!matches!(looked, Some(Reload::Refused(_))), "step {step}");
        let mut caller = call(&gateway, served.address).await.unwrap();
        let mut stream = served.taken.recv().await.unwrap().unwrap();
        passes(&mut caller, &mut stream).await;
        open.push((caller, stream));
    }
    new.fill(&worker, Role::Worker, &[&new]);
    assert!(matches!(served.identity.look(), Some(Reload::Taken(_))));
    let mut stale = call(&left, served.address).await.unwrap();
    let refused = stale.read(&mut [0]).await.unwrap_err().to_string();
    assert!(refused.contains("UnknownCA"), "{refused}");
    for (caller, stream) in &mut open {
        passes(caller, stream).await;
    }
}

#[tokio::test]
async fn what_cannot_be_used_changes_nothing_and_is_said_once() {
    let (ours, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let identity = Identity::awaited(dir.path());
    assert!(identity.current().is_err());
    let first = identity.look();
    assert!(matches!(first, Some(Reload::Refused(_))), "{first:?}");
    assert!(identity.look().is_none(), "said already");
    ours.fill(dir.path(), Role::Gateway, &[&ours]);
    assert!(matches!(identity.look(), Some(Reload::Taken(_))));
    assert!(identity.look().is_none(), "as it was");
    let before = identity.current().unwrap();
    std::fs::write(dir.path().join("tls.key"), "half a ke").unwrap();
    assert!(matches!(identity.look(), Some(Reload::Refused(_))));
    assert!(Arc::ptr_eq(&before, &identity.current().unwrap()));
    std::fs::remove_file(dir.path().join("tls.key")).unwrap();
    assert!(matches!(identity.look(), Some(Reload::Refused(_))));
    ours.fill(dir.path(), Role::Gateway, &[&ours]);
    assert!(matches!(identity.look(), Some(Reload::Taken(_))));
}

#[tokio::test]
async fn a_folder_that_is_filled_later_is_taken_by_itself() {
    let (ours, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let identity = Arc::new(Identity::awaited(dir.path()));
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let following = tokio::spawn(Arc::clone(&identity).follow(stop.clone(), move |reload| {
        told.send(matches!(reload, Reload::Taken(_))).unwrap();
    }));
    assert_eq!(heard.recv().await, Some(false), "it is empty");
    ours.fill(dir.path(), Role::Gateway, &[&ours]);
    let taken = async { while heard.recv().await != Some(true) {} };
    tokio::time::timeout(Duration::from_secs(20), taken)
        .await
        .unwrap();
    assert!(identity.current().unwrap().life().end > std::time::SystemTime::now());
    stop.cancel();
    following.await.unwrap();
}
