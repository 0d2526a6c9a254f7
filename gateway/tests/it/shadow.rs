//! A version in the shadow: asked what stable is asked, seen by nobody, billed to nobody.

use std::sync::Arc;

use serde_json::{Value, json};
use weir_gateway::{Mirror, Snapshot};
use weir_manifest::Reference;
use weir_rollout::statistics::ShadowCounts;

use crate::site::{DIGEST, Site, all_to, config, snapshot, tenant, version, wait_for};
use crate::worker::FakeWorker;

const NEXT: &str = "sha256:2222";

/// Version 2 serves; version 3 is asked a share of its runs, and these references.
fn mirrored(folder: &std::path::Path, percent: u32, references: &str) -> Snapshot {
    let mut globex = tenant("globex");
    globex.shadow = false;
    let mut snapshot = snapshot(folder, vec![tenant("acme"), globex], &["w0", "w1"]);
    let model = &mut snapshot.models[0];
    model.versions.push(Arc::new(version("tiny", 3, NEXT)));
    model.table = all_to(1, 2, DIGEST);
    let references = match references {
        "" => Vec::new(),
        file => Reference::parse(file.as_bytes()).unwrap(),
    };
    model.mirror = Some(Mirror {
        attempt: "v3-1".to_owned(),
        target: NEXT.to_owned(),
        percent,
        max_tokens_per_second: 1_000_000,
        is_scored: false,
        references: references.into(),
    });
    snapshot
}

async fn site(percent: u32, references: &str, auto: bool) -> (Site, FakeWorker, FakeWorker) {
    let folder = tempfile::tempdir().unwrap();
    let stable = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let candidate = FakeWorker::start(folder.path(), "w1", NEXT, auto);
    let snapshot = mirrored(folder.path(), percent, references);
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    wait_for("the candidate", || site.gateway.is_served("small", NEXT)).await;
    (site, stable, candidate)
}

fn counts(site: &Site) -> ShadowCounts {
    site.gateway.shadow("tiny").unwrap().counts
}

