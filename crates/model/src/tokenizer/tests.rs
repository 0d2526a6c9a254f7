use proptest::prelude::*;

use super::*;
use crate::testing::{byte_level_json, sentence_piece_json, tokenizer, word_piece_json};

fn library(json: &str) -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_bytes(json.as_bytes()).unwrap()
}

fn stream(tokenizer: &Tokenizer, tokens: &[u32], start: DecodeStart) -> Vec<String> {
    let mut detokenizer = tokenizer.detokenizer(start);
    let mut parts: Vec<String> = Vec::new();
    for &token in tokens {
        let mut text = String::new();
        detokenizer.push(token, &mut text);
        parts.push(text);
    }
    let mut text = String::new();
    detokenizer.finish(&mut text);
    parts.push(text);
    parts
}

/// Texts with Korean, emoji, combining marks, spaces and spellings of special tokens.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("hello".to_owned()),
        Just("  ".to_owned()),
        Just(" world".to_owned()),
        Just("한글".to_owned()),
        Just("👩‍👩‍👧‍👦🇰🇷".to_owned()),
        Just("e\u{301}\n".to_owned()),
        Just("<|im_end|>".to_owned()),
        Just("<|im_".to_owned()),
        Just("<think>".to_owned()),
        Just("</s>".to_owned()),
        Just("<s>".to_owned()),
        ".{0,4}",
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn encoding_equals_the_library_s(text in texts()) {
        for json in [byte_level_json(), sentence_piece_json(), word_piece_json()] {
            let (ours, mut theirs) = (tokenizer(&json), library(&json));
            let want = theirs.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            prop_assert_eq!(ours.encode(&text, SpecialTokens::Parse).unwrap(), want);
            let want = theirs.encode_fast(text.as_str(), true).unwrap().get_ids().to_vec();
            prop_assert_eq!(ours.encode_with_ends(&text, SpecialTokens::Parse).unwrap(), want);
            theirs.set_encode_special_tokens(true);
            let want = theirs.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            prop_assert_eq!(ours.encode(&text, SpecialTokens::Plain).unwrap(), want);
        }
    }

    #[test]
    fn plain_text_never_becomes_a_special_token(text in texts()) {
        for json in [byte_level_json(), sentence_piece_json()] {
            let tokenizer = tokenizer(&json);
            let tokens = tokenizer.encode(&text, SpecialTokens::Plain).unwrap();
            let named = tokens.iter().filter(|&&token| tokenizer.table().is_special(token));
            prop_assert!(named.clone().all(|&token| token == 0), "{:?}", named.collect::<Vec<_>>());
        }
    }

    #[test]
    fn streamed_text_is_the_text_and_never_splits_a_character(text in texts()) {
        for json in [byte_level_json(), sentence_piece_json()] {
            let tokenizer = tokenizer(&json);
            let tokens = tokenizer.encode(&text, SpecialTokens::Plain).unwrap();
            let parts = stream(&tokenizer, &tokens, DecodeStart::Text);
            let whole = parts.concat();
            prop_assert_eq!(&whole, &tokenizer.decode(&tokens));
            prop_assert_eq!(&whole, &library(&json).decode(&tokens, true).unwrap());
            prop_assert_eq!(whole.matches('\u{FFFD}').count(), text.matches('\u{FFFD}').count());
        }
    }

    /// Random ids are mostly invalid text: nothing fails, and the byte-level stream is still what the library makes of all ids.
    #[test]
    fn any_ids_stream_like_one_decode(tokens in proptest::collection::vec(0u32..280, 0..40)) {
        let json = byte_level_json();
        let tokenizer = tokenizer(&json);
        let whole = stream(&tokenizer, &tokens, DecodeStart::Text).concat();
        prop_assert_eq!(whole, library(&json).decode(&tokens, true).unwrap());
    }

    #[test]
    fn stop_strings_do_not_depend_on_how_text_is_cut(
        text in "[ab한é]{0,24}",
        stops in proptest::collection::vec("[ab한é]{1,4}", 0..4),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut whole = String::new();
        let mut matcher = StopMatcher::new(stops.iter().map(String::as_str));
        let want = matcher.push(&text, &mut whole);
        if want.is_none() {
            matcher.finish(&mut whole);
        }
        let mut matcher = StopMatcher::new(stops.iter().map(String::as_str));
        let mut got = String::new();
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).filter(|&at| text.is_char_boundary(at)).collect();
        at.extend([0, text.len()]);
        at.sort_unstable();
        for pair in at.windows(2) {
            matcher.push(&text[pair[0]..pair[1]], &mut got);
            // Nothing of a stop string is out, not even its beginning.
            prop_assert!(whole.starts_with(got.as_str()));
        }
        if matcher.matched().is_none() {
            matcher.finish(&mut got);
        }
        prop_assert_eq!(matcher.matched(), want);
        prop_assert_eq!(&got, &whole);
        prop_assert!(stops.iter().all(|stop| !whole.contains(stop.as_str())));
        let first = stops.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| at + stop.len())).min();
        prop_assert_eq!(want.is_some(), first.is_some());
        if let (Some(matched), Some(end)) = (want, first) {
            prop_assert_eq!(whole.len() + stops[matched.index].len(), end);
        }
    }
}

