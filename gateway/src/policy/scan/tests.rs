use proptest::prelude::*;
use weir_run::Phase;

use super::super::spec::{Builtin, PolicySpec, RuleAction, RuleSpec};
use super::*;

fn rule(name: &str, action: RuleAction) -> RuleSpec {
    RuleSpec {
        name: name.to_owned(),
        action,
        phases: None,
        words: Vec::new(),
        regexes: Vec::new(),
        patterns: Vec::new(),
    }
}

fn rules(list: Vec<RuleSpec>) -> Arc<[Arc<Rules>]> {
    let spec = PolicySpec {
        name: "test".to_owned(),
        version: 3,
        rules: list,
        ..PolicySpec::default()
    };
    let rules = Rules::new(&spec, Phase::After).unwrap().unwrap();
    Arc::from(vec![Arc::new(rules)])
}

/// Made once: making automata takes a while without optimisation.
fn redacting() -> Arc<[Arc<Rules>]> {
    static MADE: std::sync::OnceLock<Arc<[Arc<Rules>]>> = std::sync::OnceLock::new();
    Arc::clone(MADE.get_or_init(make_redacting))
}

fn make_redacting() -> Arc<[Arc<Rules>]> {
    let all = |name: &str, patterns: Vec<Builtin>| RuleSpec {
        patterns,
        ..rule(name, RuleAction::Redact)
    };
    rules(vec![
        all("key", vec![Builtin::PrivateKeys]),
        all("token", vec![Builtin::Tokens, Builtin::CloudKeys]),
        all("card", vec![Builtin::CardNumbers]),
        RuleSpec {
            words: vec!["Project Blue".to_owned(), "été".to_owned()],
            regexes: vec!["x[ab]{2,6}y".to_owned()],
            ..rule("words", RuleAction::Redact)
        },
    ])
}

/// What is shown of a text that comes in these pieces; and the longest that was held back.
fn shown(rules: &Arc<[Arc<Rules>]>, pieces: &[&str]) -> (String, usize) {
    let mut scanner = Scanner::new(Arc::clone(rules));
    let (mut out, mut verdicts, mut most) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        scanner.push(piece, &mut out, &mut verdicts);
        most = most.max(scanner.held());
    }
    scanner.finish(&mut out, &mut verdicts);
    let source = pieces.concat();
    let (mut at, mut text) = (0, String::new());
    for segment in out {
        match segment {
            Segment::Pass(count) => {
                text.push_str(&source[at..at + count]);
                at += count;
            }
            Segment::Gone(count, marker) => {
                text.push_str(marker.as_deref().unwrap_or(""));
                at += count;
            }
            Segment::Stop => text.push('!'),
        }
    }
    assert_eq!(at, source.len(), "every byte is accounted for");
    (text, most)
}

const PEM: &str =
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----ENDING\n-----END RSA PRIVATE KEY-----";

#[test]
fn secrets_cards_and_words_are_replaced_and_nothing_else_is() {
    let rules = redacting();
    let ghp = format!("ghp_{}", "a1".repeat(18));
    for (given, want) in [
        ("nothing to see", "nothing to see"),
        ("id AKIAIOSFODNN7EXAMPLE.", "id [redacted:token]."),
        ("AKIAIOSFODNN7EXAMPL", "AKIAIOSFODNN7EXAMPL"),
        ("xAKIAIOSFODNN7EXAMPLE", "xAKIAIOSFODNN7EXAMPLE"),
        (&format!("a {ghp}zzz b"), "a [redacted:token] b"),
        (&format!("a {PEM} b"), "a [redacted:key] b"),
        ("a -----BEGIN PRIVATE KEY-----\nMII", "a [redacted:key]"),
        ("4111 1111 1111 1111", "[redacted:card]"),
        ("4111 1111 1111 1112", "4111 1111 1111 1112"),
        ("4111111111111111 12", "[redacted:card] 12"),
        ("2 3 4 5 6 7 8 9 10 11", "2 3 4 5 6 7 8 9 10 11"),
        ("PROJECT blue is late", "[redacted:words] is late"),
        ("project bluest", "project bluest"),
        ("un été chaud", "un [redacted:words] chaud"),
        ("xaay xabbay xay", "[redacted:words] [redacted:words] xay"),
        ("xaxaay", "xa[redacted:words]"),
    ] {
        assert_eq!(shown(&rules, &[given]).0, want, "{given}");
    }
}

#[test]
fn a_rule_that_blocks_stops_before_its_match() {
    let rules = rules(vec![RuleSpec {
        words: vec!["forbidden".to_owned()],
        ..rule("deny", RuleAction::Block)
    }]);
    assert_eq!(
        shown(&rules, &["this is forbid", "den fruit"]).0,
        "this is !"
    );
    assert_eq!(shown(&rules, &["this is forbid"]).0, "this is forbid");
}

