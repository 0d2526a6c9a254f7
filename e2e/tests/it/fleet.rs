//! Two gateways, a worker and a PostgreSQL, as processes under one load, and what can befall them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use weir_e2e::checker::{Intensity, Rules, Violation, check, intensity};
use weir_e2e::load::Load;
use weir_e2e::postgres::{PostgresServer, Stop, bin};
use weir_e2e::processes::{
    Broken, GatewayProcess, Plan, WorkerProcess, resident_bytes, snapshot_tenant, write_snapshot,
};
use weir_e2e::proxy::{Judge, Proxy, Target};
use weir_e2e::{RandomModel, Seeded, Site, Tenant, wait_for};

/// More than any sound gateway takes for this load.
const MEMORY_BYTES: u64 = 300 << 20;
const CLIENTS: u64 = 6;
pub(crate) const DAY_S: u64 = 86_400;
const ACME_TOKENS: u64 = 100_000_000;
const GLOBEX_TOKENS: u64 = 1_200;
const GLOBEX_TOKENS_BROKEN: u64 = 150;
/// Longer than it takes to see that a gateway is silent, ask the worker and take its runs over.
const ADOPTED_WITHIN_S: u64 = 60;

/// What befalls a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing of its own.
    Quiet,
    /// `kill -9` of one gateway, which starts again at once.
    Gateway(usize),
    /// Of both.
    Gateways,
    /// Of one, which stays away until the other one has taken its runs over.
    Adopted(usize),
    /// Of the worker, and of a gateway at the same moment or not.
    Worker(Option<usize>),
    /// Of the server, or its crash.
    Server(Stop),
    /// One gateway stands still until the other one has taken its runs over, then goes on.
    Frozen(usize),
}

impl Fault {
    pub(crate) fn any(random: &mut Seeded) -> Self {
        let one = usize::from(random.below(2) == 1);
        match random.below(20) {
            0..8 => Self::Gateway(one),
            8..10 => Self::Gateways,
            10 => Self::Adopted(one),
            11..13 => Self::Worker(None),
            13..15 => Self::Worker(Some(one)),
            15..17 => Self::Server(Stop::Kill),
            17..19 => Self::Server(Stop::Crash),
            _ => Self::Frozen(one),
        }
    }
}

pub(crate) struct Fleet<'a> {
    pub(crate) server: PostgresServer,
    url: String,
    /// Each gateway's way to the server, where it leads through a proxy.
    pub(crate) ways: Vec<Proxy>,
    /// Kept for its folders.
    pub(crate) site: Site,
    pub(crate) gateways: [GatewayProcess; 2],
    pub(crate) worker: WorkerProcess,
    pub(crate) load: Load,
    broken: Broken<'a>,
    random: Seeded,
    memory: Vec<u64>,
    /// Processes that were killed.
    pub(crate) kills: u64,
}

impl<'a> Fleet<'a> {
    /// `None` where no PostgreSQL is installed.
    pub(crate) fn start(seed: u64, broken: Broken<'a>) -> Option<Self> {
        Self::with(seed, RandomModel::default(), broken, None)
    }

    /// With a way to the server for each gateway that asks `judge` what becomes of what it sends.
    pub(crate) fn with(
        seed: u64,
        shape: RandomModel,
        broken: Broken<'a>,
        judge: Option<fn(u64) -> Judge>,
    ) -> Option<Self> {
        if bin().is_none() {
            eprintln!("skipped: PostgreSQL is not installed (apt-get install postgresql)");
            return None;
        }
        let server = PostgresServer::start().unwrap();
        let url = server.database().unwrap();
        let site = Site::random(shape, &[Tenant::unlimited("acme")]).unwrap();
        let plan = Plan::of(&site).unwrap();
        let mut worker = WorkerProcess::new(&site, &plan, "w0");
        let address = format!("unix:{}", worker.socket.display());
        let tenants = [
            snapshot_tenant("acme", ACME_TOKENS, &json!({})).unwrap(),
            snapshot_tenant("globex", globex_tokens(broken), &json!({})).unwrap(),
        ];
        let snapshot = write_snapshot((&site, &plan), "fleet", &tenants, &[("w0", address)]);
        let snapshot = snapshot.unwrap();
        let mut ways = vec![];
        let mut gateways = ["a", "b"].map(|name| {
            let mut through = url.clone();
            if let Some(judge) = judge {
                let salt = seed ^ u64::from(name.as_bytes()[0]);
                let target = Target::Unix(server.socket());
                let way = Proxy::judging(target, move || judge(salt)).unwrap();
                let database = url.rsplit('/').next().unwrap();
                through = format!("postgres://weir@{}/{database}?sslmode=disable", way.address);
                ways.push(way);
            }
            GatewayProcess::new(&site, name, &through, &snapshot).unwrap()
        });
        worker.start().unwrap();
        for gateway in &mut gateways {
            gateway.start(broken).unwrap();
        }
        Some(Self {
            server,
            url,
            ways,
            site,
            gateways,
            worker,
            load: Load::new("random", 48, ["acme", "globex"]),
            broken,
            random: Seeded(seed),
            memory: vec![],
            kills: 0,
        })
    }

    /// Everything that is down comes up again.
    fn recover(&mut self) -> anyhow::Result<()> {
        if !self.server.is_up() {
            self.server.up().map_err(anyhow::Error::msg)?;
        }
        if !self.worker.process.is_up() {
            self.worker.start()?;
        }
        for gateway in &mut self.gateways {
            if !gateway.process.is_up() {
                gateway.start(self.broken)?;
            }
        }
        for gateway in &self.gateways {
            let client = gateway.client("acme");
            wait_for("a gateway to reach its store again", 60, || {
                let reply = client.get("/usage").ok()?;
                (reply.status == 200).then_some(())
            })?;
        }
        Ok(())
    }

