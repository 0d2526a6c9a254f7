use super::*;

const GOOD: &str = r#"{"tenants": [{"name": "acme", "keys": [], "priority": "standard", "models": [], "trustScope": "acme", "retentionMs": 1}],
    "models": [], "pools": [{"name": "small", "interactive": {"maxDepth": 1, "maxWaitMs": 2}, "standard": {"maxDepth": 3, "maxWaitMs": 4},
    "batch": {"maxDepth": 5, "maxWaitMs": 6}, "classBounds": [512, 4096]}],
    "workers": [{"name": "w0", "pool": "small", "address": "unix:/run/w0"}, {"name": "w1", "pool": "small", "address": "w1:7000"}]}"#;

#[test]
fn a_file_is_read_once_for_each_change_and_a_broken_one_names_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.json");
    std::fs::write(&path, GOOD).unwrap();
    let mut file = SnapshotFile::new(&path);
    let snapshot = file.read().unwrap().unwrap();
    assert_eq!(snapshot.pools[0].queues[2].max_wait_ms, 6);
    assert_eq!(
        snapshot.workers[0].address,
        WorkerAddress::Unix("/run/w0".into())
    );
    assert_eq!(
        snapshot.workers[1].address,
        WorkerAddress::Tcp("w1:7000".into())
    );
    assert!(file.read().unwrap().is_none(), "nothing changed");
    std::fs::write(&path, GOOD.replace("retentionMs", "retention")).unwrap();
    let Err(SnapshotFileError::Parse { source, .. }) = file.read() else {
        panic!("an unknown field is refused");
    };
    assert!(source.to_string().contains("retention"), "{source}");
    assert!(file.read().unwrap().is_none(), "one report for one change");
}
