//! Bodies of requests: how large one may be, how long it may take, and how much of all of them is held at once.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use parking_lot::Mutex;
use weir_protocol::error::ErrorCode;

use crate::config::Config;
use crate::error::{ApiError, ApiResult};

/// How much longer than allowed a body may be for its sender to read why it is refused.
const DISCARDED_BODIES: usize = 16;
/// How long that may take.
const DISCARD_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);
/// One tenant's part of what all bodies together may hold.
const TENANTS_PART: usize = 4;
/// What a buffer begins with, whatever length the client announces.
const FIRST_BYTES: usize = 16 << 10;

/// Bytes of bodies that are held at the moment: from their arrival to the end of their request.
pub(crate) struct Bodies {
    held: Mutex<Held>,
    most: usize,
}

#[derive(Default)]
struct Held {
    all: usize,
    tenants: HashMap<String, usize>,
}

/// One body's part, given back when dropped.
pub(crate) struct Share {
    bodies: Arc<Bodies>,
    tenant: String,
    bytes: usize,
}

impl Bodies {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            held: Mutex::default(),
            most,
        })
    }

    pub(crate) fn share(self: &Arc<Self>, tenant: &str) -> Share {
        Share {
            bodies: Arc::clone(self),
            tenant: tenant.to_owned(),
            bytes: 0,
        }
    }
}

impl Share {
    /// Takes up to `bytes` in all; whether there was room.
    fn grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let mut held = self.bodies.held.lock();
        let most = self.bodies.most;
        let own = held.tenants.get(&self.tenant).copied().unwrap_or(0);
        if held.all + more > most || own + more > most / TENANTS_PART {
            return false;
        }
        held.all += more;
        *held.tenants.entry(self.tenant.clone()).or_default() += more;
        self.bytes += more;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.bodies.held.lock();
        held.all -= self.bytes;
        if let Some(own) = held.tenants.get_mut(&self.tenant) {
            *own -= self.bytes;
            if *own == 0 {
                held.tenants.remove(&self.tenant);
            }
        }
    }
}

/// A body, if it is small enough, comes in time, and there is room for it.
pub(crate) async fn receive(
    config: &Config,
    headers: &HeaderMap,
    mut body: Incoming,
    share: &mut Share,
) -> ApiResult<Bytes> {
    let collected = tokio::time::timeout(
        config.body_timeout,
        collect(config, headers, &mut body, share),
    );
    match collected.await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            discard(config, &mut body).await;
            Err(error)
        }
        Err(_) => Err(ApiError::new(
            ErrorCode::InvalidRequest,
            "the body did not arrive in time; send it faster",
        )),
    }
}

async fn collect(
    config: &Config,
    headers: &HeaderMap,
    body: &mut Incoming,
    share: &mut Share,
) -> ApiResult<Bytes> {
    if let Some(encoding) = headers.get(CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        // A few bytes of it may stand for gigabytes.
        return Err(ApiError::invalid(
            "content-encoding",
            format!(
                "content-encoding {encoding:?} is not taken; send the body as it is, without compression"
            ),
        ));
    }
    if body.size_hint().lower() > config.body_bytes as u64 {
        return Err(too_large(config));
    }
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(FIRST_BYTES);
    // One buffer: a list of what came piece by piece could be many times as large as the pieces.
    let mut bytes = BytesMut::new();
    let first = announced.min(FIRST_BYTES);
    if !share.grow(first) {
        return Err(crowded());
    }
    bytes.reserve(first);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::new(
                ErrorCode::InvalidRequest,
                format!("the body could not be read: {error}"),
            )
        })?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        let length = bytes.len() + data.len();
        if length > config.body_bytes {
            return Err(too_large(config));
        }
        if length > bytes.capacity() {
            let wanted = (bytes.capacity() * 2).max(length).min(config.body_bytes);
            if !share.grow(wanted) {
                return Err(crowded());
            }
            bytes.reserve(wanted - bytes.len());
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes.freeze())
}

fn too_large(config: &Config) -> ApiError {
    ApiError::new(
        ErrorCode::BodyTooLarge,
        format!(
            "the body is larger than {} bytes; send less text",
            config.body_bytes
        ),
    )
    .details(serde_json::json!({"largestBodyBytes": config.body_bytes}))
}

fn crowded() -> ApiError {
    ApiError::new(
        ErrorCode::QueueFull,
        "too much of other request bodies is held at the moment; try again shortly",
    )
    .retry_after_ms(1000)
}

/// Reads the rest of a body that is refused. Most clients read an answer only when they have sent everything; one that is cut off
/// before sees a broken connection, and tries again.
pub(crate) async fn discard(config: &Config, body: &mut Incoming) {
    let rest = async {
        let mut left = config.body_bytes.saturating_mul(DISCARDED_BODIES);
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    tokio::time::timeout(DISCARD_WITHIN, rest).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_quarter_and_all_have_no_more_than_there_is() {
        let bodies = Bodies::new(400);
        let mut first = bodies.share("greedy");
        assert!(first.grow(60) && first.grow(100));
        assert!(!bodies.share("greedy").grow(1));
        let mut others: Vec<_> = ["a", "b", "c"].map(|name| bodies.share(name)).into();
        assert!(others.iter_mut().all(|share| share.grow(100)));
        assert!(!bodies.share("d").grow(1));
        drop(others);
        assert!(bodies.share("d").grow(100));
        drop(first);
        assert_eq!(bodies.held.lock().all, 0);
        assert!(bodies.held.lock().tenants.is_empty());
    }
}
