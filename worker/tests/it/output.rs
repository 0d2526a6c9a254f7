//! What a run's rows say.

use weir_protocol::worker::{Row, Submit, finish::Reason};

use crate::fake::{END, SCRIPT, choice_seed, expected, text_of};
use crate::gateway::{Gateway, hello, sampling, submit};
use crate::harness::TestWorker;

fn script(text: &[u8]) -> Vec<u32> {
    std::iter::once(SCRIPT)
        .chain(text.iter().map(|byte| u32::from(*byte)))
        .collect()
}

fn text(rows: &[Row]) -> String {
    rows.iter().map(|row| row.text.as_str()).collect()
}

fn ending(rows: &[Row]) -> (Reason, String) {
    let finish = rows.last().unwrap().finish.as_ref().unwrap();
    (finish.reason(), finish.stop.clone())
}

async fn run_alone(submit: Submit) -> Vec<Row> {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    gateway.send(submit).await;
    gateway.rows_to_the_end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_gives_one_row_per_token_and_ends_at_its_limit() {
    let prompt = script(b"").into_iter().chain([END - 1]).collect::<Vec<_>>();
    assert_eq!(prompt[0], SCRIPT);
    let prompt: Vec<u32> = (1..40).collect();
    let rows = run_alone(submit(1, &prompt, 30)).await;

    let want = expected(&prompt, 7, 30);
    assert_eq!(
        rows.iter().map(|row| row.token_id).collect::<Vec<_>>(),
        want
    );
    assert_eq!(text(&rows), text_of(&want));
    assert_eq!(
        rows.iter().map(|row| row.index).collect::<Vec<_>>(),
        (0..30).collect::<Vec<_>>()
    );
    assert!(rows.iter().all(|row| row.tokens == 1 && row.epoch == 1));
    assert!(rows[0].started.is_some() && rows[1..].iter().all(|row| row.started.is_none()));
    assert!(
        rows[..29]
            .iter()
            .all(|row| row.finish.is_none() && !row.run_finished)
    );
    assert_eq!(ending(&rows), (Reason::Length, String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_token_is_a_billed_row_without_text() {
    let mut prompt = script(b"hi");
    prompt.push(END);
    let rows = run_alone(submit(1, &prompt, 30)).await;
    assert_eq!(
        rows.iter()
            .map(|row| (row.text.as_str(), row.tokens))
            .collect::<Vec<_>>(),
        [("h", 1), ("i", 1), ("", 1)]
    );
    assert_eq!(ending(&rows), (Reason::Stop, String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn ignoring_the_end_token_goes_on_to_the_limit() {
    let mut prompt = script(b"hi");
    prompt.push(END);
    let mut frame = submit(1, &prompt, 7);
    frame.sampling.as_mut().unwrap().ignore_eos = true;
    let rows = run_alone(frame).await;
    assert_eq!((rows.len(), text(&rows).as_str()), (7, "hihih"));
    assert_eq!(ending(&rows).0, Reason::Length);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_over_tokens_is_cut_and_never_shown() {
    struct Case {
        name: &'static str,
        output: &'static str,
        stops: &'static [&'static str],
        tokens: usize,
        text: &'static str,
        ending: (Reason, &'static str),
    }
    let stop = |stop| (Reason::Stop, stop);
    let cases = [
        Case {
            name: "over three tokens",
            output: "one END two",
            stops: &["END"],
            tokens: 7,
            text: "one ",
            ending: stop("END"),
        },
        Case {
            name: "false start",
            output: "EN ENDx",
            stops: &["END"],
            tokens: 6,
            text: "EN ",
            ending: stop("END"),
        },
        Case {
            name: "first of two",
            output: "abcdef",
            stops: &["def", "cd"],
            tokens: 4,
            text: "ab",
            ending: stop("cd"),
        },
        Case {
            name: "held to the end",
            output: "abcdefgEN",
            stops: &["ENDE"],
            tokens: 9,
            text: "abcdefgEN",
            ending: (Reason::Length, ""),
        },
    ];
    for case in cases {
        let mut frame = submit(1, &script(case.output.as_bytes()), 9);
        frame.sampling.as_mut().unwrap().stop =
            case.stops.iter().map(|stop| (*stop).to_owned()).collect();
        let rows = run_alone(frame).await;
        let (reason, stop) = ending(&rows);
        assert_eq!(
            (rows.len(), text(&rows).as_str()),
            (case.tokens, case.text),
            "{}",
            case.name
        );
        assert_eq!((reason, stop.as_str()), case.ending, "{}", case.name);
        assert!(rows.iter().all(|row| row.tokens == 1), "{}", case.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn characters_over_tokens_come_out_whole() {
    let output = "né 한국 🦀!";
    let rows = run_alone(submit(
        1,
        &script(output.as_bytes()),
        u32::try_from(output.len()).unwrap(),
    ))
    .await;
    assert_eq!(text(&rows), output);
    assert!(!rows.iter().any(|row| row.text.contains('\u{FFFD}')));
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_are_told_apart_and_the_last_row_ends_the_run() {
    let prompt: Vec<u32> = (1..20).collect();
    let mut frame = submit(1, &prompt, 12);
    frame.choices = 3;
    let rows = run_alone(frame).await;
    assert_eq!(
        rows.iter().map(|row| row.index).collect::<Vec<_>>(),
        (0..36).collect::<Vec<_>>()
    );
    for choice in 0..3 {
        let own: Vec<_> = rows
            .iter()
            .filter(|row| row.choice == choice)
            .cloned()
            .collect();
        assert_eq!(
            text(&own),
            text_of(&expected(&prompt, choice_seed(7, choice), 12)),
            "choice {choice}"
        );
        assert_eq!(ending(&own).0, Reason::Length);
    }
    assert_eq!(rows.iter().filter(|row| row.run_finished).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn logprobs_name_the_token_and_its_alternatives() {
    let mut frame = submit(1, &script(b"ab"), 2);
    frame.sampling = Some(weir_protocol::worker::Sampling {
        logprobs: Some(2),
        ..sampling()
    });
    let rows = run_alone(frame).await;
    let first = rows[0].logprob.as_ref().unwrap();
    assert_eq!(
        (
            first.token.as_str(),
            first.token_bytes.as_ref(),
            first.logprob
        ),
        ("a", b"a".as_slice(), -0.5)
    );
    let top: Vec<_> = first
        .top
        .iter()
        .map(|top| (top.token_id, top.token.as_str(), top.logprob))
        .collect();
    assert_eq!(top, [(97, "a", -0.5), (98, "b", -1.5)]);

    let without = run_alone(submit(1, &script(b"ab"), 2)).await;
    assert!(without.iter().all(|row| row.logprob.is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_logprobs_name_every_token_of_a_prompt_before_the_first_of_its_output() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let prompt: Vec<u32> = (0..300).map(|at| 97 + at % 20).collect();
    // The first fills the cache, the others may not start from there.
    for run in 1..4 {
        let mut frame = submit(run, &prompt, 3);
        frame.trust_scope = vec![1; 32].into();
        frame.credit = 2;
        frame.sampling = Some(weir_protocol::worker::Sampling {
            prompt_logprobs: (run > 1).then_some(2),
            ..sampling()
        });
        gateway.send(frame).await;
        gateway.progress(run, 0, 1_000).await;
        let rows = gateway.rows_to_the_end().await;
        let started = rows[0].started.unwrap();
        let said: Vec<_> = rows.iter().flat_map(|row| &row.prompt_logprobs).collect();
        if run == 1 {
            assert_eq!(said.len(), 0);
            continue;
        }
        assert_eq!((started.cached_tokens, said.len()), (0, 300));
        let places: Vec<_> = said.iter().map(|token| token.logprob).collect();
        assert_eq!(places[..3], [None, Some(-1.0), Some(-2.0)]);
        assert_eq!(places[299], Some(-299.0));
        let letters: String = said.iter().map(|token| token.token.as_str()).collect();
        assert!(letters.starts_with("abcdefghijklmnopqrstabc"), "{letters}");
        let top: Vec<_> = said[1].top.iter().map(|top| top.token.as_str()).collect();
        assert_eq!((said[0].top.len(), top), (0, vec!["a", "b"]));
        let tokens: Vec<u32> = rows.iter().map(|row| row.tokens).collect();
        assert_eq!(
            tokens,
            [0, 0, 0, 1, 1, 1],
            "128 a row, and nothing of it is billed"
        );
        let indexes: Vec<u64> = rows.iter().map(|row| row.index).collect();
        assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_go_on_after_a_prompt_was_told_and_acknowledged() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    // What a run has when it comes in must count before it can be taken off again.
    for run in 1..4 {
        let mut frame = submit(run, &script(b"ab"), 2);
        frame.sampling = Some(weir_protocol::worker::Sampling {
            prompt_logprobs: (run < 3).then_some(2),
            ..sampling()
        });
        gateway.send(frame).await;
        let rows = gateway.rows_to_the_end().await;
        assert_eq!(text(&rows), "ab");
        let all = rows.last().unwrap().index + 1;
        gateway.progress(run, all, all).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_runs_at_once_give_every_token_once() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    // Prompts and outputs need four times the pool's blocks, so sequences wait and are preempted.
    let prompt = |run: u8| -> Vec<u32> {
        (0..100 + u32::from(run))
            .map(|at| (at * 7 + u32::from(run)) % 256)
            .collect()
    };
    for run in 0..64 {
        gateway
            .send(submit(run, &prompt(run), 100 + u32::from(run)))
            .await;
    }
    let mut tokens = vec![Vec::new(); 64];
    let mut finished = 0;
    while finished < 64 {
        let row = gateway.row().await;
        let run = usize::from(row.run[0]);
        assert_eq!(row.index, tokens[run].len() as u64);
        tokens[run].push(row.token_id);
        finished += usize::from(row.run_finished);
    }
    for run in 0..64_u8 {
        let want = expected(&prompt(run), 7, 100 + usize::from(run));
        assert_eq!(tokens[usize::from(run)], want, "run {run}");
    }
    let total: usize = tokens.iter().map(Vec::len).sum();
    let status = gateway
        .status_where(|status| status.running == 0 && status.output_tokens >= total as u64)
        .await;
    assert_eq!(
        status.output_tokens, total as u64,
        "nothing is sampled twice"
    );
    let shown = worker.metrics.prometheus_text();
    let want =
        format!("vllm:generation_tokens_total{{model_name=\"fake\",engine=\"0\"}} {total}\n");
    assert!(shown.contains(&want), "no {want:?} in\n{shown}");
    assert_eq!(
        status.blocks_free + status.blocks_cached,
        status.blocks_total
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_run_of_one_scope_reuses_the_prompt_and_other_scopes_do_not() {
    let worker = TestWorker::start().await;
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    let prompt: Vec<u32> = (0..100).collect();
    let mut cached = Vec::new();
    for (run, scope) in [(1, 1), (2, 1), (3, 2), (4, 0), (5, 0)] {
        let mut frame = submit(run, &prompt, 3);
        frame.trust_scope = if scope == 0 {
            bytes::Bytes::new()
        } else {
            vec![scope; 32].into()
        };
        gateway.send(frame).await;
        let rows = gateway.rows_to_the_end().await;
        assert_eq!(
            rows.iter().map(|row| row.token_id).collect::<Vec<_>>(),
            expected(&prompt, 7, 3)
        );
        cached.push(rows[0].started.unwrap().cached_tokens);
    }
    assert_eq!(cached, [0, 96, 0, 0, 0]);
}
