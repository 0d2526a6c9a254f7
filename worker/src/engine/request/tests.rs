use super::*;

fn served() -> Served {
    Served {
        version_digest: "sha256:aa".to_owned(),
        end_tokens: Arc::from([2]),
        vocab: 300,
        context_tokens: 100,
    }
}

fn submit() -> Submit {
    Submit {
        run: vec![1; 16].into(),
        version_digest: "sha256:aa".to_owned(),
        prompt: vec![5; 10],
        max_output_tokens: 20,
        choices: 1,
        sampling: Some(greedy()),
        ..Submit::default()
    }
}

struct Case {
    name: &'static str,
    change: fn(&mut Submit),
    want: Option<Code>,
}

fn case(name: &'static str, want: impl Into<Option<Code>>, change: fn(&mut Submit)) -> Case {
    Case {
        name,
        change,
        want: want.into(),
    }
}

fn change_sampling(submit: &mut Submit) -> &mut Sampling {
    submit.sampling.get_or_insert_default()
}

#[test]
fn what_cannot_be_carried_out_is_refused_with_its_code() {
    let invalid = Code::Invalid;
    let cases = [
        case("as it is", None, |_| {}),
        case("no sampling is greedy", None, |s| s.sampling = None),
        case("short id", invalid, |s| s.run = vec![1; 15].into()),
        case("other version", Code::UnknownVersion, |s| {
            s.version_digest.clear();
        }),
        case("no prompt", invalid, |s| s.prompt.clear()),
        case("full context", Code::TooLarge, |s| s.prompt = vec![5; 100]),
        case("unknown token", invalid, |s| s.prompt[3] = 300),
        case("no output", invalid, |s| s.max_output_tokens = 0),
        case("many choices", invalid, |s| s.choices = 129),
        case("short scope", invalid, |s| {
            s.trust_scope = vec![1; 31].into();
        }),
        case("NaN", invalid, |s| {
            change_sampling(s).temperature = f32::NAN;
        }),
        case("top_p 0", invalid, |s| change_sampling(s).top_p = 0.0),
        case("penalty 0", invalid, |s| {
            change_sampling(s).repetition_penalty = 0.0;
        }),
        case("logprobs", invalid, |s| {
            change_sampling(s).logprobs = Some(21);
        }),
        case("empty stop", invalid, |s| {
            change_sampling(s).stop = vec![String::new()];
        }),
        case("stop token", invalid, |s| {
            change_sampling(s).stop_token_ids = vec![300];
        }),
    ];
    for Case { name, change, want } in cases {
        let mut frame = submit();
        change(&mut frame);
        let got = Request::check(frame, None, &served())
            .err()
            .map(|refusal| refusal.code);
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn output_ends_with_the_context_at_the_latest() {
    let mut frame = submit();
    frame.max_output_tokens = 1000;
    assert_eq!(
        Request::check(frame, None, &served())
            .unwrap()
            .rules
            .max_tokens,
        90
    );
}

#[test]
fn ignoring_end_tokens_keeps_the_runs_own_stop_tokens() {
    let mut frame = submit();
    let sampling = frame.sampling.as_mut().unwrap();
    sampling.ignore_eos = true;
    sampling.stop_token_ids = vec![9];
    let request = Request::check(frame, None, &served()).unwrap();
    assert!(request.rules.end_tokens.is_empty());
    assert_eq!(request.sampling.masked_until_min.as_ref(), [9]);
}

#[test]
fn seeds_differ_by_run_and_repeat() {
    let request = Request::check(submit(), None, &served()).unwrap();
    let mut other = submit();
    other.run = vec![2; 16].into();
    let other = Request::check(other, None, &served()).unwrap();
    assert_ne!(request.sampling.seed, other.sampling.seed);
    assert_eq!(
        Request::check(submit(), None, &served())
            .unwrap()
            .sampling
            .seed,
        request.sampling.seed
    );
}