    /// Clients act at both gateways, then it happens, and then everything comes up again.
    pub(crate) fn suffer(&mut self, fault: Fault) -> anyhow::Result<()> {
        let stop = AtomicBool::new(false);
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| self.random.number()).collect();
        let moment = Duration::from_millis(20 + self.random.below(300));
        let bases = [0, 1].map(|place| self.gateways[place].listen.clone());
        let load = std::mem::replace(&mut self.load, Load::new("random", 1, ["", ""]));
        let after = std::thread::scope(|scope| {
            for (seed, base) in seeds.into_iter().zip(bases.iter().cycle()) {
                let (load, stop) = (&load, &stop);
                scope.spawn(move || load.act(base, seed, stop));
            }
            // Not a wait for something: the moment of the fault is what is varied.
            std::thread::sleep(moment);
            for gateway in &self.gateways {
                self.memory.push(resident_bytes(gateway.process.pid()));
            }
            self.strike(fault);
            stop.store(true, Ordering::Relaxed);
            // Clients wait for what stands still.
            self.aftermath(fault)?;
            self.recover()
        });
        self.load = load;
        after
    }

    fn aftermath(&mut self, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::Server(_) => {
                // Nobody waits for anything: how long it is away is what is varied.
                std::thread::sleep(Duration::from_millis(self.random.below(1_500)));
                self.server.up().map_err(anyhow::Error::msg)
            }
            Fault::Adopted(one) => self.wait_until_adopted(1 - one),
            Fault::Frozen(one) => {
                let adopted = self.wait_until_adopted(1 - one);
                self.gateways[one].process.thaw();
                adopted
            }
            _ => Ok(()),
        }
    }

    fn strike(&mut self, fault: Fault) {
        let kill = |gateway: &mut GatewayProcess, kills: &mut u64| {
            gateway.process.kill();
            *kills += 1;
        };
        match fault {
            Fault::Quiet => {}
            Fault::Gateway(one) | Fault::Adopted(one) => {
                kill(&mut self.gateways[one], &mut self.kills);
            }
            Fault::Gateways => {
                for gateway in &mut self.gateways {
                    kill(gateway, &mut self.kills);
                }
            }
            Fault::Worker(gateway) => {
                self.worker.process.kill();
                self.kills += 1;
                if let Some(one) = gateway {
                    kill(&mut self.gateways[one], &mut self.kills);
                }
            }
            Fault::Server(how) => {
                self.server.down(how).unwrap();
                self.kills += 1;
            }
            Fault::Frozen(one) => self.gateways[one].process.freeze(),
        }
    }

    /// Until no run is live that the other gateway began.
    fn wait_until_adopted(&self, survivor: usize) -> anyhow::Result<()> {
        let clients = ["acme", "globex"].map(|tenant| self.gateways[survivor].client(tenant));
        let live = |client: &weir_e2e::Client| {
            let usage = client.get("/usage").ok()?.body;
            usage["liveRuns"].as_u64()
        };
        wait_for(
            "the runs of a dead gateway to end",
            ADOPTED_WITHIN_S,
            || {
                clients
                    .iter()
                    .all(|client| live(client) == Some(0))
                    .then_some(())
            },
        )
    }

    /// What does not hold after all that, whether every run has ended, and how much happened.
    pub(crate) fn judge(
        mut self,
        patience: Duration,
    ) -> (Vec<Violation>, anyhow::Result<()>, Intensity) {
        for gateway in &self.gateways {
            self.load.ask_again(&gateway.listen);
        }
        let (a, b) = (&self.gateways[0].listen, &self.gateways[1].listen);
        let finished = self.load.finish(b, patience, 200);
        let finished = finished.and_then(|()| self.load.finish(a, patience, 50));
        // A transaction that is left open by whatever became of its client stays in this state.
        let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        assert_eq!(self.server.sql(self.database(), idle).unwrap(), "0");
        for gateway in &mut self.gateways {
            let ended = gateway.process.stop(60).unwrap();
            assert!(
                ended.success() || self.broken.is_some(),
                "SIGTERM ends it well"
            );
        }
        let dump = match self.gateways[0].dump() {
            Ok(dump) => dump,
            Err(error) => {
                let what = error.to_string();
                let lost = Violation {
                    invariant: 'D',
                    what,
                };
                return (vec![lost], finished, Intensity::default());
            }
        };
        let history = self.load.history.calls();
        let rules = rules(globex_tokens(self.broken));
        let found = check(&history, &dump, &self.memory, &rules);
        (found, finished, intensity(&history, &dump))
    }

    fn database(&self) -> &str {
        self.url.rsplit('/').next().unwrap_or_default()
    }
}

/// What a site of this load promises.
pub(crate) fn rules(globex_tokens: u64) -> Rules {
    let limits = [("acme", ACME_TOKENS), ("globex", globex_tokens)];
    let limits: BTreeMap<_, _> = limits
        .map(|(tenant, limit)| ((tenant.to_owned(), DAY_S), limit))
        .into();
    Rules {
        limits,
        price: (1, 0, 4),
        deterministic: true,
        quiet: true,
        answer_within_ms: Some(60_000),
        memory_bytes: Some(MEMORY_BYTES),
        ..Rules::default()
    }
}

/// Small enough to be met; for a broken one, within a few faults.
fn globex_tokens(broken: Broken) -> u64 {
    if broken.is_some() {
        GLOBEX_TOKENS_BROKEN
    } else {
        GLOBEX_TOKENS
    }
}
