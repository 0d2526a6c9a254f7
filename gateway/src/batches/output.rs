//! Results of lines, and the files that they become.

use weir_store::{Expect, Object, ObjectRange, ObjectWrite};

use super::doc::{Batch, Status};
use super::held::{Held, Stop};
use super::line::Outcome;
use crate::clock::now_ms;
use crate::error::ApiError;
use crate::files::{FileMeta, Marker, PieceWriter, Purpose, new_id, remove_pieces};

const RESULTS: &str = "batch-result";
/// A result of more bytes is kept in parts.
const PART_BYTES: usize = 512 << 10;
/// Results read, or removed, at once.
const PAGE: usize = 32;
/// When files that were begun and not finished are taken away.
const UNFINISHED_MS: u64 = 24 * 60 * 60 * 1000;

/// Which file a result belongs to: the first byte of its first part.
const OUTPUT: u8 = b'o';
const ERROR: u8 = b'e';

/// The writes that keep a line's result.
pub(super) fn result_writes(batch: &Batch, outcome: &Outcome) -> Vec<ObjectWrite> {
    let kind = if outcome.succeeded { OUTPUT } else { ERROR };
    let mut whole = Vec::with_capacity(outcome.record.len() + 1);
    whole.push(kind);
    whole.extend_from_slice(&outcome.record);
    whole
        .chunks(PART_BYTES)
        .enumerate()
        .map(|(part, data)| ObjectWrite {
            space: RESULTS,
            owner: batch.tenant.clone(),
            name: format!("{}/{:08}.{part:03}", batch.id, outcome.place),
            expect: Expect::Absent,
            data: Some(bytes::Bytes::copy_from_slice(data)),
        })
        .collect()
}

fn results(batch: &Batch, after: String) -> ObjectRange {
    ObjectRange {
        space: RESULTS,
        owner: batch.tenant.clone(),
        after,
        before: Some(format!("{}0", batch.id)),
        descending: false,
        limit: PAGE,
    }
}

/// Makes the files of a batch whose lines all have their result, and ends it.
pub(super) async fn finish(held: &mut Held) -> Result<(), Stop> {
    let now = now_ms();
    held.write(Vec::new(), |batch| {
        if batch.status == Status::InProgress {
            batch.status = Status::Finalizing;
            batch.times.finalizing = Some(now);
        }
        // Named before they are written, so that whoever goes on after a crash writes the same two.
        if batch.counts.completed > 0 {
            batch.output_file_id.get_or_insert_with(|| new_id("file-"));
        }
        if batch.counts.failed > 0 {
            batch.error_file_id.get_or_insert_with(|| new_id("file-"));
        }
    })
    .await?;
    let mut output = writer(held, held.batch.output_file_id.clone()).await?;
    let mut errors = writer(held, held.batch.error_file_id.clone()).await?;
    fill(held, output.as_mut(), errors.as_mut()).await?;
    let now = now_ms();
    let mut with = Vec::new();
    for (file, what) in [(output, "output"), (errors, "error")] {
        let Some(mut writer) = file else { continue };
        writer.pieces.finish().await?;
        let meta = FileMeta {
            id: writer.id,
            bytes: writer.pieces.bytes,
            pieces: writer.pieces.pieces,
            created_at_ms: now,
            filename: format!("{}_{what}.jsonl", held.batch.id),
            purpose: Purpose::BatchOutput,
            expires_at_ms: now + held.batch.output_life_s * 1000,
        };
        let tenant = &held.batch.tenant;
        with.push(Marker::file(tenant, &meta.id).write(meta.expires_at_ms));
        with.push(meta.write(tenant, Expect::Any));
    }
    held.write(with, |batch| {
        if batch.status == Status::Cancelling {
            batch.status = Status::Cancelled;
            batch.times.cancelled = Some(now);
        } else if batch.times.expired.is_some() {
            batch.status = Status::Expired;
        } else {
            batch.status = Status::Completed;
            batch.times.completed = Some(now);
        }
    })
    .await
}

/// One of the two files.
struct Writer {
    id: String,
    pieces: PieceWriter,
}

/// Begins a file, or begins it again.
async fn writer(held: &mut Held, id: Option<String>) -> Result<Option<Writer>, Stop> {
    let Some(id) = id else { return Ok(None) };
    let (store, tenant) = (held.store().clone(), held.batch.tenant.clone());
    let marker = Marker::file(&tenant, &id).write(now_ms() + UNFINISHED_MS);
    store
        .write_objects(vec![marker])
        .await
        .map_err(ApiError::from)?;
    remove_pieces(&*store, &tenant, &id).await?;
    held.renew().await?;
    let pieces = PieceWriter::new(store, &tenant, &id, None);
    Ok(Some(Writer { id, pieces }))
}

async fn fill(
    held: &mut Held,
    mut output: Option<&mut Writer>,
    mut errors: Option<&mut Writer>,
) -> Result<(), Stop> {
    let mut cursor = format!("{}/", held.batch.id);
    let mut kind = None;
    loop {
        let found = held.store().objects(results(&held.batch, cursor)).await;
        let found = found.map_err(ApiError::from)?;
        let Some(last) = found.last() else { break };
        cursor = last.name.clone();
        for Object { name, data, .. } in &found {
            let begins = name.ends_with(".000");
            if begins {
                line_end(kind, output.as_deref_mut(), errors.as_deref_mut()).await?;
                kind = data.first().copied();
            }
            let writer = if kind == Some(OUTPUT) {
                &mut output
            } else {
                &mut errors
            };
            if let Some(writer) = writer {
                writer.pieces.push(&data[usize::from(begins)..]).await?;
            }
        }
        held.renew_if_due().await?;
    }
    line_end(kind, output, errors).await
}

async fn line_end(
    kind: Option<u8>,
    output: Option<&mut Writer>,
    errors: Option<&mut Writer>,
) -> Result<(), Stop> {
    let writer = match kind {
        Some(OUTPUT) => output,
        Some(_) => errors,
        None => None,
    };
    if let Some(writer) = writer {
        writer.pieces.push(b"\n").await?;
    }
    Ok(())
}

/// Lets go of what a batch that has ended needs no more.
pub(super) async fn clean(held: &mut Held) -> Result<(), Stop> {
    loop {
        let from = format!("{}/", held.batch.id);
        let found = held.store().objects(results(&held.batch, from)).await;
        let found = found.map_err(ApiError::from)?;
        if found.is_empty() {
            break;
        }
        let remove = |object: Object| ObjectWrite {
            space: RESULTS,
            owner: held.batch.tenant.clone(),
            name: object.name,
            expect: Expect::Any,
            data: None,
        };
        let writes = found.into_iter().map(remove).collect();
        held.write(writes, |_| {}).await?;
    }
    let closed = held.batch.list(false);
    held.write(vec![closed], |batch| batch.progress.beyond.clear())
        .await
}
