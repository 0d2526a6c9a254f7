//! Tests against a limit, without a second arm: they assume that runs do not come in clumps, so they only hold, or see what
//! is gross.

use crate::statistics::{log_mean_exp, milli, threshold_milli};

const BETS: usize = 8;
const BOLDNESS: f64 = 0.9;

/// ln of the evidence that more than `limit_ppm` of the judged runs are bad: the mean over stakes of the product of
/// 1 + λ(Y - limit). `arm` is bad, judged.
pub fn exceeds(arm: [u64; 2], limit_ppm: u32) -> f64 {
    if !(1..1_000_000).contains(&limit_ppm) {
        return 0.0;
    }
    let limit = f64::from(limit_ppm) / 1e6;
    let [bad, judged] = arm;
    let good = judged.saturating_sub(bad) as f64;
    let mut stake = BOLDNESS / limit;
    let logs = [(); BETS].map(|()| {
        let wealth =
            bad as f64 * libm::log1p(stake * (1.0 - limit)) + good * libm::log1p(-stake * limit);
        stake /= 2.0;
        wealth
    });
    log_mean_exp(&logs)
}

/// At 100 percent there is nothing to compare with: only what is gross counts.
const AFTER_PPM: u32 = 1_000;

/// Whether the share of failed runs is plainly over twice the limit. `blocks[i]` counts blocks of ten seconds of one tenant in
/// which i sixteenths of the runs failed, rounded down: a block is one observation, so a burst of one tenant is one too.
pub fn after_promotion(blocks: &[u64; 17], error_limit_ppm: u32) -> bool {
    let limit = 2.0 * f64::from(error_limit_ppm) / 1e6;
    if limit <= 0.0 || limit >= 1.0 {
        return false;
    }
    let mut stake = BOLDNESS / limit;
    let logs = [(); BETS].map(|()| {
        let level = |(index, &count): (usize, &u64)| {
            count as f64 * libm::log1p(stake * (index as f64 / 16.0 - limit))
        };
        let wealth = blocks.iter().enumerate().map(level).sum();
        stake /= 2.0;
        wealth
    });
    milli(log_mean_exp(&logs)) >= threshold_milli(AFTER_PPM)
}
