//! How fast this machine reads memory now: the roof of every step that reads all weights.

use std::time::Instant;

/// Far beyond any cache, for each thread.
const WORDS: usize = 32 << 20;
const PASSES: usize = 5;

/// GB/s that one thread per core reads together, the best of some passes.
pub(super) fn read_rate() -> f64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let parts: Vec<Vec<u64>> = (0..threads)
        .map(|part| vec![part as u64 + 1; WORDS])
        .collect();
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for part in &parts {
                scope.spawn(|| std::hint::black_box(sum(part)));
            }
        });
        best = best.min(begun.elapsed().as_secs_f64());
    }
    (threads * WORDS * size_of::<u64>()) as f64 / best / 1e9
}

/// Four places at a time: one stream alone does not use what a core can have under way.
fn sum(words: &[u64]) -> u64 {
    let quarter = words.len() / 4;
    let mut sums = [0_u64; 32];
    for at in (0..quarter).step_by(8) {
        for stream in 0..4 {
            let from = &words[stream * quarter + at..][..8];
            for (sum, word) in sums[stream * 8..][..8].iter_mut().zip(from) {
                *sum = sum.wrapping_add(*word);
            }
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (0..4096).collect();
        assert_eq!(sum(&words), 4095 * 4096 / 2);
    }
}
