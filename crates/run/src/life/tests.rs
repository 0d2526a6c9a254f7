use proptest::prelude::*;

use super::*;
use crate::testing::accepted_run;
use crate::{Event, EventKind, Replay, Start};

const ALL: [RunStatus; 8] = [
    RunStatus::Accepted,
    RunStatus::Running,
    RunStatus::Cancelling,
    RunStatus::Completed,
    RunStatus::Cancelled,
    RunStatus::Interrupted,
    RunStatus::Failed,
    RunStatus::Expired,
];

#[test]
fn every_pair_of_state_and_step_is_decided() {
    use RunStatus::{Accepted, Cancelled, Cancelling, Completed, Running};
    let steps = [Step::Start, Step::Output, Step::Cancel]
        .into_iter()
        .chain(ALL.map(Step::End));
    let legal: &[(RunStatus, bool, Step, RunStatus)] = &[
        (Accepted, false, Step::Start, Running),
        (Accepted, false, Step::Cancel, Cancelling),
        (Running, true, Step::Output, Running),
        (Running, true, Step::Cancel, Cancelling),
        (Running, true, Step::End(Completed), Completed),
        (Cancelling, false, Step::Start, Cancelling),
        (Cancelling, false, Step::Cancel, Cancelling),
        (Cancelling, true, Step::Cancel, Cancelling),
        (Cancelling, true, Step::Output, Cancelling),
        (Cancelling, true, Step::End(Completed), Completed),
        (Cancelling, false, Step::End(Cancelled), Cancelled),
    ];
    for step in steps {
        for from in ALL {
            for started in [false, true] {
                // A state that no run can be in: running means started, accepted means not.
                if (from == Running && !started) || (from == Accepted && started) {
                    continue;
                }
                let got = next(from, started, step);
                let row = legal
                    .iter()
                    .find(|r| (r.0, r.1, r.2) == (from, started, step));
                let short = matches!(step, Step::End(end) if end.is_terminal() && end != Completed);
                let want = match (row, step) {
                    (Some(row), _) => Some(row.3),
                    (None, Step::End(end)) if short && !from.is_terminal() => Some(end),
                    _ => None,
                };
                assert_eq!(got.ok(), want, "{from:?} started={started} {step:?}");
            }
        }
    }
}

fn start(cached_tokens: u64) -> Start {
    Start {
        cached_tokens,
        worker: "w".into(),
        predicted_ms: Some(7),
        affinity_tokens: None,
    }
}

fn extension() -> Extension<'static> {
    Extension {
        epoch: Epoch(1),
        output_tokens: 0,
        output_index: 0,
        started: None,
        terminal: None,
        verdicts: &[],
        now_ms: 5,
    }
}

fn running() -> Run {
    let mut run = accepted_run();
    let start = start(4);
    let new = Extension {
        started: Some(&start),
        ..extension()
    };
    run.extend(&new, [(Sequence(2), "started")]).unwrap();
    run
}

