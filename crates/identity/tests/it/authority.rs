//! An authority, the folders it fills, and two ends that use them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::{client, server};
use tokio_util::sync::{CancellationToken, DropGuard};
use weir_identity::{Identity, Role, Spoken, accept};

static NEXT: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // Authorities of one name would be told apart by a signature that does not fit.
        let name = format!("authority {}", NEXT.fetch_add(1, Ordering::Relaxed));
        parameters.distinguished_name.push(DnType::CommonName, name);
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(parameters, key),
        }
    }

    /// Fills a folder for a role; others are taken by `authorities`.
    pub(crate) fn fill(&self, folder: &Path, role: Role, authorities: &[&Self]) {
        self.fill_until(
            folder,
            role,
            authorities,
            SystemTime::now() + Duration::from_hours(1),
        );
    }

    pub(crate) fn fill_until(
        &self,
        folder: &Path,
        role: Role,
        authorities: &[&Self],
        end: SystemTime,
    ) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new([role.name().to_owned()]).unwrap();
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        parameters.not_after = end.into();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let bundle: String = authorities.iter().map(|one| one.pem.as_str()).collect();
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("tls.crt"), certificate.pem()).unwrap();
        std::fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
        std::fs::write(folder.join("ca.crt"), bundle).unwrap();
    }
}

/// A worker's end that lets gateways in.
pub(crate) struct Served {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) identity: Arc<Identity>,
    pub(crate) taken: mpsc::Receiver<std::io::Result<server::TlsStream<TcpStream>>>,
    _stop: DropGuard,
}

pub(crate) async fn serve(folder: &Path) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let identity = Arc::new(Identity::open(folder).unwrap());
    let stop = CancellationToken::new();
    let taken = accept(listener, Arc::clone(&identity), Role::Gateway, stop.clone());
    Served {
        address,
        identity,
        taken,
        _stop: stop.drop_guard(),
    }
}

/// Calls a worker; in TLS 1.3 the caller learns with its first byte whether it was taken.
pub(crate) async fn call(
    folder: &Path,
    address: std::net::SocketAddr,
) -> Result<client::TlsStream<TcpStream>, String> {
    let identity = Identity::open(folder).map_err(|error| error.to_string())?;
    let credentials = identity.current().map_err(|error| error.to_string())?;
    let stream = TcpStream::connect(address).await.unwrap();
    let called = credentials
        .connect(stream, Role::Worker, Spoken::Http2)
        .await;
    called.map_err(|error| error.to_string())
}

/// A byte there and back.
pub(crate) async fn passes(
    caller: &mut client::TlsStream<TcpStream>,
    served: &mut server::TlsStream<TcpStream>,
) {
    caller.write_all(b"?").await.unwrap();
    caller.flush().await.unwrap();
    let mut byte = [0];
    served.read_exact(&mut byte).await.unwrap();
    served.write_all(b"!").await.unwrap();
    served.flush().await.unwrap();
    caller.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"!");
}
