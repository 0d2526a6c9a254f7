use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const A: Digest = [0xA; 32];
const B: Digest = [0xB; 32];

fn pool(blocks: u32, soft_cap: u32) -> BlockPool {
    BlockPool::new(blocks, 2, soft_cap)
}

/// A digest whose table key collides with every other of this function.
fn digest(number: u8) -> Digest {
    let mut digest = [0; 32];
    digest[31] = number;
    digest
}

/// Allocates a block, names it and releases it.
fn cache(pool: &mut BlockPool, scope: ScopeIndex, number: u8) -> BlockId {
    let block = pool.allocate().unwrap();
    assert!(pool.register(scope, block, &digest(number), &[u32::from(number), 0]));
    pool.release(block);
    block
}

fn is_cached(pool: &BlockPool, scope: ScopeIndex, number: u8) -> bool {
    let tokens = [u32::from(number), 0];
    pool.lookup(scope, &digest(number), &tokens).is_some()
}

/// vllm#44701, TensorRT-LLM#8813, openvino.genai#3722.
#[test]
fn a_hit_needs_the_scope_the_whole_digest_and_the_tokens() {
    let mut pool = pool(4, 4);
    let (a, b) = (pool.scopes.enter(A, Some(A)), pool.scopes.enter(B, Some(B)));
    let block = cache(&mut pool, a, 1);
    assert_eq!(pool.lookup(a, &digest(1), &[1, 0]), Some(block));
    assert_eq!(pool.lookup(a, &digest(1), &[1, 1]), None, "forged digest");
    assert_eq!(pool.lookup(a, &digest(2), &[1, 0]), None, "same table key");
    assert_eq!(pool.lookup(b, &digest(1), &[1, 0]), None, "another scope");
    let twin = pool.allocate().unwrap();
    assert!(
        !pool.register(a, twin, &digest(1), &[9, 9]),
        "a digest names one block"
    );
    assert_eq!(pool.lookup(a, &digest(1), &[9, 9]), None);
    pool.check();
}

#[test]
fn shared_and_named_blocks_are_not_writable() {
    let mut pool = pool(4, 4);
    let scope = pool.scopes.enter(A, Some(A));
    let block = pool.allocate().unwrap();
    assert!(pool.is_writable(block));
    pool.register(scope, block, &digest(1), &[1, 0]);
    assert!(!pool.is_writable(block), "named");
    let plain = pool.allocate().unwrap();
    pool.acquire(plain);
    assert!(!pool.is_writable(plain), "shared");
}

#[test]
fn tails_go_before_heads_and_what_was_never_reused_before_what_was() {
    let mut pool = pool(4, 4);
    let scope = pool.scopes.enter(A, Some(A));
    let table: Vec<BlockId> = (0..4).map(|_| pool.allocate().unwrap()).collect();
    for (number, block) in (0..).zip(&table) {
        pool.register(scope, *block, &digest(number), &[u32::from(number), 0]);
    }
    // Block 3 was used by somebody else too, so it proved itself.
    pool.acquire(table[3]);
    for block in table.iter().rev() {
        pool.release(*block);
    }
    pool.release(table[3]);
    let order: Vec<u32> = (0..4).map(|_| pool.allocate().unwrap().0).collect();
    assert_eq!(order, [2, 1, 0, 3]);
    assert_eq!(pool.allocate(), None);
    pool.check();
}

#[test]
fn a_scope_above_its_cap_pays_first_when_memory_is_short() {
    let mut pool = pool(6, 2);
    let (small, greedy) = (pool.scopes.enter(A, Some(A)), pool.scopes.enter(B, Some(B)));
    cache(&mut pool, small, 1);
    for number in 2..6 {
        cache(&mut pool, greedy, number);
    }
    // One block is free, and the cap does not matter while it is.
    let free = pool.allocate().unwrap();
    assert_eq!(pool.cached(), 5);
    let taken = [pool.allocate().unwrap(), pool.allocate().unwrap()];
    assert!(is_cached(&pool, small, 1), "the oldest, but within its cap");
    assert!(!is_cached(&pool, greedy, 2) && !is_cached(&pool, greedy, 3));
    // Now nobody is above the cap: plain age decides.
    pool.allocate().unwrap();
    assert!(!is_cached(&pool, small, 1));
    for block in taken.into_iter().chain([free]) {
        pool.release(block);
    }
    pool.check();
}

