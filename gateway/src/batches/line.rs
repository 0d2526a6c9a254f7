//! One line of a batch: from its text to its result.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, watch};
use weir_protocol::error::{ErrorBody, ErrorCode};
use weir_run::{Run, RunStatus, Usage};

use super::doc::Endpoint;
use crate::clock::now_ms;
use crate::core::{CANCELLED, Core};
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::json::parse_object;
use crate::http::route::Call;
use crate::openai::{self, Kind, responses};
use crate::snapshot::Tenant;

/// How long a refused line waits at least and at most, whatever it is told.
const WAIT_MS: std::ops::RangeInclusive<u64> = 100..=5000;
/// How often a run that shall end is looked for while it is on its way in.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What a line needs to be carried out.
pub(super) struct Task {
    pub(super) core: Arc<Core>,
    pub(super) tenant: String,
    pub(super) batch: String,
    pub(super) endpoint: Endpoint,
    /// Its place among the lines of the batch, from 0.
    pub(super) place: u32,
    /// Its number in the file, from 1.
    pub(super) number: u32,
    pub(super) text: Option<Bytes>,
    pub(super) places: Arc<Semaphore>,
    /// Why nothing may begin any more, once it is so.
    pub(super) stop: watch::Receiver<Option<&'static str>>,
}

/// A line's result.
pub(super) struct Outcome {
    pub(super) place: u32,
    /// One line of JSON, without its end.
    pub(super) record: Vec<u8>,
    /// Goes to the output; otherwise to the errors.
    pub(super) succeeded: bool,
    pub(super) usage: Usage,
    /// The batch's end kept it from being carried out.
    pub(super) stopped: Option<&'static str>,
}

/// A line that can be carried out.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) custom_id: String,
    body: Vec<u8>,
}

/// A line that cannot, and as much of its name as it has.
#[derive(Debug)]
pub(super) struct BadLine {
    pub(super) custom_id: Option<String>,
    pub(super) message: String,
}

/// Reads a line.
pub(super) fn parse(
    text: Option<&[u8]>,
    endpoint: Endpoint,
    depth: usize,
    most: usize,
) -> Result<Order, BadLine> {
    let bad = |custom_id: Option<String>, message: String| BadLine { custom_id, message };
    let text = text.ok_or_else(|| bad(None, format!("the line is longer than {most} bytes")))?;
    let mut line: Map<String, Value> = parse_object(text, depth)
        .map_err(|error| bad(None, error.body().message.replace("the body", "the line")))?;
    let custom_id = match line.remove("custom_id") {
        Some(Value::String(id)) if (1..=512).contains(&id.len()) => id,
        _ => {
            return Err(bad(
                None,
                "`custom_id` must be text of 1 to 512 bytes".to_owned(),
            ));
        }
    };
    let name = Some(custom_id.clone());
    if line.remove("method").is_none_or(|method| method != "POST") {
        return Err(bad(name, "`method` must be POST".to_owned()));
    }
    if line.remove("url").is_none_or(|url| url != endpoint.path()) {
        let path = endpoint.path();
        return Err(bad(
            name,
            format!("`url` must be {path}, as the batch says"),
        ));
    }
    let Some(Value::Object(body)) = line.remove("body") else {
        return Err(bad(name, "`body` must be an object".to_owned()));
    };
    if let Some((other, _)) = line.into_iter().next() {
        return Err(bad(name, format!("unknown field `{other}`")));
    }
    for field in ["stream", "background"] {
        if body.get(field).is_some_and(|value| *value == true) {
            return Err(bad(name, format!("`{field}` makes no sense in a batch")));
        }
    }
    Ok(Order {
        custom_id,
        body: serde_json::to_vec(&body).expect("it was JSON"),
    })
}

impl Task {
    pub(super) async fn carry_out(self) -> Outcome {
        let config = &self.core.config;
        let read = parse(
            self.text.as_deref(),
            self.endpoint,
            config.json_depth,
            config.body_bytes,
        );
        match read {
            Err(bad) => {
                let error = json!({
                    "code": "invalid_line", "message": bad.message, "param": null, "line": self.number,
                });
                self.refused(bad.custom_id.as_deref(), &error)
            }
            Ok(order) => self.run(&order).await,
        }
    }

