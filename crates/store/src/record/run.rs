//! The row of a run, its reservation and its work order.

use std::collections::BTreeMap;

use weir_budget::{KeyHold, Reservation};
use weir_run::{
    Decision, DecisionReason, Epoch, Expected, FinishReason, Price, Run, RunId, RunStatus,
    Sequence, WorkOrder,
};

use super::{BadRecord, Decoder, Encoder};

const STATUSES: [RunStatus; 8] = [
    RunStatus::Accepted,
    RunStatus::Running,
    RunStatus::Cancelling,
    RunStatus::Completed,
    RunStatus::Cancelled,
    RunStatus::Interrupted,
    RunStatus::Failed,
    RunStatus::Expired,
];

const REASONS: [DecisionReason; 4] = [
    DecisionReason::Stable,
    DecisionReason::Canary,
    DecisionReason::Pinned,
    DecisionReason::Fallback,
];

pub(super) fn status_byte(status: RunStatus) -> u8 {
    place(&STATUSES, &status)
}

pub(super) fn status_of(byte: u8) -> Result<RunStatus, BadRecord> {
    let status = STATUSES.get(usize::from(byte));
    status.copied().ok_or(BadRecord::Value("status"))
}

fn place<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let place = all.iter().position(|candidate| candidate == one);
    u8::try_from(place.expect("the table lists every value")).expect("the table is short")
}

pub(super) fn encode_id(to: &mut Encoder, id: RunId) {
    to.raw(&id.to_bytes());
}

pub(super) fn decode_id(from: &mut Decoder<'_>, what: &'static str) -> Result<RunId, BadRecord> {
    from.raw::<16>(what).map(RunId::from_bytes)
}

/// All of a run but its tenant and id, which are its key.
pub(crate) fn encode(run: &Run) -> Vec<u8> {
    let mut to = Encoder::with_capacity(320);
    to.byte(1);
    to.option(run.request_key.as_deref(), Encoder::text);
    to.raw(&run.payload_hash);
    to.text(&run.model);
    to.number(u64::from(run.model_version));
    to.text(&run.manifest_digest);
    to.text(&run.pool);
    to.text(&run.decision.requested);
    to.byte(place(&REASONS, &run.decision.reason));
    to.option(run.decision.worker.as_deref(), Encoder::text);
    super::chunk::encode_progress(&mut to, &run.progress());
    to.number(u64::from(run.choices));
    to.number(run.prompt_tokens);
    to.number(run.reserved_tokens);
    to.number(run.reserved_micros);
    to.number(run.price.prompt_micros_per_token);
    to.number(run.price.cached_micros_per_token);
    to.number(run.price.output_micros_per_token);
    to.option(run.cost_micros, Encoder::number);
    to.number(run.created_at_ms);
    to.option(run.finished_at_ms, Encoder::number);
    to.option(run.deadline_ms, Encoder::number);
    to.option(run.finish_reason, |to, reason| {
        to.byte(match reason {
            FinishReason::Stop => 0,
            FinishReason::Length => 1,
            FinishReason::ContentFilter => 2,
        });
    });
    to.option(run.error.as_deref(), Encoder::text);
    to.option(run.replaces, encode_id);
    to.option(run.replaced_by, encode_id);
    to.number(run.events_expire_at_ms);
    to.number(run.metadata.len() as u64);
    for (name, value) in &run.metadata {
        to.text(name);
        to.text(value);
    }
    encode_later(&mut to, run);
    to.into_bytes()
}

/// Fields that came after the first format, each behind its number and only where it is there: rows from before have none.
const CALLER: u8 = 1;
const VERDICTS: u8 = 2;
const EXPECTED: u8 = 3;

