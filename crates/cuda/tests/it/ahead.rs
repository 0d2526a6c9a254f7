//! Steps that are started before the one before was read.

use weir_cuda::CudaBackend;
use weir_model::WeightFormat;

use weir_cuda::kernels::CacheType;

use crate::model::{golden, shim};
use crate::parity::{Work, run_ahead};
use crate::shim::Shim;

const WORK: Work = Work {
    sequences: 5,
    vocab: 40,
    output: 9,
};

#[test]
fn steps_started_ahead_give_the_same_tokens() {
    let case = golden("qwen3", WeightFormat::Stored, CacheType::Act);
    let mut seed = 70;
    let mut start = || {
        seed += 1;
        case.on(|variant| shim(variant, seed))
    };
    let (Ok(mut one), Ok(mut other)) = (start(), start()) else {
        return;
    };
    let run =
        |backend: &mut CudaBackend<Shim>, runs_ahead| run_ahead(backend, WORK, runs_ahead).unwrap();
    let (want, none) = run(&mut one, false);
    let (got, ahead) = run(&mut other, true);
    assert_eq!(got, want);
    assert_eq!(none, 0);
    assert!(ahead >= 8, "{ahead} steps were started ahead");
    let lengths: Vec<usize> = got.values().map(Vec::len).collect();
    assert_eq!(lengths, [5, 10, 11, 5, 13]);
    // And once more on the same backend, whose slots and pages others have used.
    assert_eq!(run(&mut other, true).0, want);
}
