//! The paths of the HTTP contract.

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route<'a> {
    Inference,
    Run(&'a str),
    Events(&'a str),
    Usage,
    Ledger,
    Content,
    Chat,
    Completions,
    Responses,
    Response(&'a str),
    ResponseCancel(&'a str),
    ResponseItems(&'a str),
    Files,
    File(&'a str),
    FileContent(&'a str),
    Batches,
    Batch(&'a str),
    BatchCancel(&'a str),
    Models,
    Model(&'a str),
    /// A part of `OpenAI`'s API that is not served.
    Unsupported(&'a str),
}

/// The first words of paths below `/v1` that `OpenAI`'s clients know and nothing answers here.
const UNSUPPORTED: &[&str] = &[
    "assistants",
    "audio",
    "chatkit",
    "containers",
    "conversations",
    "embeddings",
    "evals",
    "fine_tuning",
    "images",
    "moderations",
    "organization",
    "realtime",
    "skills",
    "threads",
    "uploads",
    "vector_stores",
    "videos",
];

impl<'a> Route<'a> {
    pub(super) fn find(path: &'a str) -> Option<Self> {
        match path {
            "/inference" => return Some(Self::Inference),
            "/usage" => return Some(Self::Usage),
            "/usage/ledger" => return Some(Self::Ledger),
            "/tenant/content" => return Some(Self::Content),
            _ => {}
        }
        if let Some(rest) = path.strip_prefix("/v1/") {
            return Self::openai(rest);
        }
        let rest = path.strip_prefix("/runs/")?;
        match rest.split_once('/') {
            None if !rest.is_empty() => Some(Self::Run(rest)),
            Some((run, "events")) => Some(Self::Events(run)),
            _ => None,
        }
    }

    fn openai(path: &'a str) -> Option<Self> {
        let route = match path {
            "chat/completions" => Self::Chat,
            "completions" => Self::Completions,
            "responses" => Self::Responses,
            "responses/input_tokens" | "responses/compact" => Self::Unsupported(path),
            "files" => Self::Files,
            "batches" => Self::Batches,
            "models" => Self::Models,
            _ => return Self::below(path),
        };
        Some(route)
    }

    fn below(path: &'a str) -> Option<Self> {
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        if first == "models" {
            return (!rest.is_empty()).then_some(Self::Model(rest));
        }
        if UNSUPPORTED.contains(&first) || path.starts_with("chat/completions/") {
            return Some(Self::Unsupported(path));
        }
        let (id, verb) = match rest.split_once('/') {
            None => (rest, None),
            Some((id, verb)) => (id, Some(verb)),
        };
        match (first, verb) {
            _ if id.is_empty() => None,
            ("responses", None) => Some(Self::Response(id)),
            ("responses", Some("cancel")) => Some(Self::ResponseCancel(id)),
            ("responses", Some("input_items")) => Some(Self::ResponseItems(id)),
            ("files", None) => Some(Self::File(id)),
            ("files", Some("content")) => Some(Self::FileContent(id)),
            ("batches", None) => Some(Self::Batch(id)),
            ("batches", Some("cancel")) => Some(Self::BatchCancel(id)),
            _ => None,
        }
    }

    /// The label in metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Run(_) => "run",
            Self::Events(_) => "events",
            Self::Usage => "usage",
            Self::Ledger => "ledger",
            Self::Content => "content",
            Self::Chat => "chat_completions",
            Self::Completions => "completions",
            Self::Responses
            | Self::Response(_)
            | Self::ResponseCancel(_)
            | Self::ResponseItems(_) => "responses",
            Self::Files | Self::File(_) | Self::FileContent(_) => "files",
            Self::Batches | Self::Batch(_) | Self::BatchCancel(_) => "batches",
            Self::Models | Self::Model(_) => "models",
            Self::Unsupported(_) => "unsupported",
        }
    }

    pub(super) fn methods(self) -> &'static str {
        match self {
            Self::Inference
            | Self::Chat
            | Self::Completions
            | Self::Responses
            | Self::ResponseCancel(_)
            | Self::BatchCancel(_) => "POST",
            Self::Run(_) | Self::Response(_) | Self::File(_) => "GET, DELETE",
            Self::Files | Self::Batches => "GET, POST",
            Self::Content => "DELETE",
            Self::Events(_)
            | Self::Usage
            | Self::Ledger
            | Self::Models
            | Self::Model(_)
            | Self::ResponseItems(_)
            | Self::FileContent(_)
            | Self::Batch(_) => "GET",
            Self::Unsupported(_) => "",
        }
    }

    /// Whether a POST here makes runs, and so counts in the tenant's rates.
    pub(super) fn makes_runs(self) -> bool {
        matches!(
            self,
            Self::Inference | Self::Chat | Self::Completions | Self::Responses
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_find_their_route_and_nothing_else_does() {
        for (path, want) in [
            ("/inference", Some(Route::Inference)),
            ("/runs/run_1", Some(Route::Run("run_1"))),
            ("/runs/run_1/events", Some(Route::Events("run_1"))),
            ("/runs/", None),
            ("/runs/run_1/events/", None),
            ("/v1/models/a/b", Some(Route::Model("a/b"))),
            ("/v1/models/", None),
            ("/v1/responses", Some(Route::Responses)),
            ("/v1/responses/resp_1", Some(Route::Response("resp_1"))),
            (
                "/v1/responses/resp_1/cancel",
                Some(Route::ResponseCancel("resp_1")),
            ),
            (
                "/v1/responses/resp_1/input_items",
                Some(Route::ResponseItems("resp_1")),
            ),
            ("/v1/responses/resp_1/other", None),
            ("/v1/responses/", None),
            (
                "/v1/responses/compact",
                Some(Route::Unsupported("responses/compact")),
            ),
            ("/v1/files", Some(Route::Files)),
            ("/v1/files/file-1", Some(Route::File("file-1"))),
            (
                "/v1/files/file-1/content",
                Some(Route::FileContent("file-1")),
            ),
            ("/v1/batches/b/cancel", Some(Route::BatchCancel("b"))),
            ("/v1/embeddings", Some(Route::Unsupported("embeddings"))),
            ("/v1/audio/speech", Some(Route::Unsupported("audio/speech"))),
            ("/v1/frobnicate", None),
            ("/inference/", None),
            ("/", None),
        ] {
            assert_eq!(Route::find(path), want, "{path}");
        }
    }
}
