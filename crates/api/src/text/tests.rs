//! Parsers and schema patterns agree, so that an API server and the code refuse the same texts.

use proptest::prelude::*;
use regex::Regex;

use super::*;

fn matches(pattern: &str, text: &str) -> bool {
    Regex::new(pattern).unwrap().is_match(text)
}

#[test]
fn durations_read_as_written() {
    let cases = [
        ("0s", Some(0)),
        ("500ms", Some(500)),
        ("300s", Some(300_000)),
        ("1h30m", Some(5_400_000)),
        ("24h", Some(86_400_000)),
        ("999999999h", Some(3_599_999_996_400_000)),
        ("", None),
        ("5", None),
        ("s", None),
        ("1d", None),
        ("-1s", None),
        ("1.5s", None),
        ("1 s", None),
        ("1s1s1s1s1s", None),
        ("1000000000s", None),
    ];
    for (text, want_ms) in cases {
        let got = DurationText(text.to_owned()).parse().ok();
        assert_eq!(got, want_ms.map(Duration::from_millis), "{text:?}");
    }
}

#[test]
fn quantities_are_bytes_rounded_up() {
    let cases = [
        ("1Gi", Some(1 << 30)),
        ("512Mi", Some(512 << 20)),
        ("1.5Ki", Some(1536)),
        ("0.001Ki", Some(2)),
        ("1k", Some(1000)),
        ("7", Some(7)),
        ("1.", None),
        (".5Gi", None),
        ("1GB", None),
        ("1e3", None),
        ("-1", None),
        ("999999999999999Ti", None),
    ];
    for (text, want) in cases {
        let got = QuantityText::Text(text.to_owned()).bytes().ok();
        assert_eq!(got, want, "{text:?}");
    }
    assert_eq!(QuantityText::Bytes(5).bytes(), Ok(5));
    assert!(QuantityText::Bytes(-5).bytes().is_err());
}

#[test]
fn percentages_are_parts_per_million() {
    let cases = [
        ("0.1", Some(1_000)),
        ("1", Some(10_000)),
        ("0.0001", Some(1)),
        ("99.9999", Some(999_999)),
        ("100.0", Some(1_000_000)),
        ("100.1", None),
        ("101", None),
        ("1%", None),
        ("", None),
        ("0.00001", None),
    ];
    for (text, want) in cases {
        let got = Percent::Text(text.to_owned()).parts_per_million().ok();
        assert_eq!(got, want, "{text:?}");
    }
    assert_eq!(Percent::Whole(100).parts_per_million(), Ok(1_000_000));
    assert!(Percent::Whole(101).parts_per_million().is_err());
    assert!(Percent::Whole(-1).parts_per_million().is_err());
}

proptest! {
    #[test]
    fn durations_parse_exactly_where_the_schema_matches(text in "([0-9]{0,10}(ms|s|m|h|d|)){0,5}") {
        prop_assert_eq!(DurationText(text.clone()).parse().is_ok(), matches(DURATION, &text));
    }

    #[test]
    fn percentages_parse_exactly_where_the_schema_matches(text in "[0-9]{0,4}(\\.[0-9]{0,5})?") {
        let parsed = Percent::Text(text.clone()).parts_per_million().is_ok();
        prop_assert_eq!(parsed, matches(PERCENT, &text));
    }

    #[test]
    fn quantities_parse_where_the_schema_matches_and_they_fit(text in "[0-9]{0,5}(\\.[0-9]{0,4})?(k|M|Ki|Gi|Ti|B|)") {
        let parsed = QuantityText::Text(text.clone()).bytes().is_ok();
        prop_assert_eq!(parsed, matches(QUANTITY, &text));
    }

    #[test]
    fn durations_survive_a_round_trip(ms in 0_u64..1_000_000_000) {
        let duration = Duration::from_millis(ms);
        prop_assert_eq!(DurationText::from(duration).parse(), Ok(duration));
    }
}
