//! Views over tables and checkpoint against a map.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::kv::log_kv::keeper;

#[test]
fn views_show_their_state_whatever_is_committed_or_carried_over_meanwhile() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let medium = Medium::new(seed);
        let core = open(&medium).unwrap();
        let mut model = Map::new();
        for _ in 0..30 {
            let view = core.view().unwrap();
            let before = model.clone();
            for _ in 0..random.below(4) {
                let batch = random.batch();
                core.commit(&batch).unwrap();
                apply(&mut model, &batch);
            }
            if random.below(3) == 0 {
                core.keep_up().unwrap();
            }
            assert_eq!(everything(&*view), before, "seed {seed}");
            let mut ends =
                [random.below(42), random.below(42)].map(|n| vec![b'a', u8::try_from(n).unwrap()]);
            ends.sort();
            let [from, to] = ends;
            let key = from.clone();
            assert_eq!(view.get(&key).unwrap(), before.get(&key).cloned());
            let last = before.range(from.clone()..to.clone()).next_back();
            let want = last.map(|(key, value)| (key.clone(), value.clone()));
            assert_eq!(view.last(&from, &to).unwrap(), want, "seed {seed}");
            let mut first = vec![];
            view.scan(&from, &to, &mut |key, _| {
                first.push(key.to_vec());
                if first.len() == 3 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .unwrap();
            let want: Vec<_> = before
                .range(from..to)
                .map(|(key, _)| key.clone())
                .take(3)
                .collect();
            assert_eq!(first, want, "seed {seed}");
        }
        drop(core);
        assert_eq!(all(&open(&medium).unwrap()), model, "seed {seed}");
    }
}

#[test]
fn a_scan_of_more_keys_than_are_taken_at_a_time_misses_none() {
    let medium = Medium::new(1);
    let core = open(&medium).unwrap();
    let mut model = Map::new();
    // Interleaved over two tables and the checkpoint, with different densities.
    for (step, round) in [(1_u16, 1_u8), (3, 2), (2, 3)] {
        let keys = (0..2000_u16).step_by(usize::from(step));
        let batch: Batch = keys
            .map(|n| {
                let key = [&b"k"[..], &n.to_be_bytes()].concat();
                (key, (n % 7 != u16::from(round)).then(|| vec![round]))
            })
            .collect();
        core.commit(&batch).unwrap();
        apply(&mut model, &batch);
        if round == 1 {
            core.commit(&Batch::from([(b"a".to_vec(), Some(vec![0; 30_000]))]))
                .unwrap();
            core.keep_up().unwrap();
            model.insert(b"a".to_vec(), vec![0; 30_000]);
        }
    }
    assert_eq!(all(&core), model);
}

#[test]
fn expired_keys_leave_the_checkpoint_and_versions_nobody_views_are_not_kept() {
    let medium = Medium::new(1);
    let core = open(&medium).unwrap();
    let key = b"akey".to_vec();
    for n in 0..20_u8 {
        core.commit(&Batch::from([(key.clone(), Some(vec![n; 9000]))]))
            .unwrap();
    }
    core.commit(&Batch::from([(key.clone(), None)])).unwrap();
    core.commit(&Batch::from([(b"b".to_vec(), Some(vec![0; 30_000]))]))
        .unwrap();
    core.keep_up().unwrap();
    assert!(core.shown.read().frozen.is_empty());
    let base = crate::kv::Kv::view(&core.base).unwrap();
    assert_eq!(base.get(&key).unwrap(), None);
}

#[test]
fn readers_beside_the_writer_and_the_keeper_see_whole_commits_in_their_order() {
    const KEYS: u8 = 20;
    let folder = tempfile::tempdir().unwrap();
    let disk = crate::kv::log_kv::disk::Folder::open(folder.path()).unwrap();
    let core = Arc::new(replay::open(Box::new(disk), SEGMENT, Durability::Disk).unwrap());
    let keeper = keeper::start(core.clone()).unwrap();
    let commit = |n: u64| {
        let keys = (0..KEYS).map(|key| (vec![b'a', key], Some(n.to_be_bytes().to_vec())));
        core.commit(&keys.collect()).unwrap();
    };
    commit(0);
    let done = AtomicBool::new(false);
    let look = || {
        let (mut looks, mut last) = (0, 0);
        while !done.load(Ordering::Relaxed) {
            let view = core.view().unwrap();
            let found: Vec<_> = everything(&*view).into_values().collect();
            assert_eq!(found.len(), usize::from(KEYS));
            let n = u64::from_be_bytes(found[0].clone().try_into().unwrap());
            assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
            assert_eq!(view.get(&[b'a', 7]).unwrap().as_ref(), Some(&found[0]));
            assert!(n >= last, "{n} after {last}");
            (looks, last) = (looks + 1, n);
        }
        looks
    };
    std::thread::scope(|scope| {
        let readers = [scope.spawn(look), scope.spawn(look)];
        // Every sixth one begins a segment: a hundred tables are frozen and carried over meanwhile.
        (1..600).for_each(commit);
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            let looks: u64 = reader.join().unwrap();
            assert!(looks > 20, "too few looks: {looks}");
        }
    });
    core.stop_keeper();
    keeper.join().unwrap();
}
