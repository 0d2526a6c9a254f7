//! Connections to PostgreSQL that are cut while a commit is under way: before it arrives, before its answer does, and with the commit
//! arriving after its gateway has given it up. Its outcome is asked for, never guessed, and never repeated blindly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_e2e::proxy::{Fate, Judge};
use weir_e2e::{RandomModel, Seeded};

use crate::fleet::{Fault, Fleet};

/// One commit in so many is cut.
const ONE_IN: u64 = 12;

static LOST: AtomicU64 = AtomicU64::new(0);
static UNANSWERED: AtomicU64 = AtomicU64::new(0);
static LATE: AtomicU64 = AtomicU64::new(0);

/// Follows the statements of one connection and cuts some of its commits.
fn judge(seed: u64) -> Judge {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
    let mut random = Seeded(seed ^ (CONNECTIONS.fetch_add(1, Ordering::Relaxed) << 8));
    // The name under which the connection has prepared the commit.
    let mut commit: Option<Vec<u8>> = None;
    Box::new(move |bytes| {
        if let Some(place) = find(bytes, b"FROM weir.commit(") {
            let name = &bytes[..place];
            let start = name.windows(7).rposition(|window| window == b"sqlx_s_");
            commit = start.map(|start| {
                let rest = name[start..].iter().take_while(|byte| **byte != 0);
                [rest.copied().collect::<Vec<u8>>(), vec![0]].concat()
            });
            return Fate::Arrives;
        }
        let is_commit = commit
            .as_ref()
            .is_some_and(|name| find(bytes, name).is_some());
        if !is_commit || random.below(ONE_IN) != 0 {
            return Fate::Arrives;
        }
        let (fate, count) = match random.below(3) {
            0 => (Fate::Lost, &LOST),
            1 => (Fate::Unanswered, &UNANSWERED),
            _ => {
                let after = Duration::from_millis(1 + random.below(150));
                (Fate::Late(after), &LATE)
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
        fate
    })
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[test]
fn a_commit_whose_answer_is_lost_is_asked_for_and_happens_once() {
    let mut random = Seeded::announced("lost_commits");
    let fleet = Fleet::with(random.number(), RandomModel::default(), None, Some(judge));
    let Some(mut fleet) = fleet else { return };
    let faults = [
        Fault::Quiet,
        Fault::Quiet,
        Fault::Gateway(0),
        Fault::Quiet,
        Fault::Worker(None),
        Fault::Quiet,
        Fault::Gateway(1),
        Fault::Quiet,
    ];
    for _ in 0..2 {
        for fault in faults {
            fleet.suffer(fault).unwrap();
        }
    }
    let logged: String = fleet.gateways.iter().map(|g| g.process.logged()).collect();
    let (found, finished, much) = fleet.judge(Duration::from_mins(1));
    assert!(found.is_empty(), "{:#?}", &found[..found.len().min(5)]);
    finished.unwrap();
    let counts = [&LOST, &UNANSWERED, &LATE].map(|count| count.load(Ordering::Relaxed));
    let asked = logged.matches("asking for it").count();
    eprintln!(
        "commits that did not arrive, were not answered, came late: {counts:?}; {asked} outcomes asked for; {much:?}"
    );
    assert!(counts.iter().all(|count| *count > 1), "{counts:?}");
    assert!(asked > 9, "only {asked} outcomes were asked for");
    assert!(much.runs > 50, "{much:?}");
}
