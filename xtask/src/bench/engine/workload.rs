//! What is asked of each server.

use anyhow::{Context, Result};

use super::super::report::Better;

/// Requests of one kind.
pub(super) struct Group {
    pub(super) count: usize,
    pub(super) prompt_tokens: usize,
    pub(super) output_tokens: usize,
    /// The first is sent after so many milliseconds, the others one after another.
    pub(super) start_ms: u64,
    pub(super) gap_ms: u64,
}

/// Name, unit, which end is good, and its value where the workload has one.
pub(super) type Quantity = (
    &'static str,
    &'static str,
    Better,
    fn(&Outcome) -> Option<f64>,
);

/// Requests that run beside each other, and what is read off them.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) groups: &'static [Group],
    pub(super) figures: &'static [Quantity],
}

/// When things happened to one request, in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Timing {
    pub(super) sent: f64,
    /// Of each event with text.
    pub(super) events: Vec<f64>,
    pub(super) prompt_tokens: usize,
    pub(super) tokens: usize,
}

/// The requests of each group.
#[derive(Clone, Debug)]
pub(super) struct Outcome(pub(super) Vec<Vec<Timing>>);

const fn group(count: usize, prompt_tokens: usize, output_tokens: usize) -> Group {
    Group {
        count,
        prompt_tokens,
        output_tokens,
        start_ms: 0,
        gap_ms: 0,
    }
}

/// All of them.
pub(super) const WORKLOADS: &[Workload] = &[
    Workload {
        name: "prefill-512",
        groups: &[group(1, 512, 1)],
        figures: &[("prefill, 512 tokens", "tok/s", Better::Higher, prefill)],
    },
    Workload {
        name: "decode-1",
        groups: &[group(1, 64, 128)],
        figures: &[("decode, 1 stream", "tok/s", Better::Higher, steady)],
    },
    Workload {
        name: "decode-1500",
        groups: &[group(1, 1436, 128)],
        figures: &[(
            "decode, 1 stream, context 1,500",
            "tok/s",
            Better::Higher,
            steady,
        )],
    },
    Workload {
        name: "decode-16",
        groups: &[group(16, 32, 96)],
        figures: &[("decode, 16 streams, total", "tok/s", Better::Higher, steady)],
    },
    Workload {
        name: "mixed",
        groups: &[
            group(2, 2000, 8),
            Group {
                count: 8,
                prompt_tokens: 64,
                output_tokens: 64,
                start_ms: 100,
                gap_ms: 100,
            },
        ],
        figures: &[
            (
                "mixed: first token, 95 of 100",
                "s",
                Better::Lower,
                first_token_p95,
            ),
            (
                "mixed: between tokens, 95 of 100",
                "s",
                Better::Lower,
                between_p95,
            ),
            ("mixed: all done", "s", Better::Lower, wall),
        ],
    },
];

/// Those named, or all.
pub(super) fn chosen(names: &[String]) -> Result<Vec<&'static Workload>> {
    if names.is_empty() {
        return Ok(WORKLOADS.iter().collect());
    }
    let of = |name: &String| WORKLOADS.iter().find(|workload| workload.name == name);
    names
        .iter()
        .map(|name| of(name).with_context(|| format!("no row {name:?}")))
        .collect()
}

impl Outcome {
    fn last(&self) -> Option<&[Timing]> {
        self.0.last().map(Vec::as_slice)
    }
}

fn prefill(outcome: &Outcome) -> Option<f64> {
    let one = outcome.last()?.first()?;
    Some(one.prompt_tokens as f64 / (one.events.first()? - one.sent))
}

/// Tokens of all streams while all of them decoded.
fn steady(outcome: &Outcome) -> Option<f64> {
    let streams = outcome.last()?;
    let first = |timing: &Timing| timing.events.first().copied().unwrap_or(f64::INFINITY);
    let last = |timing: &Timing| timing.events.last().copied().unwrap_or(0.0);
    let begin = streams.iter().map(first).fold(0.0, f64::max);
    let end = streams.iter().map(last).fold(f64::INFINITY, f64::min);
    let tokens = streams.iter().map(|stream| {
        // An event may carry several tokens.
        let each = stream.tokens as f64 / stream.events.len() as f64;
        let within = stream
            .events
            .iter()
            .filter(|at| **at > begin && **at <= end);
        within.count() as f64 * each
    });
    let tokens: f64 = tokens.sum();
    (end > begin).then_some(tokens / (end - begin))
}

fn first_token_p95(outcome: &Outcome) -> Option<f64> {
    let short = outcome.last()?.iter();
    p95(short.filter_map(|timing| Some(timing.events.first()? - timing.sent)))
}

fn between_p95(outcome: &Outcome) -> Option<f64> {
    let short = outcome.last()?.iter();
    p95(short.flat_map(|timing| timing.events.windows(2).map(|pair| pair[1] - pair[0])))
}

fn wall(outcome: &Outcome) -> Option<f64> {
    let all = outcome.0.iter().flatten();
    all.filter_map(|timing| timing.events.last().copied())
        .max_by(f64::total_cmp)
}

fn p95(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    values.get((last * 95).div_ceil(100)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(sent: f64, events: &[f64], tokens: usize) -> Timing {
        Timing {
            sent,
            events: events.to_vec(),
            prompt_tokens: 100,
            tokens,
        }
    }

    #[test]
    fn rates_are_of_the_time_when_all_streams_ran() {
        let two = Outcome(vec![vec![
            timing(0.0, &[1.0, 2.0, 3.0, 4.0], 4),
            timing(0.0, &[2.0, 3.0, 4.0, 5.0], 8),
        ]]);
        // From 2 to 4: two tokens of one, two events of two tokens of the other.
        assert_eq!(steady(&two), Some(3.0));
        assert_eq!(
            prefill(&Outcome(vec![vec![timing(1.0, &[1.5], 1)]])),
            Some(200.0)
        );
        assert_eq!(first_token_p95(&two), Some(2.0));
        assert_eq!(wall(&two), Some(5.0));
        assert_eq!(steady(&Outcome(vec![vec![timing(0.0, &[1.0], 1)]])), None);
    }

    #[test]
    fn rows_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), WORKLOADS.len());
        assert_eq!(chosen(&["mixed".to_owned()]).unwrap()[0].groups.len(), 2);
        assert!(chosen(&["mixt".to_owned()]).is_err());
    }
}
