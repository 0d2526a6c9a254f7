//! One machine: power, disk, a worker, and gateways that die one after the other under the same load.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use weir_budget::WindowLimit;
use weir_e2e::Seeded;
use weir_e2e::checker::{Dump, Intensity, Rules, Violation, check, intensity};
use weir_e2e::load::{Load, begun};
use weir_gateway::{Gateway, Tenant};
use weir_protocol::worker::rejected::Code;
use weir_run::RunId;
use weir_store::Store;
use weir_store::fault::{self, POINTS, Power};

use crate::site::{DIGEST, config, snapshot, tenant};
use crate::worker::FakeWorker;

const DAY_S: u64 = 86_400;
/// Clients at once.
const CLIENTS: u64 = 4;
/// A life that did not meet its point ends here.
const LONGEST_LIFE: Duration = Duration::from_millis(150);
/// Small enough that `globex` meets it; in a broken world, within a few lives.
const GLOBEX_TOKENS: u64 = 4_000;
const GLOBEX_TOKENS_BROKEN: u64 = 150;
const ACME_TOKENS: u64 = 100_000_000;

/// Where a life ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// At the so many-th passing of a point.
    Point(&'static str, u64),
    /// At the so many-th write or sync of the medium.
    Write(u64),
}

/// Points and what happens there.
#[derive(Default)]
struct Plan {
    armed: Option<(&'static str, u64)>,
    hits: BTreeMap<&'static str, u64>,
    crashed: BTreeMap<&'static str, u64>,
}

pub(crate) struct World {
    seed: u64,
    random: Seeded,
    power: Power,
    folder: tempfile::TempDir,
    /// Where the worker lives: it outlives gateways.
    machine: Runtime,
    worker: Option<Arc<FakeWorker>>,
    pub(crate) load: Arc<Load>,
    plan: Arc<Mutex<Plan>>,
    dead: Arc<AtomicBool>,
    broken: Option<&'static str>,
    lost: Vec<String>,
    pub(crate) crashes: u64,
}

impl World {
    pub(crate) fn new(seed: u64, broken: Option<&'static str>) -> Self {
        Self {
            seed,
            random: Seeded(seed),
            power: Power::new(seed),
            folder: tempfile::tempdir().unwrap(),
            machine: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap(),
            worker: None,
            load: Arc::new(Load::new("tiny", 24, ["acme", "globex"])),
            plan: Arc::default(),
            dead: Arc::default(),
            broken,
            lost: Vec::new(),
            crashes: 0,
        }
    }

    /// How often each point was passed, and how often it was the end.
    pub(crate) fn hits(&self) -> Vec<(&'static str, u64, u64)> {
        let plan = self.plan.lock().unwrap();
        let of = |name| {
            let count = |counts: &BTreeMap<_, u64>| counts.get(name).copied().unwrap_or(0);
            (name, count(&plan.hits), count(&plan.crashed))
        };
        POINTS.iter().map(|name| of(*name)).collect()
    }

    fn globex_tokens(&self) -> u64 {
        match self.broken {
            None => GLOBEX_TOKENS,
            Some(_) => GLOBEX_TOKENS_BROKEN,
        }
    }

    fn entered(&self) -> fault::World {
        let (plan, dead) = (Arc::clone(&self.plan), Arc::clone(&self.dead));
        let (power, load) = (self.power.clone(), Arc::clone(&self.load));
        let world = fault::World::new(move |name| {
            let mut plan = plan.lock().unwrap();
            *plan.hits.entry(name).or_default() += 1;
            let Some((armed, left)) = &mut plan.armed else {
                return;
            };
            if *armed != name {
                return;
            }
            *left -= 1;
            if *left == 0 {
                plan.armed = None;
                *plan.crashed.entry(name).or_default() += 1;
                power.freeze();
                load.history.stop();
                dead.store(true, Ordering::SeqCst);
            }
        });
        match self.broken {
            Some(name) => world.break_with(name),
            None => world,
        }
    }

