//! Who is let in, and what is said to the others.

use std::time::{Duration, SystemTime};

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use weir_identity::{IdentityError, Role};

use crate::authority::{Authority, call, passes, serve};

#[tokio::test]
async fn a_gateway_and_a_worker_of_one_install_find_each_other() {
    let (ours, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let (worker, gateway) = (dir.path().join("w"), dir.path().join("g"));
    ours.fill(&worker, Role::Worker, &[&ours]);
    ours.fill(&gateway, Role::Gateway, &[&ours]);
    let mut served = serve(&worker).await;
    let mut caller = call(&gateway, served.address).await.unwrap();
    let mut stream = served.taken.recv().await.unwrap().unwrap();
    passes(&mut caller, &mut stream).await;
}

#[tokio::test]
async fn the_caller_refuses_what_is_no_worker_of_the_install() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let (worker, gateway) = (dir.path().join("w"), dir.path().join("g"));
    ours.fill(&gateway, Role::Gateway, &[&ours]);
    let past = SystemTime::now() - Duration::from_mins(10);
    let cases: [(&str, &dyn Fn()); 3] = [
        ("UnknownIssuer", &|| {
            theirs.fill(&worker, Role::Worker, &[&ours]);
        }),
        ("expired", &|| {
            ours.fill_until(&worker, Role::Worker, &[&ours], past);
        }),
        ("not valid for name", &|| {
            ours.fill(&worker, Role::Gateway, &[&ours]);
        }),
    ];
    for (reason, prepare) in cases {
        prepare();
        let served = serve(&worker).await;
        let refused = call(&gateway, served.address).await.unwrap_err();
        assert!(refused.contains(reason), "{reason}: {refused}");
    }
}

#[tokio::test]
async fn a_worker_refuses_what_is_no_gateway_of_the_install() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let (worker, gateway) = (dir.path().join("w"), dir.path().join("g"));
    ours.fill(&worker, Role::Worker, &[&ours]);
    let past = SystemTime::now() - Duration::from_mins(10);
    let cases: [(&str, &dyn Fn()); 3] = [
        ("UnknownCA", &|| {
            theirs.fill(&gateway, Role::Gateway, &[&ours]);
        }),
        ("CertificateExpired", &|| {
            ours.fill_until(&gateway, Role::Gateway, &[&ours], past);
        }),
        ("BadCertificate", &|| {
            ours.fill(&gateway, Role::Worker, &[&ours]);
        }),
    ];
    let mut served = serve(&worker).await;
    for (alert, prepare) in cases {
        prepare();
        let mut caller = call(&gateway, served.address).await.unwrap();
        let refused = caller.read(&mut [0]).await.unwrap_err().to_string();
        assert!(refused.contains(alert), "{alert}: {refused}");
    }
    // Nobody at all: it says nothing of TLS.
    let mut plain = TcpStream::connect(served.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut plain, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    drop(plain.read_to_end(&mut answer).await);
    assert!(answer.len() < 16, "an alert at most: {answer:?}");
    assert!(served.taken.try_recv().is_err(), "nobody was let in");
}

#[test]
fn what_is_wrong_with_a_folder_is_said_by_the_name_of_its_part() {
    let (ours, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let (one, other) = (dir.path().join("1"), dir.path().join("2"));
    let open = || weir_identity::Identity::open(&one).unwrap_err();
    let said = open().to_string();
    assert!(
        said.contains("tls.crt") && said.contains("--workload-identity"),
        "{said}"
    );
    ours.fill(&one, Role::Worker, &[&ours]);
    ours.fill(&other, Role::Worker, &[&ours]);
    std::fs::copy(other.join("tls.key"), one.join("tls.key")).unwrap();
    assert!(matches!(open(), IdentityError::Pair(_)), "{}", open());
    std::fs::write(one.join("tls.key"), "nothing").unwrap();
    assert!(
        open()
            .to_string()
            .starts_with("tls.key has no usable PEM private key")
    );
    std::fs::copy(other.join("tls.crt"), one.join("tls.crt")).unwrap();
    std::fs::copy(other.join("tls.key"), one.join("tls.key")).unwrap();
    std::fs::write(one.join("ca.crt"), "").unwrap();
    assert!(
        open()
            .to_string()
            .starts_with("ca.crt has no usable PEM certificate")
    );
}

#[tokio::test]
async fn an_address_whose_connections_say_nothing_holds_up_no_other_address() {
    let (ours, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let (worker, gateway) = (dir.path().join("w"), dir.path().join("g"));
    ours.fill(&worker, Role::Worker, &[&ours]);
    ours.fill(&gateway, Role::Gateway, &[&ours]);
    let mut served = serve(&worker).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        silent.push(socket.connect(served.address).await.unwrap());
    }
    let called = tokio::time::timeout(Duration::from_secs(3), async {
        let mut caller = call(&gateway, served.address).await.unwrap();
        let mut stream = served.taken.recv().await.unwrap().unwrap();
        passes(&mut caller, &mut stream).await;
    });
    called
        .await
        .expect("it is sooner than the patience with those who say nothing");
}
