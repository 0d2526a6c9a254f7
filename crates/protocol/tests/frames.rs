//! Hostile frames: the function that `fuzz/` gives to libFuzzer, with seeded changes of good frames.

use prost::Message as _;
use weir_protocol::fuzz;
use weir_protocol::worker::{
    Attach, GatewayFrame, Grammar, Row, Sampling, StepOutput, Submit, WorkerFrame, WorkerStatus,
};

#[path = "../../../e2e/src/splitmix.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is a module of the end-to-end tests"
)]
mod splitmix;

/// Changes of each frame; `WEIR_FUZZ_ROUNDS` says otherwise.
const ROUNDS: u64 = 400;

fn corpus() -> Vec<Vec<u8>> {
    let submit = Submit {
        run: vec![7; 16].into(),
        epoch: 3,
        version_digest: "sha256:00".to_owned(),
        prompt: (0..40).collect(),
        max_output_tokens: 100,
        trust_scope: vec![9; 32].into(),
        grammar: Some(Grammar {
            kind: 1,
            text: "{}".to_owned(),
        }),
        sampling: Some(Sampling {
            temperature: 0.7,
            stop: vec!["end".to_owned()],
            stop_token_ids: vec![1, 2],
            logprobs: Some(3),
            ..Sampling::default()
        }),
        ..Submit::default()
    };
    let attach = Attach {
        run: vec![7; 16].into(),
        epoch: 3,
        from_index: 36,
        credit: 100,
    };
    let step = StepOutput {
        rows: vec![Row {
            run: vec![7; 16].into(),
            text: "some text".to_owned(),
            tokens: 1,
            ..Row::default()
        }],
        ..StepOutput::default()
    };
    let status = WorkerStatus {
        steps: 7,
        loaded_digests: vec!["sha256:00".to_owned()],
        ..WorkerStatus::default()
    };
    vec![
        GatewayFrame::from(submit).encode_to_vec(),
        GatewayFrame::from(attach).encode_to_vec(),
        WorkerFrame::from(step).encode_to_vec(),
        WorkerFrame::from(status).encode_to_vec(),
    ]
}

#[test]
fn no_bytes_break_the_frames() {
    let asked = std::env::var("WEIR_FUZZ_ROUNDS").ok();
    let rounds = asked.map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    for (file, good) in corpus().iter().enumerate() {
        fuzz::frames(good);
        for seed in 0..rounds {
            println!("seed {seed} of frame {file}");
            let mut state = seed << 8 | file as u64;
            let mut below = |bound: usize| {
                let number = splitmix::next(&mut state) % bound.max(1) as u64;
                usize::try_from(number).expect("small")
            };
            let mut bytes = good.clone();
            for _ in 0..=below(5) {
                let at = below(bytes.len());
                match below(4) {
                    0 if at < bytes.len() => bytes[at] ^= 1 << below(8),
                    // A length that is far too long, in as few bytes as possible.
                    1 if at < bytes.len() => {
                        drop(bytes.splice(at..=at, [0xFF, 0xFF, 0xFF, 0xFF, 0x0F]));
                    }
                    2 => bytes.truncate(at),
                    _ => {
                        let piece = bytes[at..].to_vec();
                        bytes.splice(at..at, piece.into_iter().take(1 + below(20)));
                    }
                }
            }
            fuzz::frames(&bytes);
        }
    }
}