/// Name, run, summary, events, words of the refusal.
type Row<'a> = (
    &'a str,
    Run,
    Extension<'a>,
    Vec<(Sequence, &'static str)>,
    &'a str,
);

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_broken_extension_changes_nothing_and_says_why() {
    let none = start(0);
    let completed = Terminal {
        status: RunStatus::Completed,
        finish_reason: Some(FinishReason::Stop),
        error: None,
        usage: Usage::default(),
    };
    let cheat = Terminal {
        usage: Usage {
            cost_micros: 211,
            ..Usage::default()
        },
        ..completed.clone()
    };
    let base = extension();
    let out = |n| Extension {
        output_tokens: n,
        output_index: n,
        ..base
    };
    let end = |terminal| Extension {
        terminal: Some(terminal),
        ..base
    };
    let rows: Vec<Row<'_>> = vec![
        (
            "gap",
            running(),
            out(1),
            vec![(Sequence(4), "delta")],
            "expected event 3, got 4",
        ),
        (
            "double",
            running(),
            out(1),
            vec![(Sequence(2), "delta")],
            "expected event 3, got 2",
        ),
        ("nothing", running(), base, vec![], "nothing to append"),
        (
            "not started",
            accepted_run(),
            out(1),
            vec![(Sequence(2), "delta")],
            "\"accepted\" cannot produce output",
        ),
        (
            "started twice",
            running(),
            Extension {
                started: Some(&none),
                ..base
            },
            vec![(Sequence(3), "started")],
            "cannot start",
        ),
        (
            "unannounced start",
            accepted_run(),
            base,
            vec![(Sequence(2), "started")],
            "kind \"started\" has no place at sequence 2",
        ),
        (
            "start announced only",
            accepted_run(),
            Extension {
                started: Some(&none),
                terminal: None,
                ..base
            },
            vec![(Sequence(2), "delta")],
            "cannot produce",
        ),
        (
            "unannounced end",
            running(),
            base,
            vec![(Sequence(3), "completed")],
            "kind \"completed\" has no place",
        ),
        (
            "other end",
            running(),
            end(&completed),
            vec![(Sequence(3), "failed")],
            "kind \"failed\" has no place",
        ),
        (
            "end announced only",
            running(),
            Extension {
                output_tokens: 1,
                ..end(&completed)
            },
            vec![(Sequence(3), "delta")],
            "kind \"completed\" has no place at sequence 4",
        ),
        (
            "after the end",
            running(),
            end(&completed),
            vec![(Sequence(3), "completed"), (Sequence(4), "delta")],
            "kind \"delta\" has no place at sequence 4",
        ),
        (
            "two ends",
            running(),
            end(&completed),
            vec![(Sequence(3), "completed"), (Sequence(4), "completed")],
            "has no place at sequence 4",
        ),
        (
            "over the reservation",
            running(),
            out(51),
            vec![(Sequence(3), "delta")],
            "output tokens would be 51, at most 50",
        ),
        (
            "tokens from nowhere",
            running(),
            Extension {
                output_tokens: 1,
                ..end(&completed)
            },
            vec![(Sequence(3), "completed")],
            "without a delta",
        ),
        (
            "unbilled",
            running(),
            Extension {
                output_tokens: 1,
                ..end(&completed)
            },
            vec![(Sequence(3), "delta"), (Sequence(4), "completed")],
            "unbilled output tokens would be 1",
        ),
        (
            "too dear",
            running(),
            end(&cheat),
            vec![(Sequence(3), "completed")],
            "cost would be 211, at most 210",
        ),
    ];
    for (name, mut run, new, events, want) in rows {
        let before = run.clone();
        match run.extend(&new, events) {
            Err(NotExtended::Illegal(illegal)) => {
                assert!(illegal.to_string().contains(want), "{name}: {illegal}");
            }
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(run, before, "{name}");
    }
}

#[test]
fn an_older_writer_and_a_finished_run_refuse_events() {
    let mut run = running();
    assert_eq!(run.take_over(), Some(Epoch(2)));
    let delta = [(Sequence(3), "delta")];
    assert_eq!(
        run.extend(&extension(), delta),
        Err(NotExtended::Fenced(Epoch(2)))
    );
    let terminal = Terminal {
        status: RunStatus::Interrupted,
        finish_reason: None,
        error: Some("worker lost".into()),
        usage: run.usage(),
    };
    let end = Extension {
        epoch: Epoch(2),
        terminal: Some(&terminal),
        ..extension()
    };
    run.extend(&end, [(Sequence(3), "interrupted")]).unwrap();
    assert_eq!(
        run.cost_micros,
        Some(6),
        "the cached 4 of 10 prompt tokens are free"
    );
    let ended = run.clone();
    let again = Extension {
        epoch: Epoch(2),
        ..extension()
    };
    assert_eq!(
        run.extend(&again, [(Sequence(4), "delta")]),
        Err(NotExtended::Terminal(RunStatus::Interrupted))
    );
    assert!(!run.cancel());
    assert_eq!(run.take_over(), None);
    assert_eq!(run, ended);
}

