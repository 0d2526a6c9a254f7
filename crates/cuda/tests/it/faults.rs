//! The shim shows what it is made to show: a barrier that is missing or that not all reach, lanes taken to run in step, memory that is
//! not there.

use weir_cuda::device::Address;

use crate::shim::{BF16, Shim};

const SEEDS: u64 = 8;

/// How many of the seeds gave what `want` says; an error is none.
fn right(kernel: &str, input: &[f32], want: &[f32], threads: usize) -> Option<u64> {
    let mut count = 0;
    for seed in 0..SEEDS {
        let mut shim = Shim::start(BF16, seed * 1000)?;
        let (from, to) = (shim.put(input), shim.room(want.len() * 4));
        let pointers = [from, to].map(|Address(address)| (address, 8));
        if shim.run(kernel, [1, 1, 1], threads, &pointers).is_ok() {
            count += u64::from(shim.get::<f32>(to, want.len()) == want);
        }
    }
    Some(count)
}

#[test]
fn a_missing_barrier_shows_in_some_order_and_none_does_in_a_sound_kernel() {
    let input: Vec<f32> = (0u8..=255).map(|at| f32::from(at % 64)).collect();
    let sums = [&input[..128], &input[128..]].map(|half| half.iter().sum::<f32>());
    let want: Vec<f32> = (0..256).map(|at| sums[at / 128] + 0.0).collect();
    let mut shifted = input.clone();
    shifted[128..].iter_mut().for_each(|x| *x += 1.0);
    let mut want_shifted = want;
    want_shifted[128..].iter_mut().for_each(|x| *x += 128.0);
    let Some(sound) = right("sum_with_barrier", &shifted, &want_shifted, 128) else {
        return;
    };
    let broken = right("sum_without_barrier", &shifted, &want_shifted, 128).unwrap();
    assert_eq!(sound, SEEDS);
    assert!(
        broken < SEEDS,
        "the missing barrier showed under none of {SEEDS} seeds"
    );
}

#[test]
fn lanes_do_not_run_in_step() {
    let input: Vec<f32> = (0u8..64).map(f32::from).collect();
    let want: Vec<f32> = (0u8..64).map(|at| f32::from(at ^ 1)).collect();
    if let Some(right) = right("lanes_in_step", &input, &want, 64) {
        assert_eq!(right, 0);
    }
}

#[test]
fn a_barrier_that_half_of_the_threads_reach_is_reported() {
    let Some(mut shim) = Shim::start(BF16, 1) else {
        return;
    };
    let room = shim.room(256);
    let pointers = [(room.0, 8), (room.0, 8)];
    let error = shim
        .run("barrier_of_half", [1, 1, 1], 64, &pointers)
        .unwrap_err();
    assert!(
        error.to_string().contains("threads wait at a barrier"),
        "{error}"
    );
}

#[test]
fn a_read_behind_memory_ends_the_process() {
    let Some(mut shim) = Shim::start(BF16, 1) else {
        return;
    };
    let (from, to) = (shim.put(&[0.0f32; 64]), shim.room(256));
    let pointers = [(from.0, 8), (to.0, 8)];
    let error = shim
        .run("reads_behind", [1, 1, 1], 64, &pointers)
        .unwrap_err();
    assert!(error.to_string().contains("signal"), "{error}");
}

#[test]
fn a_read_that_does_not_begin_where_it_must_ends_the_process() {
    let Some(mut shim) = Shim::start(BF16, 1) else {
        return;
    };
    let (from, to) = (shim.put(&[0.0f32; 64]), shim.room(256));
    let pointers = [(from.0, 8), (to.0, 8)];
    let error = shim
        .run("reads_askew", [1, 1, 1], 8, &pointers)
        .unwrap_err();
    assert!(error.to_string().contains("signal"), "{error}");
}

#[test]
fn blocks_do_not_run_in_order() {
    let Some(mut shim) = Shim::start(BF16, 1) else {
        return;
    };
    let (from, to) = (shim.put(&[1.0f32; 16]), shim.room(64));
    let pointers = [(from.0, 8), (to.0, 8)];
    shim.run("blocks_in_order", [16, 1, 1], 32, &pointers)
        .unwrap();
    let want: Vec<f32> = (1u8..=16).map(f32::from).collect();
    assert_ne!(shim.get::<f32>(to, 16), want);
}

#[test]
fn a_launch_that_does_not_fit_its_kernel_is_refused() {
    let Some(mut shim) = Shim::start(BF16, 1) else {
        return;
    };
    let error = shim.run("rms_norm", [1, 1, 1], 64, &[(0, 8)]).unwrap_err();
    assert!(error.to_string().contains("do not fit"), "{error}");
}