fn ask(prompt: &str) -> Value {
    json!({"model": "tiny", "input": prompt, "maxOutputTokens": 3, "sampling": {"temperature": 0}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_mirrored_run_is_a_pair_and_costs_its_tenant_nothing() {
    let (site, stable, candidate) = site(100, "", true).await;
    let acme = site.client("acme");
    for place in 0..5 {
        let run = acme
            .post("/inference", &ask(&format!("prompt {place}")))
            .await;
        assert_eq!(run.body["modelVersion"], 2, "{}", run.text);
        let events = acme.all_events(&run.run(), 0).await;
        assert_eq!(events.last().unwrap().kind, "completed");
    }
    wait_for("five pairs", || counts(&site).pairs == 5).await;
    let seen = counts(&site);
    assert_eq!((seen.errors.runs, seen.errors.bad), (5, 0));
    assert_eq!((seen.disagreement.runs, seen.disagreement.bad), (5, 0));
    // Stable's were cut by their ceiling and so were these: nothing that only one of them does.
    assert_eq!((seen.output, seen.refusal), ([0, 0], [0, 0]));
    let asked = candidate.submits();
    assert_eq!(asked.len(), 5);
    for (mirror, run) in asked.iter().zip(stable.submits()) {
        assert_eq!(
            (mirror.priority, mirror.choices),
            (2, 1),
            "behind everything"
        );
        assert_eq!(mirror.prompt, run.prompt);
        assert_ne!(mirror.run, run.run);
        assert_eq!(mirror.max_output_tokens, 3, "what cut stable's cuts these");
    }
    // The same prompt again says nothing new.
    let again = acme.post("/inference", &ask("prompt 0")).await;
    acme.all_events(&again.run(), 0).await;
    let denied = site
        .client("globex")
        .post("/inference", &ask("not to be mirrored"))
        .await;
    site.client("globex").all_events(&denied.run(), 0).await;
    let usage = site.assert_settled("acme").await;
    assert_eq!(usage["byModel"].as_array().unwrap().len(), 1, "{usage}");
    assert_eq!(usage["byModel"][0]["runs"]["completed"], 6, "{usage}");
    assert_eq!(candidate.submits().len(), 5);
    wait_for("the worker to forget them", || candidate.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_candidate_says_else_or_cannot_say_is_counted_and_nobody_waits_for_it() {
    let (site, _stable, candidate) = site(100, "", false).await;
    let acme = site.client("acme");
    let answered = |prompt: &'static str| {
        let acme = acme.clone();
        async move {
            let run = acme.post("/inference", &ask(prompt)).await;
            acme.all_events(&run.run(), 0).await
        }
    };
    // The candidate hangs meanwhile.
    assert_eq!(answered("first").await.last().unwrap().kind, "completed");
    wait_for("the question", || candidate.submits().len() == 1).await;
    candidate.say(&["I can", "not help."], true);
    wait_for("a pair", || counts(&site).pairs == 1).await;
    assert_eq!(counts(&site).refusal, [1, 0]);
    assert_eq!(counts(&site).disagreement.bad, 1);
    answered("second").await;
    wait_for("the question", || candidate.submits().len() == 2).await;
    candidate.fail("no such kernel");
    wait_for("the failure", || counts(&site).errors.bad == 1).await;
    // One question at a time is an eighth of its seats: a second one is left out, and so is one whose worker went away.
    answered("third").await;
    wait_for("the question", || candidate.submits().len() == 3).await;
    let most = 1 + 64 / 8;
    for place in 0..20_u32 {
        let run = acme
            .post("/inference", &ask(&format!("more {place}")))
            .await;
        acme.all_events(&run.run(), 0).await;
    }
    wait_for("questions left out", || counts(&site).dropped > 0).await;
    assert!(candidate.held() <= most, "{} under way", candidate.held());
    let (before, held) = (counts(&site), candidate.held() as u64);
    candidate.break_session();
    wait_for("what was under way to be lost", || {
        counts(&site).dropped >= before.dropped + held
    })
    .await;
    assert_eq!(
        counts(&site).errors.bad,
        1,
        "a lost session is no failure of the version"
    );
    assert_eq!(
        site.assert_settled("acme").await["byModel"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn references_are_asked_of_both_versions_without_any_run() {
    // These workers answer every prompt with " 1 2", as far as its ceiling lets them.
    let right = json!({"prompt": "a", "accept": {"exact": "1 2"}, "maxTokens": 2});
    let wrong = json!({"prompt": "b", "accept": {"pattern": "[a-z]"}, "maxTokens": 2});
    let (site, stable, candidate) = site(0, &format!("{right}\n{wrong}\n{right}\n"), true).await;
    wait_for("the references", || counts(&site).references_due == 0).await;
    let seen = counts(&site);
    assert_eq!(
        (seen.reference_pairs, seen.references),
        (3, [0, 0]),
        "both alike"
    );
    assert_eq!((stable.submits().len(), candidate.submits().len()), (3, 3));
    let sampling = candidate.submits()[0].sampling.clone().unwrap();
    assert!(sampling.temperature <= 0.0, "{sampling:?}");
    for tenant in ["acme", "globex"] {
        let usage = site.assert_settled(tenant).await;
        assert_eq!(usage["byModel"], json!([]), "{usage}");
    }
    // Nothing more is asked when the same snapshot comes again; another attempt is counted anew.
    let mut snapshot = mirrored(site.folder.path(), 0, "");
    snapshot.models[0].mirror.as_mut().unwrap().attempt = "v3-2".to_owned();
    site.gateway.apply(snapshot);
    assert_eq!(site.gateway.shadow("tiny").unwrap().attempt, "v3-2");
    assert_eq!(counts(&site), ShadowCounts::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_candidate_that_answers_references_wrong_is_told_from_stable() {
    let right = json!({"prompt": "a", "accept": {"exact": "1 2"}, "maxTokens": 2});
    let (site, _stable, candidate) = site(0, &right.to_string(), false).await;
    wait_for("the question", || candidate.held() == 1).await;
    candidate.say(&["7"], true);
    wait_for("the answer", || counts(&site).references_due == 0).await;
    assert_eq!(counts(&site).references, [1, 0]);
}
