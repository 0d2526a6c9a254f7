//! What one gateway counted for one version under one table.

use serde::{Deserialize, Serialize};

use crate::evidence::{BUCKETS, Histogram, LENGTH_BUCKETS};

/// Runs that a rule judged, and how many of them it found bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Judged {
    /// Judged.
    pub runs: u64,
    /// Of them, bad.
    pub bad: u64,
}

impl Judged {
    /// Counts one run.
    pub fn record(&mut self, is_bad: bool) {
        self.runs += 1;
        self.bad += u64::from(is_bad);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.bad += other.bad;
    }
}

/// Cumulative counts of coin-assigned runs. Only integers leave a gateway.
///
/// Exits of workers are not here: every gateway has a session with a worker and would count the same death, so they come
/// from whoever runs the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Counts {
    /// Runs that the coin gave to the version.
    pub assigned: u64,
    /// Runs that failed so far, at any age: for the hard path, which does not wait until runs settle.
    pub failed_so_far: u64,
    /// Settled runs and failed ones among them.
    pub errors: Judged,
    /// Runs over the limit of the time to the first token.
    pub ttft_limit: Judged,
    /// Runs with too many gaps over the limit between tokens.
    pub inter_token_limit: Judged,
    /// Empty, endless and looping outputs.
    pub output: Judged,
    /// Refusals by the model.
    pub refusal: Judged,
    /// Runs that say nothing: cancelled by the client, expired after the first token, cut by a worker's death.
    pub neutral: u64,
    /// Runs that a full queue, an unmeetable deadline or expiry before the first token ended.
    pub overload: u64,
    /// Times to the first token.
    pub ttft: Histogram,
    /// Times per token.
    pub inter_token: Histogram,
    /// Lengths of outputs.
    pub length: Histogram,
    /// Blocks of ten seconds of one tenant by their share of failed runs in sixteenths, rounded down: index 0 to 16.
    pub error_blocks: [u64; 17],
}

impl Counts {
    /// Adds another gateway's.
    pub fn add(&mut self, other: &Self) {
        self.assigned += other.assigned;
        self.failed_so_far += other.failed_so_far;
        self.errors.add(other.errors);
        self.ttft_limit.add(other.ttft_limit);
        self.inter_token_limit.add(other.inter_token_limit);
        self.output.add(other.output);
        self.refusal.add(other.refusal);
        self.neutral += other.neutral;
        self.overload += other.overload;
        self.ttft.add(&other.ttft);
        self.inter_token.add(&other.inter_token);
        self.length.add(&other.length);
        for (mine, theirs) in self.error_blocks.iter_mut().zip(other.error_blocks) {
            *mine += theirs;
        }
    }

    /// The first counter that is below an earlier one, if any.
    pub fn fallen_since(&self, earlier: &Self) -> Option<&'static str> {
        let now = self.scalars();
        let then = earlier.scalars();
        let fallen = now.iter().zip(then).find(|(now, then)| now.1 < then.1);
        if let Some(((name, _), _)) = fallen {
            return Some(name);
        }
        let histograms = [
            ("ttft", &self.ttft, &earlier.ttft),
            ("interToken", &self.inter_token, &earlier.inter_token),
            ("length", &self.length, &earlier.length),
        ];
        let fallen = histograms.iter().find(|(_, now, then)| !now.covers(then));
        if let Some((name, ..)) = fallen {
            return Some(name);
        }
        let blocks = self.error_blocks.iter().zip(earlier.error_blocks);
        blocks
            .into_iter()
            .any(|(&now, then)| now < then)
            .then_some("errorBlocks")
    }

    /// What cannot be, if anything: more bad runs than judged ones, more judged than assigned, a bucket that does not exist.
    pub fn impossible(&self) -> Option<&'static str> {
        let judged = [
            ("errors", self.errors),
            ("ttftLimit", self.ttft_limit),
            ("interTokenLimit", self.inter_token_limit),
            ("output", self.output),
            ("refusal", self.refusal),
        ];
        let wrong =
            |(_, judged): &&(&str, Judged)| judged.bad > judged.runs || judged.runs > self.assigned;
        if let Some((name, _)) = judged.iter().find(wrong) {
            return Some(name);
        }
        if self.failed_so_far > self.assigned {
            return Some("failedSoFar");
        }
        let histograms = [
            ("ttft", &self.ttft, BUCKETS),
            ("interToken", &self.inter_token, BUCKETS),
            ("length", &self.length, LENGTH_BUCKETS),
        ];
        let wrong = |(_, histogram, buckets): &&(&str, &Histogram, u8)| {
            !histogram.fits(*buckets) || histogram.total() > self.assigned
        };
        histograms.iter().find(wrong).map(|(name, ..)| *name)
    }

    fn scalars(&self) -> [(&'static str, u64); 14] {
        [
            ("assigned", self.assigned),
            ("failedSoFar", self.failed_so_far),
            ("errors.runs", self.errors.runs),
            ("errors.bad", self.errors.bad),
            ("ttftLimit.runs", self.ttft_limit.runs),
            ("ttftLimit.bad", self.ttft_limit.bad),
            ("interTokenLimit.runs", self.inter_token_limit.runs),
            ("interTokenLimit.bad", self.inter_token_limit.bad),
            ("output.runs", self.output.runs),
            ("output.bad", self.output.bad),
            ("refusal.runs", self.refusal.runs),
            ("refusal.bad", self.refusal.bad),
            ("neutral", self.neutral),
            ("overload", self.overload),
        ]
    }
}