#[test]
fn patterns_that_could_hold_output_back_for_ever_or_match_nothing_are_refused() {
    for (regex, word) in [
        ("a+", "256"),
        ("a{0,3}", "nothing"),
        ("a{300}", "256"),
        ("(", "wrong"),
        (r"\bword\b", "word boundaries"),
    ] {
        let spec = PolicySpec {
            name: "test".to_owned(),
            rules: vec![RuleSpec {
                regexes: vec![regex.to_owned()],
                ..rule("r", RuleAction::Redact)
            }],
            ..PolicySpec::default()
        };
        let error = Rules::new(&spec, Phase::After).err().unwrap().to_string();
        assert!(error.contains(word), "{regex}: {error}");
    }
}

#[test]
fn text_that_breaks_off_shows_nothing_of_what_was_not_decided() {
    let rules = redacting();
    for begun in [
        "AKIAIOSFODNN7",
        "4111 1111 1111",
        "-----BEGIN RSA PRI",
        "ghp_0123",
    ] {
        let mut scanner = Scanner::new(Arc::clone(&rules));
        let mut out = Vec::new();
        scanner.push(&format!("see {begun}"), &mut out, &mut Vec::new());
        scanner.abandon(&mut out);
        let passed: usize = out
            .iter()
            .map(|s| if let Segment::Pass(n) = s { *n } else { 0 })
            .sum();
        assert_eq!(passed, 4, "{begun}");
    }
}

/// Pieces of secrets, of text that looks like them, and of text.
fn any_text() -> impl Strategy<Value = String> {
    let piece = proptest::sample::select(vec![
        "AKIA",
        "IOSFODNN7EXAMPLE",
        "ghp_",
        "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1",
        "4111",
        " 1111",
        "1111111111",
        "-----BEGIN ",
        "RSA ",
        "PRIVATE KEY-----",
        "-----END ",
        "\n",
        " ",
        "-",
        "x",
        "ab",
        "y",
        "project ",
        "Blue",
        "é",
        "été",
        "🙂",
        "eyJ",
        "hbGciOiJIUzI1NiJ9",
        ".",
        "sk-",
        "]",
        "[redacted:",
    ]);
    proptest::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

fn cut(text: &str, cuts: &[usize]) -> Vec<String> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    places.retain(|place| text.is_char_boundary(*place));
    places.extend([0, text.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|w| text[w[0]..w[1]].to_owned())
        .collect()
}

proptest! {
    #[test]
    fn any_cut_of_a_text_shows_what_the_whole_shows(text in any_text(), cuts in proptest::collection::vec(any::<usize>(), 0..12)) {
        let rules = redacting();
        let (whole, _) = shown(&rules, &[&text]);
        let pieces = cut(&text, &cuts);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let (cut, most) = shown(&rules, &pieces);
        prop_assert_eq!(&cut, &whole);
        prop_assert!(most <= 257, "{most} bytes were held back");
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        prop_assert_eq!(&shown(&rules, &letters).0, &whole);
        for secret in ["AKIAIOSFODNN7EXAMPLE ", "4111 1111 1111 1111 "] {
            prop_assert!(!whole.contains(&format!(" {secret}")), "{whole}");
        }
    }

    #[test]
    fn a_text_that_is_resumed_where_nothing_was_held_goes_on_as_the_whole(text in any_text(), at in any::<usize>()) {
        let rules = redacting();
        let at = at % (text.len() + 1);
        if !text.is_char_boundary(at) { return Ok(()); }
        let mut scanner = Scanner::new(Arc::clone(&rules));
        let (mut out, mut verdicts) = (Vec::new(), Vec::new());
        scanner.push(&text[..at], &mut out, &mut verdicts);
        if scanner.held() > 0 { return Ok(()); }
        let mut first = String::new();
        let mut place = 0;
        for segment in out {
            match segment {
                Segment::Pass(count) => { first.push_str(&text[place..place + count]); place += count; }
                Segment::Gone(count, marker) => { first.push_str(&marker.unwrap_or_default()); place += count; }
                Segment::Stop => {}
            }
        }
        // What the text itself says must not look like one of our markers.
        if text.contains("[redacted:") { return Ok(()); }
        let mut resumed = Scanner::resume(Arc::clone(&rules), &first);
        let (mut out, mut verdicts) = (Vec::new(), Vec::new());
        resumed.push(&text[at..], &mut out, &mut verdicts);
        resumed.finish(&mut out, &mut verdicts);
        let (mut rest, mut place) = (String::new(), at);
        for segment in out {
            match segment {
                Segment::Pass(count) => { rest.push_str(&text[place..place + count]); place += count; }
                Segment::Gone(count, marker) => { rest.push_str(&marker.unwrap_or_default()); place += count; }
                Segment::Stop => {}
            }
        }
        prop_assert_eq!(first + &rest, shown(&rules, &[&text]).0);
    }
}
