//! A release on a real node: installed by Helm with its PostgreSQL, upgraded while streams are open, uninstalled by its own hook's pod, and
//! installed again over what was kept, with TLS between its programs.

mod plain;
mod release;
mod streams;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use self::release::{Chart, Release, every_image};
use self::streams::Reading;
use crate::ground::PARTS;
use crate::install::NAMESPACE;
use crate::stage::condition;

/// Streams that are open while the release is upgraded.
const STREAMS: usize = 6;
/// Longer than an upgrade takes, and shorter than a worker's drain.
const LONG: Duration = Duration::from_secs(45);
/// Where workers are spoken to.
const WORKER: u16 = 7000;
/// Where the operator speaks to gateways, with mutual TLS.
const CONTROL: u16 = 9443;
/// What people have, and what would be lost with it.
const KEPT: [&str; 8] = [
    "mv/random-v1",
    "gpupool/small",
    "tenantquota/acme",
    "secret/acme-keys",
    "secret/weir-postgresql",
    "configmap/weir-trust",
    "pvc/models",
    "pvc/data-weir-postgresql-0",
];

/// Two gateways that share a PostgreSQL of the chart's.
fn with_database(set: &str) -> String {
    format!("postgresql.enabled=true,gateway.replicas=2,{set}")
}

/// Streams that are open while every program of the release is replaced: each client has every event once, in order, to the end; and nobody
/// who comes anew meanwhile is turned away.
fn upgrade_under_streams(release: &Release) {
    let before = PARTS.map(|part| release.names(part));
    let client = release.client();
    let tokens = streams::that_last(&client, STREAMS, LONG);
    let started = Instant::now();
    let is_over = AtomicBool::new(false);
    let (upgraded, readings, short) = std::thread::scope(|scope| {
        let short = scope.spawn(|| streams::short(&client, &is_over));
        let read = |number| {
            let client = &client;
            let key = format!("upgrade-{number}");
            scope.spawn(move || streams::read(client, &key, tokens))
        };
        let readers: Vec<_> = (0..STREAMS).map(read).collect();
        std::thread::sleep(Duration::from_secs(3));
        release.upgrade(&Chart::now(), "operator.logFormat=text");
        release.wait("workers of the new image", 180, || {
            let workers = release.names("worker");
            !workers.is_empty() && workers.is_disjoint(&before[2])
        });
        let upgraded = started.elapsed();
        let ended = readers.into_iter().map(|reader| reader.join().unwrap());
        let readings: Vec<Reading> = ended.map(Result::unwrap).collect();
        is_over.store(true, Ordering::Relaxed);
        (upgraded, readings, short.join().unwrap())
    });
    eprintln!("{} short answers meanwhile", short.answered);
    assert!(short.answered > 20, "{short:?}");
    assert_eq!(short.failed, Vec::<String>::new(), "{short:?}");
    for (part, before) in PARTS.iter().zip(&before) {
        assert!(release.names(part).is_disjoint(before), "{part} stayed");
    }
    let connections: u32 = readings.iter().map(|reading| reading.connections).sum();
    eprintln!(
        "{STREAMS} streams of {tokens} tokens, {connections} connections; upgraded after {:.0} s, last stream at its end after {:.0} s",
        upgraded.as_secs_f64(),
        started.elapsed().as_secs_f64()
    );
    assert!(connections as usize > STREAMS, "no stream met the upgrade");
    for reading in &readings {
        assert!(reading.is_whole(tokens), "{}", reading.summary());
        let stored = client.all_events(&reading.run, 0).unwrap();
        assert!(stored == reading.events, "{}", reading.summary());
    }
}

