use super::*;

const ADAPTER: ServedAdapter = ServedAdapter {
    id: AdapterId(3),
    content: [7; 32],
    context_tokens: 50,
};

fn served() -> Served {
    Served {
        version_digest: "sha256:aa".to_owned(),
        end_tokens: Arc::from([2]),
        vocab: 300,
        context_tokens: 100,
        scores_prompts: true,
        adapters: [("sha256:bb".to_owned(), ADAPTER)].into(),
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
        case("an adapter", None, |s| {
            s.version_digest = "sha256:bb".to_owned();
        }),
        case("full context of an adapter", Code::TooLarge, |s| {
            s.version_digest = "sha256:bb".to_owned();
            s.prompt = vec![5; 50];
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

/// Numbers in every field, and what passes must be in range for the engine.
#[test]
fn no_submit_gets_through_that_the_engine_could_not_carry_out() {
    let mut state = 7_u64;
    let mut random = move || {
        state = split_mix(state);
        state
    };
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut frame = submit();
        for _ in 0..=random() % 3 {
            let number = [0, 1, 99, 100, 300, 1 << 20, u64::from(u32::MAX)]
                [usize::try_from(random() % 7).unwrap()];
            let small = u32::try_from(number).unwrap();
            let real = f32::from_bits(u32::try_from(random() >> 32).unwrap());
            let sampling = frame.sampling.get_or_insert_default();
            match random() % 14 {
                0 => frame.max_output_tokens = small,
                1 => frame.choices = small,
                2 => frame.prompt = vec![small % 400; usize::try_from(random() % 130).unwrap()],
                3 => frame.trust_scope = vec![1; usize::try_from(number % 64).unwrap()].into(),
                4 => frame.run = vec![1; usize::try_from(number % 20).unwrap()].into(),
                5 => sampling.temperature = real,
                6 => sampling.top_p = real,
                7 => sampling.top_k = small,
                8 => sampling.repetition_penalty = real,
                9 => sampling.logprobs = Some(small),
                10 => sampling.min_tokens = small,
                11 => {
                    sampling.stop_token_ids = vec![small; usize::try_from(random() % 300).unwrap()];
                }
                12 => sampling.stop = vec![String::new(); usize::try_from(random() % 2).unwrap()],
                _ => sampling.frequency_penalty = real,
            }
        }
        let Ok(request) = Request::check(frame, None, &served()) else {
            continue;
        };
        accepted += 1;
        let length = request.prompt.len() + request.rules.max_tokens as usize;
        assert!(length <= 100 && request.rules.max_tokens > 0, "{request:?}");
        assert!(request.sampling.temperature.is_finite() && request.sampling.top_p > 0.0);
        assert!(request.sampling.min_tokens <= request.rules.max_tokens);
        assert!((1..=CHOICES_MAX).contains(&request.choices));
    }
    assert!(accepted > 2_000, "{accepted}");
}
