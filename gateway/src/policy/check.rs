//! A service beyond the gateway that judges text: asked by HTTP, within a deadline, and not asked while it keeps failing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Method, Request, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use weir_run::{Phase, PolicyAction, Verdict};

use super::spec::{CheckerSpec, OnFailure, PolicyError, PolicySpec, RulePhase};
use crate::clock::now_ms;
use crate::fetch::{Fetch, FetchError};

/// Largest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Failures in a row after which it is left alone for a while.
const BREAK_AFTER: u32 = 5;
/// How long that is; then one call tries again.
const BREAK_MS: u64 = 5_000;

/// A checker and how it is doing.
pub(crate) struct Checker {
    policy: String,
    version: u32,
    url: Uri,
    deadline: Duration,
    on_failure: OnFailure,
    phases: Option<Vec<RulePhase>>,
    every: usize,
    fetch: Fetch,
    places: Semaphore,
    failures: AtomicU32,
    open_until_ms: AtomicU64,
}

/// What it said, or what stands for its silence.
pub(crate) enum Checked {
    Allowed,
    Unchecked(Verdict),
    Blocked(Verdict),
}

/// What it is asked.
pub(crate) struct Question<'a> {
    pub(crate) phase: Phase,
    pub(crate) tenant: &'a str,
    pub(crate) model: &'a str,
    /// Roles and texts.
    pub(crate) messages: &'a [(String, String)],
}

#[derive(Serialize)]
struct Asked<'a> {
    policy: &'a str,
    version: u32,
    phase: Phase,
    tenant: &'a str,
    model: &'a str,
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: &'a str,
}

#[derive(Deserialize)]
struct Answer {
    action: AnswerAction,
    rule: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnswerAction {
    Allow,
    Block,
}

#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("as many calls as it may have are under way")]
    Busy,
    #[error("it failed {BREAK_AFTER} times in a row and is left alone for {BREAK_MS} ms")]
    Broken,
    #[error("it did not answer within its deadline")]
    Late,
    #[error("it cannot be asked")]
    Fetch(#[source] FetchError),
    #[error("it answered with status {0}")]
    Status(StatusCode),
    #[error("its answer is no verdict")]
    Answer(#[source] serde_json::Error),
}

impl Checker {
    pub(super) fn new(policy: &PolicySpec, spec: &CheckerSpec) -> Result<Self, PolicyError> {
        let refuse = |why: String| PolicyError::Checker {
            policy: policy.name.clone(),
            why,
        };
        let url: Uri = spec
            .url
            .parse()
            .map_err(|error| refuse(format!("url {:?} is wrong: {error}", spec.url)))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(refuse(format!(
                "url {:?} must begin with http:// or https://",
                spec.url
            )));
        }
        if !(1..=64).contains(&spec.every_tokens) {
            return Err(refuse("everyTokens must be from 1 to 64".to_owned()));
        }
        if !(1..=60_000).contains(&spec.deadline_ms) {
            return Err(refuse("deadlineMs must be from 1 to 60000".to_owned()));
        }
        if !(1..=1024).contains(&spec.max_concurrent) {
            return Err(refuse("maxConcurrent must be from 1 to 1024".to_owned()));
        }
        Ok(Self {
            policy: policy.name.clone(),
            version: policy.version,
            url,
            deadline: Duration::from_millis(spec.deadline_ms),
            on_failure: spec.on_failure,
            phases: spec.phases.clone(),
            every: spec.every_tokens as usize,
            fetch: Fetch::system(),
            places: Semaphore::new(spec.max_concurrent as usize),
            failures: AtomicU32::new(0),
            open_until_ms: AtomicU64::new(0),
        })
    }

    /// Whether it looks at this phase.
    pub(crate) fn looks(&self, phase: Phase) -> bool {
        let wanted = match phase {
            Phase::Before => RulePhase::Before,
            Phase::After => RulePhase::After,
        };
        match &self.phases {
            Some(phases) => phases.contains(&wanted),
            None => wanted == RulePhase::Before,
        }
    }

    /// Tokens of an output after which it is asked about them.
    pub(crate) fn every(&self) -> usize {
        self.every
    }

    /// Its verdict, or what the policy says where there is none.
    pub(crate) async fn ask(&self, question: &Question<'_>) -> Checked {
        let failure = match self.answer(question).await {
            Ok(Answer {
                action: AnswerAction::Allow,
                ..
            }) => return Checked::Allowed,
            Ok(Answer {
                action: AnswerAction::Block,
                rule,
            }) => {
                return Checked::Blocked(self.verdict(question, rule, PolicyAction::Block));
            }
            Err(failure) => failure,
        };
        tracing::warn!(
            policy = self.policy,
            error = &failure as &dyn std::error::Error,
            "a policy's checker gave no verdict"
        );
        match self.on_failure {
            OnFailure::Allow => {
                Checked::Unchecked(self.verdict(question, None, PolicyAction::Unchecked))
            }
            OnFailure::Block => Checked::Blocked(self.verdict(question, None, PolicyAction::Block)),
        }
    }

    fn verdict(
        &self,
        question: &Question<'_>,
        rule: Option<String>,
        action: PolicyAction,
    ) -> Verdict {
        // What a service calls its rules is kept short and plain, so that it can carry no text.
        let plain = |rule: &String| {
            let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
            (1..=63).contains(&rule.len()) && rule.bytes().all(fits)
        };
        Verdict {
            policy: self.policy.clone(),
            version: self.version,
            rule: rule.filter(plain).unwrap_or_else(|| "checker".to_owned()),
            phase: question.phase,
            action,
            count: 1,
        }
    }

    async fn answer(&self, question: &Question<'_>) -> Result<Answer, CheckError> {
        let open_until = self.open_until_ms.load(Ordering::Acquire);
        if open_until > 0 {
            let now = now_ms();
            // One call of those that come after the pause tries, the others wait for how it fares.
            let tries = now >= open_until
                && self
                    .open_until_ms
                    .compare_exchange(
                        open_until,
                        now + BREAK_MS,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    )
                    .is_ok();
            if !tries {
                return Err(CheckError::Broken);
            }
        }
        let _place = self.places.try_acquire().map_err(|_| CheckError::Busy)?;
        let asked = tokio::time::timeout(self.deadline, self.call(question)).await;
        let outcome = asked.unwrap_or(Err(CheckError::Late));
        if outcome.is_ok() {
            self.failures.store(0, Ordering::Release);
            self.open_until_ms.store(0, Ordering::Release);
        } else if self.failures.fetch_add(1, Ordering::AcqRel) + 1 >= BREAK_AFTER {
            self.open_until_ms
                .store(now_ms() + BREAK_MS, Ordering::Release);
        }
        outcome
    }

    async fn call(&self, question: &Question<'_>) -> Result<Answer, CheckError> {
        let messages = question.messages.iter();
        let asked = Asked {
            policy: &self.policy,
            version: self.version,
            phase: question.phase,
            tenant: question.tenant,
            model: question.model,
            messages: messages
                .map(|(role, content)| Message { role, content })
                .collect(),
        };
        let body = serde_json::to_vec(&asked).map_err(CheckError::Answer)?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.url.clone())
            .header(CONTENT_TYPE, "application/json");
        let (status, answer) = self
            .fetch
            .send(request, body, MAX_ANSWER_BYTES)
            .await
            .map_err(CheckError::Fetch)?;
        if status != StatusCode::OK {
            return Err(CheckError::Status(status));
        }
        serde_json::from_slice(&answer).map_err(CheckError::Answer)
    }
}
