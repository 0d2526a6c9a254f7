//! An account that was damaged, and content that is deleted, in a database.

use weir_budget::Account;
use weir_ledger::{Actor, Chain};
use weir_run::{RunStatus, Sequence};
use weir_store::engine::{key, seal};
use weir_store::{Budget, Purge, Repair, Scrub, Store};

use crate::support::*;

/// Puts an account in place of a tenant's, past every rule.
fn overwrite_account(bed: &Bed, account: &Account) {
    let key = key::account("acme");
    let sealed = seal(&key, serde_json::to_vec(account).unwrap());
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    };
    let changed = bed.sql(&format!(
        "UPDATE weir.record SET value = '\\x{}', version = nextval('weir.version') WHERE key = '\\x{}' RETURNING 1",
        hex(&sealed),
        hex(&key)
    ));
    assert_eq!(changed, "1");
}

fn repair(apply: bool) -> Repair {
    Repair {
        tenant: "acme".into(),
        actor: Actor::new("command", "root"),
        apply,
        now_ms: NOW,
    }
}

#[test]
fn a_damaged_account_is_found_and_derived_anew_from_ledger_and_live_runs_while_gateways_are_at_work()
 {
    on_every_engine(|bed| async move {
        let (a, b) = (bed.gateway(Some("a")), bed.gateway(Some("b")));
        let ended = admit(&*a, &spec(1)).await;
        done(
            &*a,
            next(&ended).started().deltas(3).end(RunStatus::Completed),
        )
        .await;
        let live = admit(&*b, &spec(2)).await;
        let sound = a.budget("acme", vec![DAY_S], NOW).await.unwrap();
        overwrite_account(&bed, &Account::default());
        let usage = a
            .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        assert!(
            !usage.consistent && !usage.differences.is_empty(),
            "{usage:?}"
        );
        let told = b.repair(repair(false)).await.unwrap();
        assert!(!told.applied && !told.changes.is_empty(), "{told:?}");
        // One of the two that repair at once changes it, the other finds nothing to do.
        let (one, other) = tokio::join!(a.repair(repair(true)), b.repair(repair(true)));
        let applied = [one.unwrap().applied, other.unwrap().applied];
        assert_eq!(applied.iter().filter(|applied| **applied).count(), 1);
        // No ledger holds what was asked for in this minute: the rates begin anew.
        let rates_anew = Budget {
            minute_requests: 0,
            minute_tokens: 0,
            ..sound
        };
        assert_eq!(
            b.budget("acme", vec![DAY_S], NOW).await.unwrap(),
            rates_anew
        );
        assert_eq!(a.chain_head(Chain::Audit).await.unwrap().number, 1);
        done(
            &*b,
            next(&live).started().deltas(1).end(RunStatus::Completed),
        )
        .await;
        let usage = a
            .usage("acme", vec![DAY_S], 0, u64::MAX, NOW)
            .await
            .unwrap();
        assert!(usage.consistent && usage.budget.live_runs == 0, "{usage:?}");
    });
}

#[test]
fn a_scrub_after_a_purge_leaves_no_row_of_it() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        for n in 0..20 {
            let run = admit(&*store, &spec(n)).await;
            done(
                &*store,
                next(&run).started().deltas(3).end(RunStatus::Completed),
            )
            .await;
        }
        let live = admit(&*store, &spec(99)).await;
        let purge = Purge {
            tenant: "acme".into(),
            before_ms: u64::MAX,
            after: None,
            limit: 1000,
            now_ms: NOW,
        };
        assert_eq!(store.purge(purge).await.unwrap().runs, 20);
        assert!(matches!(store.scrub().await.unwrap(), Scrub::Later(_)));
        assert_eq!(bed.sql("SELECT count(DISTINCT run) FROM weir.chunk"), "1");
        let live = done(&*store, next(&live).started().deltas(2)).await;
        let events = store.events(live.id, Sequence(0), 9).await.unwrap();
        assert_eq!(events.len(), 4);
    });
}
