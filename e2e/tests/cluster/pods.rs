//! Real pods, Services and probes on a node, from the images of the Dockerfiles and the manifests of `deploy/`.

use serde_json::{Value, json};

use crate::ground::{PROMPTS, Site, site};
use crate::install::NAMESPACE;
use crate::stage::condition;
use crate::tampered;

/// A plan that a version which keeps its promises is through with in a few seconds.
pub(crate) fn quick() -> Value {
    json!({
        "steps": [{"weightPercent": 20, "bake": "1s"}, {"weightPercent": 50, "bake": "1s"}],
        "guardrails": {"errorRatePercent": 5, "minRequests": 10}, "promote": "NoBreach", "finalBake": "1s",
    })
}

impl Site {
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
    tampered::are_refused(&site);
    site.roll_back();
    site.restart_node();
    site.kill_worker();
}
