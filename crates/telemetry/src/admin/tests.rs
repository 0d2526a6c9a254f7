use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

struct Case {
    path: &'static str,
    accept: &'static str,
    want: [&'static str; 2],
}

#[expect(clippy::needless_pass_by_value, reason = "what an action is given")]
fn echo(body: Bytes) -> Acted {
    let said = String::from_utf8_lossy(&body).into_owned();
    let answer = if said == "no" {
        Err("that is wrong".to_owned())
    } else {
        Ok(said)
    };
    Box::pin(std::future::ready(answer))
}

async fn get(address: std::net::SocketAddr, path: &str, accept: &str) -> String {
    send(address, &format!("GET {path}"), accept, "").await
}

async fn send(address: std::net::SocketAddr, call: &str, accept: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{call} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    // The server may answer, and close, before it has read everything.
    stream.write_all(request.as_bytes()).await.ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn probes_and_scrapes_are_answered() {
    let admin = Admin {
        readiness: Readiness::new(),
        metrics: Metrics::new(),
        pages: BTreeMap::from([("/page", Page(Arc::new(|| "[]".to_owned())))]),
        actions: BTreeMap::from([("/act", Action(Arc::new(echo)))]),
        queries: BTreeMap::from([(
            "/ask",
            Query {
                content_type: "application/x-ndjson",
                answer: Action(Arc::new(echo)),
            },
        )]),
    };
    admin.readiness.set_not_ready("engine", "loading");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let server = tokio::spawn(admin.clone().serve(listener, shutdown.clone()));

    let open = "application/openmetrics-text";
    for Case { path, accept, want } in [
        Case {
            path: "/healthz",
            accept: "*/*",
            want: ["200 OK", "ok\n"],
        },
        Case {
            path: "/readyz",
            accept: "*/*",
            want: ["503 ", "engine: loading\n"],
        },
        Case {
            path: "/metrics",
            accept: "*/*",
            want: ["version=0.0.4", "process_open_fds"],
        },
        Case {
            path: "/metrics",
            accept: open,
            want: ["version=1.0.0", "# EOF"],
        },
        Case {
            path: "/page",
            accept: "*/*",
            want: ["application/json", "[]"],
        },
        Case {
            path: "/",
            accept: "*/*",
            want: ["404 ", "/metrics, /page, /ask, POST /act"],
        },
    ] {
        let answer = get(address, path, accept).await;
        for text in want {
            assert!(
                answer.contains(text),
                "{path} ({accept}): no {text:?} in {answer}"
            );
        }
    }
    let too_long = "x".repeat(MAX_BODY + 1);
    for (call, body, want) in [
        ("POST /act", "{}", ["200 OK", "{}"]),
        ("POST /act", "no", ["400 ", "that is wrong"]),
        ("POST /act", &too_long, ["413 ", "at most"]),
        ("POST /page", "", ["405 ", "use GET"]),
        ("GET /act", "", ["404 ", "POST /act"]),
    ] {
        let answer = send(address, call, "*/*", body).await;
        for text in want {
            assert!(answer.contains(text), "{call}: no {text:?} in {answer}");
        }
    }
    admin.readiness.set_ready("engine");
    assert!(get(address, "/readyz", "*/*").await.contains("200 OK"));

    shutdown.cancel();
    server.await.unwrap().unwrap();
}
