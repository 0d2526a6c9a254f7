//! A medium that fills up: refusals with a type of their own, nothing lost, and recovery when there is space again.

use std::path::{Path, PathBuf};
use std::process::Command;

use weir_store::{Appended, Engine, Store, StoreError, open};

use crate::support::*;

const MIB: u64 = 1 << 20;

/// A file system of its own size.
struct Small(
    PathBuf,
    #[expect(dead_code, reason = "removes the mount point")] tempfile::TempDir,
);

impl Small {
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "weir-test"])
            .arg(folder.path())
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then(|| Self(folder.path().to_owned(), folder))
    }

    /// Fills it up to what is to be left.
    fn leave(&self, bytes: u64) {
        let ballast = self.0.join("ballast");
        drop(std::fs::remove_file(&ballast));
        let fs = rustix::fs::statvfs(&self.0).unwrap();
        let free = fs.f_bavail * fs.f_frsize;
        let zeros = vec![0_u8; usize::try_from(free.saturating_sub(bytes)).unwrap()];
        std::fs::write(ballast, zeros).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(unmounted.unwrap().success());
    }
}

#[test]
fn a_full_disk_refuses_by_name_and_recovers_when_there_is_space() {
    for engine in ENGINES {
        let Some(small) = Small::mount(96 * MIB) else {
            println!("skipped: mounting a tmpfs needs root");
            return;
        };
        let path = small.0.join("store");
        runtime().block_on(in_time(fill(&small, &path, engine)));
    }
}

async fn fill(small: &Small, path: &Path, engine: Engine) {
    let store = open(path, engine).unwrap();
    let mut run = admit(&*store, &spec(1)).await;
    run = done(&*store, next(&run).started().deltas(1)).await;
    small.leave(10 * MIB);
    let error = store.admit(admission(&spec(2))).await.unwrap_err();
    assert!(
        matches!(error, StoreError::Full { .. }),
        "{engine:?}: {error}"
    );
    run = done(&*store, next(&run).deltas(1)).await;
    small.leave(MIB);
    let answer = store.append(vec![next(&run).deltas(1).append()]).await;
    assert!(
        matches!(answer, Err(StoreError::Full { .. })),
        "{engine:?}: {answer:?}"
    );
    assert_eq!(
        store.run("acme", run.id).await.unwrap().unwrap(),
        run,
        "reads go on"
    );

    // More in one commit than there is space for: it is not begun.
    small.leave(5 * MIB);
    let mut huge = next(&run).deltas(1).append();
    huge.events[0].data = vec![b' '; 24 << 20].into();
    let answer = store.append(vec![huge]).await;
    assert!(
        matches!(answer, Err(StoreError::Full { .. })),
        "{engine:?}: {answer:?}"
    );
    small.leave(60 * MIB);
    recovers(&*store, &mut run, engine).await;
    admit(&*store, &spec(3)).await;
    drop(store);
    let store = open(path, engine).unwrap();
    assert_eq!(store.run("acme", run.id).await.unwrap().unwrap(), run);
    let usage = store
        .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
        .await
        .unwrap();
    assert!(
        usage.consistent && usage.budget.live_runs == 2,
        "{engine:?}: {usage:?}"
    );
}

/// The store looks for space now and then; within seconds it takes the append.
async fn recovers(store: &dyn Store, run: &mut weir_run::Run, engine: Engine) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let now = store.run("acme", run.id).await.ok().flatten();
        let append = next(now.as_ref().unwrap_or(run)).deltas(1).append();
        match store.append(vec![append]).await {
            Ok(answers) => {
                assert!(matches!(answers[..], [Appended::Done(_)]), "{answers:?}");
                *run = store.run("acme", run.id).await.unwrap().unwrap();
                return;
            }
            Err(StoreError::Full { .. }) => {
                assert!(
                    std::time::Instant::now() < deadline,
                    "{engine:?} stays full"
                );
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{engine:?}: {error}"),
        }
    }
}
