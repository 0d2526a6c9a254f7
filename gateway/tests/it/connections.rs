//! Bounds of connections, and HTTP/2 without TLS.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::site::{DIGEST, Site, ask, config, snapshot, tenant};
use crate::worker::FakeWorker;

async fn raw(site: &Site, text: &str) -> String {
    let mut stream = TcpStream::connect(site.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(10), read)
        .await
        .expect("the connection ends")
        .ok();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_and_oversized_headers_end_the_connection_and_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let _worker = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let mut config = config();
    config.header_timeout = Duration::from_millis(200);
    let snapshot = snapshot(folder.path(), vec![tenant("acme")], &["w0"]);
    let site = Site::start(folder, snapshot, config).await;
    site.wait_served().await;
    raw(&site, "GET /usage HTTP/1.1\r\nhost: x\r\n").await;
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    let answer = raw(
        &site,
        &format!("GET /usage HTTP/1.1\r\nhost: x\r\n{many}\r\n"),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let large = "y".repeat(64 << 10);
    let answer = raw(&site, &format!("GET /usage HTTP/1.1\r\nx: {large}\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let reply = site.client("acme").post("/inference", &ask(1)).await;
    assert_eq!(reply.status, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_without_tls_carries_many_streams_on_one_connection() {
    let (site, _worker) = Site::new(true).await;
    let client: Pool<_, Full<Bytes>> = Pool::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let calls = (0..20).map(|_| {
        let request = Request::post(format!("http://{}/inference", site.address))
            .header("authorization", "Bearer acme-dev-key")
            .header("accept", "text/event-stream")
            .body(Full::new(Bytes::from(ask(5).to_string())))
            .unwrap();
        let response = client.request(request);
        async move {
            let response = response.await.unwrap();
            assert_eq!(response.version(), http::Version::HTTP_2);
            response.into_body().collect().await.unwrap().to_bytes()
        }
    });
    for body in futures::future::join_all(calls).await {
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert_eq!(text.matches("event: ").count(), 8, "{text}");
        assert!(text.contains("event: completed"));
    }
}
