//! A small HTTP service for the gateway to call, plain or under TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

/// A call as the service sees it.
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: String,
}

type Answers = Arc<dyn Fn(Call) -> (u16, String) + Send + Sync>;

/// A certificate for `localhost`: PEM of certificate and key.
pub(crate) fn certificate() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let cert = params.self_signed(&key).unwrap();
    (cert.pem(), key.serialize_pem())
}

/// Serves on a free port of this machine until the test ends.
pub(crate) async fn serve(
    tls: Option<(String, String)>,
    answers: impl Fn(Call) -> (u16, String) + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answers: Answers = Arc::new(answers);
    let acceptor = tls.map(|(cert, key)| {
        let cert = pem(&cert);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pem(&key)));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.into()], key)
            .unwrap();
        tokio_rustls::TlsAcceptor::from(Arc::new(config))
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answers, acceptor) = (Arc::clone(&answers), acceptor.clone());
            tokio::spawn(async move {
                match acceptor {
                    None => answer(stream, answers).await,
                    Some(acceptor) => {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            answer(stream, answers).await;
                        }
                    }
                }
            });
        }
    });
    address
}

fn pem(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    let body: String = text
        .lines()
        .filter(|line| !line.starts_with("-----"))
        .collect();
    base64::engine::general_purpose::STANDARD
        .decode(body)
        .unwrap()
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, answers: Answers) {
    let mut bytes = Vec::new();
    let head = loop {
        let mut more = [0; 4096];
        match stream.read(&mut more).await {
            Ok(count @ 1..) => bytes.extend_from_slice(&more[..count]),
            _ => return,
        }
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break String::from_utf8_lossy(&bytes[..end]).into_owned();
        }
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().unwrap())
    });
    let from = head.len() + 4;
    while bytes.len() < from + length.unwrap_or(0) {
        let mut more = [0; 4096];
        match stream.read(&mut more).await {
            Ok(count @ 1..) => bytes.extend_from_slice(&more[..count]),
            _ => return,
        }
    }
    let call = Call {
        path: head.split(' ').nth(1).unwrap_or("").to_owned(),
        body: String::from_utf8_lossy(&bytes[from..]).into_owned(),
        head,
    };
    let (status, body) = tokio::task::spawn_blocking(move || answers(call))
        .await
        .unwrap();
    let text = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.ok();
    stream.shutdown().await.ok();
}
