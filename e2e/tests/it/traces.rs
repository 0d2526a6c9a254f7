//! Traces from the request to the engine's steps, as a collector gets them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufReader, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::json;
use weir_e2e::{RandomModel, Site, Tenant, Weir, weir_command};

/// What a receiver makes of a span.
#[derive(Clone, Debug, Default)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    start: u64,
    end: u64,
    attributes: BTreeMap<String, String>,
    service: String,
}

/// Fields of a protobuf message by number: bytes of those with a length, numbers of the others. Shares nothing with what wrote it.
#[derive(Default)]
struct Fields {
    parts: Vec<(u64, Vec<u8>)>,
    numbers: BTreeMap<u64, u64>,
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
        shift += 7;
    }
    value
}

fn fields(mut bytes: &[u8]) -> Fields {
    let mut fields = Fields::default();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let number = tag >> 3;
        match tag & 7 {
            0 => {
                let value = varint(&mut bytes);
                fields.numbers.insert(number, value);
            }
            1 => {
                let (value, rest) = bytes.split_first_chunk().unwrap();
                fields.numbers.insert(number, u64::from_le_bytes(*value));
                bytes = rest;
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (part, rest) = bytes.split_at(length);
                fields.parts.push((number, part.to_vec()));
                bytes = rest;
            }
            kind => unreachable!("wire type {kind} is not in OTLP's traces"),
        }
    }
    fields
}

impl Fields {
    fn all(&self, number: u64) -> impl Iterator<Item = &[u8]> {
        let of_number = self.parts.iter().filter(move |(given, _)| *given == number);
        of_number.map(|(_, part)| part.as_slice())
    }

    fn text(&self, number: u64) -> String {
        let part = self.all(number).next().unwrap_or_default();
        String::from_utf8(part.to_vec()).unwrap()
    }

    fn hex(&self, number: u64) -> String {
        let part = self.all(number).next().unwrap_or_default();
        let mut text = String::new();
        for byte in part {
            write!(text, "{byte:02x}").unwrap();
        }
        text
    }

    fn attributes(&self, number: u64) -> BTreeMap<String, String> {
        let pair = |bytes: &[u8]| {
            let pair = fields(bytes);
            let value = fields(pair.all(2).next().unwrap());
            let text = value
                .numbers
                .get(&3)
                .map_or_else(|| value.text(1), u64::to_string);
            (pair.text(1), text)
        };
        self.all(number).map(pair).collect()
    }
}

fn spans(body: &[u8]) -> Vec<Span> {
    let mut found = Vec::new();
    for resource_spans in fields(body).all(1).map(fields) {
        let resource = fields(resource_spans.all(1).next().unwrap());
        let service = resource.attributes(1)["service.name"].clone();
        for scope_spans in resource_spans.all(2).map(fields) {
            for span in scope_spans.all(2).map(fields) {
                found.push(Span {
                    trace: span.hex(1),
                    id: span.hex(2),
                    parent: span.hex(4),
                    name: span.text(5),
                    start: span.numbers[&7],
                    end: span.numbers[&8],
                    attributes: span.attributes(9),
                    service: service.clone(),
                });
            }
        }
    }
    found
}

/// A receiver of OTLP over HTTP on this machine.
fn receiver() -> (String, Receiver<Vec<Span>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut writer = stream.try_clone().unwrap();
                let mut reader = BufReader::new(stream);
                while let Some((head, body)) = request(&mut reader) {
                    assert!(head.starts_with("POST /v1/traces "), "{head}");
                    assert!(head.contains("application/x-protobuf"), "{head}");
                    if sender.send(spans(&body)).is_err() {
                        return;
                    }
                    writer
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")
                        .unwrap();
                }
            });
        }
    });
    (format!("http://{address}"), received)
}

