//! Clients that mean no good, or do not care: what they hold is bounded, and others do not notice.

use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde_json::{Value, json};
use weir_e2e::{Client, RandomModel, Site, Tenant, Weir, wait_for};

/// How many times the usual counts; `cargo xtask test --full` raises it.
fn times(count: usize) -> usize {
    let factor = std::env::var("WEIR_HOSTILE").map_or(1, |text| text.parse().unwrap());
    count * factor
}

fn site() -> (Site, Weir) {
    let tenants = [Tenant::unlimited("acme"), Tenant::unlimited("globex")];
    let shape = RandomModel {
        context: 4096,
        ..RandomModel::default()
    };
    let site = Site::random(shape, &tenants).unwrap();
    let weir = site.up().unwrap();
    (site, weir)
}

fn address(weir: &Weir) -> SocketAddr {
    weir.listen
        .strip_prefix("http://")
        .unwrap()
        .parse()
        .unwrap()
}

/// A connection from another loopback address than the well-behaved clients have.
fn from_elsewhere(weir: &Weir) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let source: SocketAddrV4 = "127.0.0.9:0".parse().unwrap();
    bind(&socket, &source).unwrap();
    connect(&socket, &address(weir)).unwrap();
    let stream = TcpStream::from(socket);
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

fn resident_kib(weir: &Weir) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", weir.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn head(path: &str, length: usize, more: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer acme-dev-key\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{more}\r\n"
    )
}

