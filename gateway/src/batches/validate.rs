//! A first look at a batch's file: how many lines, and whether they can be told apart.

use std::collections::HashMap;

use serde_json::Value;
use weir_protocol::error::ErrorCode;

use super::doc::{Batch, Counts, Fault, Status};
use super::held::{Held, Stop};
use super::lines::input;
use crate::clock::now_ms;

/// Most lines of a batch, as `OpenAI` has it.
const MAX_LINES: u32 = 50_000;
/// Faults that are listed; more help nobody.
const MAX_FAULTS: usize = 100;

/// Decides whether the batch can begin.
pub(super) async fn validate(held: &mut Held) -> Result<(), Stop> {
    let (total, faults) = look(held).await?;
    let now = now_ms();
    if faults.is_empty() {
        held.write(Vec::new(), |batch| {
            // A cancellation may have come first; then the lines are told so.
            if batch.status == Status::Validating {
                batch.status = Status::InProgress;
                batch.times.in_progress = Some(now);
            }
            batch.counts = Counts {
                total,
                ..Counts::default()
            };
        })
        .await
    } else {
        held.write(Vec::new(), |batch| fail(batch, faults.clone(), now))
            .await
    }
}

pub(super) fn fail(batch: &mut Batch, faults: Vec<Fault>, now: u64) {
    batch.status = Status::Failed;
    batch.times.failed = Some(now);
    batch.faults = faults;
}

async fn look(held: &mut Held) -> Result<(u32, Vec<Fault>), Stop> {
    let fault = |code: &str, message: String, line| Fault {
        code: code.to_owned(),
        message,
        line,
        param: None,
    };
    let mut reader = match input(held).await {
        Ok(reader) => reader,
        Err(error) if error.code() == ErrorCode::FileNotFound => {
            return Ok((
                0,
                vec![fault("file_not_found", error.body().message.clone(), None)],
            ));
        }
        Err(error) => return Err(error.into()),
    };
    let (mut total, mut faults) = (0_u32, Vec::new());
    let mut names: HashMap<[u8; 32], u32> = HashMap::new();
    while let Some(line) = reader.next().await? {
        held.renew_if_due().await?;
        total += 1;
        if total > MAX_LINES {
            let message = format!("a batch has at most {MAX_LINES} lines; split it");
            return Ok((0, vec![fault("too_many_lines", message, Some(line.number))]));
        }
        // What else may be wrong with a line is its own matter, and ends in its own result.
        let Some(name) = line.text.as_deref().and_then(custom_id) else {
            continue;
        };
        let hash = blake3::hash(name.as_bytes());
        if let Some(first) = names.insert(hash.into(), line.number)
            && faults.len() < MAX_FAULTS
        {
            let message = format!("custom_id {name:?} was used on line {first} already");
            faults.push(Fault {
                param: Some("custom_id".to_owned()),
                ..fault("duplicate_custom_id", message, Some(line.number))
            });
        }
    }
    if total == 0 {
        faults.push(fault(
            "empty_file",
            "the file has no lines".to_owned(),
            None,
        ));
    }
    Ok((total, faults))
}

fn custom_id(text: &[u8]) -> Option<String> {
    match serde_json::from_slice::<Value>(text)
        .ok()?
        .get("custom_id")?
    {
        Value::String(name) => Some(name.clone()),
        _ => None,
    }
}
