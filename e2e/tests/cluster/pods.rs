//! Real pods, Services and probes on a node, from the images of the Dockerfiles and the manifests of `deploy/`.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use serde_json::{Value, json};
use weir_e2e::cluster::{self, Images, Layer, Node};
use weir_e2e::{Client, wait_for};

use crate::install::{NAMESPACE, apply_version, install, models};
use crate::stage::condition;

/// A plan that a version which keeps its promises is through with in a few seconds.
fn quick() -> Value {
    json!({
        "steps": [{"weightPercent": 20, "bake": "1s"}, {"weightPercent": 50, "bake": "1s"}],
        "guardrails": {"errorRatePercent": 5, "minRequests": 10}, "promote": "NoBreach", "finalBake": "1s",
    })
}

/// What is asked in turn: version 3 refuses the second and does not come to an end with the third.
const PROMPTS: &[&str] = &[
    "What is 12 plus 30?",
    "What is the capital of France?",
    "Spell the word house.",
];

/// A cluster with everything installed, and a client of its gateways' Service.
struct Site {
    node: Node,
    client: Client,
    models: tempfile::TempDir,
}

/// What a load saw.
#[derive(Debug)]
struct Load {
    answered: u64,
    failures: Vec<String>,
}

fn site(test: &str) -> Option<Site> {
    let binaries = cluster::layer(Layer::Node, test).unwrap()?;
    let programs = cluster::programs().unwrap();
    let mut images = Images::new().unwrap();
    for part in ["operator", "gateway", "worker"] {
        images.weir(part, &programs).unwrap();
    }
    let node = Node::start(&binaries, &images).unwrap();
    let models = models();
    install(&node, models.path());
    let service = ["service/weir-gateway", "-n", NAMESPACE];
    let service = node.kubectl().get(&service).unwrap();
    let address = service["spec"]["clusterIP"].as_str().unwrap();
    let client = Client::new(&format!("http://{address}"), "acme-dev-key");
    Some(Site {
        node,
        client,
        models,
    })
}

impl Site {
    fn apply(&self, number: u32, rollout: &Value) {
        let models: &Path = self.models.path();
        apply_version(&self.node, models, number, rollout);
    }

    fn version(&self, number: u32) -> Value {
        let object = format!("mv/tiny-chat-v{number}");
        let get = [object.as_str(), "-n", NAMESPACE];
        self.node.kubectl().get(&get).unwrap_or_default()
    }

    fn wait(&self, what: &str, seconds: u64, check: impl FnMut() -> bool) {
        let mut check = check;
        let waited = wait_for(what, seconds, || check().then_some(()));
        // What stands against it is asked only where something does.
        let story = waited.as_ref().err().map(|_| self.node.story(NAMESPACE));
        assert!(waited.is_ok(), "{waited:?}\n{}", story.unwrap_or_default());
    }

