//! Policies made ready: one automaton for each policy and phase, shared by all runs.

use std::sync::Arc;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, MatchKind};
use weir_run::{Phase, PolicyAction, Verdict};

use super::patterns::{PEM_END, Pattern, Proof, Tail, builtin, phrase};
use super::spec::{PolicyError, PolicySpec, RuleAction, RulePhase, RuleSpec};

/// Longest match: as much output may be held back until it is decided.
const MAX_MATCH_BYTES: usize = 256;
/// Largest automaton of a policy.
const MAX_AUTOMATON_BYTES: usize = 8 << 20;

pub(super) type Dfa = dense::DFA<Vec<u32>>;

/// One policy's rules for one phase.
pub(crate) struct Rules {
    pub(super) dfa: Dfa,
    /// Of each pattern of the automaton.
    pub(super) patterns: Vec<Found>,
    /// Bytes that a match can begin with.
    pub(super) first: Box<[bool; 256]>,
    /// Ends of PEM blocks.
    pub(super) pem_end: Arc<Dfa>,
}

/// What a match of a pattern means.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) verdict: Verdict,
    pub(super) tail: Tail,
    pub(super) proof: Proof,
}

impl Rules {
    /// A policy's rules for a phase; none where it has none.
    pub(super) fn new(spec: &PolicySpec, phase: Phase) -> Result<Option<Self>, PolicyError> {
        let wanted = match phase {
            Phase::Before => RulePhase::Before,
            Phase::After => RulePhase::After,
        };
        let (mut regexes, mut patterns) = (Vec::new(), Vec::new());
        let in_phase = |rule: &&RuleSpec| {
            let phases = rule.phases.as_ref();
            phases.is_none_or(|phases| phases.contains(&wanted))
        };
        for rule in spec.rules.iter().filter(in_phase) {
            for pattern in patterns_of(rule) {
                check(spec, rule, &pattern)?;
                patterns.push(Found {
                    verdict: Verdict {
                        policy: spec.name.clone(),
                        version: spec.version,
                        rule: rule.name.clone(),
                        phase,
                        action: match rule.action {
                            RuleAction::Block => PolicyAction::Block,
                            RuleAction::Redact => PolicyAction::Redact,
                        },
                        count: 1,
                    },
                    tail: pattern.tail,
                    proof: pattern.proof,
                });
                regexes.push(pattern.regex);
            }
        }
        if regexes.is_empty() {
            return Ok(None);
        }
        let dfa = automaton(&regexes).map_err(|why| PolicyError::Pattern {
            policy: spec.name.clone(),
            rule: "(all)".to_owned(),
            pattern: format!("{} of them", regexes.len()),
            why,
        })?;
        let pem_end = automaton(&[PEM_END.to_owned()]).map_err(|why| PolicyError::Pattern {
            policy: spec.name.clone(),
            rule: "(all)".to_owned(),
            pattern: PEM_END.to_owned(),
            why,
        })?;
        Ok(Some(Self {
            first: first_bytes(&dfa),
            dfa,
            patterns,
            pem_end: Arc::new(pem_end),
        }))
    }
}

fn patterns_of(rule: &RuleSpec) -> Vec<Pattern> {
    let words = rule.words.iter().map(|word| phrase(word));
    let regexes = rule.regexes.iter().map(|regex| Pattern {
        regex: regex.clone(),
        tail: Tail::None,
        proof: Proof::None,
    });
    let known = rule.patterns.iter().flat_map(|which| builtin(*which));
    words.chain(regexes).chain(known).collect()
}

fn check(spec: &PolicySpec, rule: &RuleSpec, pattern: &Pattern) -> Result<(), PolicyError> {
    let refuse = |why: String| PolicyError::Pattern {
        policy: spec.name.clone(),
        rule: rule.name.clone(),
        pattern: pattern.regex.clone(),
        why,
    };
    let hir =
        syntax::parse(&pattern.regex).map_err(|error| refuse(format!("is wrong: {error}")))?;
    let lengths = hir.properties();
    if lengths.minimum_len().is_none_or(|bytes| bytes == 0) {
        return Err(refuse(
            "may match nothing at all; make a part of it required".to_owned(),
        ));
    }
    match lengths.maximum_len() {
        Some(bytes) if bytes <= MAX_MATCH_BYTES => {}
        _ => {
            return Err(refuse(format!(
                "may match more than {MAX_MATCH_BYTES} bytes, which would hold output back too long; bound its repetitions, as in a{{1,20}}"
            )));
        }
    }
    automaton(std::slice::from_ref(&pattern.regex))
        .map(drop)
        .map_err(refuse)
}

/// All matches that begin where it begins.
fn automaton(regexes: &[String]) -> Result<Dfa, String> {
    let config = dense::Config::new()
        .match_kind(MatchKind::All)
        .start_kind(StartKind::Anchored)
        .dfa_size_limit(Some(MAX_AUTOMATON_BYTES))
        .determinize_size_limit(Some(2 * MAX_AUTOMATON_BYTES));
    dense::Builder::new()
        .configure(config)
        .build_many(regexes)
        .map_err(|error| {
            let mut text = format!("cannot be used: {error}");
            let mut cause = std::error::Error::source(&error);
            while let Some(inner) = cause {
                text = format!("{text}: {inner}");
                cause = inner.source();
            }
            format!("{text}; write word boundaries as (?-u:\\b), and bound repetitions")
        })
}

/// The state in which a match may begin behind this byte.
pub(super) fn begin(dfa: &Dfa, behind: Option<u8>) -> StateID {
    let config = start::Config::new()
        .anchored(Anchored::Yes)
        .look_behind(behind);
    dfa.start_state(&config)
        .expect("the automaton is anchored and has no bytes to quit at")
}

fn first_bytes(dfa: &Dfa) -> Box<[bool; 256]> {
    let mut first = Box::new([false; 256]);
    for behind in [None, Some(b' '), Some(b'a'), Some(b'\n')] {
        let state = begin(dfa, behind);
        for byte in 0..=u8::MAX {
            if !dfa.is_dead_state(dfa.next_state(state, byte)) {
                first[usize::from(byte)] = true;
            }
        }
    }
    first
}
