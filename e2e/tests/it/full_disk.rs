//! A disk that fills up under a gateway: new runs are refused before they are acknowledged, readiness turns false, and when there is
//! space again both recover. Nothing acknowledged is lost.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use weir_e2e::{Client, RandomModel, Site, Tenant, Weir, wait_for};

const MIB: u64 = 1 << 20;

/// A file system of its own size; unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(at: &Path, bytes: u64) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let size = format!("size={bytes}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "weir-test"])
            .arg(at)
            .status();
        let mounted = mounted.is_ok_and(|status| status.success());
        mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_closes_admission_by_name_and_opens_it_again_with_space() {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    // As small as the smallest a person would try: it must not be full from the first write on.
    let Some(small) = Small::mount(&site.data(), 24 * MIB) else {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    };
    let weir: Weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let admin = Client::new(&weir.admin, "");
    let ask = |key: &str| json!({"model": "random", "input": "hi", "maxOutputTokens": 3, "requestKey": key});
    let before = client.post("/inference", &ask("before")).unwrap();
    assert_eq!(before.status, 202, "{before:?}");
    let events = client.all_events(&before.run_id(), 0).unwrap();

    let ballast = small.0.join("ballast");
    let fs = rustix::fs::statvfs(&small.0).unwrap();
    let free = fs.f_bavail * fs.f_frsize;
    std::fs::write(&ballast, vec![0; usize::try_from(free - MIB / 4).unwrap()]).unwrap();
    let refused = client.post("/inference", &ask("while-full")).unwrap();
    assert_eq!(
        (refused.status, refused.code()),
        (503, "store_unavailable"),
        "{refused:?}"
    );
    let message = refused.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("disk is full"), "{message}");
    wait_for("readiness to turn false", 5, || {
        admin
            .get("/readyz")
            .ok()
            .filter(|reply| reply.status == 503)
    })
    .unwrap();
    assert_eq!(
        client.all_events(&before.run_id(), 0).unwrap(),
        events,
        "reads go on"
    );

    std::fs::remove_file(&ballast).unwrap();
    wait_for("readiness to return", 10, || {
        admin
            .get("/readyz")
            .ok()
            .filter(|reply| reply.status == 200)
    })
    .unwrap();
    let after = client.post("/inference", &ask("while-full")).unwrap();
    assert_eq!(after.status, 202, "the refusal consumed no key: {after:?}");
    client.all_events(&after.run_id(), 0).unwrap();
    let usage = client.get("/usage").unwrap().body;
    assert_eq!(
        (&usage["consistent"], &usage["liveRuns"]),
        (&json!(true), &json!(0))
    );
    drop(weir);
}
