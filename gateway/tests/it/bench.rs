//! What the gateway itself costs: printed, and held against loose bounds so that a mistake of an order of magnitude shows.

use std::time::{Duration, Instant};

use crate::site::{Site, ask};

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_to_the_first_token_is_short() {
    let (site, _worker) = Site::new(true).await;
    let acme = site.client("acme");
    let mut times = Vec::new();
    for _ in 0..60 {
        let begun = Instant::now();
        let mut stream = acme.stream("/inference", &ask(1)).await;
        stream.take(3).await;
        times.push(begun.elapsed());
        stream.rest().await;
    }
    let (half, most) = (percentile(&mut times, 50), percentile(&mut times, 95));
    println!("request to first token, worker without delay: p50 {half:?}, p95 {most:?}");
    assert!(half < Duration::from_millis(250), "{half:?}");
}