/// The hook's pod stops the operator, lifts the policy and sweeps; what is the user's stays.
fn uninstall(release: &Release) {
    let kubectl = release.node.kubectl();
    let delete = [
        "delete",
        "mv/random-v1",
        "-n",
        NAMESPACE,
        "--dry-run=server",
    ];
    let said = kubectl.say(&delete, None).unwrap();
    assert!(!said.ok, "the version that alone serves was not protected");
    let uids = || KEPT.map(|name| release.object(name)["metadata"]["uid"].clone());
    let before = uids();
    let started = Instant::now();
    release.uninstall();
    let told = started.elapsed();
    release.wait("nothing to run any more", 120, || release.left().is_empty());
    eprintln!(
        "uninstalled in {:.0} s, the last pod gone after {:.0} s",
        told.as_secs_f64(),
        started.elapsed().as_secs_f64()
    );
    assert!(!before.contains(&Value::Null), "{before:?}");
    assert_eq!(uids(), before);
    let crds = kubectl.run(&["get", "crd", "-o", "name"]).unwrap();
    assert_eq!(crds.matches("weir.dev").count(), 3, "{crds}");
    let said = kubectl.say(&delete, None).unwrap();
    assert!(said.ok, "the policy is still there: {}", said.err);
}

/// Every program has a certificate, and takes nobody who speaks without TLS.
fn is_mutual(release: &Release) {
    let identities = [
        ("operator", "--mutual-tls"),
        ("gateway", "--workload-identity="),
        ("worker", "--workload-identity="),
    ];
    for (part, option) in identities {
        let pods = release.pods(part);
        let arguments = pods[0]["spec"]["containers"][0]["args"].to_string();
        assert!(arguments.contains(option), "{part}: {arguments}");
    }
    for role in ["gateway", "worker"] {
        let secret = release.object(&format!("secret/weir-{role}-identity"));
        assert!(secret["data"]["tls.crt"].is_string(), "{role}");
    }
    let worker = &release.pods("worker")[0];
    assert!(!plain::is_answered(worker, WORKER), "a worker answered");
    for gateway in release.pods("gateway") {
        assert!(!plain::is_answered(&gateway, CONTROL), "a gateway answered");
    }
}

/// Uninstalled without its sweep, the release leaves workers with what a new pod of theirs mounts; a later one takes both over.
fn leave_workers(release: &Release) {
    release.upgrade(&Chart::now(), "uninstall.sweep=false");
    let authority = || release.object("secret/weir-authority")["data"].clone();
    let (known, before) = (authority(), release.names("worker"));
    assert!(known.is_object(), "no authority");
    release.uninstall();
    assert_eq!(release.names("worker"), before, "workers were replaced");
    let name = before.first().unwrap();
    release.run(&["delete", "pod", name, "--grace-period=0", "--force"]);
    release.wait("a worker in its place", 120, || {
        let workers = release.pods("worker");
        let ready =
            |pod: &Value| condition(pod, "Ready").is_some_and(|(status, _)| status == "True");
        let is_new = release.names("worker").is_disjoint(&before);
        is_new && !workers.is_empty() && workers.iter().all(ready)
    });
    let waiting = release.names("worker");
    release.install(&Chart::now(), &with_database("mutualTLS.enabled=true"));
    release.first_token(Instant::now());
    assert_eq!(authority(), known, "another authority than the workers'");
    assert_eq!(release.names("worker"), waiting, "workers were replaced");
}

#[test]
fn on_a_real_node_a_release_is_installed_upgraded_under_streams_and_uninstalled_and_what_is_the_users_serves_again()
 {
    let Some(release) = Release::prepare("a release on a real node", every_image) else {
        return;
    };
    let started = Instant::now();
    // Short enough that streams go from gateway to gateway.
    release.install(&Chart::before(), &with_database("gateway.drainSeconds=4"));
    release.apply(&[
        "ModelVersion",
        "GpuPool",
        "TenantQuota",
        "Secret",
        "ConfigMap",
    ]);
    let took = release.first_token(started).as_secs_f64();
    eprintln!("first token {took:.0} s after helm install");
    let test = ["test", "weir", "--namespace", NAMESPACE];
    release.helm.run(&test).unwrap();
    assert!(plain::is_answered(&release.pods("worker")[0], WORKER));
    upgrade_under_streams(&release);
    let run = streams::read(&release.client(), "kept", 5).unwrap().run;
    uninstall(&release);

    release.install(&Chart::now(), &with_database("mutualTLS.enabled=true"));
    release.first_token(Instant::now());
    let kept = release.client().get(&format!("/runs/{run}")).unwrap();
    assert_eq!(kept.body["status"], "completed", "{kept:?}");
    is_mutual(&release);
    leave_workers(&release);
}
