//! A real Argo CD follows a git repository that holds `examples/gitops`, on a node with real pods: what is committed is what serves.

mod repository;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_e2e::cluster::{self, ArgoCd, Layer};

use self::repository::{Repository, example};
use crate::ground::{Crowd, PROMPTS, Site};
use crate::install::{self, NAMESPACE};
use crate::pods::quick;
use crate::stage::condition;

/// Fewer requests a minute than the example's tenants may send.
const CROWD: Crowd = Crowd {
    clients: 1,
    pause: Duration::from_millis(150),
};
/// How long nothing may happen where nothing changed; Argo CD looks every 5 s.
const QUIET: Duration = Duration::from_mins(1);
/// The Application whose manifests are tested.
const APPLICATION: &str = "weir-models";
/// The manifest of version 2, as the example has it.
const MODEL: &str = "model.yaml";

struct Story {
    // Dropped before the node it runs on.
    argocd: ArgoCd,
    site: Site,
    repository: Repository,
}

impl Story {
    /// The example's Application, with a repository that serves version 1 in place of version 2.
    fn begin(site: Site, argocd: ArgoCd) -> Self {
        let repository = Repository::of_the_example();
        repository.remove(MODEL);
        let first = install::version(site.models.path(), 1, &quick());
        repository.write("model-v1.yaml", &first);
        repository.commit("Serve version 1");
        let mut application = install::documents("examples/gitops/argocd.yaml")
            .into_iter()
            .find(|object| object["metadata"]["name"] == APPLICATION)
            .unwrap();
        application["spec"]["source"]["repoURL"] = json!(repository.url());
        site.node.kubectl().apply("people", &application).unwrap();
        Self {
            argocd,
            site,
            repository,
        }
    }

    fn application(&self) -> Value {
        let get = ["application", APPLICATION, "-n", ArgoCd::NAMESPACE];
        self.site.node.kubectl().get(&get).unwrap_or_default()
    }

    fn wait(&self, what: &str, seconds: u64, check: impl FnMut() -> bool) {
        let mut check = check;
        let waited = weir_e2e::wait_for(what, seconds, || check().then_some(()));
        let story = || {
            let application = serde_json::to_string_pretty(&self.application()["status"]).unwrap();
            let site = self.site.node.story(NAMESPACE);
            format!("{application}\n{site}\n{}", self.argocd.story())
        };
        assert!(waited.is_ok(), "{waited:?}\n{}", story());
    }

    /// Waits until what is committed is what there is, in this health.
    fn wait_synced(&self, health: &str) {
        let head = self.repository.head();
        let begun = Instant::now();
        self.wait(&format!("{head} is Synced and {health}"), 300, || {
            let status = &self.application()["status"];
            status["sync"]["revision"] == head.as_str()
                && status["sync"]["status"] == "Synced"
                && status["health"]["status"] == health
        });
        let took = begun.elapsed().as_secs_f64();
        eprintln!("Synced and {health} after {took:.0} s");
    }

    /// Nothing happens for a while, though Argo CD looks again and again, and renders again: no difference, no sync, no write.
    fn rests(&self, how: &str) {
        self.wait_synced("Healthy");
        let audit = self.site.node.plane().audit();
        let (mark, before, begun) = (audit.mark(), self.application(), Instant::now());
        let mut looks = BTreeSet::new();
        while begun.elapsed() < QUIET {
            self.refresh();
            let status = self.application()["status"].take();
            let verdict = (&status["sync"]["status"], &status["health"]["status"]);
            assert_eq!(
                verdict,
                (&json!("Synced"), &json!("Healthy")),
                "{how}: {status}"
            );
            for resource in status["resources"].as_array().unwrap() {
                assert_eq!(resource["status"], "Synced", "{how}: {resource}");
            }
            looks.insert(status["reconciledAt"].to_string());
            std::thread::sleep(Duration::from_secs(2));
        }
        let after = self.application();
        for done in ["history", "operationState"] {
            assert_eq!(after["status"][done], before["status"][done], "{how}");
        }
        assert!(looks.len() > 5, "{how}: looked only at {looks:?}");
        let written = audit.writes_since(mark, ArgoCd::USER).unwrap();
        let ours = format!("{NAMESPACE}/");
        let written = written
            .iter()
            .filter(|call| call.object.starts_with(&ours))
            .map(|call| format!("{} {} {}", call.verb, call.resource, call.object));
        assert_eq!(written.collect::<Vec<_>>(), Vec::<String>::new(), "{how}");
        eprintln!("{how}: {} looks, nothing written", looks.len());
    }

    /// Asks for a comparison that believes nothing it kept.
    fn refresh(&self) {
        self.change(&json!({"metadata": {"annotations": {"argocd.argoproj.io/refresh": "hard"}}}));
    }

    /// Changes the Application.
    fn change(&self, patch: &Value) {
        let object = format!("application/{APPLICATION}");
        let kubectl = self.site.node.kubectl();
        kubectl
            .merge(&object, ArgoCd::NAMESPACE, patch, &[])
            .unwrap();
    }

    fn answers(&self, version: u64) {
        let what = format!("version {version} answers");
        self.wait(&what, 120, || self.site.answering() == Some(version));
    }