    async fn run(&self, order: &Order) -> Outcome {
        let mut attempt = 1_u32;
        loop {
            let stopped = *self.stop.borrow();
            let key = self.key(attempt);
            if let Some(code) = stopped
                && !self.cancel(&key).await
            {
                return self.not_run(order, code);
            }
            let wait_ms = match self.attempt(order, &key).await {
                Err(None) => *WAIT_MS.start(),
                Err(Some(error)) if will_do_later(&error) => {
                    error.body().retry_after_ms.unwrap_or(1000)
                }
                Err(Some(error)) => return self.answered(order, &error_answer(&error), None, None),
                Ok((answer, run)) => {
                    let stopped = *self.stop.borrow();
                    match stopped {
                        Some(code) if run.status == RunStatus::Cancelled => {
                            return self.not_run(order, code);
                        }
                        // Also after the batch's end: the next run may have been begun before a crash.
                        _ if never_began(&run) => {
                            attempt += 1;
                            *WAIT_MS.start()
                        }
                        _ => return self.answered(order, &answer, Some(&run), stopped),
                    }
                }
            };
            let wait = Duration::from_millis(wait_ms.clamp(*WAIT_MS.start(), *WAIT_MS.end()));
            let mut stop = self.stop.clone();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = stop.wait_for(Option::is_some), if stopped.is_none() => {}
            }
        }
    }

    /// The name of the line's run. The same whoever carries it out: a line that was begun is found, not begun again.
    fn key(&self, attempt: u32) -> String {
        let (batch, place) = (&self.batch, self.place);
        match attempt {
            1 => format!("{batch}/{place}"),
            more => format!("{batch}/{place}/{more}"),
        }
    }

    /// One call, to its end. `Err(None)`: not now.
    async fn attempt(&self, order: &Order, key: &str) -> Result<(Answer, Run), Option<ApiError>> {
        let mut stop = self.stop.clone();
        // After the batch's end only what runs already is waited for, and that has its place.
        let _place = if self.stop.borrow().is_some() {
            None
        } else {
            tokio::select! {
                place = self.places.acquire() => Some(place.map_err(|_| None)?),
                _ = stop.wait_for(Option::is_some) => return Err(None),
            }
        };
        let tenant = self.core.directory.load().keys.tenant(&self.tenant);
        // A tenant that is gone may come back; the batch's end is its patience.
        let tenant = tenant.ok_or(None)?;
        let call = self.call(tenant, key).map_err(Some)?;
        let mut calling = std::pin::pin!(self.answer(&call, order));
        let answered = loop {
            let look = async {
                stop.wait_for(Option::is_some).await.ok();
                tokio::time::sleep(LOOK_EVERY).await;
            };
            // The call is never dropped: a run that is on its way in would be nobody's.
            tokio::select! {
                answered = &mut calling => break answered,
                () = look => {
                    self.cancel(key).await;
                }
            }
        };
        let answer = answered.map_err(Some)?;
        let found = self.core.store.run_by_key(&self.tenant, key).await;
        match found.map_err(|error| Some(error.into()))? {
            Some(run) if run.status.is_terminal() => Ok((answer, run)),
            _ => Err(None),
        }
    }

    fn call(&self, tenant: Arc<Tenant>, key: &str) -> ApiResult<Call> {
        let mut headers = HeaderMap::new();
        let key = HeaderValue::try_from(key)
            .map_err(|_| ApiError::new(ErrorCode::Internal, "a key is no header"))?;
        headers.insert("idempotency-key", key);
        headers.insert("x-weir-priority", HeaderValue::from_static("batch"));
        Ok(Call::internal(Arc::clone(&self.core), tenant, headers))
    }

    async fn answer(&self, call: &Call, order: &Order) -> ApiResult<Answer> {
        let response = match self.endpoint {
            Endpoint::Chat => openai::serve_from(call, Kind::Chat, &order.body).await,
            Endpoint::Completions => openai::serve_from(call, Kind::Completion, &order.body).await,
            Endpoint::Responses => responses::create_from(call, &order.body).await,
        }?;
        Ok(Answer::of(response))
    }

    /// Ends the line's run; whether there is one.
    async fn cancel(&self, key: &str) -> bool {
        let store = &self.core.store;
        let Ok(Some(run)) = store.run_by_key(&self.tenant, key).await else {
            return false;
        };
        if !run.status.is_terminal() {
            store.cancel(&self.tenant, run.id, now_ms()).await.ok();
            self.core.end_soon(run.id, CANCELLED);
        }
        true
    }

    /// The batch ended before the line's turn, or in the middle of it.
    fn not_run(&self, order: &Order, code: &'static str) -> Outcome {
        let message = if code == "batch_expired" {
            "the line was not carried out before the batch's completion window ended"
        } else {
            "the line was not carried out before the batch was cancelled"
        };
        let error = json!({"code": code, "message": message, "param": null, "line": self.number});
        Outcome {
            stopped: Some(code),
            ..self.refused(Some(&order.custom_id), &error)
        }
    }

    fn refused(&self, custom_id: Option<&str>, error: &Value) -> Outcome {
        let record = json!({
            "id": self.id(), "custom_id": custom_id, "response": null, "error": error,
        });
        Outcome {
            place: self.place,
            record: record.to_string().into_bytes(),
            succeeded: false,
            usage: Usage::default(),
            stopped: None,
        }
    }

    fn answered(
        &self,
        order: &Order,
        answer: &Answer,
        run: Option<&Run>,
        stopped: Option<&'static str>,
    ) -> Outcome {
        let request = run.map(|run| run.id.to_string());
        // The body is JSON already and stays as it was made.
        let mut record = format!(
            "{{\"id\":{},\"custom_id\":{},\"response\":{{\"status_code\":{},\"request_id\":{},\"body\":",
            json!(self.id()),
            json!(order.custom_id),
            answer.status,
            json!(request.unwrap_or_else(|| self.id())),
        )
        .into_bytes();
        record.extend_from_slice(&answer.body);
        record.extend_from_slice(b"},\"error\":null}");
        let succeeded =
            answer.status == 200 && run.is_some_and(|run| run.status == RunStatus::Completed);
        Outcome {
            place: self.place,
            record,
            succeeded,
            usage: run.map_or_else(Usage::default, Run::usage),
            stopped: stopped.filter(|_| !succeeded),
        }
    }

    fn id(&self) -> String {
        let bare = self.batch.strip_prefix("batch_").unwrap_or(&self.batch);
        format!("batch_req_{bare}_{}", self.place)
    }
}

