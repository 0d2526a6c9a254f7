//! What a request comes to with one version: exact prompt, output ceiling, price.

use std::sync::Arc;

use prost::Message as _;
use serde_json::json;
use weir_budget::Ask;
use weir_grammar::{ToolFormat, ToolSpec};
use weir_protocol::error::ErrorCode;
use weir_protocol::worker::grammar::Kind;
use weir_protocol::worker::{Grammar, Sampling as WireSampling, Submit};
use weir_run::{Decision, Epoch, Expected, Run, RunId, RunStatus, Sequence, Verdict, WorkOrder};

use super::judge::schema_error;
use super::request::{RunRequest, Sampling, Shape};
use crate::core::Core;
use crate::directory::{Candidate, Directory};
use crate::error::{ApiError, ApiResult};
use crate::snapshot::{Priority, SamplingDefaults, ServedVersion, Tenant};
use crate::trace::RunTrace;

/// Output ceiling of a request that names none, where neither tenant nor context is smaller.
const DEFAULT_OUTPUT_TOKENS: u64 = 256;

/// A request measured against one version.
pub(super) struct Plan {
    pub(super) candidate: Candidate,
    pub(super) prompt: Vec<u32>,
    /// Per choice.
    pub(super) max_output_tokens: u64,
    pub(super) choices: u64,
    pub(super) max_output_param: &'static str,
    /// What policies said to the prompt.
    pub(super) verdicts: Vec<Verdict>,
}

impl Core {
    /// Tokenizes and applies the caps.
    pub(super) async fn plan(
        &self,
        (directory, tenant): (&Directory, &Tenant),
        candidate: Candidate,
        request: &RunRequest,
    ) -> ApiResult<Plan> {
        request.check_shape()?;
        self.tokenizers.judge(&tenant.name, &request.shape).await?;
        if let Shape::Tools(tools, param) = &request.shape
            && tools.answer.is_some()
        {
            // Only now it is known how this model writes calls.
            let spec = with_format(tools, candidate.version.text.tool_format());
            spec.check().map_err(|error| schema_error(&error, param))?;
        }
        let version = &candidate.version;
        let room = Room {
            context: u64::from(version.context_tokens),
            pool: directory.largest_prompt(&version.pool).map(u64::from),
        };
        let prompt = self
            .tokenizers
            .tokens(
                &tenant.name,
                &candidate.version,
                &request.input,
                request.params,
                largest_prompt(tenant, room).0,
            )
            .await?;
        let max_output_tokens = caps(tenant, room, prompt.len() as u64, request)?;
        Ok(Plan {
            candidate,
            prompt,
            max_output_tokens,
            choices: u64::from(request.choices),
            max_output_param: request.params.max_output,
            verdicts: Vec::new(),
        })
    }
}

/// What a version and its pool have room for.
#[derive(Clone, Copy)]
struct Room {
    context: u64,
    /// Longest prompt of the pool's classes.
    pool: Option<u64>,
}

/// The longest prompt, and what bounds it.
fn largest_prompt(tenant: &Tenant, room: Room) -> (u64, &'static str) {
    // One position is kept for output.
    let context = (room.context.saturating_sub(1), "the model's context");
    let pool = room
        .pool
        .map(|largest| (largest, "the largest class of the model's pool"));
    let own = tenant.max_prompt_tokens.map(u64::from);
    let tenant = own.map(|largest| (largest, "this tenant's limit"));
    let bounds = [tenant, pool].into_iter().flatten();
    bounds.fold(
        context,
        |least, bound| if bound.0 < least.0 { bound } else { least },
    )
}

fn caps(tenant: &Tenant, room: Room, prompt: u64, request: &RunRequest) -> ApiResult<u64> {
    let context = room.context;
    if prompt == 0 {
        return Err(ApiError::invalid(
            request.params.prompt,
            "the prompt has no tokens; send some text",
        ));
    }
    let (largest_prompt, whose) = largest_prompt(tenant, room);
    if prompt > largest_prompt {
        return Err(ApiError::new(
            ErrorCode::PromptTooLong,
            format!(
                "the prompt has {prompt} tokens and {whose} allows {largest_prompt}; shorten it"
            ),
        )
        .param(request.params.prompt)
        .details(json!({"promptTokens": prompt, "largestPromptTokens": largest_prompt})));
    }
    let tenant_output = tenant.max_output_tokens.map_or(u64::MAX, u64::from);
    let largest_output = (context - prompt).min(tenant_output);
    match request.max_output_tokens.map(u64::from) {
        None => Ok(largest_output.clamp(1, DEFAULT_OUTPUT_TOKENS)),
        Some(asked) if asked <= largest_output => Ok(asked),
        Some(asked) => Err(ApiError::new(
            ErrorCode::OutputTooLong,
            format!("{asked} output tokens do not fit: with a prompt of {prompt} tokens at most {largest_output} do"),
        )
        .param(request.params.max_output)
        .details(json!({
            "promptTokens": prompt, "contextTokens": context, "largestMaxOutputTokens": largest_output,
        }))),
    }
}

impl Plan {
    fn output_tokens(&self) -> u64 {
        self.max_output_tokens * self.choices
    }

    pub(super) fn ask(&self) -> Ask {
        let version = &self.candidate.version;
        let prompt_tokens = self.prompt.len() as u64;
        Ask {
            prompt_tokens,
            output_tokens: self.output_tokens(),
            micros: version
                .price
                .worst_case(prompt_tokens, self.output_tokens()),
            output_micros_per_token: version.price.output_micros_per_token,
            pool: version.pool.clone(),
        }
    }

