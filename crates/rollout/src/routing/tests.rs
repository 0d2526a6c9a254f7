//! Tables, their order, the coin and the gateway's own rule.

use super::*;
use crate::VersionId;

fn v(version: u32) -> VersionId {
    VersionId::new(version, format!("sha256:{version:064x}"))
}

fn table(shares: &[(u32, u32)]) -> Table {
    Table {
        rollback: Some(v(1)),
        entries: shares
            .iter()
            .map(|&(version, weight)| Share {
                id: v(version),
                weight,
            })
            .collect(),
        coin_salt: salt(&[7; 32], "v2-1"),
        ..Table::all_to(TableOrder::new(1, 4), v(1))
    }
}

#[test]
fn a_table_gives_away_exactly_everything() {
    let cases = [
        (vec![(1, 95), (2, 5)], Ok(())),
        (vec![(1, 100)], Ok(())),
        (vec![(1, 95), (2, 4)], Err(TableError::Sum(99))),
        (vec![], Err(TableError::Sum(0))),
        (vec![(1, 100), (2, 0)], Err(TableError::NoShare(2))),
        (vec![(1, 50), (1, 50)], Err(TableError::Twice(1))),
    ];
    for (shares, want) in cases {
        assert_eq!(table(&shares).check(), want, "{shares:?}");
    }
}

#[test]
fn epoch_then_generation_then_emergency_order_tables() {
    let emergency = |epoch, generation| TableOrder {
        emergency: true,
        ..TableOrder::new(epoch, generation)
    };
    let rising = [
        TableOrder::new(1, 1),
        emergency(1, 1),
        TableOrder::new(1, 2),
        TableOrder::new(1, 9),
        emergency(1, 9),
        TableOrder::new(2, 1),
    ];
    assert!(rising.is_sorted_by(|a, b| a < b));
}

#[test]
fn an_emergency_table_only_moves_everything_to_the_recorded_rollback_version() {
    let now = table(&[(1, 75), (2, 25)]);
    let emergency = now.emergency().unwrap();
    assert_eq!(emergency.check(), Ok(()));
    assert_eq!(emergency.weight(&v(1).digest), 100);
    assert!(now.may_become(&emergency) && !emergency.may_become(&now));
    assert_eq!(emergency.emergency(), None);
    let nowhere = Table {
        rollback: None,
        ..table(&[(1, 75), (2, 25)])
    };
    assert_eq!(nowhere.emergency(), None, "there is nothing to return to");
}

/// Fixed for ever: gateways of two releases must flip alike.
#[test]
fn the_coin_is_the_same_everywhere() {
    let salt = "00".repeat(32);
    assert_eq!(
        coin("run_1", &salt),
        GOLDEN_COIN,
        "{:#x}",
        coin("run_1", &salt)
    );
    assert_ne!(coin("run_1", &salt), coin("run_2", &salt));
    assert_ne!(coin("run_1", &salt), coin("run_1", &"01".repeat(32)));
}

const GOLDEN_COIN: u64 = 0xf3aa_9f67_37c2_4470;

#[test]
fn the_coin_gives_each_version_its_share() {
    let table = table(&[(1, 95), (2, 5)]);
    let canary = (0..100_000)
        .map(|run| coin(&format!("run_{run}"), &table.coin_salt))
        .filter(|&flip| choose(&table, flip, |_| true).unwrap().id.version == 2)
        .count();
    // 5,000 expected, standard deviation 69.
    assert!((4_700..=5_300).contains(&canary), "{canary}");
}

#[test]
fn the_edge_of_a_share_belongs_to_the_rest() {
    let table = table(&[(1, 75), (2, 25)]);
    let quarter = 1_u64 << 62;
    for (flip, want) in [(0, 2), (quarter - 1, 2), (quarter, 1), (u64::MAX, 1)] {
        assert_eq!(
            choose(&table, flip, |_| true).unwrap().id.version,
            want,
            "{flip}"
        );
    }
}

/// Name, flip, ready versions, and who serves with or without being evidence.
type Row = (&'static str, u64, &'static [u32], Option<(u32, bool)>);

#[test]
fn a_version_without_workers_takes_no_part_and_makes_no_evidence() {
    let table = table(&[(1, 75), (2, 25)]);
    let cases: [Row; 6] = [
        ("both ready, canary's side", 0, &[1, 2], Some((2, true))),
        (
            "both ready, stable's side",
            u64::MAX,
            &[1, 2],
            Some((1, true)),
        ),
        ("canary gone, canary's side", 0, &[1], Some((1, false))),
        (
            "canary gone, stable's side",
            u64::MAX,
            &[1],
            Some((1, false)),
        ),
        (
            "stable gone: the canary serves",
            u64::MAX,
            &[2],
            Some((2, false)),
        ),
        ("nobody", 0, &[], None),
    ];
    for (name, flip, ready, want) in cases {
        let is_ready = |digest: &str| ready.iter().any(|&version| v(version).digest == digest);
        let got = choose(&table, flip, is_ready).map(|c| (c.id.version, c.is_evidence));
        assert_eq!(got, want, "{name}");
    }
}
