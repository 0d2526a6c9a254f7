//! A runtime for a test that must end.

/// Longer than any test takes on a busy machine.
const TEST_WITHIN: std::time::Duration = std::time::Duration::from_mins(2);

/// An engine or a server that hangs fails its test instead of the whole suite.
pub(crate) async fn in_time(test: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(TEST_WITHIN, test).await;
    ended.expect("done within two minutes");
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}
