//! How probable what stable said is to two versions: the most sensitive sign that they are not the same.
//!
//! A version is made to write the text (a grammar that nothing else satisfies) and says how probable each token was before the grammar took
//! the others away.

use std::sync::Arc;

use tokio::time::Instant;
use weir_protocol::worker::Grammar;
use weir_protocol::worker::grammar::Kind;

use super::Pair;
use super::mirror::{Lost, ask};
use crate::admit::{Asking, Sampling, Shape};
use crate::core::Core;
use crate::link::{Answer, Said};
use crate::snapshot::ServedVersion;

/// A token that one of them never expects says no more than this, in nats.
const MOST_NATS: f64 = 4.0;

/// By how much less probable the candidate finds what stable said, in thousandths of a nat per token; `None` where that says nothing.
pub(super) async fn difference(core: &Arc<Core>, pair: &Pair) -> Result<Option<i64>, Lost> {
    let mirroring = &pair.seed.mirroring;
    let candidate = core.version(&mirroring.model, &mirroring.mirror.target);
    let candidate = candidate.ok_or(Lost)?;
    let text = &pair.said.beginning;
    if text.is_empty() {
        return Ok(None);
    }
    let stable = written(core, pair, &pair.seed.stable).await?;
    let candidate = written(core, pair, &candidate).await?;
    Ok(stable
        .zip(candidate)
        .map(|(stable, candidate)| milli_nats(&stable, &candidate)))
}

/// How probable each token of stable's words is to a version.
async fn written(
    core: &Arc<Core>,
    pair: &Pair,
    version: &Arc<ServedVersion>,
) -> Result<Option<Vec<f32>>, Lost> {
    let (seed, mirroring) = (&pair.seed, &pair.seed.mirroring);
    let request = &seed.request;
    let context = u64::from(version.context_tokens);
    let prompt = core
        .tokenizers
        .tokens(
            &seed.tenant.name,
            version,
            &request.input,
            request.params,
            context,
        )
        .await;
    // What a version cannot be asked, the answers tell.
    let Ok(prompt) = prompt else {
        return Ok(None);
    };
    let text = &pair.said.beginning;
    // No token has less than a byte.
    let most = text.len() as u64;
    let tokens = prompt.len() as u64 + most;
    if tokens > context {
        return Ok(None);
    }
    if !mirroring.caps.lock().spend(tokens, Instant::now()) {
        return Err(Lost);
    }
    let sampling = Sampling {
        temperature: Some(0.0),
        logprobs: Some(0),
        ..Sampling::default()
    };
    let grammar = Grammar {
        kind: Kind::Regex.into(),
        text: escaped(text),
    };
    let asking = Asking {
        sampling: &sampling,
        shape: &Shape::Grammar(grammar, "score"),
        trust_scope: &seed.tenant.trust_scope,
        max_output_tokens: most,
    };
    let submit = asking.submit(version, prompt);
    Ok(match ask(core, mirroring, version, submit).await? {
        Answer::Said(Said { logprobs, .. }) if !logprobs.is_empty() => Some(logprobs),
        Answer::Said(_) => None,
        Answer::Failed(why) => {
            tracing::debug!(model = mirroring.model, why, "a text could not be scored");
            None
        }
    })
}

/// An expression that only this text matches.
fn escaped(text: &str) -> String {
    const META: &str = r"\.+*?()|[]{}^$#&-~/";
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if META.contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "at most four thousand, either way"
)]
fn milli_nats(stable: &[f32], candidate: &[f32]) -> i64 {
    let clip = |nats: f64| nats.clamp(-MOST_NATS, MOST_NATS);
    let tokens = stable.len().max(1) as f64;
    let mean = if stable.len() == candidate.len() {
        let pairs = stable.iter().zip(candidate);
        pairs
            .map(|(s, c)| clip(f64::from(*s) - f64::from(*c)))
            .sum::<f64>()
            / tokens
    } else {
        // Vocabularies may differ: then only the whole text compares.
        let sum = |all: &[f32]| all.iter().map(|one| f64::from(*one)).sum::<f64>();
        clip((sum(stable) - sum(candidate)) / tokens)
    };
    (mean * 1000.0).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_as_much_less_probable_as_its_tokens_are_in_the_mean() {
        assert_eq!(milli_nats(&[-1.0, -2.0], &[-1.0, -2.0]), 0);
        assert_eq!(milli_nats(&[-1.0, -1.0], &[-1.5, -1.1]), 300);
        assert_eq!(milli_nats(&[0.0, 0.0], &[-90.0, 0.0]), 2000, "clipped");
        assert_eq!(milli_nats(&[-1.0, -1.0], &[-1.0, -1.0, -0.5]), 250);
    }

    #[test]
    fn an_expression_matches_its_text_and_nothing_else() {
        for text in [
            "3 + 4 = 7.",
            "a\nb",
            "<b>\\d{2}</b> [x]^$",
            "Grüße, 你好",
            "~#&-/",
        ] {
            let pattern = format!("^(?:{})$", escaped(text));
            let dfa = regex_automata::dfa::dense::DFA::new(&pattern).unwrap();
            let found = regex_automata::dfa::Automaton::try_search_fwd(
                &dfa,
                &regex_automata::Input::new(text),
            );
            assert!(found.unwrap().is_some(), "{pattern}");
        }
        assert_eq!(escaped("3.5"), r"3\.5");
    }
}
