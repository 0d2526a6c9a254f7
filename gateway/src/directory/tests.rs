//! The coin in the gateway: shares, tiers, and who takes no part.

use weir_rollout::VersionId;
use weir_rollout::routing::{Share, TableOrder, salt};
use weir_run::Price;

use super::*;
use crate::auth::KeyUse;
use crate::clock::new_run_id;
use crate::snapshot::{Priority, SamplingDefaults};
use crate::text::{Message, PromptText, TextError};

struct NoText;

impl PromptText for NoText {
    fn chat(&self, _: &[Message]) -> Result<Vec<u32>, TextError> {
        Ok(Vec::new())
    }

    fn user(&self, _: &str) -> Result<Vec<u32>, TextError> {
        Ok(Vec::new())
    }

    fn raw(&self, _: &str) -> Result<Vec<u32>, TextError> {
        Ok(Vec::new())
    }

    fn vocab(&self) -> u32 {
        1
    }
}

fn version(number: u32, tier: &str) -> Arc<ServedVersion> {
    Arc::new(ServedVersion {
        model: "m".to_owned(),
        version: number,
        digest: format!("sha256:{number}"),
        pool: "p".to_owned(),
        tier: tier.to_owned(),
        price: Price::default(),
        context_tokens: 128,
        text: Arc::new(NoText),
        fallback: Vec::new(),
        defaults: SamplingDefaults::default(),
    })
}

/// Version 1 stable, version 2 with a share.
fn directory(percent: u32, tier_of_canary: &str) -> Directory {
    let id = |number: u32| VersionId::new(number, format!("sha256:{number}"));
    let share = |number, weight| Share {
        id: id(number),
        weight,
    };
    let table = Table {
        entries: vec![share(1, 100 - percent), share(2, percent)],
        rollback: Some(id(1)),
        attempt: Some("v2-1".to_owned()),
        step: 1,
        coin_salt: salt(&[1; 32], "v2-1"),
        ..Table::all_to(TableOrder::new(1, 1), id(1))
    };
    let model = ModelRoute {
        mirror: None,
        name: "m".to_owned(),
        versions: vec![version(1, "standard"), version(2, tier_of_canary)],
        table: Arc::new(table),
    };
    let snapshot = Snapshot {
        models: vec![model],
        ..Snapshot::default()
    };
    Directory::new(
        snapshot,
        &Tables::default(),
        &Arc::default(),
        &KeyUse::default(),
    )
}

fn tenant(tiers: &[&str]) -> Tenant {
    Tenant {
        name: "acme".to_owned(),
        keys: Vec::new(),
        caller: None,
        limits: weir_budget::Limits::default(),
        kv_share_percent: None,
        max_prompt_tokens: None,
        max_output_tokens: None,
        priority: Priority::Standard,
        models: vec![ModelPermission {
            name: "m".to_owned(),
            tiers: tiers.iter().map(|&tier| tier.to_owned()).collect(),
            fallback: false,
            pinning: true,
        }],
        trust_scope: String::new(),
        retention_ms: 0,
        content_deletion: false,
        shadow: true,
        alerts: crate::Alerts::default(),
    }
}

#[test]
fn ten_thousand_runs_share_within_the_binomial_bound() {
    let (directory, acme) = (directory(5, "standard"), tenant(&[]));
    let target = directory.resolve(&acme, "m").ok().unwrap();
    let assign = || directory.assign(&acme, &target, new_run_id(), |_| true);
    let canary = (0..10_000)
        .filter_map(|_| assign().ok())
        .inspect(|candidate| assert!(candidate.trial.is_some(), "the coin alone chose"))
        .filter(|candidate| candidate.version.version == 2)
        .count();
    // 500 expected, standard deviation 21.8: six of them, which chance passes once in half a billion times.
    assert!((370..=630).contains(&canary), "{canary} of 10,000");
}

#[test]
fn who_takes_no_part_makes_no_evidence() {
    struct Case {
        name: &'static str,
        tier_of_canary: &'static str,
        tiers: &'static [&'static str],
        ready: &'static [u32],
        want: (u32, DecisionReason, bool),
    }
    let cases = [
        Case {
            name: "both ready",
            tier_of_canary: "standard",
            tiers: &["standard"],
            ready: &[1, 2],
            want: (2, DecisionReason::Canary, true),
        },
        Case {
            name: "the canary has no worker",
            tier_of_canary: "standard",
            tiers: &[],
            ready: &[1],
            want: (1, DecisionReason::Stable, false),
        },
        Case {
            name: "stable has no worker",
            tier_of_canary: "standard",
            tiers: &[],
            ready: &[2],
            want: (2, DecisionReason::Canary, false),
        },
        Case {
            name: "the canary's tier is not for this tenant",
            tier_of_canary: "gold",
            tiers: &["standard"],
            ready: &[1, 2],
            want: (1, DecisionReason::Stable, false),
        },
        Case {
            name: "nobody is ready",
            tier_of_canary: "standard",
            tiers: &[],
            ready: &[],
            want: (1, DecisionReason::Stable, false),
        },
    ];
    for case in cases {
        let directory = directory(99, case.tier_of_canary);
        let acme = tenant(case.tiers);
        let target = directory.resolve(&acme, "m").ok().unwrap();
        let ready = |version: &ServedVersion| case.ready.contains(&version.version);
        // With 99 percent, one of eight runs is the canary's for certain enough.
        let got = (0..8)
            .filter_map(|_| directory.assign(&acme, &target, new_run_id(), ready).ok())
            .map(|c| (c.version.version, c.reason, c.trial.is_some()))
            .max_by_key(|got| got.0);
        assert_eq!(got, Some(case.want), "{}", case.name);
    }
}