/// Sends bytes as they are and reads the answer to its end, or as far as it comes.
fn raw(weir: &Weir, bytes: &[u8]) -> String {
    let mut stream = from_elsewhere(weir);
    // A server that refuses early may close before everything is sent.
    stream.write_all(bytes).ok();
    let mut answer = [0; 4096];
    let count = stream.read(&mut answer).unwrap_or(0);
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

/// Time of a small request of the other tenant.
fn a_small_request(client: &Client) -> Duration {
    let begun = Instant::now();
    let body = json!({"model": "random", "input": "hello", "maxOutputTokens": 1});
    let reply = client.post("/inference", &body).unwrap();
    assert_eq!(reply.status, 202, "{reply:?}");
    begun.elapsed()
}

/// Others wait no longer than this, on a machine that builds and tests other things meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);

#[test]
fn compressed_deep_and_endless_requests_are_refused_by_name_and_cost_nothing() {
    let (_site, weir) = site();
    let globex = weir.client("globex-dev-key");
    a_small_request(&globex);
    let before = resident_kib(&weir);
    for _ in 0..times(20) {
        // Ten bytes of gzip may stand for a gigabyte.
        let bomb = raw(
            &weir,
            format!(
                "{}0123456789",
                head("/inference", 10, "content-encoding: gzip\r\n")
            )
            .as_bytes(),
        );
        assert!(
            bomb.starts_with("HTTP/1.1 400") && bomb.contains("content-encoding"),
            "{bomb}"
        );
        let deep = "[".repeat(1 << 20);
        let deep = raw(
            &weir,
            (head("/inference", deep.len(), "") + &deep).as_bytes(),
        );
        assert!(
            deep.starts_with("HTTP/1.1 400") && deep.contains("nests deeper"),
            "{deep}"
        );
        let large = raw(&weir, head("/inference", 1 << 30, "").as_bytes());
        assert!(
            large.is_empty() || large.starts_with("HTTP/1.1 413"),
            "{large}"
        );
        let many: Vec<String> = (0..5000).map(|n| format!("x-{n}: y\r\n")).collect();
        let many = many.concat();
        let many = raw(&weir, head("/inference", 0, &many).as_bytes());
        assert!(
            many.is_empty() || many.starts_with("HTTP/1.1 431"),
            "{many}"
        );
        // Far too long a prompt is refused before all of it is tokenized.
        let long =
            json!({"model": "random", "input": "word ".repeat(600_000), "maxOutputTokens": 1})
                .to_string();
        let long = raw(
            &weir,
            (head("/inference", long.len(), "") + &long).as_bytes(),
        );
        assert!(long.contains("prompt_too_long"), "{long}");
        assert!(a_small_request(&globex) < PATIENCE);
    }
    let grown = resident_kib(&weir).saturating_sub(before);
    assert!(grown < 96 << 10, "{grown} KiB");
}

#[test]
fn half_sent_bodies_of_one_tenant_hold_their_part_of_memory_and_no_more() {
    let (_site, weir) = site();
    let globex = weir.client("globex-dev-key");
    a_small_request(&globex);
    let before = resident_kib(&weir);
    let length = 4 << 20;
    let part = vec![b' '; length - 1];
    let mut held = Vec::new();
    for _ in 0..times(30) {
        let mut stream = from_elsewhere(&weir);
        stream
            .set_write_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        stream
            .write_all(head("/inference", length, "").as_bytes())
            .unwrap();
        stream.write_all(&part).ok();
        held.push(stream);
    }
    assert!(a_small_request(&globex) < PATIENCE);
    // Sixteen mebibytes are a tenant's part; the rest is what the kernel's and the connections' buffers have passed on.
    let grown = resident_kib(&weir).saturating_sub(before);
    assert!(grown < 64 << 10, "{} bodies: {grown} KiB", held.len());
    let refused = held.iter_mut().filter_map(|stream| {
        stream
            .set_read_timeout(Some(Duration::from_secs(8)))
            .unwrap();
        let mut answer = [0; 2048];
        let count = stream.read(&mut answer).ok()?;
        let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
        answer.contains("queue_full").then_some(answer)
    });
    let one = refused
        .take(1)
        .next()
        .expect("one that is told to come back");
    assert!(one.to_ascii_lowercase().contains("retry-after"), "{one}");
    drop(held);
    // What they held is free again.
    let input = format!("{}x", " ".repeat(1 << 20));
    let body = json!({"model": "random", "input": input, "maxOutputTokens": 1});
    wait_for("room for a large body", 20, || {
        let reply = weir.client("acme-dev-key").post("/inference", &body).ok()?;
        (reply.code() != "queue_full").then_some(())
    })
    .unwrap();
}

#[test]
fn readers_that_do_not_read_and_idle_connections_hold_little_and_delay_nobody() {
    let (_site, weir) = site();
    let globex = weir.client("globex-dev-key");
    a_small_request(&globex);
    let before = resident_kib(&weir);
    let idle: Vec<_> = (0..times(400)).map(|_| from_elsewhere(&weir)).collect();
    let body = json!({"model": "random", "input": "hello", "maxOutputTokens": 200, "sampling": {"ignoreEos": true}}).to_string();
    let request = head("/inference", body.len(), "accept: text/event-stream\r\n") + &body;
    let stuck: Vec<_> = (0..times(30))
        .map(|_| {
            let mut stream = from_elsewhere(&weir);
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 2048).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    let slowest = (0..20).map(|_| a_small_request(&globex)).max().unwrap();
    assert!(slowest < PATIENCE, "{slowest:?}");
    let all = (idle.len() + stuck.len()) as u64;
    let grown = resident_kib(&weir).saturating_sub(before);
    assert!(
        grown < (24 << 10) + all * 24,
        "{all} connections: {grown} KiB"
    );
    // Who says nothing is cut; so is, in time, who takes nothing, and the runs end all the same.
    wait_for("the idle connections' end", 40, || {
        (weir.metric("weir_gateway_connections").ok()? <= stuck.len() as f64 + 8.0).then_some(())
    })
    .unwrap();
    let usage = || -> Option<Value> { Some(weir.client("acme-dev-key").get("/usage").ok()?.body) };
    wait_for("the runs' end", 60, || {
        (usage()?["liveRuns"] == 0).then_some(())
    })
    .unwrap();
    assert_eq!(usage().unwrap()["consistent"], true);
}
