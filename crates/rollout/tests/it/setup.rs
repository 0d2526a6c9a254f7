//! Versions, plans and behaviours.

use weir_rollout::decide::{Stage, Verification, VersionSpec};
use weir_rollout::{
    Limits, OnBreach, Plan, Policy, Promote, Reserve, ShadowMode, ShadowPlan, StepPlan, VersionId,
};

/// One step of the world.
pub(crate) const TICK_MS: u64 = 5_000;

pub(crate) fn id(version: u32) -> VersionId {
    VersionId::new(version, format!("sha256:{version:04}"))
}

pub(crate) fn plan() -> Plan {
    let step = |weight_percent| StepPlan {
        weight_percent,
        bake_ms: 20_000,
        max_wait_ms: 600_000,
    };
    Plan {
        shadow: None,
        steps: [5, 25, 50].map(step).into(),
        limits: Limits {
            error_rate_ppm: 10_000,
            ttft_p95_ms: Some(500),
            inter_token_p95_ms: None,
            min_requests: 50,
            false_alarm_ppm: 10_000,
            promote_risk_ppm: 50_000,
        },
        on_no_data: Policy::Hold,
        on_inconclusive: Policy::Hold,
        on_breach: OnBreach::Rollback,
        promote: Promote::Fine,
        final_bake_ms: 20_000,
        reserve: Reserve::FullThenOne,
        downtime: false,
        progress_deadline_ms: 600_000,
    }
}

pub(crate) fn with_shadow(plan: Plan) -> Plan {
    Plan {
        shadow: Some(ShadowPlan {
            percent: 10,
            min_requests: 50,
            mode: ShadowMode::Score,
            max_tokens_per_second: 2_000,
            agreement_ppm: None,
            score_milli_nats: None,
        }),
        ..plan
    }
}

pub(crate) fn spec(version: u32, stage: Stage, plan: &Plan) -> VersionSpec {
    VersionSpec {
        id: id(version),
        spec_hash: format!(
            "{version}/{stage:?}/{}",
            serde_json::to_string(plan).unwrap()
        ),
        stage,
        verification: Verification::Pending,
        plan: plan.clone(),
    }
}

/// How a version answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Behaviour {
    /// Share of runs that fail.
    pub(crate) errors_ppm: u32,
    /// Share of runs whose first token comes after the limit.
    pub(crate) late_ppm: u32,
    /// Share of workers that die in a tick.
    pub(crate) exits_ppm: u32,
    /// Whether its signature is valid.
    pub(crate) is_signed: bool,
    /// Whether it ever becomes ready.
    pub(crate) can_start: bool,
    /// Whether its workers start without end and without failing: files that do not come, a device that is not given.
    pub(crate) starts_for_ever: bool,
}

impl Behaviour {
    pub(crate) const HEALTHY: Self = Self {
        errors_ppm: 1_000,
        late_ppm: 10_000,
        exits_ppm: 0,
        is_signed: true,
        can_start: true,
        starts_for_ever: false,
    };
}
