//! The side of the clients.

mod h1;
mod h2;
mod sse;

pub(crate) mod requests;
pub(crate) mod streams;

use clap::Args;

/// What every request says.
#[derive(Args)]
pub(crate) struct Asking {
    /// Where requests go: `http://HOST:PORT/PATH`. A path that ends in /inference is asked in Weir's own words.
    #[arg(long)]
    pub(crate) url: String,
    /// Bearer token.
    #[arg(long, default_value = "none")]
    pub(crate) key: String,
    /// Model to ask for.
    #[arg(long, default_value = "fake")]
    pub(crate) model: String,
    /// Output tokens of each answer.
    #[arg(long, default_value_t = 8)]
    pub(crate) tokens: u32,
    /// Processes whose memory and processor time are watched.
    #[arg(long, value_delimiter = ',')]
    pub(crate) pids: Vec<u32>,
    /// Seconds after which what is unfinished counts as lost.
    #[arg(long, default_value_t = 60)]
    pub(crate) timeout_s: u64,
}

impl Asking {
    fn is_native(&self) -> bool {
        self.url.ends_with("/inference")
    }

    pub(crate) fn body(&self, stream: bool) -> String {
        let (model, tokens) = (&self.model, self.tokens);
        if self.is_native() {
            return format!(
                r#"{{"model":"{model}","input":"Say something short.","maxOutputTokens":{tokens}}}"#
            );
        }
        format!(
            r#"{{"model":"{model}","messages":[{{"role":"user","content":"Say something short."}}],"max_tokens":{tokens},"stream":{stream}}}"#
        )
    }

    /// Header lines of HTTP/1.1 and of HTTP/2 alike.
    pub(crate) fn headers(&self, stream: bool) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("content-type", "application/json".to_owned()),
            ("authorization", format!("Bearer {}", self.key)),
        ];
        if stream && self.is_native() {
            all.push(("accept", "text/event-stream".to_owned()));
        }
        all
    }
}
