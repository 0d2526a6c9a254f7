//! `GET` and `DELETE` below `/v1/files`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde_json::{Value, json as value};
use weir_store::{Expect, ObjectRange, ObjectWrite, Store};

use super::meta::{FILES, FileMeta, find, read};
use super::pieces::piece;
use super::sweep::{Marker, take_away};
use crate::batches;
use crate::clock::now_ms;
use crate::error::{ApiError, ApiResult};
use crate::http::body::{Body, ByteStream};
use crate::http::list::{self, Page};
use crate::http::reply::json;
use crate::http::route::Call;

/// Documents read from the store at once.
const PAGE: usize = 256;
/// Most files of one answer, as `OpenAI` has it.
const MAX_LIST: u64 = 10_000;

pub(crate) async fn list(call: &Call) -> ApiResult<Response<Body>> {
    let page = Page::read(call, &["purpose"], MAX_LIST, MAX_LIST)?;
    let purpose = page.filter("purpose");
    let store = &call.core.store;
    let mut data: Vec<Value> = Vec::new();
    let mut cursor = page.after.clone().unwrap_or_default();
    let mut more = false;
    'pages: loop {
        let (after, before) = page.bounds(&cursor);
        let found = store
            .objects(ObjectRange {
                space: FILES,
                owner: call.tenant.name.clone(),
                after,
                before,
                descending: page.descending,
                limit: PAGE,
            })
            .await?;
        let last = found.last().map(|object| object.name.clone());
        let whole = found.len() == PAGE;
        for object in &found {
            let meta: FileMeta = read(object)?;
            if meta.is_over() || purpose.is_some_and(|wanted| wanted != meta.purpose.as_str()) {
                continue;
            }
            if data.len() as u64 == page.limit {
                more = true;
                break 'pages;
            }
            data.push(meta.view());
        }
        match last {
            Some(last) if whole => cursor = last,
            _ => break,
        }
    }
    Ok(list::answer(&data, more))
}

pub(crate) async fn retrieve(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let meta = find(&*call.core.store, &call.tenant.name, id).await?;
    Ok(json(StatusCode::OK, &meta.view()))
}

pub(crate) async fn delete(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let (store, tenant) = (&call.core.store, &call.tenant.name);
    find(&**store, tenant, id).await?;
    if let Some(batch) = batches::reading(&**store, tenant, id).await? {
        return Err(ApiError::invalid(
            "file_id",
            format!("batch {batch} still reads this file; cancel it or wait for its end"),
        ));
    }
    remove(&**store, tenant, id).await?;
    let deleted = value!({"id": id, "object": "file", "deleted": true});
    Ok(json(StatusCode::OK, &deleted))
}

async fn remove(store: &dyn Store, tenant: &str, id: &str) -> ApiResult<()> {
    store
        .write_objects(vec![
            ObjectWrite {
                space: FILES,
                owner: tenant.to_owned(),
                name: id.to_owned(),
                expect: Expect::Any,
                data: None,
            },
            Marker::file(tenant, id).write(now_ms()),
        ])
        .await?;
    // Its space is free when this answers; if it cannot be, the marker has it freed soon.
    take_away(store, tenant, id).await.ok();
    Ok(())
}

/// Deletes a tenant's files that came before a moment, but for those that a batch still reads; how many.
pub(crate) async fn forget(store: &dyn Store, tenant: &str, before_ms: u64) -> ApiResult<u64> {
    let (mut after, mut count) = (String::new(), 0);
    loop {
        let found = store
            .objects(ObjectRange {
                space: FILES,
                owner: tenant.to_owned(),
                after,
                before: None,
                descending: false,
                limit: PAGE,
            })
            .await?;
        let Some(last) = found.last() else {
            return Ok(count);
        };
        after = last.name.clone();
        for object in &found {
            let meta: FileMeta = read(object)?;
            let is_meant = meta.created_at_ms < before_ms;
            if is_meant && batches::reading(store, tenant, &meta.id).await?.is_none() {
                remove(store, tenant, &meta.id).await?;
                count += 1;
            }
        }
    }
}

pub(crate) async fn content(call: &Call, id: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let meta = find(&*call.core.store, &call.tenant.name, id).await?;
    let bytes = meta.bytes;
    let stream = Content {
        store: call.core.store.clone(),
        tenant: call.tenant.name.clone(),
        file: meta,
        next: 0,
        reading: None,
    };
    let mut response = Response::new(Body::stream(stream));
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    // A client is told how much there is: one that gets less knows.
    headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
    Ok(response)
}

type Reading = Pin<Box<dyn Future<Output = ApiResult<Bytes>> + Send>>;

/// A file's content, one piece in memory.
struct Content {
    store: Arc<dyn Store>,
    tenant: String,
    file: FileMeta,
    next: u32,
    reading: Option<Reading>,
}

impl ByteStream for Content {
    fn poll_bytes(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = &mut *self;
        if this.next >= this.file.pieces {
            return Poll::Ready(None);
        }
        let reading = this.reading.get_or_insert_with(|| {
            let (store, number) = (Arc::clone(&this.store), this.next);
            let (tenant, file) = (this.tenant.clone(), this.file.id.clone());
            Box::pin(async move { piece(&*store, &tenant, &file, number).await })
        });
        let read = ready!(reading.as_mut().poll(cx));
        this.reading = None;
        match read {
            Ok(bytes) => {
                this.next += 1;
                Poll::Ready(Some(bytes))
            }
            Err(error) => {
                tracing::error!(file = this.file.id, error = ?error.body(), "a file breaks off");
                this.next = u32::MAX;
                Poll::Ready(None)
            }
        }
    }
}