    /// The row of the accepted run.
    pub(super) fn run(
        &self,
        (id, estimate_ms): (RunId, u64),
        tenant: &Tenant,
        request: &RunRequest,
        now: u64,
    ) -> Run {
        let version = Arc::clone(&self.candidate.version);
        let trial = self.candidate.trial.as_ref();
        let ask = self.ask();
        Run {
            id,
            tenant: tenant.name.clone(),
            request_key: request.request_key.clone(),
            payload_hash: request.payload_hash,
            model: version.model.clone(),
            model_version: version.version,
            manifest_digest: version.digest.clone(),
            pool: version.pool.clone(),
            decision: Decision {
                requested: request.requested.clone(),
                reason: self.candidate.reason,
                worker: None,
                expected: Expected {
                    estimate_ms: Some(estimate_ms),
                    generation: trial.map(|table| table.order.generation),
                    ..Expected::default()
                },
            },
            status: RunStatus::Accepted,
            epoch: Epoch(1),
            choices: request.choices,
            prompt_tokens: ask.prompt_tokens,
            cached_tokens: 0,
            output_tokens: 0,
            output_index: 0,
            reserved_tokens: ask.tokens(),
            reserved_micros: ask.micros,
            price: version.price,
            cost_micros: None,
            last_sequence: Sequence(1),
            created_at_ms: now,
            started_at_ms: None,
            first_token_at_ms: None,
            finished_at_ms: None,
            deadline_ms: request.deadline_ms,
            finish_reason: None,
            error: None,
            replaces: request.replaces,
            replaced_by: None,
            events_expire_at_ms: now.saturating_add(tenant.retention_ms),
            metadata: request.metadata.clone(),
            caller: tenant.caller.clone(),
            verdicts: self.verdicts.clone(),
        }
    }

    /// What the worker needs, as it is kept until the run is terminal.
    pub(super) fn work(
        &self,
        tenant: &Tenant,
        request: &RunRequest,
        trace: Option<&RunTrace>,
    ) -> WorkOrder {
        let version = &self.candidate.version;
        let priority = request.priority.unwrap_or(tenant.priority).index();
        let asking = Asking {
            sampling: &request.sampling,
            shape: &request.shape,
            trust_scope: &tenant.trust_scope,
            max_output_tokens: self.max_output_tokens,
        };
        let asked = asking.submit(version, Vec::new());
        let submit = Submit {
            // Only of a run: who mirrors or scores one needs nothing of the kind.
            sampling: asked.sampling.clone().map(|sampling| WireSampling {
                prompt_logprobs: request.sampling.prompt_logprobs,
                ..sampling
            }),
            choices: request.choices,
            priority: u32::from(priority),
            trace: trace.map(RunTrace::encode).unwrap_or_default(),
            ..asked
        };
        WorkOrder {
            prompt: self.prompt.clone(),
            submit: submit.encode_to_vec(),
            priority,
            max_queue_ms: request.max_queue_ms,
            attended: request.attended,
        }
    }
}

/// What a worker is asked for, apart from whose run it is.
pub(crate) struct Asking<'a> {
    pub(crate) sampling: &'a Sampling,
    pub(crate) shape: &'a Shape,
    pub(crate) trust_scope: &'a str,
    /// Per choice.
    pub(crate) max_output_tokens: u64,
}

impl Asking<'_> {
    /// One choice of a version, at the lowest priority.
    pub(crate) fn submit(&self, version: &ServedVersion, prompt: Vec<u32>) -> Submit {
        Submit {
            version_digest: version.digest.clone(),
            prompt,
            max_output_tokens: u32::try_from(self.max_output_tokens).unwrap_or(u32::MAX),
            choices: 1,
            trust_scope: trust_scope(self.trust_scope),
            priority: u32::from(Priority::Batch.index()),
            sampling: Some(wire_sampling(self.sampling, version.defaults)),
            grammar: wire_grammar(self.shape, version.text.tool_format()),
            ..Submit::default()
        }
    }
}

/// Workers see a digest, not a tenant's name. No scope means that the run shares with nobody.
fn trust_scope(scope: &str) -> bytes::Bytes {
    if scope.is_empty() {
        return bytes::Bytes::new();
    }
    bytes::Bytes::copy_from_slice(&blake3::derive_key(
        "weir 2026 trust scope",
        scope.as_bytes(),
    ))
}

fn wire_grammar(shape: &Shape, format: ToolFormat) -> Option<Grammar> {
    match shape {
        Shape::Free => None,
        Shape::Grammar(grammar, _) => Some(grammar.clone()),
        Shape::Tools(tools, _) => {
            let spec = with_format(tools, format);
            Some(Grammar {
                kind: Kind::Tools.into(),
                text: spec.encode(),
            })
        }
    }
}

fn with_format(tools: &ToolSpec, format: ToolFormat) -> ToolSpec {
    ToolSpec {
        format,
        ..tools.clone()
    }
}

fn wire_sampling(asked: &Sampling, defaults: SamplingDefaults) -> WireSampling {
    WireSampling {
        temperature: asked.temperature.unwrap_or(defaults.temperature),
        top_p: asked.top_p.unwrap_or(defaults.top_p),
        top_k: asked.top_k.unwrap_or(defaults.top_k),
        min_p: asked.min_p.unwrap_or(0.0),
        seed: asked.seed,
        stop: asked.stop.clone(),
        stop_token_ids: asked.stop_token_ids.clone(),
        presence_penalty: asked.presence_penalty.unwrap_or(0.0),
        frequency_penalty: asked.frequency_penalty.unwrap_or(0.0),
        repetition_penalty: asked
            .repetition_penalty
            .unwrap_or(defaults.repetition_penalty),
        logprobs: asked.logprobs,
        prompt_logprobs: None,
        ignore_eos: asked.ignore_eos,
        min_tokens: asked.min_tokens,
    }
}
