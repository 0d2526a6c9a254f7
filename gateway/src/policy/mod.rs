//! What may stand in prompts and outputs: rules before and after the model, and services that judge text.
//!
//! Nothing here keeps, logs or records text: a decision is a policy's name and version, a rule, a phase and an action.

mod check;
mod filter;
mod gate;
mod input;
mod patterns;
mod resume;
mod rules;
mod scan;
mod spec;

use std::collections::HashMap;
use std::sync::Arc;

use weir_run::Phase;

pub(crate) use check::Checker;
pub(crate) use filter::OutputFilter;
pub(crate) use gate::{CheckGate, OutputAnswer, OutputQuestion, hidden};
pub(crate) use resume::UNJUDGED;
use rules::Rules;
pub use spec::{
    Builtin, CheckerSpec, OnFailure, PolicyError, PolicySpec, RuleAction, RulePhase, RuleSpec,
};

/// All policies of a snapshot, made ready.
#[derive(Clone, Default)]
pub(crate) struct Policies(Arc<Inner>);

#[derive(Default)]
struct Inner {
    policies: Vec<Policy>,
    /// What holds for a tenant and a model, by which policies hold.
    sets: parking_lot::Mutex<HashMap<Vec<usize>, Option<Arc<RuleSets>>>>,
}

struct Policy {
    tenants: Option<Vec<String>>,
    models: Option<Vec<String>>,
    before: Option<Arc<Rules>>,
    after: Option<Arc<Rules>>,
    checker: Option<Arc<Checker>>,
}

/// What holds for one run.
pub(crate) struct RuleSets {
    pub(crate) before: Arc<[Arc<Rules>]>,
    pub(crate) after: Arc<[Arc<Rules>]>,
    pub(crate) checkers: Vec<Arc<Checker>>,
}

impl RuleSets {
    /// Checkers that look at outputs.
    fn judges(&self) -> impl Iterator<Item = &Arc<Checker>> {
        self.checkers
            .iter()
            .filter(|checker| checker.looks(Phase::After))
    }

    /// Rows after which they are asked: as many as the most eager of them wants.
    fn judged_every(&self) -> usize {
        self.judges()
            .map(|checker| checker.every())
            .min()
            .unwrap_or(1)
    }

    /// Whether anything looks at outputs.
    pub(crate) fn looks_after(&self) -> bool {
        !self.after.is_empty() || self.judges().next().is_some()
    }
}

impl Policies {
    /// Makes policies ready.
    ///
    /// # Errors
    /// The first thing that cannot be used.
    pub(crate) fn new(specs: &[PolicySpec]) -> Result<Self, PolicyError> {
        let mut policies = Vec::with_capacity(specs.len());
        for (place, spec) in specs.iter().enumerate() {
            check_names(spec, &specs[..place])?;
            let phase = |phase| Rules::new(spec, phase).map(|rules| rules.map(Arc::new));
            policies.push(Policy {
                tenants: spec.tenants.clone(),
                models: spec.models.clone(),
                before: phase(Phase::Before)?,
                after: phase(Phase::After)?,
                checker: spec
                    .checker
                    .as_ref()
                    .map(|checker| Checker::new(spec, checker).map(Arc::new))
                    .transpose()?,
            });
        }
        Ok(Self(Arc::new(Inner {
            policies,
            sets: parking_lot::Mutex::default(),
        })))
    }

    /// What holds for a tenant's runs on a model; none where nothing does.
    pub(crate) fn of(&self, tenant: &str, model: &str) -> Option<Arc<RuleSets>> {
        let named = |list: &Option<Vec<String>>, name: &str| {
            let list = list.as_ref();
            list.is_none_or(|list| list.iter().any(|one| one == name || one == "*"))
        };
        let policies = self.0.policies.iter().enumerate();
        let holding: Vec<usize> = policies
            .filter(|(_, policy)| named(&policy.tenants, tenant) && named(&policy.models, model))
            .map(|(place, _)| place)
            .collect();
        if holding.is_empty() {
            return None;
        }
        let mut sets = self.0.sets.lock();
        if let Some(known) = sets.get(&holding) {
            return known.clone();
        }
        let made = self.set(&holding);
        sets.insert(holding, made.clone());
        made
    }

    fn set(&self, holding: &[usize]) -> Option<Arc<RuleSets>> {
        let policies = || holding.iter().map(|place| &self.0.policies[*place]);
        let set = RuleSets {
            before: policies()
                .filter_map(|policy| policy.before.clone())
                .collect(),
            after: policies()
                .filter_map(|policy| policy.after.clone())
                .collect(),
            checkers: policies()
                .filter_map(|policy| policy.checker.clone())
                .collect(),
        };
        let holds_nothing =
            set.before.is_empty() && set.after.is_empty() && set.checkers.is_empty();
        (!holds_nothing).then(|| Arc::new(set))
    }
}

fn check_names(spec: &PolicySpec, earlier: &[PolicySpec]) -> Result<(), PolicyError> {
    let fits = |name: &str| {
        let plain =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-');
        (1..=63).contains(&name.len()) && name.bytes().all(plain)
    };
    let twice = |what: &'static str, name: &str| PolicyError::Twice {
        policy: spec.name.clone(),
        what,
        name: name.to_owned(),
    };
    let unfit = |what: &'static str, name: &str| PolicyError::Name {
        what,
        name: name.to_owned(),
    };
    if !fits(&spec.name) {
        return Err(unfit("the name of a policy", &spec.name));
    }
    if earlier.iter().any(|other| other.name == spec.name) {
        return Err(twice("the policy", &spec.name));
    }
    for (place, rule) in spec.rules.iter().enumerate() {
        if !fits(&rule.name) {
            return Err(unfit("the name of a rule", &rule.name));
        }
        if spec.rules[..place]
            .iter()
            .any(|other| other.name == rule.name)
        {
            return Err(twice("the rule", &rule.name));
        }
        if rule.words.is_empty() && rule.regexes.is_empty() && rule.patterns.is_empty() {
            return Err(PolicyError::Empty {
                policy: spec.name.clone(),
                rule: rule.name.clone(),
            });
        }
    }
    Ok(())
}
