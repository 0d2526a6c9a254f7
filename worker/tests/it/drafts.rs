//! Guessed tokens: the same rows in fewer steps (engine.md section 6, rows 7, 31 and 32).

use serde_json::json;
use weir_protocol::worker::grammar::Kind;
use weir_protocol::worker::{Grammar, Guesses, Row, Submit, finish::Reason};

use crate::fake::{END, SCRIPT};
use crate::gateway::{Gateway, hello, id, submit};
use crate::harness::{Options, TestWorker};

/// What a worker made of some runs, one after another.
struct Made {
    rows: Vec<Vec<Row>>,
    steps: u64,
    accepted: u64,
}

async fn made(draft_tokens: u32, runs: &[Submit]) -> Made {
    let worker = TestWorker::start_with(Options {
        draft_tokens,
        ..Options::default()
    })
    .await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut rows = Vec::new();
    let mut guesses = Guesses::default();
    for run in runs {
        gateway.send(run.clone()).await;
        let mut of_run = gateway.rows_to_the_end().await;
        // Waiting for a slot takes what time it takes.
        of_run[0].started = None;
        // Rows are the same with guesses and without, but for what is said of them.
        let said = of_run.last_mut().unwrap().guesses.take();
        assert!(of_run.iter().all(|row| row.guesses.is_none()));
        let said = said.unwrap_or_default();
        guesses.drafted += said.drafted;
        guesses.accepted += said.accepted;
        rows.push(of_run);
    }
    let tokens: u64 = rows.iter().map(|rows| rows.len() as u64).sum();
    let status = gateway
        .status_where(|status| status.output_tokens >= tokens)
        .await;
    let shown = worker.metrics.prometheus_text();
    let count = |name: &str| -> u64 {
        let mut lines = shown.lines();
        let line = lines.find(|line| line.starts_with(&format!("weir_{name}_tokens_total{{")));
        let count = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        count.unwrap_or_else(|| panic!("no count of guesses in:\n{shown}"))
    };
    let all = (count("drafted"), count("accepted"));
    assert_eq!(
        (guesses.drafted, guesses.accepted),
        all,
        "runs say what the worker counts"
    );
    Made {
        rows,
        steps: status.steps,
        accepted: all.1,
    }
}

/// The same with guesses, more than `least` of which came true. Whether one is worth its cost is told by the time that steps take, so a machine
/// that has none for a moment may find that none is.
async fn guessed(least: u64, runs: &[Submit]) -> Made {
    let mut accepted = vec![];
    for _ in 0..8 {
        let made = made(7, runs).await;
        if made.accepted > least {
            return made;
        }
        accepted.push(made.accepted);
    }
    panic!("no more than {least} guesses came true: {accepted:?}");
}

/// Runs that repeat the text of their prompt again and again.
fn repeating(run: u8, text: &[u32], most: u32) -> Submit {
    let prompt: Vec<u32> = std::iter::once(SCRIPT)
        .chain(text.iter().copied())
        .collect();
    submit(run, &prompt, most)
}

fn letters(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Runs that end in four ways: at their length, by a stop string, by an end token that may not come before, and in several choices.
pub(crate) fn four_runs() -> [Submit; 4] {
    let stop = {
        let mut frame = repeating(2, &letters("one two three "), 200);
        // It ends in the middle of the second round.
        frame.sampling.as_mut().unwrap().stop = vec!["three one two th".to_owned()];
        frame
    };
    let floor = {
        let mut text = letters("round ");
        text.push(END);
        let mut frame = repeating(3, &text, 60);
        let sampling = frame.sampling.as_mut().unwrap();
        sampling.min_tokens = 23;
        // The floor wins over the run's own end tokens too.
        sampling.stop_token_ids = vec![u32::from(b'u')];
        frame
    };
    let several = Submit {
        choices: 3,
        ..repeating(4, &letters("abcabd"), 50)
    };
    [
        repeating(1, &letters("the same again, "), 120),
        stop,
        floor,
        several,
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_save_steps_and_change_no_row() {
    let runs = four_runs();
    let plain = made(0, &runs).await;
    let guessed = guessed(100, &runs).await;
    for (plain, guessed) in plain.rows.iter().zip(&guessed.rows).take(3) {
        assert_eq!(plain, guessed);
    }
    // Rows of choices come in any order among each other.
    for choice in 0..3 {
        let of = |made: &Made| -> Vec<(u32, String)> {
            let rows = made.rows[3].iter().filter(|row| row.choice == choice);
            rows.map(|row| (row.token_id, row.text.clone())).collect()
        };
        assert_eq!(of(&plain), of(&guessed));
    }
    let reason = |rows: &Vec<Row>| rows.last().unwrap().finish.as_ref().unwrap().reason();
    assert_eq!(reason(&guessed.rows[1]), Reason::Stop);
    assert_eq!(
        guessed.rows[1].len(),
        24,
        "nothing comes after the stop string"
    );
    let floor = &guessed.rows[2];
    assert_eq!(
        (floor.len(), floor[23].token_id),
        (24, u32::from(b'u')),
        "the first end token that may come ends it"
    );
    assert_eq!(plain.accepted, 0);
    assert!(
        guessed.steps + 100 < plain.steps,
        "{} of the guesses came true, {} steps instead of {}",
        guessed.accepted,
        guessed.steps,
        plain.steps
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_follow_the_grammar() {
    // Every item must be one of two long words, so that outputs repeat themselves whatever is sampled.
    let schema = json!({
        "type": "array", "minItems": 6, "maxItems": 12,
        "items": {"enum": ["first long word", "first longer word"]},
    });
    let runs: Vec<Submit> = (0..5)
        .map(|run| Submit {
            grammar: Some(Grammar {
                kind: Kind::JsonSchema.into(),
                text: schema.to_string(),
            }),
            ..submit(run, &[40 + u32::from(run), 2, 3], 400)
        })
        .collect();
    let plain = made(0, &runs).await;
    let guessed = guessed(50, &runs).await;
    for (plain, guessed) in plain.rows.iter().zip(&guessed.rows) {
        assert_eq!(plain, guessed);
        let text: String = guessed.iter().map(|row| row.text.as_str()).collect();
        let items: Vec<String> = serde_json::from_str(&text).unwrap();
        assert!((6..=12).contains(&items.len()), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_make_no_row_beyond_a_run_s_credit() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let mut frame = repeating(1, &letters("abcdef"), 100);
    frame.credit = 41;
    gateway.send(frame).await;
    for index in 0..41 {
        assert_eq!(gateway.row().await.index, index);
    }
    gateway.send(submit(2, &[9, 8, 7], 5)).await;
    assert!(
        gateway
            .rows_to_the_end()
            .await
            .iter()
            .all(|row| row.run == id(2))
    );
    let status = gateway
        .status_where(|status| status.output_tokens >= 46)
        .await;
    assert_eq!(status.output_tokens, 46);
}
