//! Any change of any link is found, and named.

use proptest::prelude::*;
use serde_json::json;

use crate::*;

fn chain(bodies: &[Vec<u8>]) -> Vec<Link> {
    let mut head = Head::empty(&Chain::Ledger("acme".into()));
    let hour = 3_600_000;
    (0_u64..)
        .zip(bodies)
        .map(|(n, body)| head.extend(n * 7 * hour, body.clone()))
        .collect()
}

fn verdict(links: &[Link]) -> Result<Head, Broken> {
    let mut verifier = Verifier::new(&Chain::Ledger("acme".into()));
    links.iter().try_for_each(|link| verifier.follow(link))?;
    Ok(verifier.head())
}

fn lines(count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|n| {
            json!({"n": n, "text": "é\",\"record\":"})
                .to_string()
                .into_bytes()
        })
        .collect()
}

#[test]
fn a_chain_is_the_same_for_every_implementation() {
    // Computed with Python's hashlib, as the documentation of this crate says.
    let links = chain(&[b"{}".to_vec(), b"{\"a\":1}".to_vec()]);
    assert_eq!(
        links[1].hash.to_string(),
        "733fec0a3e028cf24b20aa132b829399e941af5f6a309182e0d68bed02df6dd9"
    );
}

#[test]
fn days_follow_the_clock_and_never_go_back() {
    let mut head = Head::empty(&Chain::Audit);
    let at = |days: u64| days * 86_400_000 + 5;
    let days: Vec<u32> = [at(3), at(4), at(2), at(4), at(5)]
        .into_iter()
        .map(|now| head.extend(now, vec![]).day.0)
        .collect();
    assert_eq!(days, [3, 4, 4, 4, 5]);
    assert_eq!(Day(20_786).to_string(), "2026-11-29");
    assert_eq!("2026-11-29".parse(), Ok(Day(20_786)));
    assert!("2026-13-29".parse::<Day>().is_err());
}

#[test]
fn a_link_that_is_missing_doubled_moved_or_of_another_chain_is_named() {
    let links = chain(&lines(5));
    assert_eq!(verdict(&links).unwrap().number, 5);
    let without = [&links[..2], &links[3..]].concat();
    assert!(matches!(
        verdict(&without),
        Err(Broken::Number {
            expected: 3,
            found: 4
        })
    ));
    let twice = [&links[..2], &links[1..]].concat();
    assert!(matches!(
        verdict(&twice),
        Err(Broken::Number {
            expected: 3,
            found: 2
        })
    ));
    let mut verifier = Verifier::new(&Chain::Ledger("globex".into()));
    assert!(matches!(
        verifier.follow(&links[0]),
        Err(Broken::Previous { number: 1, .. })
    ));
}

#[test]
fn a_chain_that_was_made_anew_from_a_changed_record_has_another_root() {
    let honest = chain(&lines(4));
    let mut bodies = lines(4);
    bodies[1] = b"{\"n\":9}".to_vec();
    let forged = chain(&bodies);
    assert!(verdict(&forged).is_ok(), "it is a chain");
    assert_ne!(forged[3].hash, honest[3].hash);
}

proptest! {
    #[test]
    fn every_flipped_bit_of_an_export_is_found(place in any::<prop::sample::Index>(), bit in 0..7_u8) {
        let links = chain(&lines(4));
        let text: Vec<Vec<u8>> = links.iter().map(encode_link).collect();
        let which = place.index(text.len() * 1000);
        let (line, at) = (which / 1000, which % 1000);
        let mut bytes = text[line].clone();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let read = String::from_utf8(bytes).ok().and_then(|text| parse_line(&text).ok());
        let Some(Line::Link(changed)) = read else { return Ok(()) };
        // Hexadecimal digits in the other case mean the same.
        if changed == links[line] { return Ok(()) }
        let mut all = links.clone();
        all[line] = changed;
        let broken = verdict(&all);
        prop_assert!(broken.is_err());
    }

    #[test]
    fn a_link_is_read_as_it_was_written(bodies in prop::collection::vec("[a-z\"{},:é]{0,20}", 1..6)) {
        let bodies: Vec<Vec<u8>> = bodies.iter().map(|text| json!({"t": text}).to_string().into_bytes()).collect();
        for link in chain(&bodies) {
            let text = String::from_utf8(encode_link(&link)).unwrap();
            prop_assert_eq!(parse_line(&text), Ok(Line::Link(link)));
        }
    }
}

#[test]
fn a_difference_names_the_leaf_and_both_values() {
    let old = json!({"limits": {"tokens": 5, "runs": 2}, "models": ["a"], "same": 1});
    let new = json!({"limits": {"tokens": 7, "rate": 3}, "models": ["a", "b"], "same": 1});
    let changes: Vec<String> = diff(&old, &new)
        .iter()
        .map(|c| format!("{}: {} -> {}", c.field, c.old, c.new))
        .collect();
    assert_eq!(
        changes,
        [
            "limits.rate: null -> 3",
            "limits.runs: 2 -> null",
            "limits.tokens: 5 -> 7",
            "models: [\"a\"] -> [\"a\",\"b\"]"
        ]
    );
    assert_eq!(diff(&json!(null), &json!({"a": {"b": 1}}))[0].field, "a.b");
}
