//! What a step costs: a fixed part (every step reads all weights once), a part for each token that decodes, and one for each token of
//! a prompt, fitted apart from each other while steps run.
//!
//! The fit is a Kalman filter over the three costs, which drift. Two things make it robust: a step that took far longer than expected
//! is believed only up to a bound, and what slows everything down (another process on the machine) scales all three at once, so that
//! it is followed within a few steps even while all steps have the same size and their parts cannot be told apart.

/// How many decoding tokens, and how many of a prompt, cost about as much as the fixed part, before anything is known: a CPU reads
/// weights once for eight rows.
const FIRST_DECODES: f64 = 8.0;
const FIRST_PROMPT: f64 = 16.0;
/// Costs are kept in milliseconds for so many tokens, which makes the three about equally large.
const DECODE_UNIT: f64 = 8.0;
const PROMPT_UNIT: f64 = 128.0;
/// Relative standard deviation of a step's time that means nothing.
const NOISE: f64 = 0.15;
/// The part of it that does not grow with the step, in milliseconds: wake-ups and interrupts.
const NOISE_MS: f64 = 0.05;
/// Relative change of a cost from step to step.
const DRIFT: f64 = 0.03;
/// Standard deviations up to which a surprise is believed.
const BELIEVED: f64 = 2.0;
/// How much of a surprise (its logarithm) scales all costs.
const SCALED: f64 = 0.3;
/// Largest surprise, as a factor, that scales.
const SCALED_MOST: f64 = 2.0;

/// What a step computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepSize {
    /// Tokens of sequences that decode, drafts among them.
    pub(super) decodes: u32,
    /// Tokens of prompts.
    pub(super) prompt: u32,
}

/// Milliseconds; none is negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Costs {
    /// Of a step with nothing in it.
    pub(super) fixed: f64,
    /// Of one decoding token.
    pub(super) decode: f64,
    /// Of one token of a prompt; more than 0.
    pub(super) prompt: f64,
}

impl Costs {
    /// Of a step with so many decoding tokens and no prompt.
    pub(super) fn of_decodes(&self, decodes: u32) -> f64 {
        self.fixed + self.decode * f64::from(decodes)
    }
}

/// The fit; knows nothing before its first step.
#[derive(Clone, Debug, Default)]
pub(super) struct CostFit(Option<Filter>);

impl CostFit {
    /// Learns from a step. One without tokens teaches nothing.
    pub(super) fn note(&mut self, size: StepSize, took_ms: f64) {
        if (size.decodes, size.prompt) == (0, 0) || !took_ms.is_finite() || took_ms <= 0.0 {
            return;
        }
        let row = [
            1.0,
            f64::from(size.decodes) / DECODE_UNIT,
            f64::from(size.prompt) / PROMPT_UNIT,
        ];
        self.0
            .get_or_insert_with(|| Filter::first(size, took_ms))
            .note(row, took_ms);
    }

    /// Present costs, once there was a step.
    pub(super) fn costs(&self) -> Option<Costs> {
        let [fixed, decode, prompt] = self.0.as_ref()?.costs;
        Some(Costs {
            fixed,
            decode: decode / DECODE_UNIT,
            prompt: (prompt / PROMPT_UNIT).max(1e-6),
        })
    }
}

/// A Kalman filter of three costs.
#[derive(Clone, Debug)]
struct Filter {
    costs: [f64; 3],
    /// How uncertain they are: symmetric.
    covariance: [[f64; 3]; 3],
    /// Time of the first step: the scale of everything.
    scale_ms: f64,
    steps: u32,
}

impl Filter {
    fn first(size: StepSize, took_ms: f64) -> Self {
        let parts =
            1.0 + f64::from(size.decodes) / FIRST_DECODES + f64::from(size.prompt) / FIRST_PROMPT;
        let fixed = took_ms / parts;
        let costs = [
            fixed,
            fixed * DECODE_UNIT / FIRST_DECODES,
            fixed * PROMPT_UNIT / FIRST_PROMPT,
        ];
        let mut covariance = [[0.0; 3]; 3];
        for (at, cost) in costs.iter().enumerate() {
            covariance[at][at] = cost * cost;
        }
        Self {
            costs,
            covariance,
            scale_ms: took_ms,
            steps: 0,
        }
    }

    fn note(&mut self, row: [f64; 3], took_ms: f64) {
        self.drift(row);
        let mut expected = dot(&self.costs, &row);
        // The first steps tell the costs apart; a scale would only hide what they say.
        if self.steps > 3 {
            let surprise = (took_ms / expected.max(1e-6)).clamp(1.0 / SCALED_MOST, SCALED_MOST);
            let scale = surprise.powf(SCALED);
            self.costs = self.costs.map(|cost| cost * scale);
            expected *= scale;
        }
        self.steps = self.steps.saturating_add(1);
        let gains = self.covariance.map(|line| dot(&line, &row));
        let noise = (NOISE * expected.max(0.3 * took_ms)).powi(2) + NOISE_MS.powi(2);
        let variance = (dot(&gains, &row) + noise).max(noise);
        let most = BELIEVED * variance.sqrt();
        let surprise = (took_ms - expected).clamp(-most, most);
        for (cost, gain) in self.costs.iter_mut().zip(&gains) {
            *cost = (*cost + gain / variance * surprise).max(0.0);
        }
        for a in 0..3 {
            for b in 0..3 {
                self.covariance[a][b] -= gains[a] * gains[b] / variance;
            }
        }
    }

    /// What was certain becomes less so with every step, up to a bound: what no step tells apart must not become boundless.
    fn drift(&mut self, row: [f64; 3]) {
        let floor = 1e-3 * dot(&self.costs, &row);
        for at in 0..3 {
            self.covariance[at][at] += (DRIFT * self.costs[at] + floor).powi(2);
            let bound = self.scale_ms.powi(2) + 4.0 * self.costs[at].powi(2);
            let over = self.covariance[at][at] / bound;
            if over > 1.0 {
                let shrink = over.sqrt().recip();
                for other in 0..3 {
                    self.covariance[at][other] *= shrink;
                    self.covariance[other][at] *= shrink;
                }
            }
        }
    }
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