#[test]
fn a_character_comes_out_with_its_last_byte() {
    let tokenizer = tokenizer(&byte_level_json());
    let tokens: Vec<u32> = "한🇰".bytes().map(u32::from).collect();
    let ids: Vec<u32> = tokens
        .iter()
        .map(|&byte| {
            (0..256)
                .find(|&id| tokenizer.table().bytes(id) == [u8::try_from(byte).unwrap()])
                .unwrap()
        })
        .collect();
    assert_eq!(
        stream(&tokenizer, &ids, DecodeStart::Text),
        ["", "", "한", "", "", "", "🇰", ""]
    );
}

#[test]
fn an_invalid_sequence_is_replaced_and_the_stream_goes_on() {
    let tokenizer = tokenizer(&sentence_piece_json());
    let id = |name: &str| tokenizer.token_id(name).unwrap();
    let tokens = [
        id("<0xED>"),
        id("<0x95>"),
        id("h"),
        id("<0x9C>"),
        id("e"),
        id("<0xED>"),
    ];
    assert_eq!(
        stream(&tokenizer, &tokens, DecodeStart::Text).concat(),
        "\u{FFFD}h\u{FFFD}e\u{FFFD}"
    );
}

#[test]
fn the_space_before_the_first_word_goes_only_where_a_text_begins() {
    let tokenizer = tokenizer(&sentence_piece_json());
    let tokens = [
        tokenizer.token_id("</s>").unwrap(),
        tokenizer.token_id("▁he").unwrap(),
        tokenizer.token_id("▁w").unwrap(),
    ];
    assert_eq!(
        stream(&tokenizer, &tokens, DecodeStart::Text).concat(),
        "he w"
    );
    assert_eq!(
        stream(&tokenizer, &tokens, DecodeStart::Continuation).concat(),
        " he w"
    );
}

#[test]
fn an_unknown_decoder_goes_through_the_library() {
    let json = word_piece_json();
    let tokenizer = tokenizer(&json);
    let tokens = tokenizer
        .encode("the game, playing played the game", SpecialTokens::Plain)
        .unwrap();
    assert!(tokens.len() > 6);
    let parts = stream(&tokenizer, &tokens, DecodeStart::Text);
    assert_eq!(
        parts.concat(),
        library(&json).decode(&tokens, true).unwrap()
    );
    assert!(
        parts[..parts.len() - 1].iter().all(|part| !part.is_empty()),
        "each word comes out at once: {parts:?}"
    );
}

#[test]
fn special_and_unknown_ids_write_nothing() {
    let tokenizer = tokenizer(&byte_level_json());
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    assert_eq!(
        tokenizer.decode(&[end, 70, end, 1_000_000]),
        tokenizer.decode(&[70])
    );
}

#[test]
fn a_stop_string_that_ends_inside_a_token_cuts_the_text_at_the_match() {
    let mut matcher = StopMatcher::new(["\nUser:"]);
    let mut out = String::new();
    assert_eq!(matcher.push("answer\nUs", &mut out), None);
    assert_eq!((out.as_str(), matcher.held_bytes()), ("answer", 3));
    assert_eq!(
        matcher.push("er: and more", &mut out),
        Some(StopMatch { index: 0 })
    );
    assert_eq!(out, "answer");
    assert_eq!(
        matcher.push("even more", &mut out),
        Some(StopMatch { index: 0 })
    );
    assert_eq!(out, "answer");
}

#[test]
fn held_text_comes_out_when_it_turns_out_harmless() {
    let mut matcher = StopMatcher::new(["aab", ""]);
    let mut out = String::new();
    matcher.push("aaa", &mut out);
    assert_eq!(out, "a");
    matcher.push("c", &mut out);
    assert_eq!(out, "aaac");
    matcher.push("aa", &mut out);
    matcher.finish(&mut out);
    assert_eq!(out, "aaacaa");
}
