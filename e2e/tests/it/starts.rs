//! A gateway that starts: when it says that it takes part.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use weir_e2e::processes::{GatewayProcess, Plan, WorkerProcess, snapshot_tenant, write_snapshot};
use weir_e2e::{Client, RandomModel, Site, Tenant, wait_for};

/// Less than what a gateway waits for workers that it cannot reach.
const ALONE_AT_LEAST: Duration = Duration::from_secs(3);

fn snapshot(site: &Site, plan: &Plan, worker: &WorkerProcess) -> PathBuf {
    let tenants = [snapshot_tenant("acme", 100_000_000, &json!({})).unwrap()];
    let address = format!("unix:{}", worker.socket.display());
    write_snapshot((site, plan), "starts", &tenants, &[("w0", address)]).unwrap()
}

#[test]
fn a_gateway_that_says_it_is_ready_has_reached_its_workers_or_has_tried_for_a_while() {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let plan = Plan::of(&site).unwrap();
    let mut worker = WorkerProcess::new(&site, &plan, "w0");
    let snapshot = snapshot(&site, &plan, &worker);
    // A worker that nobody reaches holds it up, and not for ever.
    let mut gateway = GatewayProcess::new(&site, "alone", "log", &snapshot).unwrap();
    let begun = Instant::now();
    gateway.start(None).unwrap();
    assert!(begun.elapsed() >= ALONE_AT_LEAST, "{:?}", begun.elapsed());
    gateway.process.kill();
    worker.start().unwrap();
    for start in 0..3 {
        let name = format!("g{start}");
        let mut gateway = GatewayProcess::new(&site, &name, "log", &snapshot).unwrap();
        gateway.spawn(None).unwrap();
        let admin = Client::new(&gateway.admin, "");
        wait_for("readiness", 60, || {
            // As soon as it says so: no pause between two looks.
            (0..500).find_map(|_| {
                let reply = admin.get("/readyz").ok()?;
                (reply.status == 200).then_some(())
            })
        })
        .unwrap();
        let body =
            json!({"model": "random", "input": "hi", "maxOutputTokens": 1, "requestKey": name});
        let reply = gateway.client("acme").post("/inference", &body).unwrap();
        assert!(reply.status < 300, "the first request: {}", reply.body);
    }
}