/// One append of the property: deltas, and whether it starts, cancels and ends the run.
#[derive(Clone, Debug)]
struct Move {
    deltas: Vec<u32>,
    cancel: bool,
    take_over: bool,
    end: Option<RunStatus>,
}

fn any_move() -> impl Strategy<Value = Move> {
    let end =
        proptest::option::weighted(0.1, proptest::sample::select(RunStatus::TERMINAL.to_vec()));
    (
        proptest::collection::vec(0_u32..3, 0..4),
        any::<bool>(),
        any::<bool>(),
        end,
    )
        .prop_map(|(deltas, cancel, take_over, end)| Move {
            deltas,
            cancel,
            take_over,
            end,
        })
}

fn events_of(run: &Run, step: &Move) -> (Vec<Event>, Option<Terminal>, bool) {
    let mut kinds = vec![];
    let starts = run.started_at_ms.is_none() && (!step.deltas.is_empty() || step.end.is_none());
    if starts {
        kinds.push(EventKind::Started { queue_ms: 1 });
    }
    kinds.extend(step.deltas.iter().map(|&tokens| EventKind::Delta {
        text: String::new(),
        tokens,
        choice: 0,
        logprobs: None,
        prompt_logprobs: Vec::new(),
        choice_finish_reason: None,
        tool_calls: Vec::new(),
    }));
    let mut after = run.clone();
    after.output_tokens += step.deltas.iter().map(|n| u64::from(*n)).sum::<u64>();
    if starts {
        after.started_at_ms = Some(0);
    }
    let terminal = step.end.map(|status| Terminal {
        status,
        finish_reason: (status == RunStatus::Completed).then_some(FinishReason::Stop),
        error: None,
        usage: after.usage(),
    });
    if let Some(end) = &terminal {
        kinds.push(match end.finish_reason {
            Some(reason) => EventKind::completed(reason, end.usage),
            None => EventKind::Ended {
                status: end.status,
                reason: String::new(),
                usage: end.usage,
            },
        });
    }
    let first = run.last_sequence.0 + 1;
    let events = (first..)
        .zip(kinds)
        .map(|(n, kind)| Event {
            sequence: Sequence(n),
            kind,
        })
        .collect();
    (events, terminal, starts)
}

proptest! {
    #[test]
    fn replaying_any_prefix_of_the_log_gives_the_state_it_was_written_in(
        moves in proptest::collection::vec(any_move(), 1..12),
    ) {
        let mut run = accepted_run();
        let mut replay = Replay::default();
        let accepted = EventKind::Accepted { run_id: run.id, model_version: 2, reserved_tokens: 60 };
        replay.apply(&Event { sequence: Sequence(1), kind: accepted }).unwrap();
        for step in moves {
            if step.cancel { run.cancel(); }
            if step.take_over { run.take_over(); }
            let (events, terminal, starts) = events_of(&run, &step);
            let tokens = step.deltas.iter().map(|n| u64::from(*n)).sum();
            let begun = start(2);
            let new = Extension {
                epoch: run.epoch,
                output_tokens: tokens,
                output_index: run.output_index + tokens,
                started: starts.then_some(&begun),
                terminal: terminal.as_ref(),
                verdicts: &[],
                now_ms: 9,
            };
            let before = run.clone();
            let taken = run.extend(&new, events.iter().map(|e| (e.sequence, e.kind.name())));
            if taken.is_ok() {
                for event in &events { replay.apply(event).unwrap(); }
            } else {
                prop_assert_eq!(&before, &run);
            }
            prop_assert_eq!(replay.last_sequence, run.last_sequence);
            prop_assert_eq!(replay.output_tokens, run.output_tokens);
            prop_assert_eq!(replay.finish_reason, run.finish_reason);
            prop_assert_eq!(replay.usage.map(|u| u.cost_micros), run.cost_micros);
            let shown = match run.status {
                RunStatus::Cancelling if run.started_at_ms.is_some() => RunStatus::Running,
                RunStatus::Cancelling => RunStatus::Accepted,
                other => other,
            };
            prop_assert_eq!(replay.status, Some(shown));
        }
    }
}