    /// What a person changes or deletes by hand is as it was committed soon after.
    fn heals(&self) {
        let kubectl = self.site.node.kubectl();
        let depth = || self.site.object("gp/small")["spec"]["queue"]["maxDepth"].clone();
        let committed = depth();
        let drift = json!({"spec": {"queue": {"maxDepth": 7}}});
        kubectl.merge("gp/small", NAMESPACE, &drift, &[]).unwrap();
        self.wait("the pool is healed", 60, || depth() == committed);
        let quota = || self.site.object("tq/globex")["metadata"]["uid"].clone();
        let before = quota();
        kubectl
            .run(&["delete", "tq/globex", "-n", NAMESPACE])
            .unwrap();
        self.wait("the tenant is there again", 60, || {
            let now = quota();
            now.is_string() && now != before
        });
        self.wait_synced("Healthy");
    }

    /// A commit brings version 2, which a person pauses, resumes and promotes on Argo CD's pages; nobody notices.
    fn rolls_out(&self) {
        let load = self.site.under_load_of(CROWD, || {
            let mut second = example(MODEL);
            second["spec"]["rollout"] = json!({
                "steps": [{"weightPercent": 50, "bake": "10m"}],
                "guardrails": {"errorRatePercent": 5}, "promote": "NoBreach", "finalBake": "1s",
            });
            self.repository.write(MODEL, &second);
            self.repository.commit("Roll version 2 out");
            self.bakes();
            self.wait_synced("Progressing");
            self.act("pause");
            self.wait_synced("Suspended");
            self.act("resume");
            self.bakes();
            self.act("promote-full");
            self.wait_synced("Healthy");
        });
        assert_eq!(load.failures, Vec::<String>::new());
        assert!(load.answered > 20, "{load:?}");
        assert_eq!(self.site.version(2)["status"]["stage"], "Production");
        assert_eq!(self.site.chat(PROMPTS[0]).unwrap(), "42");
        self.answers(2);
    }

    fn bakes(&self) {
        self.wait("version 2 takes its share", 300, || {
            condition(&self.site.version(2), "Progressing")
                .is_some_and(|(_, reason)| reason == "Baking")
        });
    }

    fn act(&self, action: &str) {
        let object = self.site.version(2);
        self.argocd.act(APPLICATION, &object, action).unwrap();
    }

    /// A revert takes the version away and its traffic back; nobody notices.
    fn rolls_back(&self) {
        let load = self.site.under_load_of(CROWD, || {
            self.repository.revert();
            self.wait("version 2 is gone", 120, || self.site.version(2).is_null());
            self.answers(1);
            self.wait("nothing of version 2 runs", 120, || {
                let pods = self.site.object("pods").to_string();
                !pods.contains("tiny-chat-v2")
            });
            self.wait_synced("Healthy");
        });
        assert_eq!(load.failures, Vec::<String>::new());
        assert_eq!(self.site.version(1)["status"]["stage"], "Production");
    }

    /// What is no longer committed is removed.
    fn prunes(&self) {
        self.repository.replace("tenants.yaml", |text| {
            let (kept, globex) = text.split_at(text.find("---\napiVersion: weir.dev").unwrap());
            assert!(globex.contains("globex") && !kept.contains("globex"));
            kept.to_owned()
        });
        self.repository.commit("Let globex go");
        self.wait("the tenant and its key are gone", 120, || {
            self.site.object("tq/globex").is_null()
                && self.site.object("secret/globex-keys").is_null()
        });
        self.wait_synced("Healthy");
    }

    /// The only version that serves is not taken away by a commit, and Argo CD says why.
    fn keeps_the_sole_version(&self) {
        let serving = self.site.some_ready_workers(1);
        self.repository.remove("model-v1.yaml");
        self.repository.commit("Serve nothing");
        self.wait("the sync is refused", 120, || {
            let state = self.application()["status"]["operationState"].to_string();
            state.contains("is the only one that serves tiny-chat")
        });
        assert_eq!(self.application()["status"]["sync"]["status"], "OutOfSync");
        assert_eq!(self.site.ready_workers(1), serving);
        self.answers(1);
        self.repository.revert();
        self.wait_synced("Healthy");
        assert_eq!(self.site.ready_workers(1), serving);
    }
}

#[test]
fn argo_cd_rolls_out_by_commit_and_back_by_revert_heals_prunes_and_otherwise_rests() {
    let Some(binaries) = cluster::layer(Layer::ArgoCd, "models by commit").unwrap() else {
        return;
    };
    let site = Site::start(&binaries);
    let argocd = ArgoCd::start(&binaries, &site.node).unwrap();
    let story = Story::begin(site, argocd);
    story.answers(1);
    story.rests("a client-side diff by field managers");
    story.heals();
    let server_side = |value: &Value| {
        let annotation = "argocd.argoproj.io/compare-options";
        story.change(&json!({"metadata": {"annotations": {annotation: value}}}));
    };
    server_side(&json!("ServerSideDiff=true"));
    story.rolls_out();
    story.rests("a server-side diff");
    story.rolls_back();
    story.prunes();
    story.keeps_the_sole_version();
    // What was applied last stands in an annotation then.
    server_side(&Value::Null);
    story.change(&json!({"spec": {"syncPolicy": {"syncOptions": []}}}));
    story.repository.replace("pool.yaml", |text| {
        text.replace("maxDepth: 256", "maxDepth: 128")
    });
    story.repository.commit("Let fewer wait");
    story.rests("a client-side diff of three ways");
    assert_eq!(
        story.site.object("gp/small")["spec"]["queue"]["maxDepth"],
        128
    );
}
