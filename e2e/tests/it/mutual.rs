//! Gateways and workers that prove themselves to each other: whoever is of another install is refused and told why, and certificates change
//! under load.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use weir_e2e::identity::{GATEWAY, InstallAuthority, WORKER};
use weir_e2e::load::Load;
use weir_e2e::processes::{GatewayProcess, Plan, WorkerProcess, snapshot_tenant, write_snapshot};
use weir_e2e::proxy::{Proxy, Target};
use weir_e2e::{RandomModel, Seeded, Site, Tenant, wait_for};

use crate::stand::{assert_whole, body, judge, slow, under_load};

const HOUR: Result<Duration, Duration> = Ok(Duration::from_hours(1));
const OVER: Result<Duration, Duration> = Err(Duration::from_mins(5));
/// Files are looked at once a second.
const SEEN: Duration = Duration::from_secs(4);
const GLOBEX_TOKENS: u64 = 20_000;

/// A site, and a worker of it that asks callers who they are.
struct Install {
    worker: WorkerProcess,
    plan: Plan,
    // Last: processes that end tell what they logged in it.
    site: Site,
}

impl Install {
    fn new(shape: RandomModel) -> Self {
        let site = Site::random(shape, &[Tenant::unlimited("acme")]).unwrap();
        let plan = Plan::of(&site).unwrap();
        let folder = site.path().join("identity-w0");
        let worker = WorkerProcess::secured(&site, &plan, "w0", &folder).unwrap();
        Self { worker, plan, site }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.site.path().join(format!("identity-{name}"))
    }

    /// A gateway with the worker at this address; its identity lies in [`Install::folder`].
    fn gateway(&self, name: &str, address: String) -> GatewayProcess {
        let tenants = [
            snapshot_tenant("acme", 100_000_000, &json!({})).unwrap(),
            snapshot_tenant("globex", GLOBEX_TOKENS, &json!({})).unwrap(),
        ];
        let made = (&self.site, &self.plan);
        let snapshot = write_snapshot(made, name, &tenants, &[("w0", address)]).unwrap();
        let mut gateway = GatewayProcess::new(&self.site, name, "log", &snapshot).unwrap();
        let folder = self.folder(name).display().to_string();
        gateway
            .arguments
            .extend(["--workload-identity".to_owned(), folder]);
        gateway
    }
}

/// Runs a gateway until it says why it has no session, and the worker why it was refused.
fn refused(mut gateway: GatewayProcess, why: &str, worker: (&WorkerProcess, &str)) {
    gateway.start(None).unwrap();
    let (worker, worker_says) = worker;
    wait_for(&format!("words of {why:?} and {worker_says:?}"), 30, || {
        let are_said =
            gateway.process.logged().contains(why) && worker.process.logged().contains(worker_says);
        are_said.then_some(())
    })
    .unwrap();
    let client = gateway.client("acme");
    let body = json!({"model": "random", "input": "hi", "maxOutputTokens": 1, "requestKey": "k", "queueTimeoutMs": 300});
    let reply = client.post("/inference", &body).unwrap();
    assert!(reply.status >= 400, "no run is taken: {}", reply.body);
    gateway.process.kill();
}