fn encode_later(to: &mut Encoder, run: &Run) {
    if let Some(caller) = &run.caller {
        to.byte(CALLER);
        to.text(caller);
    }
    if !run.verdicts.is_empty() {
        to.byte(VERDICTS);
        to.bytes(&serde_json::to_vec(&run.verdicts).expect("verdicts are names and numbers"));
    }
    let expected = run.decision.expected;
    if expected != Expected::default() {
        to.byte(EXPECTED);
        to.option(expected.estimate_ms, Encoder::number);
        to.option(expected.generation, Encoder::number);
        to.option(expected.predicted_ms, Encoder::number);
        to.option(expected.affinity_tokens, Encoder::number);
    }
}

fn decode_later(from: &mut Decoder<'_>, run: &mut Run) -> Result<(), BadRecord> {
    while !from.is_empty() {
        match from.byte("later field")? {
            CALLER => run.caller = Some(from.text("caller")?),
            VERDICTS => {
                let json = from.bytes("verdicts")?;
                run.verdicts =
                    serde_json::from_slice(json).map_err(|_| BadRecord::Value("verdicts"))?;
            }
            EXPECTED => {
                run.decision.expected = Expected {
                    estimate_ms: from.option("estimate", Decoder::number)?,
                    generation: from.option("generation", Decoder::number)?,
                    predicted_ms: from.option("prediction", Decoder::number)?,
                    affinity_tokens: from.option("affinity", Decoder::number)?,
                };
            }
            _ => return Err(BadRecord::Value("later field")),
        }
    }
    Ok(())
}

/// The run that was encoded under this tenant and id.
pub(crate) fn decode(tenant: &str, id: RunId, payload: &[u8]) -> Result<Run, BadRecord> {
    let mut from = Decoder::new(payload);
    version(&mut from)?;
    // A struct literal evaluates its fields in the order they are written, which is the order of the bytes.
    let mut run = Run {
        id,
        tenant: tenant.to_owned(),
        request_key: from.option("request key", Decoder::text)?,
        payload_hash: from.raw::<32>("payload hash")?,
        model: from.text("model")?,
        model_version: from.small("model version")?,
        manifest_digest: from.text("manifest digest")?,
        pool: from.text("pool")?,
        decision: Decision {
            requested: from.text("requested model")?,
            reason: *REASONS
                .get(usize::from(from.byte("decision")?))
                .ok_or(BadRecord::Value("decision"))?,
            worker: from.option("worker", Decoder::text)?,
            expected: Expected::default(),
        },
        status: RunStatus::Accepted,
        epoch: Epoch(0),
        cached_tokens: 0,
        output_tokens: 0,
        output_index: 0,
        last_sequence: Sequence(0),
        started_at_ms: None,
        first_token_at_ms: None,
        choices: 0,
        prompt_tokens: 0,
        reserved_tokens: 0,
        reserved_micros: 0,
        price: Price::default(),
        cost_micros: None,
        created_at_ms: 0,
        finished_at_ms: None,
        deadline_ms: None,
        finish_reason: None,
        error: None,
        replaces: None,
        replaced_by: None,
        events_expire_at_ms: 0,
        metadata: BTreeMap::new(),
        caller: None,
        verdicts: vec![],
    };
    run.set_progress(super::chunk::decode_progress(&mut from)?);
    decode_numbers(&mut from, &mut run)?;
    from.finish()?;
    Ok(run)
}

fn decode_numbers(from: &mut Decoder<'_>, run: &mut Run) -> Result<(), BadRecord> {
    run.choices = from.small("choices")?;
    run.prompt_tokens = from.number("prompt tokens")?;
    run.reserved_tokens = from.number("reserved tokens")?;
    run.reserved_micros = from.number("reserved micros")?;
    run.price = Price {
        prompt_micros_per_token: from.number("prompt price")?,
        cached_micros_per_token: from.number("cached price")?,
        output_micros_per_token: from.number("output price")?,
    };
    run.cost_micros = from.option("cost", Decoder::number)?;
    run.created_at_ms = from.number("created at")?;
    run.finished_at_ms = from.option("finished at", Decoder::number)?;
    run.deadline_ms = from.option("deadline", Decoder::number)?;
    run.finish_reason = from.option("finish reason", |from, what| match from.byte(what)? {
        0 => Ok(FinishReason::Stop),
        1 => Ok(FinishReason::Length),
        2 => Ok(FinishReason::ContentFilter),
        _ => Err(BadRecord::Value(what)),
    })?;
    run.error = from.option("error", Decoder::text)?;
    run.replaces = from.option("replaces", decode_id)?;
    run.replaced_by = from.option("replaced by", decode_id)?;
    run.events_expire_at_ms = from.number("events expire at")?;
    for _ in 0..from.count("metadata")? {
        let name = from.text("metadata name")?;
        run.metadata.insert(name, from.text("metadata value")?);
    }
    decode_later(from, run)
}

