//! HTTPS on the listener, and a certificate that changes while it is used.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use weir_gateway::{Tls, TlsFiles};

use crate::service::certificate;
use crate::site::{Site, ask};
use crate::worker::FakeWorker;

type Https = Client<hyper_rustls::HttpsConnector<HttpConnector>, Full<Bytes>>;

fn client(pems: &[&str], h2: bool) -> Https {
    let mut roots = rustls::RootCertStore::empty();
    for pem in pems {
        roots
            .add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
            .unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_only();
    let connector = if h2 {
        connector.enable_http2().build()
    } else {
        connector.enable_http1().build()
    };
    Client::builder(TokioExecutor::new()).build(connector)
}

async fn post(
    client: &Https,
    address: SocketAddr,
    stream: bool,
) -> Result<(Version, String), String> {
    let request = Request::post(format!("https://localhost:{}/inference", address.port()))
        .header("authorization", "Bearer acme-dev-key")
        .header(
            "accept",
            if stream {
                "text/event-stream"
            } else {
                "application/json"
            },
        )
        .body(Full::new(ask(4).to_string().into()))
        .unwrap();
    let response = client
        .request(request)
        .await
        .map_err(|error| format!("{error:?}"))?;
    let (parts, body) = response.into_parts();
    let body = body
        .collect()
        .await
        .map_err(|error| error.to_string())?
        .to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    match parts.status {
        StatusCode::OK | StatusCode::ACCEPTED => Ok((parts.version, text)),
        status => Err(format!("{status}: {text}")),
    }
}

fn write(folder: &Path, pair: &(String, String)) {
    for (name, text) in [("tls.crt", &pair.0), ("tls.key", &pair.1)] {
        let next = folder.join(format!("{name}.next"));
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, folder.join(name)).unwrap();
    }
}

async fn secured() -> (Site, FakeWorker, (String, String)) {
    let (site, worker) = Site::new(true).await;
    let pair = certificate();
    write(site.folder.path(), &pair);
    let tls = Tls::open(TlsFiles {
        cert: site.folder.path().join("tls.crt"),
        key: site.folder.path().join("tls.key"),
    });
    site.gateway.secure(tls.unwrap());
    (site, worker, pair)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_protocols_are_served_and_what_is_no_tls_is_not() {
    let (site, _worker, pair) = secured().await;
    let (version, _) = post(&client(&[&pair.0], true), site.address, false)
        .await
        .unwrap();
    assert_eq!(version, Version::HTTP_2);
    let (version, events) = post(&client(&[&pair.0], false), site.address, true)
        .await
        .unwrap();
    assert_eq!(version, Version::HTTP_11);
    assert!(events.contains("event: completed"), "{events}");
    let stranger = certificate();
    post(&client(&[&stranger.0], true), site.address, false)
        .await
        .unwrap_err();
    let plain = tokio::net::TcpStream::connect(site.address).await.unwrap();
    plain.writable().await.unwrap();
    plain
        .try_write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    let mut answer = [0; 64];
    let read = async {
        plain.readable().await.unwrap();
        plain.try_read(&mut answer)
    };
    let read = tokio::time::timeout(Duration::from_secs(5), read)
        .await
        .expect("an end");
    assert!(!answer.starts_with(b"HTTP"), "{read:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_replaced_under_load_without_a_failed_request() {
    let (site, _worker, first) = secured().await;
    let second = certificate();
    let address = site.address;
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let mut callers = Vec::new();
    for h2 in [true, false, true, false] {
        let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
        let pems = [first.0.clone(), second.0.clone()];
        callers.push(tokio::spawn(async move {
            let pems: Vec<&str> = pems.iter().map(String::as_str).collect();
            let kept = client(&pems, h2);
            while !stop.load(Ordering::Relaxed) {
                // One on a connection that is kept, one on a new one.
                post(&kept, address, true).await?;
                post(&client(&pems, h2), address, false).await?;
                done.fetch_add(2, Ordering::Relaxed);
            }
            Ok::<_, String>(())
        }));
    }
    let reloads = |outcome: &str| {
        let line = format!("weir_gateway_tls_reloads_total{{outcome=\"{outcome}\"}} ");
        let text = site.metrics.prometheus_text();
        let value = text
            .lines()
            .find_map(|l| l.strip_prefix(&line).map(|v| v.parse::<u64>().unwrap()));
        value.unwrap_or(0)
    };
    let wait = |outcome: &'static str, count: u64| {
        let reloads = &reloads;
        async move {
            for _ in 0..4000 {
                if reloads(outcome) >= count {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("the files were not looked at: {outcome}");
        }
    };
    // A key that does not fit changes nothing.
    std::fs::write(site.folder.path().join("tls.key"), &second.1).unwrap();
    wait("refused", 1).await;
    post(&client(&[&first.0], true), address, false)
        .await
        .unwrap();
    write(site.folder.path(), &second);
    wait("taken", 1).await;
    post(&client(&[&second.0], true), address, false)
        .await
        .unwrap();
    post(&client(&[&first.0], true), address, false)
        .await
        .unwrap_err();
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    assert!(
        done.load(Ordering::Relaxed) > 20,
        "too little load to prove anything"
    );
}

#[tokio::test]
async fn a_listener_without_a_usable_certificate_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let files = TlsFiles {
        cert: folder.path().join("tls.crt"),
        key: folder.path().join("tls.key"),
    };
    let error = Tls::open(files.clone()).err().unwrap().to_string();
    assert!(error.contains("tls.crt"), "{error}");
    let (one, other) = (certificate(), certificate());
    write(folder.path(), &(one.0, other.1));
    let error = Tls::open(files).err().unwrap().to_string();
    assert!(error.contains("cannot be used with the key"), "{error}");
}
