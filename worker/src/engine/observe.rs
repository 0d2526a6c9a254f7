//! Histograms the engine fills; everything else is read from the snapshot when someone asks.

use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;
use weir_telemetry::trace::Tracer;
use weir_telemetry::{Histograms, Label, Metrics, vllm};

use super::spans::{self, RunTrace};
use crate::metrics::Labels;

/// From a tenth of a millisecond (a small model's step) to a minute (a long prompt behind others).
const SECONDS: [f64; 18] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];
/// Around the target of 50 microseconds.
const HOST_SECONDS: [f64; 9] = [
    0.000_01, 0.000_025, 0.000_05, 0.0001, 0.0002, 0.0005, 0.001, 0.005, 0.025,
];

/// The engine's histograms. Those of runs have vLLM's names.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    tracer: Tracer,
    /// A step, from plan to rows sent.
    pub(crate) step: Histogram,
    /// The part of it outside of the backend.
    pub(crate) host: Histogram,
    /// The mask of one row with a grammar.
    pub(crate) mask: Histogram,
    /// From submit to the first slot.
    pub(crate) queue: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
    output_token: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    whole: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    /// Tokens of a step.
    pub(crate) iteration_tokens: Histogram,
}

/// When a run came to what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// It came.
    pub(crate) submitted: Instant,
    /// It got a slot.
    pub(crate) started: Option<Instant>,
    /// Its first token, and the newest of its first choice.
    pub(crate) tokens: Option<(Instant, Instant)>,
    /// Tokens of its prompt.
    pub(crate) prompt_tokens: usize,
    /// Tokens sampled for it.
    pub(crate) output_tokens: u64,
    /// The engine's steps that made its first token and its newest.
    pub(crate) steps: [u64; 2],
    /// The trace that it is a part of.
    pub(crate) trace: Option<RunTrace>,
}

/// The histograms of all engines of a process: each name is registered once.
#[derive(Clone)]
pub(crate) struct Observers {
    tracer: Tracer,
    /// Step, host, mask.
    own: [Histograms; 3],
    vllm: Vec<(&'static str, Histograms)>,
}

impl Observers {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let own = [
            (
                "weir_engine_step_seconds",
                "Time of an engine step",
                &SECONDS[..],
            ),
            (
                "weir_engine_step_host_seconds",
                "Time of an engine step outside of the backend",
                &HOST_SECONDS[..],
            ),
            (
                "weir_engine_mask_seconds",
                "Time to make the mask of one row with a grammar",
                &HOST_SECONDS[..],
            ),
        ];
        let kinds = [
            &vllm::QUEUE,
            &vllm::FIRST_TOKEN,
            &vllm::INTER_TOKEN,
            &vllm::OUTPUT_TOKEN,
            &vllm::PREFILL,
            &vllm::DECODE,
            &vllm::INFERENCE,
            &vllm::WHOLE_RUN,
            &vllm::PROMPT_TOKENS,
            &vllm::GENERATION_TOKENS,
            &vllm::ITERATION_TOKENS,
        ];
        Self {
            tracer: Tracer::from_env_or_off("weir-worker", metrics),
            own: own.map(|(name, help, bounds)| metrics.histograms(name, help, bounds)),
            vllm: kinds.map(|kind| (kind.name, metrics.vllm(kind))).to_vec(),
        }
    }

    /// Those of one engine.
    pub(crate) fn of(&self, labels: &Labels) -> Observer {
        Observer::new(self, labels)
    }

    /// An engine is gone.
    pub(crate) fn forget(&self, labels: &Labels) {
        for histograms in &self.own {
            histograms.remove(&labels.own());
        }
        for (_, histograms) in &self.vllm {
            histograms.remove(&labels.vllm());
        }
    }
}

impl Labels {
    fn own(&self) -> Label {
        vec![
            ("model", self.model.clone()),
            ("version", self.version.clone()),
        ]
    }

    fn vllm(&self) -> Label {
        vec![
            ("model_name", self.model.clone()),
            ("engine", self.engine.clone()),
        ]
    }
}

impl Observer {
    fn new(all: &Observers, labels: &Labels) -> Self {
        let (own, labels) = (labels.own(), labels.vllm());
        let of = |kind: &vllm::Kind| {
            let mut kinds = all.vllm.iter();
            let (_, histograms) = kinds
                .find(|(name, _)| *name == kind.name)
                .expect("the list has every kind");
            histograms.get_or_create(&labels).clone()
        };
        let [step, host, mask] = &all.own;
        let [step, host, mask] =
            [step, host, mask].map(|histograms| histograms.get_or_create(&own).clone());
        Self {
            tracer: all.tracer.clone(),
            step,
            host,
            mask,
            queue: of(&vllm::QUEUE),
            first_token: of(&vllm::FIRST_TOKEN),
            inter_token: of(&vllm::INTER_TOKEN),
            output_token: of(&vllm::OUTPUT_TOKEN),
            prefill: of(&vllm::PREFILL),
            decode: of(&vllm::DECODE),
            inference: of(&vllm::INFERENCE),
            whole: of(&vllm::WHOLE_RUN),
            prompt_tokens: of(&vllm::PROMPT_TOKENS),
            generation_tokens: of(&vllm::GENERATION_TOKENS),
            iteration_tokens: of(&vllm::ITERATION_TOKENS),
        }
    }

    /// A token of a run was sampled. Gaps are those of its first choice.
    pub(crate) fn token(&self, times: &mut Times, choice: u32, (step, now): (u64, Instant)) {
        times.output_tokens += 1;
        times.steps[1] = step;
        match &mut times.tokens {
            None => {
                times.tokens = Some((now, now));
                times.steps[0] = step;
                self.first_token.observe(seconds(times.submitted, now));
                if let Some(started) = times.started {
                    self.prefill.observe(seconds(started, now));
                }
            }
            Some((_, last)) if choice == 0 => {
                let gap = seconds(*last, now);
                *last = now;
                self.inter_token.observe(gap);
                self.output_token.observe(gap);
            }
            Some(_) => {}
        }
    }

    /// A run ended, and took up a slot before.
    pub(crate) fn ended(&self, times: &Times, now: Instant) {
        spans::ended(&self.tracer, times, now);
        self.whole.observe(seconds(times.submitted, now));
        if let Some(started) = times.started {
            self.inference.observe(seconds(started, now));
            self.prompt_tokens.observe(times.prompt_tokens as f64);
            self.generation_tokens.observe(times.output_tokens as f64);
        }
        if let Some((first, _)) = times.tokens {
            self.decode.observe(seconds(first, now));
        }
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
