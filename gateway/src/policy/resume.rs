//! The filter of a run that is taken over: what was shown of its texts is in its events, what waited comes again from the worker.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_run::{Event, EventKind, RunId, Sequence};
use weir_store::{Store, StoreError};

use super::gate::CONTEXT_BYTES;
use super::{CheckGate, OutputFilter, RuleSets};
use crate::core::Core;
use crate::link::{ChoiceEnds, Writer};

/// Events read at once, from the last to the first.
const PAGE: u64 = 256;
/// How much of each text's end is wanted: more than the longest marker.
const WANTED: usize = CONTEXT_BYTES;

/// Its output can no longer be judged, so none of it is shown any more.
pub(crate) const UNJUDGED: &str =
    "what its log says cannot be read, so its output cannot go on after a restart";

impl Core {
    /// Policies for a run that was found at start, before anybody said which there are; nothing of its output is in the log.
    pub(crate) fn judge_unsent(&self, writer: &mut Writer) {
        if !writer.is_judged() {
            let policies = self.directory.load().policies.clone();
            writer.judge_by(policies.of(&writer.tenant, &writer.model));
        }
    }

    /// Makes the policies of a run that was taken over go on where they were; whether they can.
    pub(crate) async fn judge(&self, writer: &mut Writer) -> bool {
        if writer.is_judged() {
            return true;
        }
        if writer.has_choices() {
            let (run, last) = (writer.id(), writer.last_sequence());
            match ChoiceEnds::read(&*self.store, run, last).await {
                Ok(ends) => writer.resume_choices(ends),
                Err(error) => {
                    tracing::error!(%run, %error, "cannot read which choices of a run have ended");
                    return false;
                }
            }
        }
        let policies = self.directory.load().policies.clone();
        let sets = policies.of(&writer.tenant, &writer.model);
        let Some(sets) = sets.filter(|sets| sets.looks_after()) else {
            writer.judge_on(None, None);
            return true;
        };
        let run = writer.id();
        match resume(&*self.store, run, writer.last_sequence(), sets).await {
            Ok((filter, gate)) => {
                writer.judge_on(filter, gate);
                true
            }
            Err(error) => {
                tracing::error!(%run, %error, "cannot read what was shown of a run that policies hold for");
                false
            }
        }
    }
}

/// Filter and gate as they were after the run's last durable event.
async fn resume(
    store: &dyn Store,
    run: RunId,
    last: u64,
    sets: Arc<RuleSets>,
) -> Result<(Option<OutputFilter>, Option<CheckGate>), StoreError> {
    let mut shown: BTreeMap<(u32, bool), String> = BTreeMap::new();
    let mut before = last;
    while before > 0 {
        let after = before.saturating_sub(PAGE);
        let page = store.events(run, Sequence(after), PAGE as usize).await?;
        for event in page.iter().rev().filter(|event| event.sequence.0 <= before) {
            let Ok(event) = Event::decode(event.kind, &event.data) else {
                continue;
            };
            if let EventKind::Delta {
                text,
                choice,
                tool_calls,
                ..
            } = event.kind
            {
                put_before(&mut shown, (choice, false), &text);
                for call in tool_calls.iter().rev() {
                    put_before(&mut shown, (choice, true), &call.arguments);
                }
            }
        }
        before = after;
    }
    let mut gate = CheckGate::new(&sets);
    let mut filter = (!sets.after.is_empty()).then(|| OutputFilter::new(sets));
    for ((choice, is_tool), text) in shown {
        if let Some(filter) = &mut filter {
            filter.remember(choice, is_tool, &text);
        }
        if let (Some(gate), false) = (&mut gate, is_tool) {
            gate.remember(choice, &text);
        }
    }
    Ok((filter, gate))
}

fn put_before(shown: &mut BTreeMap<(u32, bool), String>, channel: (u32, bool), text: &str) {
    if text.is_empty() {
        return;
    }
    let known = shown.entry(channel).or_default();
    if known.len() < WANTED {
        known.insert_str(0, text);
    }
}
