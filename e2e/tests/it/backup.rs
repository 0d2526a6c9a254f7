//! A store that was copied aside, and what was copied put into service again: the same runs, events, keys and bill.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use weir_e2e::postgres::PostgresServer;
use weir_e2e::{Client, Event, RandomModel, Site, Tenant, Weir};

const KEY: &str = "acme-dev-key";

fn start(site: &Site, data: &Path, more: &[&str]) -> Weir {
    let mut weir = Weir::spawn(&site.manifests(), data, "127.0.0.1:0", more).unwrap();
    weir.wait_ready().unwrap();
    weir
}

fn order() -> Value {
    json!({"model": "random", "input": "kept", "requestKey": "order-1", "maxOutputTokens": 8})
}

/// What a client must find again.
struct Kept {
    run: String,
    events: Vec<Event>,
    billed: Value,
}

fn texts(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.data.as_str()).collect()
}

fn billed(client: &Client) -> Value {
    let usage = client.get("/usage").unwrap().body;
    assert_eq!(usage["consistent"], true, "{usage}");
    let models = usage["byModel"].clone();
    assert_eq!(models[0]["runs"]["completed"], 1, "{usage}");
    models
}

impl Kept {
    fn make(client: &Client) -> Self {
        let reply = client.post("/inference", &order()).unwrap();
        let run = reply.run_id();
        let events = client.all_events(&run, 0).unwrap();
        assert!(events.last().unwrap().is_terminal());
        let billed = billed(client);
        Self {
            run,
            events,
            billed,
        }
    }

    fn is_found(&self, client: &Client) {
        let events = client.all_events(&self.run, 0).unwrap();
        assert_eq!(texts(&events), texts(&self.events));
        let again = client.post("/inference", &order()).unwrap();
        assert_eq!((again.status, again.run_id()), (200, self.run.clone()));
        assert_eq!(billed(client), self.billed, "billed once");
        let new = client
            .post(
                "/inference",
                &json!({"model": "random", "input": "new", "maxOutputTokens": 2}),
            )
            .unwrap();
        let events = client.all_events(&new.run_id(), 0).unwrap();
        assert!(events.last().unwrap().is_terminal(), "it serves on");
    }
}

fn command(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
}

#[test]
fn a_copy_of_the_data_folder_of_a_stopped_process_is_a_backup() {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let weir = start(&site, &site.data(), &[]);
    let kept = Kept::make(&weir.client(KEY));
    assert!(weir.stop(60).unwrap().success());
    let copy = site.path().join("backup");
    let from = site.data();
    command(
        "cp",
        &["-a", from.to_str().unwrap(), copy.to_str().unwrap()],
    );
    std::fs::remove_dir_all(&from).unwrap();
    let weir = start(&site, &copy, &[]);
    kept.is_found(&weir.client(KEY));
}

#[test]
fn a_dump_of_postgresql_is_a_backup_while_gateways_serve() {
    let Some(bin) = weir_e2e::postgres::bin() else {
        eprintln!("skipped: PostgreSQL is not installed (apt-get install postgresql)");
        return;
    };
    let server = PostgresServer::start().unwrap();
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let (url, other) = (server.database().unwrap(), server.database().unwrap());
    let file = site.path().join("weir.dump");
    let weir = start(&site, &site.data(), &["--store", &url]);
    let kept = Kept::make(&weir.client(KEY));
    let to = format!("--file={}", file.display());
    command(bin.join("pg_dump"), &["--format=custom", &to, &url]);
    assert!(weir.stop(60).unwrap().success());
    let into = format!("--dbname={other}");
    command(
        bin.join("pg_restore"),
        &["--no-owner", &into, file.to_str().unwrap()],
    );
    // Another machine: nothing of the old one's folder is needed.
    let fresh = site.path().join("fresh");
    let weir = start(&site, &fresh, &["--store", &other]);
    kept.is_found(&weir.client(KEY));
}
