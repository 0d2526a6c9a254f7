//! A gateway with tenants, one model, a store in a temporary folder, and workers of the test's choice.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weir_gateway::{
    ApiKey, Config, Gateway, Message, ModelPermission, ModelRoute, Pool, Priority, PromptText,
    QueueBound, SamplingDefaults, ServedVersion, Snapshot, Tenant, TextError, WorkerAddress,
    WorkerEndpoint,
};
use weir_manifest::ApiKeyHash;
use weir_rollout::VersionId;
use weir_rollout::routing::{Table, TableOrder};
use weir_run::Price;
use weir_store::{Engine, Store, open};

use crate::client::Client;
use crate::worker::FakeWorker;

pub(crate) const DIGEST: &str = "sha256:1111";

/// One token for every byte.
struct Bytes;

impl PromptText for Bytes {
    fn chat(&self, messages: &[Message]) -> Result<Vec<u32>, TextError> {
        if messages.iter().any(|message| message.role == "bad") {
            return Err(TextError::Template("roles must alternate".to_owned()));
        }
        let text: String = messages.iter().map(|m| m.content.as_str()).collect();
        self.raw(&text)
    }

    fn user(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.raw(text)
    }

    fn raw(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn vocab(&self) -> u32 {
        1000
    }
}

/// Everything that answers.
pub(crate) struct Site {
    pub(crate) gateway: Gateway,
    pub(crate) metrics: weir_telemetry::Metrics,
    pub(crate) address: SocketAddr,
    pub(crate) folder: TempDir,
    pub(crate) stop: CancellationToken,
    pub(crate) serving: tokio::task::JoinHandle<()>,
}

/// A tenant without limits that may use everything; its key is `NAME-dev-key`.
pub(crate) fn tenant(name: &str) -> Tenant {
    Tenant {
        name: name.to_owned(),
        keys: vec![ApiKey {
            name: "dev".to_owned(),
            hash: ApiKeyHash::of(&format!("{name}-dev-key"))
                .unwrap()
                .to_string(),
            ..ApiKey::default()
        }],
        caller: None,
        limits: weir_budget::Limits::default(),
        kv_share_percent: None,
        max_prompt_tokens: None,
        max_output_tokens: Some(1024),
        priority: Priority::Interactive,
        models: vec![ModelPermission {
            name: "tiny".to_owned(),
            tiers: Vec::new(),
            fallback: false,
            pinning: true,
        }],
        trust_scope: name.to_owned(),
        retention_ms: 86_400_000,
        content_deletion: false,
        shadow: true,
        alerts: weir_gateway::Alerts::default(),
    }
}

/// The table of a generation that sends everything to one version.
pub(crate) fn all_to(generation: u64, version: u32, digest: &str) -> Arc<Table> {
    let stable = VersionId::new(version, digest);
    Arc::new(Table::all_to(TableOrder::new(1, generation), stable))
}

/// Model `tiny`, one version, in pool `small`, with `workers` in `folder`.
pub(crate) fn snapshot(folder: &Path, tenants: Vec<Tenant>, workers: &[&str]) -> Snapshot {
    Snapshot {
        tenants,
        models: vec![ModelRoute {
            name: "tiny".to_owned(),
            versions: vec![Arc::new(version("tiny", 2, DIGEST))],
            table: all_to(1, 2, DIGEST),
            mirror: None,
        }],
        pools: vec![Pool {
            name: "small".to_owned(),
            queues: [QueueBound {
                max_depth: 8,
                max_wait_ms: 10_000,
            }; 3],
            class_bounds: [512, 4096],
            sleeps: false,
            largest_prompt: None,
        }],
        settings: weir_gateway::Settings::default(),
        workers: workers
            .iter()
            .map(|name| WorkerEndpoint {
                name: (*name).to_owned(),
                pool: "small".to_owned(),
                address: WorkerAddress::Unix(folder.join(format!("{name}.sock"))),
                version: None,
            })
            .collect(),
    }
}

pub(crate) fn version(model: &str, version: u32, digest: &str) -> ServedVersion {
    ServedVersion {
        model: model.to_owned(),
        version,
        digest: digest.to_owned(),
        pool: "small".to_owned(),
        tier: "standard".to_owned(),
        price: Price {
            prompt_micros_per_token: 1,
            cached_micros_per_token: 0,
            output_micros_per_token: 4,
        },
        context_tokens: 16_384,
        text: Arc::new(Bytes),
        fallback: Vec::new(),
        defaults: SamplingDefaults::default(),
    }
}

/// Times short enough for a test.
pub(crate) fn config() -> Config {
    Config {
        reattach_within: Duration::from_millis(400),
        adopt_within: Duration::from_millis(800),
        batch_lease: Duration::from_millis(600),
        batch_look_every: Duration::from_millis(50),
        alerts_every: Duration::from_millis(20),
        webhook_pause: Duration::from_millis(20),
        ..Config::default()
    }
}

impl Site {
    /// With one worker, `w0`, and the tenants `acme` and `globex`.
    pub(crate) async fn new(auto: bool) -> (Self, FakeWorker) {
        Self::with(auto, vec![tenant("acme"), tenant("globex")]).await
    }

