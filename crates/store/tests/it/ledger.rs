//! The chain of each tenant's usage records.

use weir_ledger::{Broken, Chain, Day, Head, Link, UsageRecord, Verifier};
use weir_run::{RunId, RunStatus};
use weir_store::Store;

use crate::support::*;

fn ledger(tenant: &str) -> Chain {
    Chain::Ledger(tenant.to_owned())
}

async fn all(store: &dyn Store, tenant: &str) -> Vec<Link> {
    let mut links = vec![];
    loop {
        // Pages of three, so that going on is tested too.
        let page = store.chain(ledger(tenant), links.len() as u64, 3).await;
        let page = page.unwrap();
        if page.is_empty() {
            return links;
        }
        links.extend(page);
    }
}

fn verify(tenant: &str, links: &[Link]) -> Result<Head, Broken> {
    let mut verifier = Verifier::new(&ledger(tenant));
    links.iter().try_for_each(|link| verifier.follow(link))?;
    Ok(verifier.head())
}

#[test]
fn each_end_of_a_run_adds_one_link_that_says_what_was_billed_and_at_which_prices() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let ends = [
            RunStatus::Completed,
            RunStatus::Cancelled,
            RunStatus::Interrupted,
            RunStatus::Failed,
            RunStatus::Expired,
        ];
        let mut runs = vec![];
        for (n, end) in (0_u64..).zip(ends) {
            let run = admit(&*store, &spec(u128::from(n))).await;
            runs.push(done(&*store, next(&run).started().deltas(n).end(end)).await);
        }
        let live = admit(&*store, &spec(9)).await;
        done(&*store, next(&live).started().deltas(1)).await;
        let head = store.chain_head(ledger("acme")).await.unwrap();
        let links = all(&*store, "acme").await;
        assert_eq!(verify("acme", &links), Ok(head));
        let records: Vec<UsageRecord> = links
            .iter()
            .map(|link| UsageRecord::decode(&link.body).unwrap())
            .collect();
        let want: Vec<UsageRecord> = runs.iter().map(UsageRecord::of).collect();
        assert_eq!(records, want);
        let text = String::from_utf8(links[4].body.clone()).unwrap();
        for field in [
            format!("\"run\":\"{}\"", runs[4].id),
            "\"manifest\":\"sha256:00\"".to_owned(),
            "\"status\":\"expired\"".to_owned(),
            "\"outputTokens\":4".to_owned(),
            format!("\"costMicros\":{}", 7 + 16),
            "\"outputMicrosPerToken\":4".to_owned(),
            "\"settledAt\":\"2023-11-14T22:13:20.005Z\"".to_owned(),
        ] {
            assert!(text.contains(&field), "no {field} in {text}");
        }
        drop(store);
        let store = bed.open();
        assert_eq!(all(&*store, "acme").await, links, "the same bytes");
        done(
            &*store,
            next(&runs_row(&*store, live.id).await).end(RunStatus::Cancelled),
        )
        .await;
        assert_eq!(
            verify("acme", &all(&*store, "acme").await).unwrap().number,
            6
        );
    });
}

async fn runs_row(store: &dyn Store, id: RunId) -> weir_run::Run {
    store.run("acme", id).await.unwrap().unwrap()
}

#[test]
fn tenants_have_chains_of_their_own_and_many_ends_in_one_commit_follow_each_other() {
    on_every_engine(|bed| async move {
        let store = bed.open();
        let mut appends = vec![];
        for n in 0..20 {
            let tenant = if n % 4 == 0 { "globex" } else { "acme" };
            let one = Spec { tenant, ..spec(n) };
            let run = admit(&*store, &one).await;
            appends.push(
                next(&run)
                    .started()
                    .deltas(1)
                    .end(RunStatus::Completed)
                    .append(),
            );
        }
        store.append(appends).await.unwrap();
        assert_eq!(
            verify("acme", &all(&*store, "acme").await).unwrap().number,
            15
        );
        let theirs = all(&*store, "globex").await;
        assert_eq!(verify("globex", &theirs).unwrap().number, 5);
        assert!(verify("acme", &theirs).is_err(), "a chain is of one tenant");
        let none = store.chain_head(ledger("nobody")).await.unwrap();
        assert_eq!(none, Head::empty(&ledger("nobody")));
    });
}

#[test]
fn a_day_s_root_is_the_hash_that_the_next_day_begins_with() {
    const DAY_MS: u64 = DAY_S * 1000;
    on_every_engine(|bed| async move {
        let store = bed.open();
        let today = Day::of(NOW);
        // Two days with ends, one without between them, and a clock that went back.
        for (n, days) in [(1, 0), (2, 0), (3, 2), (4, 1), (5, 2)] {
            let run = admit(&*store, &spec(n)).await;
            let at = NOW + days * DAY_MS + 7;
            done(&*store, next(&run).end(RunStatus::Cancelled).at(at)).await;
        }
        let links = all(&*store, "acme").await;
        let day = |days: u32| store.chain_day(ledger("acme"), Day(today.0 + days));
        let first = day(0).await.unwrap().unwrap();
        assert_eq!((first.first, first.last, first.open), (1, 2, false));
        assert_eq!(first.previous_root, ledger("acme").genesis());
        assert_eq!(first.root, links[1].hash);
        assert_eq!(day(1).await.unwrap(), None);
        let last = day(2).await.unwrap().unwrap();
        assert_eq!((last.first, last.last, last.open), (3, 5, true));
        assert_eq!(last.previous_root, first.root);
        assert_eq!(last.root, links[4].hash);
    });
}