    fn start_worker(&mut self) {
        if self.worker.is_some() {
            return;
        }
        let entered = self.machine.enter();
        let worker = Arc::new(FakeWorker::start(self.folder.path(), "w0", DIGEST, false));
        let at_work = Arc::downgrade(&worker);
        let seed = self.random.number();
        tokio::spawn(async move {
            let mut random = Seeded(seed);
            while let Some(worker) = at_work.upgrade() {
                worker.generate(1 + random.below(2) as u32);
                match random.below(200) {
                    0 => worker.break_session(),
                    1..5 => worker.send_stale_row(),
                    5 => worker.crash(),
                    6..9 => worker.reject(Some(Code::QueueFull)),
                    9..40 => worker.reject(None),
                    _ => {}
                }
                drop(worker);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        drop(entered);
        self.worker = Some(worker);
    }

    fn kill_worker(&mut self) {
        if let Some(worker) = self.worker.take() {
            // What a client saw begin, and the worker has not ended, can only end as interrupted.
            let begun = begun(&self.load.history.calls());
            let unfinished = worker.unfinished();
            let ids = unfinished
                .iter()
                .filter_map(|id| id.as_slice().try_into().ok());
            let ids = ids.map(|id| RunId::from_bytes(id).to_string());
            self.lost.extend(ids.filter(|id| begun.contains(id)));
            // The ticker may hold it for a moment.
            let mut worker = worker;
            let worker = loop {
                match Arc::try_unwrap(worker) {
                    Ok(worker) => break worker,
                    Err(shared) => worker = shared,
                }
                std::thread::yield_now();
            };
            worker.kill();
        }
    }

    /// From opening the store to the end; the medium then has what a crash leaves.
    pub(crate) fn live(&mut self, end: End) {
        self.start_worker();
        match end {
            End::Point(name, passings) => {
                self.plan.lock().unwrap().armed = Some((name, passings));
            }
            End::Write(writes) => self.power.freeze_after(writes),
        }
        let world = self.entered();
        world.enter();
        if let Ok(store) = self.power.open() {
            let alive = Alive::start(self, &world, store);
            if let Some(alive) = alive {
                alive.load(self);
            }
        }
        self.plan.lock().unwrap().armed = None;
        self.load.history.stop();
        if self.random.below(4) == 0 {
            self.kill_worker();
        }
        if self.random.below(3) == 0 {
            self.power.kill();
        } else {
            self.power.cut();
        }
        self.dead.store(false, Ordering::SeqCst);
        self.load.history.go_on();
        self.crashes += 1;
    }

    /// One more life that ends well, then what is wrong with all of them, and how much happened.
    pub(crate) fn judge(&mut self, within: Duration) -> (Vec<Violation>, Intensity) {
        self.start_worker();
        let world = self.entered();
        world.enter();
        let store = self.power.open().expect("the store opens after a crash");
        let alive = Alive::start(self, &world, store).expect("the gateway starts after a crash");
        self.load.ask_again(&alive.base);
        let finished = self.load.finish(&alive.base, within, 400);
        alive.end();
        let mut lines = String::new();
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let dumped = self.power.dump(now as u64, &mut |record| {
            lines.push_str(&record.to_string());
            lines.push('\n');
        });
        let dump = Dump::parse(&lines).unwrap();
        let history = self.load.history.calls();
        let rules = Rules {
            limits: [("acme", ACME_TOKENS), ("globex", self.globex_tokens())]
                .map(|(tenant, limit)| ((tenant.to_owned(), DAY_S), limit))
                .into(),
            price: (1, 0, 4),
            deterministic: true,
            quiet: true,
            answer_within_ms: Some(60_000),
            memory_bytes: None,
            lost: std::mem::take(&mut self.lost),
        };
        let mut found = check(&history, &dump, &[], &rules);
        // A store that cannot be read has lost what it acknowledged.
        if let Err(error) = dumped {
            found.push(Violation {
                invariant: 'D',
                what: error.to_string(),
            });
        }
        if let Err(error) = finished {
            found.push(Violation {
                invariant: 'F',
                what: error.to_string(),
            });
        }
        (found, intensity(&history, &dump))
    }
}

fn tenants(globex_tokens: u64) -> Vec<Tenant> {
    let limited = |name, tokens| {
        let mut tenant = tenant(name);
        tenant.limits.windows = vec![WindowLimit {
            period_s: DAY_S,
            tokens: Some(tokens),
            micros: None,
        }];
        tenant
    };
    vec![
        limited("acme", ACME_TOKENS),
        limited("globex", globex_tokens),
    ]
}

/// A gateway on a runtime of its own.
struct Alive {
    runtime: Runtime,
    store: Arc<dyn Store>,
    gateway: Gateway,
    base: String,
}

impl Alive {
    /// `None`: it died while it started.
    fn start(of: &World, world: &fault::World, store: Arc<dyn Store>) -> Option<Self> {
        let world = world.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .on_thread_start(move || world.enter())
            .build()
            .unwrap();
        let snapshot = snapshot(of.folder.path(), tenants(of.globex_tokens()), &["w0"]);
        let registry = weir_telemetry::Metrics::new();
        let started = runtime.block_on(async {
            let gateway = Gateway::start(config(), Arc::clone(&store), &registry, snapshot);
            let gateway = gateway.await.ok()?;
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serving = gateway.clone();
            tokio::spawn(async move {
                let never = CancellationToken::new();
                serving.serve(listener, never, Duration::ZERO).await;
            });
            Some((gateway, format!("http://{address}")))
        });
        let Some((gateway, base)) = started else {
            drop(runtime);
            drop(store);
            return None;
        };
        Some(Self {
            runtime,
            store,
            gateway,
            base,
        })
    }

    /// Clients act until the world stands still.
    fn load(self, of: &mut World) {
        let stop = AtomicBool::new(false);
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| of.random.number()).collect();
        let load = Arc::clone(&of.load);
        let base = self.base.clone();
        std::thread::scope(|scope| {
            for seed in seeds {
                let (load, base, stop) = (&load, &base, &stop);
                scope.spawn(move || load.act(base, seed, stop));
            }
            let until = Instant::now() + LONGEST_LIFE;
            while !of.dead.load(Ordering::SeqCst) && !of.power.is_frozen() && Instant::now() < until
            {
                std::thread::sleep(Duration::from_micros(500));
            }
            of.load.history.stop();
            of.power.freeze();
            stop.store(true, Ordering::SeqCst);
            self.end();
        });
    }

    /// Everything of it is gone when this returns, as after a kill.
    fn end(self) {
        let Self {
            runtime,
            store,
            gateway,
            base: _,
        } = self;
        drop(gateway);
        drop(runtime);
        let deadline = Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&store) > 1 {
            assert!(Instant::now() < deadline, "somebody still holds the store");
            std::thread::yield_now();
        }
        drop(store);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("WEIR_SEED={}", self.seed);
        }
    }
}
