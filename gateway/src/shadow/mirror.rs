//! Asks versions without a run: what stable answered, and what is written in the references.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_manifest::Reference;
use weir_protocol::error::ErrorCode;
use weir_protocol::worker::Submit;

use super::{Mirroring, Pair, compare, score};
use crate::admit::{Asking, Input, Params, Sampling, Shape};
use crate::clock::new_run_id;
use crate::core::Core;
use crate::link::{Answer, Command, LinkHandle, Question, Said};
use crate::snapshot::ServedVersion;
use crate::text::Message;

/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long references wait while others do.
const PAUSE: Duration = Duration::from_millis(200);
/// An answer may be half as long again as stable's, and so many tokens longer.
const FURTHER_TOKENS: u64 = 32;
/// Of what a worker computes at once, what may be mirrored.
const SHARE_OF_SEATS: u32 = 8;

/// No answer, and why that says nothing of the version.
pub(super) struct Lost;

/// Asks the version in the shadow what stable was asked, and counts what its answer says.
pub(crate) async fn ask_candidate(core: Arc<Core>, pair: Pair) {
    let mirroring = Arc::clone(&pair.seed.mirroring);
    let stop = mirroring.stop.clone();
    let asked = stop.run_until_cancelled(answer(&core, &pair)).await;
    let is_scored = mirroring.mirror.is_scored && matches!(asked, Some(Ok(Some(Answer::Said(_)))));
    count(&core, &pair, asked);
    if is_scored {
        let scored = stop.run_until_cancelled(score::difference(&core, &pair));
        let scored = scored.await;
        let mut counts = mirroring.counts.lock();
        match scored {
            None | Some(Ok(None)) => {}
            Some(Err(Lost)) => counts.dropped += 1,
            Some(Ok(Some(milli_nats))) => compare::scored(&mut counts, milli_nats),
        }
    }
}

/// Counts what an answer says.
fn count(core: &Core, pair: &Pair, asked: Option<Result<Option<Answer>, Lost>>) {
    let mirroring = &pair.seed.mirroring;
    let mut counts = mirroring.counts.lock();
    match asked {
        None | Some(Ok(None)) => {}
        Some(Err(Lost)) => counts.dropped += 1,
        Some(Ok(Some(Answer::Failed(why)))) => {
            tracing::info!(model = mirroring.model, why, "a mirrored run failed");
            compare::failed(&mut counts.errors);
        }
        Some(Ok(Some(Answer::Said(said)))) => {
            core.metrics.mirrored(said.first_token);
            let defaults = pair.seed.stable.defaults.temperature;
            let sampling = &pair.seed.request.sampling;
            let is_greedy = sampling.temperature.unwrap_or(defaults) <= 0.0;
            compare::pair(&mut counts, &pair.said, &said, is_greedy);
        }
    }
}

/// `Ok(None)`: it is not wanted.
async fn answer(core: &Arc<Core>, pair: &Pair) -> Result<Option<Answer>, Lost> {
    let (seed, mirroring) = (&pair.seed, &pair.seed.mirroring);
    if is_loaded(core, &seed.stable) {
        return Err(Lost);
    }
    let candidate = core.version(&mirroring.model, &mirroring.mirror.target);
    let candidate = candidate.ok_or(Lost)?;
    let request = &seed.request;
    let tokens = core
        .tokenizers
        .tokens(
            &seed.tenant.name,
            &candidate,
            &request.input,
            request.params,
            u64::from(candidate.context_tokens),
        )
        .await;
    let prompt = match tokens {
        Ok(prompt) => prompt,
        Err(busy) if busy.code() == ErrorCode::QueueFull => return Err(Lost),
        Err(refused) => return Ok(Some(Answer::Failed(refused.body().message.clone()))),
    };
    // Keyed by this process: nobody can aim for a digest that hides another prompt.
    let digest = crate::auth::digest(&format!("{prompt:?}"));
    if !mirroring.caps.lock().wants(&seed.tenant.name, digest) {
        return Ok(None);
    }
    // What cut stable's answer cuts this one too.
    let further = pair.said.tokens / 2 + FURTHER_TOKENS;
    let most = pair.said.tokens + if pair.said.is_cut { 0 } else { further };
    let room = u64::from(candidate.context_tokens).saturating_sub(prompt.len() as u64);
    if room < most {
        return Ok(Some(Answer::Failed(
            "its context does not hold what stable's does".to_owned(),
        )));
    }
    let tokens = prompt.len() as u64 + most;
    if !mirroring.caps.lock().spend(tokens, Instant::now()) {
        return Err(Lost);
    }
    let asking = Asking {
        sampling: &request.sampling,
        shape: &request.shape,
        trust_scope: &seed.tenant.trust_scope,
        max_output_tokens: most,
    };
    let submit = asking.submit(&candidate, prompt);
    ask(core, mirroring, &candidate, submit).await.map(Some)
}

