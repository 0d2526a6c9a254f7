//! A plain HTTP client.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Calls a gateway with one key.
#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    key: String,
    pool: Pool<HttpConnector, Full<Bytes>>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
    pub(crate) body: Value,
}

/// An event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: u64,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// A stream that is being read.
pub(crate) struct EventStream {
    pub(crate) headers: http::HeaderMap,
    body: Incoming,
    buffer: String,
    ready: VecDeque<String>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, key: &str) -> Self {
        Self {
            address,
            key: key.to_owned(),
            pool: Pool::builder(TokioExecutor::new()).build_http(),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> http::Response<Incoming> {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        self.send_bytes(method, path, body, headers).await
    }

    async fn send_bytes(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        headers: &[(&str, &str)],
    ) -> http::Response<Incoming> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address));
        if !self.key.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.key));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).unwrap();
        tokio::time::timeout(Duration::from_secs(20), self.pool.request(request))
            .await
            .expect("an answer in time")
            .unwrap()
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Reply {
        Self::whole(self.send(method, path, body, headers).await).await
    }

    async fn whole(response: http::Response<Incoming>) -> Reply {
        let (parts, body) = response.into_parts();
        let bytes = tokio::time::timeout(Duration::from_secs(20), body.collect())
            .await
            .expect("a whole answer in time")
            .unwrap()
            .to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Reply {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: serde_json::from_str(&text).unwrap_or(Value::Null),
            text,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, None, &[]).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.call(Method::POST, path, Some(body), &[]).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.call(Method::DELETE, path, None, &[]).await
    }

    pub(crate) async fn stream(&self, path: &str, body: &Value) -> EventStream {
        self.stream_with(path, body, &[]).await
    }

    pub(crate) async fn stream_with(
        &self,
        path: &str,
        body: &Value,
        more: &[(&str, &str)],
    ) -> EventStream {
        let headers = [more, &[("accept", "text/event-stream")]].concat();
        let response = self.send(Method::POST, path, Some(body), &headers).await;
        EventStream::open(response).await
    }

    pub(crate) async fn events(&self, run: &str, after: u64) -> EventStream {
        let path = format!("/runs/{run}/events?after={after}");
        EventStream::open(self.send(Method::GET, &path, None, &[]).await).await
    }

    /// Any request, as it is.
    pub(crate) async fn raw(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Reply {
        Self::whole(self.send_bytes(method, path, body.into(), headers).await).await
    }

    /// Sends a file of purpose batch.
    pub(crate) async fn upload(&self, content: &str) -> Reply {
        self.upload_with(content, &[]).await
    }

    pub(crate) async fn upload_with(&self, content: &str, headers: &[(&str, &str)]) -> Reply {
        let body = format!(
            "--cut\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--cut\r\n\
             Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n{content}\r\n--cut--\r\n"
        );
        let form = ("content-type", "multipart/form-data; boundary=cut");
        let headers = [headers, &[form]].concat();
        let response = self.send_bytes(Method::POST, "/v1/files", body.into(), &headers);
        Self::whole(response.await).await
    }

    pub(crate) async fn get_stream(&self, path: &str) -> EventStream {
        EventStream::open(self.send(Method::GET, path, None, &[]).await).await
    }

    pub(crate) async fn all_events(&self, run: &str, after: u64) -> Vec<Event> {
        self.events(run, after).await.rest().await
    }

    /// Waits until the run is in one of these states.
    pub(crate) async fn wait_status(&self, run: &str, any: &[&str]) -> Value {
        for _ in 0..1000 {
            let row = self.get(&format!("/runs/{run}")).await.body;
            if any.contains(&row["status"].as_str().unwrap_or("")) {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("run {run} did not become any of {any:?}");
    }
}

impl Reply {
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or("")
    }

    pub(crate) fn run(&self) -> String {
        self.body["runId"].as_str().expect("a run id").to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

impl EventStream {
    async fn open(response: http::Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        if parts.status != StatusCode::OK {
            let bytes = body.collect().await.unwrap().to_bytes();
            panic!("{}: {}", parts.status, String::from_utf8_lossy(&bytes));
        }
        Self {
            headers: parts.headers,
            body,
            buffer: String::new(),
            ready: VecDeque::new(),
        }
    }

    /// The next block of lines; `None` at the end.
    pub(crate) async fn block(&mut self) -> Option<String> {
        loop {
            if let Some(block) = self.ready.pop_front() {
                return Some(block);
            }
            let frame = tokio::time::timeout(Duration::from_secs(20), self.body.frame())
                .await
                .expect("a frame in time")?
                .expect("an unbroken stream");
            let data = frame.into_data().expect("data");
            self.buffer.push_str(std::str::from_utf8(&data).unwrap());
            while let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                self.ready.push_back(block.trim_end().to_owned());
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            let block = self.block().await?;
            if block.starts_with(':') {
                continue;
            }
            let mut lines = block.lines();
            let mut field = |name: &str| {
                let line = lines.next().expect("three lines");
                line.strip_prefix(name).expect(name).to_owned()
            };
            return Some(Event {
                id: field("id: ").parse().unwrap(),
                kind: field("event: "),
                data: serde_json::from_str(&field("data: ")).unwrap(),
            });
        }
    }

    pub(crate) async fn take(&mut self, count: usize) -> Vec<Event> {
        let mut all = Vec::new();
        while all.len() < count {
            all.push(self.next().await.expect("more events"));
        }
        all
    }

    pub(crate) async fn rest(mut self) -> Vec<Event> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }

    /// The `data` of every block of an `OpenAI` stream.
    pub(crate) async fn data(mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(block) = self.block().await {
            if let Some(data) = block.strip_prefix("data: ") {
                all.push(data.to_owned());
            }
        }
        all
    }
}