/// An answer as a client would have got it.
struct Answer {
    status: u16,
    body: Bytes,
}

impl Answer {
    fn of(response: Response<Body>) -> Self {
        let status = response.status().as_u16();
        let body = match response.into_body() {
            Body::Full(Some(body)) => body,
            _ => Bytes::from_static(b"null"),
        };
        Self { status, body }
    }
}

fn error_answer(error: &ApiError) -> Answer {
    let body: &ErrorBody = error.body();
    Answer {
        status: error.code().status().as_u16(),
        body: json!({"error": body}).to_string().into(),
    }
}

/// Whether the same line may be let in later. A budget that is spent is not waited for: that may take a month.
fn will_do_later(error: &ApiError) -> bool {
    error.code().is_retryable() || error.code() == ErrorCode::DeadlineUnmeetable
}

/// Whether a run ended in the queue: nothing was done and nothing billed, so the line can be tried again under the next key.
fn never_began(run: &Run) -> bool {
    let waited = matches!(run.status, RunStatus::Expired | RunStatus::Interrupted);
    waited && run.started_at_ms.is_none() && run.output_tokens == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_or_says_what_is_wrong_with_it() {
        let good = r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}"#;
        let order = parse(Some(good.as_bytes()), Endpoint::Chat, 8, 999).unwrap();
        assert_eq!(
            (order.custom_id.as_str(), &order.body[..]),
            ("a", &br#"{"model":"m"}"#[..])
        );
        for (line, custom_id, says) in [
            ("{", None, "not valid JSON"),
            ("[]", None, "JSON object"),
            (r#"{"custom_id":""}"#, None, "custom_id"),
            (r#"{"custom_id":"a"}"#, Some("a"), "method"),
            (
                r#"{"custom_id":"a","method":"POST","url":"/v1/responses","body":{}}"#,
                Some("a"),
                "url",
            ),
            (
                r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions"}"#,
                Some("a"),
                "body",
            ),
            (
                &good.replace("\"m\"", "\"m\",\"stream\":true"),
                Some("a"),
                "stream",
            ),
            (
                &good.replace("{\"custom", "{\"x\":1,\"custom"),
                Some("a"),
                "`x`",
            ),
        ] {
            let bad = parse(Some(line.as_bytes()), Endpoint::Chat, 8, 999).unwrap_err();
            assert_eq!(bad.custom_id.as_deref(), custom_id, "{line}");
            assert!(bad.message.contains(says), "{line}: {}", bad.message);
        }
        let long = parse(None, Endpoint::Chat, 8, 999).unwrap_err();
        assert!(long.message.contains("999"));
    }
}
