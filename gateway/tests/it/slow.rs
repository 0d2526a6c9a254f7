//! Readers that do not read.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::site::{DIGEST, Site, ask, config, snapshot, tenant};
use crate::worker::FakeWorker;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_takes_nothing_delays_nobody_and_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let _worker = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let mut acme = tenant("acme");
    acme.max_output_tokens = Some(12_000);
    let mut config = config();
    config.write_timeout = Duration::from_millis(300);
    let snapshot = snapshot(folder.path(), vec![acme], &["w0"]);
    let site = Site::start(folder, snapshot, config).await;
    site.wait_served().await;
    let mut stuck = Vec::new();
    for _ in 0..4 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(site.address).await.unwrap();
        let body = ask(12_000).to_string();
        let head = format!(
            "POST /inference HTTP/1.1\r\nhost: x\r\nauthorization: Bearer acme-dev-key\r\naccept: text/event-stream\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stuck.push(stream);
    }
    let events = site
        .client("acme")
        .stream("/inference", &ask(500))
        .await
        .rest()
        .await;
    assert_eq!(events.len(), 503, "a keen reader gets everything");
    crate::site::wait_for("the stuck runs to end all the same", || {
        site.gateway.live_runs() == 0
    })
    .await;
    // However fast the runs ended: who takes nothing for longer than the timeout is cut.
    crate::site::wait_for("the stuck connections to be cut", || {
        site.connections() == 0
    })
    .await;
    // What the kernel's buffers hold can still be read, in small pieces through so small a window; the end of the stream is not in it.
    for mut stream in stuck {
        let mut text = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut text);
        tokio::time::timeout(Duration::from_millis(300), read)
            .await
            .ok();
        assert!(!text.is_empty());
        assert!(!String::from_utf8_lossy(&text).contains("event: completed"));
    }
}
