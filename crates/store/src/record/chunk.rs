//! A chunk: the events that one commit added to one run, and the run's progress after them. An append therefore writes one record, and the
//! row of the run, which is several times as large, stays as it is.

use bytes::Bytes;
use weir_run::{Epoch, Progress, RunStatus, Sequence};

use super::run::{status_byte, status_of, version};
use super::{BadRecord, Decoder, Encoder};
use crate::EventRecord;

/// Kinds by their byte. Append only.
const KINDS: [&str; 8] = [
    "accepted",
    "started",
    "delta",
    RunStatus::Completed.as_str(),
    RunStatus::Cancelled.as_str(),
    RunStatus::Interrupted.as_str(),
    RunStatus::Failed.as_str(),
    RunStatus::Expired.as_str(),
];

/// Whether the kind can be stored.
pub(crate) fn knows(kind: &str) -> bool {
    KINDS.contains(&kind)
}

pub(super) fn encode_progress(to: &mut Encoder, progress: &Progress) {
    to.byte(status_byte(progress.status));
    to.number(progress.epoch.0);
    to.number(progress.cached_tokens);
    to.number(progress.output_tokens);
    to.number(progress.output_index);
    to.number(progress.last_sequence.0);
    to.option(progress.started_at_ms, Encoder::number);
    to.option(progress.first_token_at_ms, Encoder::number);
}

pub(super) fn decode_progress(from: &mut Decoder<'_>) -> Result<Progress, BadRecord> {
    Ok(Progress {
        status: status_of(from.byte("status")?)?,
        epoch: Epoch(from.number("epoch")?),
        cached_tokens: from.number("cached tokens")?,
        output_tokens: from.number("output tokens")?,
        output_index: from.number("output index")?,
        last_sequence: Sequence(from.number("last sequence")?),
        started_at_ms: from.option("started at", Decoder::number)?,
        first_token_at_ms: from.option("first token at", Decoder::number)?,
    })
}

/// The events' sequences follow from the key, which has the first.
pub(crate) fn encode(progress: &Progress, events: &[EventRecord]) -> Vec<u8> {
    let size: usize = events.iter().map(|event| event.data.len() + 4).sum();
    let mut to = Encoder::with_capacity(size + 48);
    to.byte(1);
    encode_progress(&mut to, progress);
    to.number(events.len() as u64);
    for event in events {
        let kind = KINDS.iter().position(|kind| *kind == event.kind);
        let kind = kind.expect("kinds are checked before events are taken in");
        to.byte(u8::try_from(kind).expect("the table is short"));
        to.bytes(&event.data);
    }
    to.into_bytes()
}

/// Only the progress.
pub(crate) fn progress(payload: &[u8]) -> Result<Progress, BadRecord> {
    let mut from = Decoder::new(payload);
    version(&mut from)?;
    decode_progress(&mut from)
}

/// The events with a sequence above `after`.
pub(crate) fn events(
    first: Sequence,
    payload: &[u8],
    after: Sequence,
) -> Result<Vec<EventRecord>, BadRecord> {
    let mut from = Decoder::new(payload);
    version(&mut from)?;
    decode_progress(&mut from)?;
    let count = from.count("events")?;
    let mut events = Vec::with_capacity(count);
    for sequence in (first.0..).take(count) {
        let kind = *KINDS
            .get(usize::from(from.byte("kind")?))
            .ok_or(BadRecord::Value("kind"))?;
        let data = from.bytes("event")?;
        if sequence > after.0 {
            events.push(EventRecord {
                sequence: Sequence(sequence),
                kind,
                data: Bytes::copy_from_slice(data),
            });
        }
    }
    from.finish()?;
    Ok(events)
}
