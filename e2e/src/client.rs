//! A client of the HTTP contract: plain requests, plain answers.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Talks to one gateway as one tenant.
#[derive(Clone, Debug)]
pub struct Client {
    base: String,
    key: String,
    agent: ureq::Agent,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Header names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body as JSON; a string where it is not JSON.
    pub body: Value,
}

impl Reply {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// `error.code` of the body.
    pub fn code(&self) -> &str {
        self.body["error"]["code"]
            .as_str()
            .unwrap_or("(no error code)")
    }

    /// `runId` of the body.
    pub fn run_id(&self) -> String {
        self.body["runId"].as_str().unwrap_or_default().to_owned()
    }
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// `id`.
    pub id: u64,
    /// `event`.
    pub kind: String,
    /// `data`, as the bytes that came.
    pub data: String,
}

impl Event {
    /// `data` as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or(Value::Null)
    }

    /// Whether nothing may follow.
    pub fn is_terminal(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "completed" | "cancelled" | "interrupted" | "failed" | "expired"
        )
    }
}

/// Events as they arrive.
pub struct EventStream {
    reader: BufReader<Box<dyn Read + Send>>,
    /// Headers of the answer.
    pub headers: Vec<(String, String)>,
}

/// A stream, or the refusal of one.
pub(crate) enum Opened {
    /// Events follow.
    Stream(EventStream),
    /// The answer instead.
    Refused(Reply),
}

impl Client {
    /// For the gateway at `base` (`http://127.0.0.1:PORT`).
    pub fn new(base: &str, key: &str) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_recv_response(Some(Duration::from_mins(1)))
            .timeout_recv_body(Some(Duration::from_mins(2)))
            .build()
            .into();
        Self {
            base: base.to_owned(),
            key: key.to_owned(),
            agent,
        }
    }

    /// Any call with an optional JSON body and further headers.
    ///
    /// # Errors
    /// The gateway cannot be reached or breaks off.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<Reply> {
        read(self.send(method, path, body, headers)?)
    }

    /// `GET path`.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn get(&self, path: &str) -> Result<Reply> {
        self.call("GET", path, None, &[])
    }

    /// `POST path`.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        self.call("POST", path, Some(body), &[])
    }

    /// The same with headers.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn post_with(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Result<Reply> {
        self.call("POST", path, Some(body), headers)
    }

    /// Sends a file of purpose `batch`.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn upload(&self, content: &str) -> Result<Reply> {
        let form = format!(
            "--cut\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--cut\r\n\
             Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{content}\r\n--cut--\r\n"
        );
        let request = ureq::http::Request::builder()
            .method("POST")
            .uri(format!("{}/v1/files", self.base))
            .header("authorization", format!("Bearer {}", self.key))
            .header("content-type", "multipart/form-data; boundary=cut")
            .body(form)?;
        read(self.agent.run(request).context("POST /v1/files")?)
    }

    /// `DELETE path`.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn delete(&self, path: &str) -> Result<Reply> {
        self.call("DELETE", path, None, &[])
    }

    /// `POST /inference` answered by the run's events.
    ///
    /// # Errors
    /// The gateway cannot be reached, or refuses: the text holds its answer.
    pub fn stream(&self, body: &Value) -> Result<EventStream> {
        open(self.send(
            "POST",
            "/inference",
            Some(body),
            &[("accept", "text/event-stream")],
        )?)
    }

    /// `GET /runs/{run}/events?after=N`.
    ///
    /// # Errors
    /// As for [`Client::stream`].
    pub fn events(&self, run: &str, after: u64) -> Result<EventStream> {
        open(self.send(
            "GET",
            &format!("/runs/{run}/events?after={after}"),
            None,
            &[],
        )?)
    }

    /// All events of a run up to its end.
    ///
    /// # Errors
    /// As for [`Client::stream`]; or the stream ends without a terminal event.
    pub fn all_events(&self, run: &str, after: u64) -> Result<Vec<Event>> {
        self.events(run, after)?.to_end()
    }

    /// Any call that is answered by events.
    pub(crate) fn open(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<Opened> {
        let response = self.send(method, path, body, headers)?;
        if response.status() == 200 {
            return open(response).map(Opened::Stream);
        }
        read(response).map(Opened::Refused)
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<ureq::http::Response<ureq::Body>> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("authorization", format!("Bearer {}", self.key));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let sent = match body {
            Some(body) => {
                let request = request
                    .header("content-type", "application/json")
                    .body(body.to_string())?;
                self.agent.run(request)
            }
            None => self.agent.run(request.body(())?),
        };
        sent.with_context(|| format!("{method} {path}"))
    }
}

fn read(response: ureq::http::Response<ureq::Body>) -> Result<Reply> {
    let status = response.status().as_u16();
    let headers = header_list(&response);
    let text = response
        .into_body()
        .read_to_string()
        .context("the body broke off")?;
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(Reply {
        status,
        headers,
        body,
    })
}

fn open(response: ureq::http::Response<ureq::Body>) -> Result<EventStream> {
    if response.status() != 200 {
        bail!(
            "{}: {}",
            response.status(),
            response.into_body().read_to_string().unwrap_or_default()
        );
    }
    let headers = header_list(&response);
    Ok(EventStream {
        reader: BufReader::new(Box::new(response.into_body().into_reader())),
        headers,
    })
}

impl EventStream {
    /// The next event; `None` at the end of the stream.
    ///
    /// # Errors
    /// The stream breaks off, or holds something that is no event.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        let (mut id, mut kind, mut data) = (None, String::new(), None);
        loop {
            let mut line = String::new();
            if self
                .reader
                .read_line(&mut line)
                .context("the stream broke off")?
                == 0
            {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\r', '\n']);
            match line
                .split_once(':')
                .map(|(field, value)| (field, value.strip_prefix(' ').unwrap_or(value)))
            {
                Some(("id", value)) => id = Some(value.parse().context("id is not a number")?),
                Some(("event", value)) => value.clone_into(&mut kind),
                Some(("data", value)) => data = Some(value.to_owned()),
                Some(("", _)) => {}
                None if line.is_empty() => {
                    if let Some(data) = data.take() {
                        return Ok(Some(Event {
                            id: id.context("an event without id")?,
                            kind,
                            data,
                        }));
                    }
                }
                _ => bail!("not a line of an event stream: {line:?}"),
            }
        }
    }

    /// All further events up to the terminal one.
    ///
    /// # Errors
    /// As for [`EventStream::next_event`]; or the stream ends without a terminal event.
    pub fn to_end(mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while let Some(event) = self.next_event()? {
            events.push(event);
        }
        match events.last() {
            Some(last) if last.is_terminal() => Ok(events),
            last => bail!("the stream ended without a terminal event, after {last:?}"),
        }
    }
}

fn header_list(response: &ureq::http::Response<ureq::Body>) -> Vec<(String, String)> {
    let text =
        |value: &ureq::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    response
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), text(value)))
        .collect()
}
