//! A sync that fails once: nobody knows what the medium holds then, so the gateway ends, and its next start has all that was acknowledged.

use std::time::Duration;

use serde_json::json;
use weir_e2e::Seeded;
use weir_e2e::load::Load;
use weir_e2e::preload::Preload;
use weir_e2e::processes::GatewayProcess;

use crate::stand::{Stand, judge, under_load};

/// Failed syncs for each store.
const FAILURES: u64 = 3;

#[test]
fn a_gateway_whose_disk_fails_a_sync_ends_and_its_next_start_has_all_that_was_acknowledged() {
    let mut seeds = Seeded::announced("bad_sync");
    let stand = Stand::new(weir_e2e::RandomModel::default());
    for store in ["log", "redb", "sled"] {
        let mut random = Seeded(seeds.number());
        let name = format!("of-{store}");
        let mut gateway = stand.gateway(&name, store, stand.address(), &json!({}));
        let preload = Preload::new(&stand.site.path().join(format!("{store}.faults"))).unwrap();
        gateway.environment = preload.environment().unwrap();
        let load = Load::new("random", 48, ["acme", "globex"]);
        for _ in 0..FAILURES {
            one_life(&mut gateway, &preload, &load, &mut random);
        }
        gateway.start(None).unwrap();
        let much = judge(&load, &mut gateway);
        eprintln!("{store}: {FAILURES} failed syncs, {much:?}");
        assert!(much.runs > 3 * FAILURES && much.cut > FAILURES, "{much:?}");
    }
}

fn one_life(gateway: &mut GatewayProcess, preload: &Preload, load: &Load, random: &mut Seeded) {
    preload.fail_sync(0).unwrap();
    gateway.start(None).unwrap();
    let listen = gateway.listen.clone();
    let number = 1 + random.below(40);
    let moment = Duration::from_millis(50 + random.below(200));
    let mut status = None;
    under_load(load, &listen, random, || {
        // Not a wait for something: the moment of the fault is what is varied.
        std::thread::sleep(moment);
        preload.fail_sync(number.cast_signed()).unwrap();
        status = gateway.process.ended(30).ok();
    });
    let logged = gateway.process.logged();
    let status = status.expect("a gateway that ends");
    assert!(!status.success(), "it ends as a failure: {status}");
    assert!(logged.contains("refuses all writes"), "{logged}");
    gateway.process.kill();
}