pub(super) fn version(from: &mut Decoder<'_>) -> Result<(), BadRecord> {
    match from.byte("record version")? {
        1 => Ok(()),
        _ => Err(BadRecord::Value("record version")),
    }
}

/// What a live run holds.
pub(crate) fn encode_reservation(reservation: &Reservation) -> Vec<u8> {
    let mut to = Encoder::with_capacity(48);
    to.byte(1);
    to.number(reservation.tokens);
    to.number(reservation.micros);
    to.text(&reservation.pool);
    to.number(reservation.accepted_at_ms);
    to.number(reservation.periods_s.len() as u64);
    for period_s in &reservation.periods_s {
        to.number(*period_s);
    }
    // Records of before there were keys with limits end here, and so do those without one.
    if let Some(hold) = &reservation.key {
        to.text(&hold.name);
        to.number(hold.periods_s.len() as u64);
        for period_s in &hold.periods_s {
            to.number(*period_s);
        }
    }
    to.into_bytes()
}

pub(crate) fn decode_reservation(payload: &[u8]) -> Result<Reservation, BadRecord> {
    let mut from = Decoder::new(payload);
    version(&mut from)?;
    let mut reservation = Reservation {
        tokens: from.number("reserved tokens")?,
        micros: from.number("reserved micros")?,
        pool: from.text("pool")?,
        accepted_at_ms: from.number("accepted at")?,
        periods_s: vec![],
        key: None,
    };
    for _ in 0..from.count("periods")? {
        reservation.periods_s.push(from.number("period")?);
    }
    if !from.is_empty() {
        let name = from.text("key")?;
        let mut periods_s = vec![];
        for _ in 0..from.count("periods of a key")? {
            periods_s.push(from.number("period of a key")?);
        }
        reservation.key = Some(KeyHold { name, periods_s });
    }
    from.finish()?;
    Ok(reservation)
}

/// Token ids take two or three bytes each.
pub(crate) fn encode_work(work: &WorkOrder) -> Vec<u8> {
    let mut to = Encoder::with_capacity(work.submit.len() + work.prompt.len() * 3 + 16);
    to.byte(1);
    to.byte(work.priority);
    to.option(work.max_queue_ms, Encoder::number);
    to.bytes(&work.submit);
    to.number(work.prompt.len() as u64);
    for token in &work.prompt {
        to.number(u64::from(*token));
    }
    // Records from before end here.
    if work.attended {
        to.byte(1);
    }
    to.into_bytes()
}

pub(crate) fn decode_work(payload: &[u8]) -> Result<WorkOrder, BadRecord> {
    let mut from = Decoder::new(payload);
    version(&mut from)?;
    let mut work = WorkOrder {
        priority: from.byte("priority")?,
        max_queue_ms: from.option("longest wait", Decoder::number)?,
        submit: from.bytes("submit")?.to_vec(),
        prompt: vec![],
        attended: false,
    };
    let count = from.count("prompt")?;
    work.prompt.reserve(count);
    for _ in 0..count {
        work.prompt.push(from.small("token")?);
    }
    if !from.is_empty() {
        work.attended = from.byte("attended")? == 1;
    }
    from.finish()?;
    Ok(work)
}