    /// Asks through the Service: the model's answer, or what stands against it.
    fn chat(&self, prompt: &str) -> Result<String, String> {
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

    /// Four clients that ask one after the other while `story` goes on.
    fn under_load(&self, story: impl FnOnce()) -> Load {
        let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let (turn, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let turn = turn.fetch_add(1, Ordering::Relaxed);
                        match self.chat(PROMPTS[turn % PROMPTS.len()]) {
                            Ok(_) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => failures.lock().unwrap().push(error),
                        }
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
    fn ready_workers(&self, number: u32) -> Vec<String> {
        let version = format!("tiny-chat-v{number}");
        let pods = self.node.kubectl().get(&["pods", "-n", NAMESPACE]);
        let pods = pods.unwrap_or_default();
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
    fn some_ready_workers(&self, number: u32) -> Vec<String> {
        let ready = Mutex::new(Vec::new());
        self.wait("a ready worker", 120, || {
            let names = self.ready_workers(number);
            let is_some = !names.is_empty();
            *ready.lock().unwrap() = names;
            is_some
        });
        ready.into_inner().unwrap()
    }

    /// Version 1 serves, and version 2 takes over from it.
    fn promote(&self) {
        self.apply(1, &quick());
        self.wait("version 1 is ready", 300, || {
            condition(&self.version(1), "Ready").is_some_and(|(status, _)| status == "True")
        });
        self.wait("a first answer through the Service", 60, || {
            self.chat(PROMPTS[0]).is_ok()
        });
        let load = self.under_load(|| {
            self.apply(2, &quick());
            self.wait("version 2 serves", 300, || {
                self.version(2)["status"]["stage"] == "Production"
            });
        });
        assert_eq!(load.failures, Vec::<String>::new());
        assert!(load.answered > 20, "{load:?}");
        assert_eq!(self.chat(PROMPTS[0]).unwrap(), "42");
    }

    /// Version 3 answers every request, and some of them badly.
    fn roll_back(&self) {
        let load = self.under_load(|| {
            self.apply(3, &quick());
            self.wait("version 3 is taken back", 300, || {
                self.version(3)["status"]["rejected"]["reason"] == "GuardrailBreached"
            });
        });
        assert_eq!(load.failures, Vec::<String>::new());
        eprintln!("{}", self.version(3)["status"]["rejected"]);
        assert_eq!(self.version(2)["status"]["stage"], "Production");
        assert_eq!(self.chat(PROMPTS[0]).unwrap(), "42");
        self.wait("the time it took", 30, || self.rollback_seconds().is_some());
        let seconds = self.rollback_seconds().unwrap();
        eprintln!("{seconds:.2} s from the deciding sample, at most, to the last gateway's table");
    }

    /// What the operator that acts says of how long a rollback took.
    fn rollback_seconds(&self) -> Option<f64> {
        let pods = [
            "pods",
            "-n",
            NAMESPACE,
            "-l",
            "app.kubernetes.io/component=operator",
        ];
        let pods = self.node.kubectl().get(&pods).ok()?;
        let addresses = pods["items"].as_array()?.iter();
        let mut addresses = addresses.filter_map(|pod| pod["status"]["podIP"].as_str());
        addresses.find_map(|address| {
            let metrics = format!("http://{address}:9090/metrics");
            let text = ureq::get(metrics).call().ok()?.into_body();
            let text = text.into_with_config().read_to_string().ok()?;
            let value = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                line.trim().parse::<f64>().ok()
            };
            let count = value("weir_rollout_rollback_seconds_count")?;
            (count > 0.5).then(|| value("weir_rollout_rollback_seconds_sum"))?
        })
    }

    /// Nothing is made of what nobody signed.
    fn refuse(&self) {
        self.apply(4, &quick());
        self.wait("version 4 is refused", 120, || {
            condition(&self.version(4), "Verified").is_some_and(|(status, _)| status == "False")
        });
        let reason = condition(&self.version(4), "Verified").unwrap().1;
        assert!(reason.starts_with("Signature"), "{reason}");
        let all = ["get", "all,configmap", "-n", NAMESPACE, "-o", "name"];
        let all = self.node.kubectl().run(&all).unwrap();
        assert!(!all.contains("tiny-chat-v4"), "{all}");
        assert!(all.contains("tiny-chat-v2"), "{all}");
        let delete = ["delete", "mv/tiny-chat-v4", "-n", NAMESPACE];
        self.node.kubectl().run(&delete).unwrap();
    }

    /// What runs goes on while the programs that started it are away, and they find it again.
    fn restart_node(&self) {
        let before = self.some_ready_workers(2);
        let load = self.under_load(|| {
            for name in ["kubelet", "containerd"] {
                self.node.server(name).unwrap().stop().unwrap();
            }
            for name in ["containerd", "kubelet"] {
                self.node.server(name).unwrap().start().unwrap();
            }
            let ready = ["wait", "--for=condition=Ready", "--timeout=120s"];
            let all = ["nodes", "--all"];
            let kubectl = self.node.kubectl();
            kubectl.run(&[&ready[..], &all].concat()).unwrap();
        });
        assert_eq!(load.failures, Vec::<String>::new());
        self.wait("the same pods", 120, || self.ready_workers(2) == before);
    }

    /// A worker that dies is replaced.
    fn kill_worker(&self) {
        let before = self.some_ready_workers(2).remove(0);
        let kill = "--grace-period=0";
        let delete = ["delete", "pod", &before, "-n", NAMESPACE, "--force", kill];
        self.node.kubectl().run(&delete).unwrap();
        self.wait("another worker", 120, || {
            self.ready_workers(2).iter().any(|name| *name != before)
        });
        self.wait("version 2 answers again", 60, || {
            self.chat(PROMPTS[0]).is_ok_and(|answer| answer == "42")
        });
    }
}

#[test]
fn on_a_real_node_a_version_replaces_another_a_worse_one_is_taken_back_and_no_request_fails() {
    let Some(site) = site("a rollout on a real node") else {
        return;
    };
    site.promote();
    site.refuse();
    site.roll_back();
    site.restart_node();
    site.kill_worker();
}
