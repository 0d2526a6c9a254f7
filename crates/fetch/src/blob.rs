//! Fetches one file: from where it ended, as often as it takes, hashed as it comes.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::mpsc;
use weir_manifest::FileEntry;

use crate::FetchError;
use crate::cache::Cache;
use crate::fetcher::Limiter;
use crate::meter::Meter;
use crate::partial::{Finished, Partial};
use crate::retry::Backoff;
use crate::source::{Opened, Source};

/// A connection on which nothing comes for so long is given up: the next one usually works.
const STALL: Duration = Duration::from_secs(30);
/// Pieces between network and disk: with pieces of at most 64 KiB or so, what a fetch of one file holds in memory.
const PIECES: usize = 16;
/// How often a file with a wrong digest is fetched again: a cache on the way may have mixed something up once.
const WRONG: u32 = 1;

/// What every file of a fetch shares.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) source: &'a Source,
    pub(crate) limiter: &'a Limiter,
    pub(crate) meter: &'a Meter,
}

/// Brings a file into the cache, unless it is there. Whoever else fetches it is waited for.
pub(crate) async fn fetch(means: Means<'_>, want: &FileEntry) -> Result<(), FetchError> {
    let Means { cache, meter, .. } = means;
    let _lock = cache.lock_blob(&want.sha256).await?;
    if cache.has(want) {
        meter.have(want.size);
        return Ok(());
    }
    let mut wrong = 0;
    loop {
        let (opening, entry) = (cache.clone(), want.clone());
        let partial = blocking(move || Partial::open(&opening, &entry)).await?;
        meter.have(partial.len());
        let partial = complete(means, want, partial).await?;
        let (finishing, entry) = (cache.clone(), want.clone());
        match blocking(move || partial.finish(&finishing, &entry)).await? {
            Finished::Whole => return Ok(()),
            Finished::Wrong(found) => {
                meter.lose(want.size);
                let error = FetchError::WrongContent {
                    place: means.source.shown(&want.path),
                    expected: want.sha256.to_string(),
                    found: found.to_string(),
                };
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a file is not what was signed"
                );
                wrong += 1;
                if wrong > WRONG {
                    return Err(error);
                }
            }
        }
    }
}

/// Attempts until every byte is there.
async fn complete(
    means: Means<'_>,
    want: &FileEntry,
    mut partial: Partial,
) -> Result<Partial, FetchError> {
    let mut backoff = Backoff::default();
    while partial.len() < want.size {
        let before = partial.len();
        let error = match means.source.open(want, before).await {
            Ok(opened) => {
                let (after, result) = pump(means, want, partial, opened).await?;
                partial = after;
                match result {
                    Ok(()) => continue,
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        if !error.is_transient() {
            return Err(error);
        }
        let Some(pause) = backoff.after(partial.len() - before, dice()) else {
            return Err(error);
        };
        tracing::info!(
            error = &error as &dyn std::error::Error,
            have = partial.len(),
            size = want.size,
            "a file is fetched on after a while"
        );
        means.meter.trouble(error.to_string());
        tokio::time::sleep(pause).await;
    }
    Ok(partial)
}

fn dice() -> u32 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_ne_bytes(bytes),
        Err(_) => u32::MAX,
    }
}

/// From the connection to the disk, until the file or the connection ends. The outer error is the disk's.
async fn pump(
    means: Means<'_>,
    want: &FileEntry,
    mut partial: Partial,
    opened: Opened,
) -> Result<(Partial, Result<(), FetchError>), FetchError> {
    let (sender, mut pieces) = mpsc::channel::<Bytes>(PIECES);
    let (size, left) = (want.size, want.size - partial.len());
    let writer = tokio::task::spawn_blocking(move || {
        while let Some(piece) = pieces.blocking_recv() {
            partial.write(&piece, size)?;
        }
        partial.sync(size)?;
        Ok(partial)
    });
    let read = read(means, want, left, opened, sender).await;
    let written = writer.await.map_err(|error| FetchError::Cache {
        doing: "write",
        path: means.cache.root().to_owned(),
        source: std::io::Error::other(error),
    })?;
    Ok((written?, read))
}

async fn read(
    means: Means<'_>,
    want: &FileEntry,
    mut left: u64,
    mut opened: Opened,
    sender: mpsc::Sender<Bytes>,
) -> Result<(), FetchError> {
    let place = || means.source.shown(&want.path);
    if let Some(total) = opened.total.filter(|total| *total != want.size) {
        return Err(FetchError::WrongLength {
            place: place(),
            expected: want.size,
            found: total,
        });
    }
    while left > 0 {
        let next = tokio::time::timeout(STALL, opened.body.next()).await;
        let piece = match next {
            Err(_) => {
                return Err(FetchError::Unreachable {
                    place: place(),
                    cause: format!("nothing came for {} s", STALL.as_secs()),
                });
            }
            Ok(None) => {
                return Err(FetchError::Unreachable {
                    place: place(),
                    cause: format!("the connection ended {left} bytes too early"),
                });
            }
            Ok(Some(piece)) => piece?,
        };
        let came = piece.len() as u64;
        means.limiter.take(came).await;
        let mut piece = opened.wanted_of(piece);
        if piece.is_empty() {
            continue;
        }
        let wanted = usize::try_from(left).unwrap_or(usize::MAX);
        if piece.len() > wanted {
            if opened.ends {
                let found = want.size - left + piece.len() as u64;
                return Err(FetchError::WrongLength {
                    place: place(),
                    expected: want.size,
                    found,
                });
            }
            piece.truncate(wanted);
        }
        left -= piece.len() as u64;
        means.meter.receive(piece.len() as u64);
        if sender.send(piece).await.is_err() {
            // The writer has failed, and says why.
            return Ok(());
        }
    }
    if opened.ends && opened.total.is_none() {
        return at_its_end(&mut opened, want.size, place).await;
    }
    Ok(())
}

/// Whether a server that said no length has nothing after the file. What is too much need not come in one piece with its end.
async fn at_its_end(
    opened: &mut Opened,
    expected: u64,
    place: impl Fn() -> String,
) -> Result<(), FetchError> {
    loop {
        match tokio::time::timeout(STALL, opened.body.next()).await {
            Ok(Some(Ok(more))) if more.is_empty() => {}
            Ok(Some(Ok(more))) => {
                return Err(FetchError::WrongLength {
                    place: place(),
                    expected,
                    found: expected + more.len() as u64,
                });
            }
            // All bytes are here, and their digest decides.
            Ok(Some(Err(_)) | None) | Err(_) => return Ok(()),
        }
    }
}

/// Runs what waits for a disk on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FetchError> + Send + 'static,
) -> Result<T, FetchError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(FetchError::Cache {
            doing: "work in",
            path: std::path::PathBuf::new(),
            source: std::io::Error::other(error),
        })
    })
}