fn request(reader: &mut impl std::io::BufRead) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        let lower = line.to_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// All spans of one trace, once these are there.
fn wait_for_spans(
    received: &Receiver<Vec<Span>>,
    trace: &str,
    names: &[&str],
) -> BTreeMap<String, Span> {
    let mut found = BTreeMap::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !names.iter().all(|name| found.contains_key(*name)) {
        let left = deadline.saturating_duration_since(Instant::now());
        let batch = received.recv_timeout(left);
        let batch = batch
            .unwrap_or_else(|_| unreachable!("waited in vain for {names:?}; there are {found:#?}"));
        let of_trace = batch.into_iter().filter(|span| span.trace == trace);
        found.extend(of_trace.map(|span| (span.name.clone(), span)));
    }
    found
}

const NAMES: &[&str] = &[
    "generate_content random",
    "admission",
    "queue",
    "stream",
    "engine",
    "wait for a slot",
    "prefill",
    "decode",
];
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

#[test]
fn a_trace_leads_from_the_clients_span_to_the_engines_steps() {
    let (collector, received) = receiver();
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let mut program = weir_command();
    program.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector);
    let mut weir =
        Weir::spawn_as(program, &site.manifests(), &site.data(), "127.0.0.1:0", &[]).unwrap();
    weir.wait_ready().unwrap();

    let client = weir.client("acme-dev-key");
    let body =
        json!({"model": "random", "input": "a prompt that stays here", "maxOutputTokens": 8});
    let header = format!("00-{TRACE}-{CLIENT}-01");
    let reply = client
        .post_with("/inference", &body, &[("traceparent", &header)])
        .unwrap();
    client.all_events(&reply.run_id(), 0).unwrap();
    let found = wait_for_spans(&received, TRACE, NAMES);

    let root = &found["generate_content random"];
    assert_eq!(root.parent, CLIENT);
    assert_eq!(root.service, "weir-gateway");
    assert_eq!(root.attributes["gen_ai.response.id"], reply.run_id());
    assert_eq!(root.attributes["gen_ai.usage.output_tokens"], "8");
    let engine = &found["engine"];
    assert_eq!(engine.service, "weir-worker");
    for name in ["admission", "queue", "stream", "engine"] {
        assert_eq!(found[name].parent, root.id, "{name}");
    }
    for name in ["wait for a slot", "prefill", "decode"] {
        assert_eq!(found[name].parent, engine.id, "{name}");
    }
    let step = |name: &str| engine.attributes[name].parse::<u64>().unwrap();
    assert_eq!(
        step("weir.engine.last_step") - step("weir.engine.first_step"),
        7,
        "a step for each token"
    );
    assert_eq!(found["decode"].attributes["weir.engine.steps"], "8");
    for span in found.values() {
        assert!(span.start <= span.end && span.start > 0, "{span:?}");
        let text = format!("{span:?}");
        assert!(!text.contains("stays here"), "{text}");
    }
    assert!(found["prefill"].end <= found["decode"].end);

    // Without a header the run's own id is the trace's, so that whoever knows one finds the other.
    let reply = client.post("/inference", &body).unwrap();
    client.all_events(&reply.run_id(), 0).unwrap();
    let of_run = |spans: &Span| spans.attributes.get("gen_ai.response.id") == Some(&reply.run_id());
    let deadline = Instant::now() + Duration::from_secs(20);
    let root = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let batch = received.recv_timeout(left).unwrap();
        if let Some(root) = batch.into_iter().find(of_run) {
            break root;
        }
    };
    assert_eq!(root.parent, "");
    // A client that records nothing is not recorded here either.
    let header = format!("00-{}-{CLIENT}-00", TRACE.replace('4', "5"));
    let reply = client
        .post_with("/inference", &body, &[("traceparent", &header)])
        .unwrap();
    client.all_events(&reply.run_id(), 0).unwrap();
    let last = client.post("/inference", &body).unwrap();
    client.all_events(&last.run_id(), 0).unwrap();
    let mut seen = Vec::new();
    while !seen
        .iter()
        .any(|span: &Span| span.attributes.get("gen_ai.response.id") == Some(&last.run_id()))
    {
        seen.extend(received.recv_timeout(Duration::from_secs(20)).unwrap());
    }
    assert!(
        !seen
            .iter()
            .any(|span| span.attributes.get("gen_ai.response.id") == Some(&reply.run_id()))
    );
    assert!(weir.metric("weir_trace_spans_total").unwrap() > 0.0);
}