#[test]
fn whoever_is_not_of_the_install_is_refused_by_both_sides_and_the_logs_say_why() {
    let mut install = Install::new(RandomModel::default());
    let (ours, theirs) = (
        InstallAuthority::new().unwrap(),
        InstallAuthority::new().unwrap(),
    );
    let write = |by: &InstallAuthority, folder: &str, name, trusted: &InstallAuthority, lives| {
        let folder = install.folder(folder);
        by.write(&folder, name, &[trusted], lives).unwrap();
    };
    write(&ours, "w0", WORKER, &ours, HOUR);
    // What the worker says, and what the gateway: it learns it when it opens a session.
    write(&theirs, "foreign", GATEWAY, &ours, HOUR);
    write(&ours, "expired", GATEWAY, &ours, OVER);
    write(&ours, "no-gateway", WORKER, &ours, HOUR);
    // What a gateway of another install says of this worker.
    write(&theirs, "stranger", GATEWAY, &theirs, HOUR);
    write(&ours, "ours", GATEWAY, &ours, HOUR);
    install.worker.start().unwrap();
    let address = install.worker.address();
    for (name, gateway_says, worker_says) in [
        (
            "foreign",
            "received fatal alert: UnknownCA",
            "UnknownIssuer",
        ),
        (
            "expired",
            "received fatal alert: CertificateExpired",
            "certificate expired",
        ),
        (
            "no-gateway",
            "received fatal alert: BadCertificate",
            "not valid for name",
        ),
        ("stranger", "invalid peer certificate: UnknownIssuer", ""),
    ] {
        let gateway = install.gateway(name, address.clone());
        refused(gateway, gateway_says, (&install.worker, worker_says));
    }
    // Without an identity nothing but TLS is spoken to.
    let mut plain = install.gateway("plain", address.clone());
    plain.arguments.truncate(plain.arguments.len() - 2);
    refused(plain, "no session", (&install.worker, ""));
    let mut served = install.gateway("ours", address.clone());
    served.start(None).unwrap();
    served.serves().unwrap();
    served.process.kill();
    // A worker that is over, or none, is refused by its gateway.
    for (by, name, lives, says) in [
        (&ours, WORKER, OVER, "certificate expired"),
        (&ours, GATEWAY, HOUR, "not valid for name"),
        (&theirs, WORKER, HOUR, "UnknownIssuer"),
    ] {
        install.worker.process.kill();
        by.write(&install.folder("w0"), name, &[&ours], lives)
            .unwrap();
        install.worker.start().unwrap();
        let gateway = install.gateway("ours", address.clone());
        refused(gateway, says, (&install.worker, ""));
    }
}

#[test]
fn an_authority_is_replaced_under_load_and_neither_a_stream_nor_a_run_is_lost() {
    let mut install = Install::new(slow());
    let (old, new) = (
        InstallAuthority::new().unwrap(),
        InstallAuthority::new().unwrap(),
    );
    let (worker, folder) = (install.folder("w0"), install.folder("a"));
    old.write(&worker, WORKER, &[&old], HOUR).unwrap();
    old.write(&folder, GATEWAY, &[&old], HOUR).unwrap();
    old.write(&install.folder("left"), GATEWAY, &[&old, &new], HOUR)
        .unwrap();
    install.worker.start().unwrap();
    let target = install.worker.address().parse().unwrap();
    let between = Proxy::start(Target::Tcp(target)).unwrap();
    let mut gateway = install.gateway("a", between.address.to_string());
    gateway.start(None).unwrap();
    gateway.serves().unwrap();
    let client = gateway.client("acme");
    let mut random = Seeded::announced("mutual");
    let load = Load::new("random", 24, ["acme", "globex"]);
    let listen = gateway.listen.clone();
    let streams: Vec<_> = (0..3)
        .map(|n| client.stream(&body(&format!("open-{n}"), 400)).unwrap())
        .collect();
    under_load(&load, &listen, &mut random, || {
        let steps: [&dyn Fn(); 5] = [
            &|| old.write(&worker, WORKER, &[&old, &new], HOUR).unwrap(),
            &|| old.write(&folder, GATEWAY, &[&old, &new], HOUR).unwrap(),
            &|| new.write(&worker, WORKER, &[&old, &new], HOUR).unwrap(),
            &|| new.write(&folder, GATEWAY, &[&new], HOUR).unwrap(),
            &|| new.write(&worker, WORKER, &[&new], HOUR).unwrap(),
        ];
        for (step, change) in steps.into_iter().enumerate() {
            change();
            let since = Instant::now();
            while since.elapsed() < SEEN {
                std::thread::sleep(Duration::from_millis(100));
            }
            // New connections prove themselves anew, with what is new; the runs go on where they were.
            if step >= 2 {
                between.cut();
                between.open();
            }
        }
    });
    for stream in streams {
        assert_whole(&stream.to_end().unwrap(), "completed");
    }
    refused(
        install.gateway("left", install.worker.address()),
        "received fatal alert: UnknownCA",
        (&install.worker, "UnknownIssuer"),
    );
    let intensity = judge(&load, &mut gateway);
    eprintln!("{intensity:?}");
    assert!(!gateway.process.logged().contains("ERROR"));
}