/// Sends a question to a worker of a version, within the share that questions may have of it.
pub(super) async fn ask(
    core: &Arc<Core>,
    mirroring: &Mirroring,
    version: &ServedVersion,
    submit: Submit,
) -> Result<Answer, Lost> {
    let link = core.links.quietest(&version.digest).ok_or(Lost)?;
    let _place = Place::take(mirroring, &link).ok_or(Lost)?;
    let (sender, answer) = oneshot::channel();
    let question = Question {
        run: new_run_id(),
        submit,
        answer: sender,
    };
    link.send(Command::Ask(Box::new(question)))
        .map_err(|_| Lost)?;
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        // The session ended.
        Ok(Err(_)) => Err(Lost),
        Err(_) => Ok(Answer::Failed(format!("no answer within {PATIENCE:?}"))),
    }
}

/// A question's place among those under way.
struct Place<'a>(&'a Mirroring);

impl<'a> Place<'a> {
    fn take(mirroring: &'a Mirroring, link: &LinkHandle) -> Option<Self> {
        let most = (link.most_seats() / SHARE_OF_SEATS).max(1);
        let place = Self(mirroring);
        let before = mirroring.under_way.fetch_add(1, Ordering::AcqRel);
        (before < most).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether runs that somebody waits for need all there is: one waits, or most seats are taken.
fn is_loaded(core: &Core, stable: &ServedVersion) -> bool {
    let room = core.links.room(&stable.digest);
    core.queues.depth(&stable.pool) > 0 || room.seats * 2 < room.total
}

/// Asks every reference of both versions, one at a time, until each has an answer.
pub(super) async fn ask_references(core: Arc<Core>, mirroring: Arc<Mirroring>) {
    let stop = mirroring.stop.clone();
    let asking = async {
        for reference in &*mirroring.mirror.references {
            let is_right = loop {
                match both(&core, &mirroring, reference).await {
                    Ok(is_right) => break is_right,
                    Err(Lost) => tokio::time::sleep(PAUSE).await,
                }
            };
            compare::reference(&mut mirroring.counts.lock(), is_right);
        }
    };
    stop.run_until_cancelled(asking).await;
}

/// Whether the candidate and stable answer a reference right.
async fn both(
    core: &Arc<Core>,
    mirroring: &Mirroring,
    reference: &Reference,
) -> Result<[bool; 2], Lost> {
    let stable = core.stable(&mirroring.model).ok_or(Lost)?;
    let candidate = core.version(&mirroring.model, &mirroring.mirror.target);
    let candidate = candidate.ok_or(Lost)?;
    if is_loaded(core, &stable) {
        return Err(Lost);
    }
    let candidates = refer(core, mirroring, &candidate, reference).await?;
    let stables = refer(core, mirroring, &stable, reference).await?;
    Ok([candidates, stables])
}

/// A version that cannot answer a reference does not answer it right.
async fn refer(
    core: &Arc<Core>,
    mirroring: &Mirroring,
    version: &Arc<ServedVersion>,
    reference: &Reference,
) -> Result<bool, Lost> {
    const PARAMS: Params = Params {
        prompt: "reference",
        max_output: "maxTokens",
    };
    let messages = reference.messages.iter().map(|(role, content)| Message {
        role: role.clone(),
        content: content.clone(),
    });
    let input = Input::Chat(messages.collect());
    // A name that no tenant has: references take no tenant's turn.
    let largest = u64::from(version.context_tokens);
    let tokens = core
        .tokenizers
        .tokens("", version, &input, PARAMS, largest)
        .await;
    let prompt = match tokens {
        Ok(prompt) => prompt,
        Err(busy) if busy.code() == ErrorCode::QueueFull => return Err(Lost),
        Err(_) => return Ok(false),
    };
    let sampling = Sampling {
        temperature: Some(0.0),
        ..Sampling::default()
    };
    let asking = Asking {
        sampling: &sampling,
        shape: &Shape::Free,
        trust_scope: "",
        max_output_tokens: u64::from(reference.max_tokens),
    };
    let submit = asking.submit(version, prompt);
    Ok(match ask(core, mirroring, version, submit).await? {
        Answer::Said(Said { text, .. }) => reference.accepts(&text),
        Answer::Failed(_) => false,
    })
}
