use super::*;
use crate::trace::{SpanKind, root_of};

fn span() -> Span {
    Span {
        trace: [7; 16],
        id: root_of(&[9; 16]),
        parent: None,
        name: "queue".to_owned(),
        kind: SpanKind::Internal,
        start_ns: 1,
        end_ns: 2,
        attributes: Vec::new(),
        error: None,
    }
}

fn counted(metrics: &Metrics, outcome: &str) -> Option<u64> {
    let line = format!("weir_trace_spans_total{{outcome=\"{outcome}\"}} ");
    let text = metrics.prometheus_text();
    let value = text.lines().find_map(|found| found.strip_prefix(&line))?;
    value.parse().ok()
}

async fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(tokio::time::Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_collector_that_is_gone_costs_spans_and_no_time() {
    let metrics = Metrics::new();
    // Bound and let go: nothing listens there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    drop(listener);
    let tracer = Tracer::to(&endpoint, "test", 1.0, &metrics).unwrap();
    let many = 2 * QUEUE;
    // Never yields: the queue fills, and what is beyond it is let go at once.
    for _ in 0..many {
        tracer.send(span());
    }
    assert_eq!(counted(&metrics, "dropped"), Some((many - QUEUE) as u64));
    wait_for("a batch is given up", || {
        counted(&metrics, "lost").is_some()
    })
    .await;
    assert_eq!(counted(&metrics, "sent"), None);
}

#[tokio::test]
async fn settings_that_make_no_sense_are_named() {
    let metrics = Metrics::new();
    for bad in [
        "",
        "collector",
        "https://collector:4318/v1/traces",
        "http://",
    ] {
        let refused = Tracer::to(bad, "test", 1.0, &metrics).unwrap_err();
        assert_eq!(refused, TraceError::Endpoint(bad.to_owned()));
    }
}

#[tokio::test]
async fn a_share_of_traces_is_taken_and_everyone_takes_the_same() {
    let metrics = Metrics::new();
    let tracer = |share| Tracer::to("http://127.0.0.1:9/", "test", share, &metrics).unwrap();
    let (all, half, none) = (tracer(1.0), tracer(0.5), tracer(0.0));
    let mut taken = 0;
    for number in 0..1_000_u64 {
        let mut trace = [1; 16];
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        trace[8..].copy_from_slice(&mixed.to_be_bytes());
        assert!(all.takes(&trace));
        // One id in 2^64 is below a share of nothing: 0 itself, which is no id.
        assert!(number == 0 || !none.takes(&trace));
        taken += u32::from(half.takes(&trace));
        assert_eq!(half.takes(&trace), tracer(0.5).takes(&trace));
    }
    assert!((400..600).contains(&taken), "{taken}");
    assert!(!Tracer::off().takes(&[1; 16]));
}