    pub(crate) async fn with(auto: bool, tenants: Vec<Tenant>) -> (Self, FakeWorker) {
        let folder = tempfile::tempdir().unwrap();
        let worker = FakeWorker::start(folder.path(), "w0", DIGEST, auto);
        let snapshot = snapshot(folder.path(), tenants, &["w0"]);
        let site = Self::start(folder, snapshot, config()).await;
        site.wait_served().await;
        (site, worker)
    }

    pub(crate) async fn start(folder: TempDir, snapshot: Snapshot, config: Config) -> Self {
        let store = open(&folder.path().join("store"), Engine::default()).unwrap();
        Self::on(folder, store, snapshot, config).await
    }

    pub(crate) async fn on(
        folder: TempDir,
        store: Arc<dyn Store>,
        snapshot: Snapshot,
        config: Config,
    ) -> Self {
        let registry = weir_telemetry::Metrics::new();
        let gateway = Gateway::start(config, store, &registry, snapshot)
            .await
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (serving, token) = (gateway.clone(), stop.clone());
        let serving = tokio::spawn(async move {
            serving
                .serve(listener, token, Duration::from_millis(500))
                .await;
        });
        Self {
            gateway,
            metrics: registry,
            address,
            folder,
            stop,
            serving,
        }
    }

    /// Connections that are open now.
    pub(crate) fn connections(&self) -> u32 {
        let text = self.metrics.prometheus_text();
        let mut values = text
            .lines()
            .filter_map(|line| line.strip_prefix("weir_gateway_connections "));
        values.next().unwrap().trim().parse().unwrap()
    }

    pub(crate) async fn wait_served(&self) {
        wait_for("a worker", || self.gateway.is_served("small", DIGEST)).await;
    }

    pub(crate) fn client(&self, tenant: &str) -> Client {
        Client::new(self.address, &format!("{tenant}-dev-key"))
    }

    /// A consistent account in which nothing is reserved.
    pub(crate) async fn assert_settled(&self, tenant: &str) -> Value {
        self.assert_settled_by(&self.client(tenant)).await
    }

    pub(crate) async fn assert_settled_by(&self, client: &Client) -> Value {
        // Whoever was told 202 has not waited for the end.
        let until = tokio::time::Instant::now() + Duration::from_secs(10);
        let mut usage = client.get("/usage").await.body;
        while usage["liveRuns"] != 0 && tokio::time::Instant::now() < until {
            tokio::task::yield_now().await;
            usage = client.get("/usage").await.body;
        }
        assert_eq!(usage["consistent"], true, "{usage}");
        assert_eq!(usage["liveRuns"], 0, "{usage}");
        for window in usage["windows"].as_array().unwrap() {
            assert_eq!(window["reservedTokens"], 0, "{usage}");
        }
        usage
    }
}

/// A small request.
pub(crate) fn ask(output: u32) -> Value {
    json!({"model": "tiny", "input": "hello", "maxOutputTokens": output})
}

pub(crate) async fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain for {what}");
}