#[test]
fn the_reused_cannot_fill_the_whole_cache() {
    let mut pool = pool(8, 8);
    let scope = pool.scopes.enter(A, Some(A));
    for number in 0..8 {
        let block = cache(&mut pool, scope, number);
        pool.acquire(block);
        pool.release(block);
    }
    assert_eq!((pool.protected.len(), pool.probation.len()), (6, 2));
    pool.check();
}

#[test]
fn a_private_scope_ends_with_its_last_sequence_and_a_shared_one_with_its_last_block() {
    let mut pool = pool(4, 4);
    let (private, shared) = (pool.scopes.enter(A, None), pool.scopes.enter(B, Some(B)));
    assert_eq!(pool.scopes.enter(A, None), private);
    cache(&mut pool, private, 1);
    cache(&mut pool, shared, 2);
    pool.leave(private);
    assert!(is_cached(&pool, private, 1));
    pool.leave(private);
    assert!(!is_cached(&pool, private, 1));
    pool.leave(shared);
    assert!(is_cached(&pool, shared, 2));
    assert_eq!(pool.scopes.len(), 1);
    let mut dropped = Vec::new();
    pool.forget(shared, |block| dropped.push(block.0));
    assert_eq!((dropped, pool.scopes.len()), (vec![1], 0));
    assert_eq!(pool.free(), 4);
    // The entries are used again, once each.
    let (one, two) = (pool.scopes.enter(A, Some(A)), pool.scopes.enter(B, Some(B)));
    assert_ne!(one, two);
    pool.check();
}

#[derive(Clone, Debug)]
enum Action {
    Allocate,
    Name(usize, u8),
    Acquire(u8),
    Release(usize),
    Forget(bool),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Allocate),
        3 => (any::<usize>(), 0_u8..12).prop_map(|(held, number)| Action::Name(held, number)),
        3 => (0_u8..12).prop_map(Action::Acquire),
        4 => any::<usize>().prop_map(Action::Release),
        1 => any::<bool>().prop_map(Action::Forget),
    ]
}

proptest! {
    /// Against a model that only knows which blocks are held: blocks are conserved, no held block is handed out or loses its
    /// name, and a hit is always what was registered.
    #[test]
    fn pool_agrees_with_a_naive_model(actions in prop::collection::vec(action(), 1..200), cap in 1_u32..6) {
        let mut pool = pool(9, cap);
        let scopes = [pool.scopes.enter(A, Some(A)), pool.scopes.enter(B, Some(B))];
        let mut held: Vec<BlockId> = Vec::new();
        let mut names: BTreeMap<u32, u8> = BTreeMap::new();
        for action in actions {
            match action {
                Action::Allocate => {
                    let distinct: std::collections::BTreeSet<_> = held.iter().collect();
                    let is_full = distinct.len() == 9;
                    let got = pool.allocate();
                    prop_assert_eq!(got.is_none(), is_full);
                    if let Some(block) = got {
                        prop_assert!(!held.contains(&block));
                        prop_assert!(pool.is_writable(block));
                        names.remove(&block.0);
                        held.push(block);
                    }
                }
                Action::Name(at, number) if !held.is_empty() => {
                    let block = held[at % held.len()];
                    if pool.is_writable(block) {
                        let scope = scopes[usize::from(number % 2)];
                        if pool.register(scope, block, &digest(number), &[u32::from(number), 0]) {
                            names.insert(block.0, number);
                        }
                    }
                }
                Action::Acquire(number) => {
                    let scope = scopes[usize::from(number % 2)];
                    if let Some(block) = pool.lookup(scope, &digest(number), &[u32::from(number), 0]) {
                        prop_assert_eq!(names.get(&block.0), Some(&number));
                        pool.acquire(block);
                        held.push(block);
                    }
                    prop_assert_eq!(pool.lookup(scopes[usize::from((number + 1) % 2)], &digest(number), &[u32::from(number), 0]), None);
                }
                Action::Release(at) if !held.is_empty() => {
                    let block = held.swap_remove(at % held.len());
                    pool.release(block);
                }
                Action::Forget(which) => pool.forget(scopes[usize::from(which)], |block| {
                    assert!(!held.contains(&block));
                }),
                Action::Name(..) | Action::Release(_) => {}
            }
            for block in &held {
                if let Some(number) = names.get(&block.0) {
                    let scope = scopes[usize::from(number % 2)];
                    prop_assert_eq!(pool.lookup(scope, &digest(*number), &[u32::from(*number), 0]), Some(*block));
                }
            }
            pool.check();
        }
    }
}
