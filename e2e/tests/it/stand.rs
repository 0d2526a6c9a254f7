//! A worker and what a gateway of a test's own needs to serve it: one store, one snapshot, whatever lies between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use weir_e2e::checker::{Intensity, check, intensity};
use weir_e2e::load::Load;
use weir_e2e::processes::{GatewayProcess, Plan, WorkerProcess, snapshot_tenant, write_snapshot};
use weir_e2e::{Event, RandomModel, Seeded, Site, Tenant};

use crate::fleet::rules;

const CLIENTS: u64 = 4;
const GLOBEX_TOKENS: u64 = 20_000;

pub(crate) struct Stand {
    pub(crate) site: Site,
    plan: Plan,
    pub(crate) worker: WorkerProcess,
}

/// Slow enough that a stream lasts for seconds.
pub(crate) fn slow() -> RandomModel {
    RandomModel {
        hidden: 256,
        layers: 8,
        intermediate: 1024,
        ..RandomModel::default()
    }
}

pub(crate) fn body(key: &str, tokens: u32) -> Value {
    json!({"model": "random", "input": "count", "maxOutputTokens": tokens, "requestKey": key,
        "sampling": {"temperature": 0, "ignoreEos": true}})
}

/// 1, 2, 3, … and one end, of this kind.
pub(crate) fn assert_whole(events: &[Event], end: &str) {
    let ids: Vec<u64> = events.iter().map(|event| event.id).collect();
    assert_eq!(ids, (1..=events.len() as u64).collect::<Vec<_>>());
    assert_eq!(events.iter().filter(|event| event.is_terminal()).count(), 1);
    assert_eq!(events.last().unwrap().kind, end, "{:?}", events.last());
}

pub(crate) fn text(events: &[Event]) -> String {
    let deltas = events.iter().filter(|event| event.kind == "delta");
    deltas
        .map(|event| event.json()["text"].as_str().unwrap_or_default().to_owned())
        .collect()
}

impl Stand {
    /// With a worker that is up.
    pub(crate) fn new(shape: RandomModel) -> Self {
        let site = Site::random(shape, &[Tenant::unlimited("acme")]).unwrap();
        let plan = Plan::of(&site).unwrap();
        let mut worker = WorkerProcess::new(&site, &plan, "w0");
        worker.start().unwrap();
        Self { site, plan, worker }
    }

    /// The worker's own address.
    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.worker.socket.display())
    }

    /// A gateway that is not started yet, with the worker at an address. `tenant` is merged over both tenants.
    pub(crate) fn gateway(
        &self,
        name: &str,
        store: &str,
        address: String,
        tenant: &Value,
    ) -> GatewayProcess {
        let tenants = [
            snapshot_tenant("acme", 100_000_000, tenant).unwrap(),
            snapshot_tenant("globex", GLOBEX_TOKENS, tenant).unwrap(),
        ];
        let made = (&self.site, &self.plan);
        let snapshot = write_snapshot(made, name, &tenants, &[("w0", address)]).unwrap();
        GatewayProcess::new(&self.site, name, store, &snapshot).unwrap()
    }
}

/// Clients act at a gateway while `what` happens.
pub(crate) fn under_load(load: &Load, base: &str, random: &mut Seeded, what: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let seeds: Vec<u64> = (0..CLIENTS).map(|_| random.number()).collect();
    std::thread::scope(|scope| {
        for seed in seeds {
            let stop = &stop;
            scope.spawn(move || load.act(base, seed, stop));
        }
        what();
        stop.store(true, Ordering::Relaxed);
    });
}

/// Ends the load at a gateway that is up, ends the gateway, and checks everything.
pub(crate) fn judge(load: &Load, gateway: &mut GatewayProcess) -> Intensity {
    load.ask_again(&gateway.listen);
    load.finish(&gateway.listen, Duration::from_mins(1), 200)
        .unwrap();
    assert!(gateway.process.stop(60).unwrap().success());
    let (history, dump) = (load.history.calls(), gateway.dump().unwrap());
    let found = check(&history, &dump, &[], &rules(GLOBEX_TOKENS));
    assert!(
        found.is_empty(),
        "{} violations, first {:#?}",
        found.len(),
        &found[..found.len().min(5)]
    );
    intensity(&history, &dump)
}
