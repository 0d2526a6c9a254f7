//! Bytes of the log that are not what was written: the last commit may go whole, no other may.

use super::*;
use crate::kv::log_kv::frame::BLOCK;

/// Commits of one to three blocks in several segments, none carried over; the state after each, the first one empty.
fn written() -> (Medium, Vec<Map>) {
    let medium = Medium::new(3);
    let core = open(&medium).unwrap();
    let mut states = vec![Map::new()];
    for n in 0..8_u8 {
        let value = vec![n; 100 + usize::from(n % 3) * BLOCK];
        let batch = Batch::from([
            (vec![b'a', n % 5], Some(value)),
            (vec![b'b'], Some(vec![n])),
            (vec![b'a', (n + 2) % 5], None),
        ]);
        core.commit(&batch).unwrap();
        let mut state = states.last().unwrap().clone();
        apply(&mut state, &batch);
        states.push(state);
    }
    drop(core);
    (medium, states)
}

/// Where frames are: file and place, in order.
fn frames(medium: &Medium) -> Vec<(String, usize)> {
    let mut frames = vec![];
    for (name, bytes) in medium.contents() {
        for at in (0..bytes.len()).step_by(BLOCK) {
            if bytes[at..].starts_with(b"WLF1") {
                frames.push((name.clone(), at));
            }
        }
    }
    frames
}

/// Which prefix the medium holds; `None`: it is refused.
fn prefix(medium: &Medium, states: &[Map]) -> Option<usize> {
    match open(medium) {
        Ok(core) => {
            let found = all(&core);
            let place = states.iter().position(|state| *state == found);
            assert!(place.is_some(), "no prefix of the commits: {found:?}");
            // It goes on from there, also across another opening.
            let batch = Batch::from([(b"c".to_vec(), Some(vec![1]))]);
            core.commit(&batch).unwrap();
            let after = all(&core);
            drop(core);
            assert_eq!(all(&open(medium).unwrap()), after);
            place
        }
        Err(KvError::Damaged { engine: "log", .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_damaged_last_commit_is_cut_off_and_a_damaged_earlier_one_refused() {
    let (medium, states) = written();
    let frames = frames(&medium);
    assert_eq!(frames.len(), 8);
    let last = states.len() - 1;
    assert_eq!(prefix(&medium.copy(), &states), Some(last));
    let contents: BTreeMap<_, _> = medium.contents().into_iter().collect();
    for (n, (name, at)) in frames.iter().enumerate() {
        // Every byte of the header, and some of the rest.
        for place in (0..40).chain([70, 110]) {
            let mut bytes = contents[name].clone();
            bytes[at + place] ^= 1 << (place % 8);
            let damaged = medium.copy();
            damaged.put(name, bytes);
            let want = (n + 1 == last).then_some(last - 1);
            assert_eq!(prefix(&damaged, &states), want, "frame {n} byte {place}");
        }
    }
}

#[test]
fn a_segment_that_ends_anywhere_leaves_a_prefix_or_is_refused() {
    let (medium, states) = written();
    for (name, bytes) in medium.contents() {
        for end in (0..=bytes.len()).step_by(BLOCK / 4) {
            for end in [end.saturating_sub(1), end] {
                let cut = medium.copy();
                cut.put(&name, bytes[..end].to_vec());
                // The assertions are in there.
                prefix(&cut, &states);
            }
        }
    }
}

#[test]
fn a_missing_segment_and_a_missing_checkpoint_are_refused() {
    let (medium, states) = written();
    let contents = medium.contents();
    assert!(contents.len() > 2);
    let first = medium.copy();
    first.put(&contents[0].0, vec![0; contents[0].1.len()]);
    assert_eq!(prefix(&first, &states), None);
    let alone = Medium::new(1);
    for (name, bytes) in contents {
        alone.put(&name, bytes);
    }
    assert_eq!(prefix(&alone, &states), None);
}

#[test]
fn bytes_of_a_value_that_look_like_a_frame_are_not_taken_for_one() {
    let (medium, _) = written();
    let forged = medium.contents()[0].1[..BLOCK].to_vec();
    let other = Medium::new(9);
    let core = open(&other).unwrap();
    let batch = Batch::from([(b"a".to_vec(), Some(forged.repeat(3)))]);
    core.commit(&batch).unwrap();
    drop(core);
    // The frame around it is torn, and the forged one is where a frame may begin.
    let (name, mut bytes) = other.contents().remove(0);
    bytes[5] ^= 1;
    bytes[BLOCK..2 * BLOCK].copy_from_slice(&forged);
    other.put(&name, bytes);
    assert!(all(&open(&other).unwrap()).is_empty());
}
