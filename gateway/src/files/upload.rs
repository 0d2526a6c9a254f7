//! `POST /v1/files`: a form, streamed into the store.

use std::time::Duration;

use http::{Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use weir_protocol::error::ErrorCode;
use weir_store::{Expect, ObjectWrite, Store, Written};

use super::meta::{FileMeta, Purpose, find, new_id, read, to_bytes};
use super::multipart::{BrokenForm, Multipart, Piece};
use super::pieces::PieceWriter;
use super::sweep::{KEYS, Marker, take_away};
use crate::clock::now_ms;
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::receive::discard;
use crate::http::reply::json;
use crate::http::route::Call;
use crate::openai::idempotency_key;

/// Longest time for a whole upload.
const WITHIN: Duration = Duration::from_mins(10);
/// When an upload that was not finished is taken away.
const UNFINISHED_MS: u64 = 60 * 60 * 1000;
/// Files are kept so long where nothing is said, as `OpenAI` keeps those of batches.
pub(crate) const DEFAULT_LIFE_S: u64 = 30 * 24 * 60 * 60;
/// What `expires_after` may say.
pub(crate) const LIFE_S: std::ops::RangeInclusive<u64> = 3600..=DEFAULT_LIFE_S;
/// A request's key names its file for so long.
const KEY_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Longest value of a field that is no file.
const MAX_FIELD_BYTES: usize = 1024;

/// What the fields of the form said.
#[derive(Default)]
struct Form {
    purpose: Option<String>,
    anchor: Option<String>,
    seconds: Option<String>,
    filename: Option<String>,
}

/// A request's key, and the file it made.
#[derive(Serialize, Deserialize)]
struct Known {
    hash: String,
    file: String,
}

pub(crate) async fn upload(mut call: Call) -> ApiResult<Response<Body>> {
    let content_type = call.header("content-type")?.unwrap_or_default();
    let boundary = Multipart::boundary(content_type).ok_or_else(|| {
        ApiError::invalid(
            "file",
            "a file comes as multipart/form-data with the fields file and purpose",
        )
    })?;
    let parser = Multipart::new(boundary);
    let key = idempotency_key(&call)?;
    let Some(mut body) = call.take_body() else {
        return Err(ApiError::invalid("file", "the body is missing"));
    };
    let file = new_id("file-");
    let taken = take(&call, parser, &mut body, &file, key).await;
    if taken.is_err() {
        discard(&call.core.config, &mut body).await;
        // What came so far goes; the marker does it if this does not.
        let core = std::sync::Arc::clone(&call.core);
        let tenant = call.tenant.name.clone();
        call.core.tasks.spawn(async move {
            take_away(&*core.store, &tenant, &file).await.ok();
        });
    }
    taken.map(|meta| json(StatusCode::OK, &meta.view()))
}

async fn take(
    call: &Call,
    parser: Multipart,
    body: &mut Incoming,
    file: &str,
    key: Option<String>,
) -> ApiResult<FileMeta> {
    let (store, tenant) = (&call.core.store, &call.tenant.name);
    let marker = Marker::file(tenant, file).write(now_ms() + UNFINISHED_MS);
    store.write_objects(vec![marker]).await?;
    let config = &call.core.config;
    let mut writer = PieceWriter::new(store.clone(), tenant, file, Some(config.tenant_file_bytes));
    let mut hasher = blake3::Hasher::new();
    let form = receive(call, parser, body, &mut writer, &mut hasher).await?;
    let (purpose, life_s) = form.check()?;
    writer.finish().await?;
    let now = now_ms();
    let meta = FileMeta {
        id: file.to_owned(),
        bytes: writer.bytes,
        pieces: writer.pieces,
        created_at_ms: now,
        filename: form.filename.unwrap_or_else(|| "upload".to_owned()),
        purpose,
        expires_at_ms: now + life_s * 1000,
    };
    hasher.update(meta.filename.as_bytes());
    let hash = hasher.finalize().to_hex().to_string();
    commit(&**store, tenant, meta, key, hash).await
}

/// Makes a whole file known, once for each key.
async fn commit(
    store: &dyn Store,
    tenant: &str,
    meta: FileMeta,
    key: Option<String>,
    hash: String,
) -> ApiResult<FileMeta> {
    let mut writes = vec![
        meta.write(tenant, Expect::Absent),
        Marker::file(tenant, &meta.id).write(meta.expires_at_ms),
    ];
    let name = key.map(|key| format!("files/{key}"));
    if let Some(name) = &name {
        let known = Known {
            hash: hash.clone(),
            file: meta.id.clone(),
        };
        writes.push(ObjectWrite {
            space: KEYS,
            owner: tenant.to_owned(),
            name: name.clone(),
            expect: Expect::Absent,
            data: Some(to_bytes(&known)),
        });
        writes.push(Marker::key(tenant, name).write(now_ms() + KEY_MS));
    }
    if store.write_objects(writes).await? == Written::Done {
        return Ok(meta);
    }
    let found = match &name {
        Some(name) => store.object(KEYS, tenant, name).await?,
        None => None,
    };
    let Some(found) = found else {
        return Err(ApiError::new(
            ErrorCode::Internal,
            "the file could not be kept",
        ));
    };
    let known: Known = read(&found)?;
    if known.hash != hash {
        return Err(ApiError::new(
            ErrorCode::RequestKeyConflict,
            format!(
                "this key belongs to {} with another content; use a new key for a new file",
                known.file
            ),
        )
        .param("idempotency-key"));
    }
    let first = find(store, tenant, &known.file).await?;
    // The content came twice; once is enough.
    take_away(store, tenant, &meta.id).await?;
    Ok(first)
}

/// Takes the form in: the file goes to the writer, the other fields are few and short.
async fn receive(
    call: &Call,
    mut parser: Multipart,
    body: &mut Incoming,
    writer: &mut PieceWriter,
    hasher: &mut blake3::Hasher,
) -> ApiResult<Form> {
    let config = &call.core.config;
    let until = Instant::now() + WITHIN;
    let mut form = Form::default();
    let mut field: Option<String> = None;
    let (mut received, mut came) = (0_u64, false);
    loop {
        match parser.next().map_err(|error| broken(&error))? {
            Some(Piece::End) => break,
            Some(Piece::Part { name, filename }) => {
                if name == "file" {
                    if std::mem::replace(&mut came, true) {
                        return Err(ApiError::invalid("file", "`file` is given twice"));
                    }
                    form.filename = filename.map(|name| shortened(&name));
                } else {
                    form.slot(&name)?;
                }
                field = Some(name);
            }
            Some(Piece::Data(data)) => match field.as_deref() {
                Some("file") => {
                    received += data.len() as u64;
                    if received > config.file_bytes {
                        return Err(too_large(config.file_bytes));
                    }
                    hasher.update(&data);
                    writer.push(&data).await?;
                }
                Some(name) => form.add(name, &data)?,
                None => {}
            },
            None => {
                let wait = config
                    .body_timeout
                    .min(until.duration_since(Instant::now()));
                match tokio::time::timeout(wait, body.frame()).await {
                    Ok(Some(Ok(frame))) => {
                        if let Some(data) = frame.data_ref() {
                            parser.push(data);
                        }
                    }
                    Ok(Some(Err(error))) => {
                        let what = format!("the body could not be read: {error}");
                        return Err(ApiError::invalid("file", what));
                    }
                    Ok(None) => return Err(broken(&BrokenForm("it ends early"))),
                    Err(_) => {
                        let what = "the file did not arrive in time; send it faster";
                        return Err(ApiError::invalid("file", what));
                    }
                }
            }
        }
    }
    if came {
        Ok(form)
    } else {
        Err(ApiError::invalid("file", "`file` is missing"))
    }
}

impl Form {
    fn slot(&mut self, name: &str) -> ApiResult<&mut String> {
        let slot = match name {
            "purpose" => &mut self.purpose,
            "expires_after[anchor]" => &mut self.anchor,
            "expires_after[seconds]" => &mut self.seconds,
            _ => {
                let what = format!("unknown field `{name}`; remove it or check its spelling");
                return Err(ApiError::invalid(name, what));
            }
        };
        Ok(slot.get_or_insert_default())
    }

    fn add(&mut self, name: &str, data: &[u8]) -> ApiResult<()> {
        let slot = self.slot(name)?;
        if slot.len() + data.len() > MAX_FIELD_BYTES {
            let what = format!("`{name}` is longer than {MAX_FIELD_BYTES} bytes");
            return Err(ApiError::invalid(name, what));
        }
        slot.push_str(&String::from_utf8_lossy(data));
        Ok(())
    }

    fn check(&self) -> ApiResult<(Purpose, u64)> {
        let purpose = match self.purpose.as_deref() {
            Some("batch") => Purpose::Batch,
            Some(other) => {
                return Err(ApiError::new(
                    ErrorCode::UnsupportedParameter,
                    format!("files of purpose {other:?} are not kept here; there is \"batch\""),
                )
                .param("purpose"));
            }
            None => {
                return Err(ApiError::invalid(
                    "purpose",
                    "`purpose` is missing; say batch",
                ));
            }
        };
        let wrong = || {
            ApiError::invalid(
                "expires_after",
                format!(
                    "`expires_after` must be anchor created_at and {} to {} seconds",
                    LIFE_S.start(),
                    LIFE_S.end()
                ),
            )
        };
        let life_s = match (self.anchor.as_deref(), &self.seconds) {
            (None, None) => DEFAULT_LIFE_S,
            (Some("created_at"), Some(seconds)) => seconds
                .parse()
                .ok()
                .filter(|seconds| LIFE_S.contains(seconds))
                .ok_or_else(wrong)?,
            _ => return Err(wrong()),
        };
        Ok((purpose, life_s))
    }
}

/// A name as long as it is of use.
fn shortened(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(255).collect()
}

fn broken(error: &BrokenForm) -> ApiError {
    ApiError::invalid("file", error.to_string())
}

fn too_large(most: u64) -> ApiError {
    ApiError::new(
        ErrorCode::BodyTooLarge,
        format!("the file is larger than {most} bytes; split it"),
    )
    .param("file")
    .details(serde_json::json!({"largestFileBytes": most}))
}
