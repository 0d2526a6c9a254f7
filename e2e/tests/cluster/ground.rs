//! A node with everything installed, and what is asked of it again and again.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use weir_e2e::cluster::{self, Binaries, Images, Layer, Node};
use weir_e2e::{Client, wait_for};

use crate::install::{NAMESPACE, apply_version, install, models, quickstart};
use crate::stage::condition;

/// The programs that an image is made of.
pub(crate) const PARTS: [&str; 3] = ["operator", "gateway", "worker"];
/// What is asked in turn: version 3 refuses the second and does not come to an end with the third.
pub(crate) const PROMPTS: &[&str] = &[
    "What is 12 plus 30?",
    "What is the capital of France?",
    "Spell the word house.",
];

/// A cluster with everything installed, and a client of its gateways' Service.
pub(crate) struct Site {
    pub(crate) node: Node,
    pub(crate) client: Client,
    pub(crate) models: tempfile::TempDir,
}

/// What a load saw.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) answered: u64,
    pub(crate) failures: Vec<String>,
}

/// Who asks while something goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) clients: usize,
    /// How long each waits after an answer.
    pub(crate) pause: Duration,
}

/// Four clients without a break.
const CROWD: Crowd = Crowd {
    clients: 4,
    pause: Duration::ZERO,
};

pub(crate) fn site(test: &str) -> Option<Site> {
    let binaries = cluster::layer(Layer::Node, test).unwrap()?;
    let site = Site::start(&binaries);
    quickstart(&site.node);
    Some(site)
}

/// The images of the three programs.
pub(crate) fn images() -> Images {
    let programs = cluster::programs().unwrap();
    let mut images = Images::new().unwrap();
    for part in PARTS {
        images.weir(part, &programs).unwrap();
    }
    images
}

/// A client of the gateways' Service.
pub(crate) fn client(node: &Node) -> Client {
    let service = object(node, "service/weir-gateway");
    let address = service["spec"]["clusterIP"].as_str().unwrap();
    Client::new(&format!("http://{address}"), "acme-dev-key")
}

/// An object of the namespace; null where there is none.
pub(crate) fn object(node: &Node, name: &str) -> Value {
    let get = [name, "-n", NAMESPACE];
    node.kubectl().get(&get).unwrap_or_default()
}

pub(crate) fn wait(node: &Node, what: &str, seconds: u64, check: impl FnMut() -> bool) {
    let mut check = check;
    let waited = wait_for(what, seconds, || check().then_some(()));
    // What stands against it is asked only where something does.
    let story = waited.as_ref().err().map(|_| node.story(NAMESPACE));
    assert!(waited.is_ok(), "{waited:?}\n{}", story.unwrap_or_default());
}

impl Site {
    /// A node with the programs installed; no pool, tenant or model is there.
    pub(crate) fn start(binaries: &Binaries) -> Self {
        let node = Node::start(binaries, &images()).unwrap();
        let models = models();
        install(&node, models.path());
        Self {
            client: client(&node),
            node,
            models,
        }
    }

    pub(crate) fn apply(&self, number: u32, rollout: &Value) {
        let models: &Path = self.models.path();
        apply_version(&self.node, models, number, rollout);
    }

    pub(crate) fn version(&self, number: u32) -> Value {
        self.object(&format!("mv/tiny-chat-v{number}"))
    }

    /// An object of the namespace; null where there is none.
    pub(crate) fn object(&self, name: &str) -> Value {
        object(&self.node, name)
    }

    pub(crate) fn wait(&self, what: &str, seconds: u64, check: impl FnMut() -> bool) {
        wait(&self.node, what, seconds, check);
    }

    /// Asks through the Service: the model's answer, or what stands against it.
    pub(crate) fn chat(&self, prompt: &str) -> Result<String, String> {
        let body = json!({
            "model": "tiny-chat", "temperature": 0, "max_tokens": 16,
            "messages": [{"role": "user", "content": prompt}],
        });
        let reply = self
            .client
            .post("/v1/chat/completions", &body)
            .map_err(|error| format!("{error:#}"))?;
        let message = &reply.body["choices"][0]["message"];
        if reply.status == 200 && message.is_object() {
            Ok(message["content"].as_str().unwrap_or_default().to_owned())
        } else {
            Err(format!("{} {}", reply.status, reply.body))
        }
    }

    /// The version that answers; `None` where none does.
    pub(crate) fn answering(&self) -> Option<u64> {
        let body = json!({"model": "tiny-chat", "input": PROMPTS[0], "maxOutputTokens": 2});
        let reply = self.client.post("/inference", &body).ok()?;
        reply.body["modelVersion"].as_u64()
    }

    /// Four clients that ask one after the other while `story` goes on.
    pub(crate) fn under_load(&self, story: impl FnOnce()) -> Load {
        self.under_load_of(CROWD, story)
    }

    /// The same with others.
    pub(crate) fn under_load_of(&self, crowd: Crowd, story: impl FnOnce()) -> Load {
        let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let (turn, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..crowd.clients {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let turn = turn.fetch_add(1, Ordering::Relaxed);
                        match self.chat(PROMPTS[turn % PROMPTS.len()]) {
                            Ok(_) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => failures.lock().unwrap().push(error),
                        }
                        std::thread::sleep(crowd.pause);
                    }
                });
            }
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(story));
            stop.store(true, Ordering::Relaxed);
            if let Err(panic) = told {
                std::panic::resume_unwind(panic);
            }
        });
        let load = Load {
            answered: answered.into_inner(),
            failures: failures.into_inner().unwrap(),
        };
        eprintln!(
            "{} answers, {} failures",
            load.answered,
            load.failures.len()
        );
        load
    }

    /// The names of a version's worker pods that are ready.
    pub(crate) fn ready_workers(&self, number: u32) -> Vec<String> {
        let version = format!("tiny-chat-v{number}");
        let pods = self.object("pods");
        let is_ready = |pod: &&Value| {
            pod["metadata"].get("deletionTimestamp").is_none()
                && condition(pod, "Ready").is_some_and(|(status, _)| status == "True")
        };
        let items = pods["items"].as_array().into_iter().flatten();
        items
            .filter(is_ready)
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .filter(|name| name.contains(&version))
            .map(str::to_owned)
            .collect()
    }

    /// The same once there are any: a kubelet that starts again calls every pod unready until it has asked it itself.
    pub(crate) fn some_ready_workers(&self, number: u32) -> Vec<String> {
        let ready = Mutex::new(Vec::new());
        self.wait("a ready worker", 120, || {
            let names = self.ready_workers(number);
            let is_some = !names.is_empty();
            *ready.lock().unwrap() = names;
            is_some
        });
        ready.into_inner().unwrap()
    }
}
