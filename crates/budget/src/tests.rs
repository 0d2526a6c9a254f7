use proptest::prelude::*;

use super::*;

fn window(period_s: u64, tokens: Option<u64>, micros: Option<u64>) -> WindowLimit {
    WindowLimit {
        period_s,
        tokens,
        micros,
    }
}

fn ask(prompt_tokens: u64, output_tokens: u64) -> Ask {
    Ask {
        prompt_tokens,
        output_tokens,
        micros: prompt_tokens + 4 * output_tokens,
        output_micros_per_token: 4,
        pool: "small".into(),
    }
}

#[test]
fn ten_thousand_tokens_left_refuse_eleven_thousand_and_name_the_thousand_that_fits() {
    let limits = Limits {
        windows: vec![window(86_400, Some(10_000), None)],
        ..Limits::default()
    };
    let mut account = Account::default();
    let refusal = account
        .reserve(&limits, &ask(9_000, 2_000), 1_000)
        .unwrap_err();
    let Refusal::WindowTokens {
        available,
        needed,
        largest_output_tokens,
        window_end_ms,
        ..
    } = refusal
    else {
        panic!("{refusal:?}");
    };
    assert_eq!(
        (available, needed, largest_output_tokens),
        (10_000, 11_000, 1_000)
    );
    assert_eq!(window_end_ms, 86_400_000);
    assert_eq!(account, Account::default(), "a refusal leaves no trace");
    let kept = account.reserve(&limits, &ask(9_000, 1_000), 1_000).unwrap();
    account
        .settle(
            kept,
            Consumed {
                tokens: 9_010,
                micros: 9_040,
            },
        )
        .unwrap();
    let now = account.window(86_400, 5_000);
    assert_eq!((now.used_tokens, now.reserved_tokens), (9_010, 0));
}

#[test]
fn the_first_limit_in_the_contract_s_order_is_the_one_reported() {
    let full = Limits {
        windows: vec![window(60, Some(5), Some(1))],
        requests_per_minute: Some(0),
        tokens_per_minute: Some(5),
        concurrent_runs: Some(0),
        pool_kv_tokens: Some(5),
        key: None,
    };
    let account = Account::default();
    let mut limits = full;
    let mut refused = vec![];
    let name = |limits: &Limits| match account.check(limits, &ask(4, 4), 500) {
        Err(Refusal::WindowTokens { .. }) => "tokens",
        Err(Refusal::WindowMicros { .. }) => "micros",
        Err(Refusal::RequestRate { retry_after_ms, .. }) => {
            assert_eq!(retry_after_ms, 59_500);
            "requests"
        }
        Err(Refusal::TokenRate { .. }) => "token rate",
        Err(Refusal::Concurrency { .. }) => "concurrency",
        Err(Refusal::KvShare { .. }) => "kv",
        Err(Refusal::Key { .. }) => "a key's",
        Ok(()) => "none",
    };
    refused.push(name(&limits));
    limits.windows[0].tokens = None;
    refused.push(name(&limits));
    limits.windows.clear();
    refused.push(name(&limits));
    limits.requests_per_minute = None;
    refused.push(name(&limits));
    limits.tokens_per_minute = None;
    refused.push(name(&limits));
    limits.concurrent_runs = None;
    refused.push(name(&limits));
    limits.pool_kv_tokens = None;
    refused.push(name(&limits));
    assert_eq!(
        refused,
        [
            "tokens",
            "micros",
            "requests",
            "token rate",
            "concurrency",
            "kv",
            "none"
        ]
    );
}

#[test]
fn a_run_is_billed_in_the_window_that_accepted_it_however_late_it_ends() {
    let limits = Limits {
        windows: vec![window(60, Some(100), None)],
        ..Limits::default()
    };
    let mut account = Account::default();
    let early = account.reserve(&limits, &ask(10, 50), 59_999).unwrap();
    // Days later: other runs come and go, the old window stays because it is held.
    let late = account.reserve(&limits, &ask(10, 90), 500_000_000).unwrap();
    assert_eq!(account.window(60, 59_999).reserved_tokens, 60);
    account
        .settle(
            early,
            Consumed {
                tokens: 33,
                micros: 1,
            },
        )
        .unwrap();
    assert_eq!(account.window(60, 59_999).used_tokens, 33);
    assert_eq!(account.window(60, 500_000_000).used_tokens, 0);
    account.release(late).unwrap();
    assert_eq!(account.live_runs(), 0);
    assert_eq!(account.held_in_pool("small"), 0);
}

#[test]
fn a_settlement_that_does_not_fit_changes_nothing() {
    let limits = Limits {
        windows: vec![window(60, Some(100), None)],
        ..Limits::default()
    };
    let mut account = Account::default();
    let held = account.reserve(&limits, &ask(10, 20), 0).unwrap();
    let before = account.clone();
    let error = account
        .settle(
            held,
            Consumed {
                tokens: 31,
                micros: 0,
            },
        )
        .unwrap_err();
    assert_eq!(
        error,
        SettleError::OverReservation {
            unit: "tokens",
            consumed: 31,
            reserved: 30
        }
    );
    assert_eq!(account, before);
    let mut other = Account::default();
    let held = account.reserve(&limits, &ask(1, 1), 0).unwrap();
    assert!(matches!(
        other.release(held),
        Err(SettleError::NotHeld { .. })
    ));
    assert_eq!(other, Account::default());
}

#[test]
fn a_lowered_limit_makes_available_negative_until_it_is_worked_off() {
    let mut limits = Limits {
        windows: vec![window(60, Some(100), None)],
        ..Limits::default()
    };
    let mut account = Account::default();
    let held = account.reserve(&limits, &ask(10, 80), 0).unwrap();
    limits.windows[0].tokens = Some(50);
    let Err(Refusal::WindowTokens {
        available: left,
        largest_output_tokens,
        ..
    }) = account.check(&limits, &ask(1, 1), 0)
    else {
        panic!("must be refused");
    };
    assert_eq!((left, largest_output_tokens), (-40, 0));
    account
        .settle(
            held,
            Consumed {
                tokens: 20,
                micros: 0,
            },
        )
        .unwrap();
    assert_eq!(account.check(&limits, &ask(10, 20), 0), Ok(()));
}

#[test]
fn a_key_has_limits_of_its_own_below_its_tenant_s_and_takes_part_in_them() {
    let of = |name: &str, tokens: u64, runs: Option<u64>| Limits {
        windows: vec![window(60, Some(1000), None)],
        key: Some(Box::new(KeyLimits {
            name: name.to_owned(),
            limits: Limits {
                windows: vec![window(3600, Some(tokens), None)],
                concurrent_runs: runs,
                ..Limits::default()
            },
        })),
        ..Limits::default()
    };
    let mut account = Account::default();
    let first = account
        .reserve(&of("ci", 100, None), &ask(30, 30), 5)
        .unwrap();
    let refused = account.reserve(&of("ci", 100, None), &ask(30, 30), 6);
    let Err(Refusal::Key { key, refusal }) = refused else {
        panic!("the key's window is smaller than two runs: {refused:?}");
    };
    assert_eq!(key, "ci");
    let Refusal::WindowTokens {
        available,
        largest_output_tokens,
        ..
    } = *refusal
    else {
        panic!("its tokens: {refusal}");
    };
    assert_eq!((available, largest_output_tokens), (40, 10));
    // Another key of the tenant is not touched by it, the tenant's own window counts both.
    let second = account
        .reserve(&of("web", 900, Some(1)), &ask(400, 400), 7)
        .unwrap();
    assert_eq!(account.window(60, 7).reserved_tokens, 860);
    let refused = account.reserve(&of("web", 900, Some(1)), &ask(1, 1), 8);
    assert!(matches!(refused, Err(Refusal::Key { .. })), "{refused:?}");
    let refused = account.reserve(&of("web", 2000, None), &ask(100, 100), 9);
    assert!(
        matches!(refused, Err(Refusal::WindowTokens { .. })),
        "{refused:?}"
    );
    // What is stored is the same account.
    let stored = serde_json::to_string(&account).unwrap();
    assert_eq!(serde_json::from_str::<Account>(&stored).unwrap(), account);
    account
        .settle(
            first,
            Consumed {
                tokens: 45,
                micros: 0,
            },
        )
        .unwrap();
    account.release(second).unwrap();
    let ci = account.key("ci").unwrap().window(3600, 10);
    assert_eq!((ci.used_tokens, ci.reserved_tokens), (45, 0));
    assert_eq!(account.window(60, 10).used_tokens, 45);
    assert_eq!(account.key("web").unwrap().live_runs(), 0);
    // A key that is revoked leaves nothing behind once its windows are over.
    let later = 3 * 3_600_000;
    let third = account
        .reserve(&Limits::default(), &ask(1, 1), later)
        .unwrap();
    assert!(account.key("ci").is_none());
    account.release(third).unwrap();
}

#[test]
fn a_clock_that_steps_back_finds_what_was_used() {
    let limits = Limits {
        windows: vec![window(60, Some(100), None)],
        ..Limits::default()
    };
    let mut account = Account::default();
    let held = account.reserve(&limits, &ask(10, 80), 30_000).unwrap();
    account
        .settle(
            held,
            Consumed {
                tokens: 90,
                micros: 0,
            },
        )
        .unwrap();
    let next = account.reserve(&limits, &ask(1, 1), 70_000).unwrap();
    account.release(next).unwrap();
    assert!(account.check(&limits, &ask(10, 10), 31_000).is_err());
}

/// The naive model: a list of all reservations ever made.
#[derive(Default)]
struct Model {
    /// Accepted at, tokens, micros, periods, pool, consumed once ended.
    all: Vec<(u64, Ask, Vec<u64>, Option<Consumed>)>,
}

impl Model {
    fn window(&self, period_s: u64, now_ms: u64) -> Window {
        let mut sum = Window::default();
        for (at, ask, periods, ended) in &self.all {
            if at / (period_s * 1000) != now_ms / (period_s * 1000) || !periods.contains(&period_s)
            {
                continue;
            }
            if let Some(consumed) = ended {
                sum.used_tokens += consumed.tokens;
                sum.used_micros += consumed.micros;
            } else {
                sum.reserved_tokens += ask.tokens();
                sum.reserved_micros += ask.micros;
            }
        }
        sum
    }

    fn fits(&self, limits: &Limits, ask: &Ask, now_ms: u64) -> bool {
        let live = || self.all.iter().filter(|r| r.3.is_none());
        let this_minute = || self.all.iter().filter(|r| r.0 / 60_000 == now_ms / 60_000);
        let within = |limit: Option<u64>, sum: u64| limit.is_none_or(|limit| sum <= limit);
        let held: u64 = live()
            .filter(|r| r.1.pool == ask.pool)
            .map(|r| r.1.tokens())
            .sum();
        let minute_tokens: u64 = this_minute().map(|r| r.1.tokens()).sum();
        limits.windows.iter().all(|limit| {
            let w = self.window(limit.period_s, now_ms);
            within(
                limit.tokens,
                w.used_tokens + w.reserved_tokens + ask.tokens(),
            ) && within(limit.micros, w.used_micros + w.reserved_micros + ask.micros)
        }) && within(limits.requests_per_minute, this_minute().count() as u64 + 1)
            && within(limits.tokens_per_minute, minute_tokens + ask.tokens())
            && within(limits.concurrent_runs, live().count() as u64 + 1)
            && within(limits.pool_kv_tokens, held + ask.tokens())
    }
}

#[derive(Clone, Debug)]
enum Op {
    Reserve {
        prompt: u64,
        output: u64,
        pool: u8,
    },
    /// Ends one live reservation, consuming this percentage.
    End {
        which: usize,
        percent: u64,
    },
    Wait {
        ms: u64,
    },
    Limit {
        limits: Limits,
    },
    Restart,
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let some = |most: u64| proptest::option::of(0..most);
    let windows = (some(400), some(1200), some(900), some(3000))
        .prop_map(|(a, b, c, d)| vec![window(60, a, b), window(300, c, d)]);
    (windows, some(20), some(500), some(8), some(300)).prop_map(
        |(windows, requests_per_minute, tokens_per_minute, concurrent_runs, pool_kv_tokens)| {
            Limits {
                windows,
                requests_per_minute,
                tokens_per_minute,
                concurrent_runs,
                pool_kv_tokens,
                key: None,
            }
        },
    )
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0_u64..60, 0_u64..60, 0_u8..2).prop_map(|(prompt, output, pool)| Op::Reserve { prompt, output, pool }),
        4 => (any::<usize>(), 0_u64..=100).prop_map(|(which, percent)| Op::End { which, percent }),
        3 => (0_u64..90_000).prop_map(|ms| Op::Wait { ms }),
        1 => any_limits().prop_map(|limits| Op::Limit { limits }),
        1 => Just(Op::Restart),
    ]
}

proptest! {
    #[test]
    fn the_accounts_of_keys_add_up_to_their_tenant_s(
        ops in proptest::collection::vec((0_usize..3, 0_u64..60, any::<bool>(), 0_u64..40_000), 1..60),
    ) {
        let (mut account, mut live, mut now) = (Account::default(), Vec::new(), 0);
        for (key, tokens, end, wait) in ops {
            now += wait;
            if end && !live.is_empty() {
                let held: Reservation = live.remove(0);
                let consumed = Consumed { tokens: held.tokens / 2, micros: 0 };
                account.settle(held, consumed).unwrap();
            } else {
                let own = Limits { windows: vec![window(7200, Some(200), None)], ..Limits::default() };
                let key = KeyLimits { name: format!("k{key}"), limits: own };
                let limits = Limits {
                    windows: vec![window(7200, Some(400), None)],
                    key: Some(Box::new(key)),
                    ..Limits::default()
                };
                if let Ok(held) = account.reserve(&limits, &ask(tokens, tokens), now) {
                    live.push(held);
                }
            }
            let whole = account.window(7200, now);
            let keys: Vec<_> = ["k0", "k1", "k2"].iter().filter_map(|key| account.key(key)).collect();
            let sum = |of: fn(&Window) -> u64| keys.iter().map(|key| of(&key.window(7200, now))).sum::<u64>();
            prop_assert_eq!(whole.reserved_tokens, sum(|w| w.reserved_tokens));
            prop_assert_eq!(whole.used_tokens, sum(|w| w.used_tokens));
            for key in &keys {
                let w = key.window(7200, now);
                prop_assert!(w.used_tokens + w.reserved_tokens <= 200);
            }
            prop_assert_eq!(account.live_runs(), live.len() as u64);
        }
    }

    #[test]
    fn the_account_agrees_with_a_list_of_all_reservations(
        start in any_limits(), ops in proptest::collection::vec(any_op(), 1..80),
    ) {
        let (mut limits, mut now) = (start, 1_000_000_u64);
        let (mut account, mut model) = (Account::default(), Model::default());
        let mut live: Vec<(usize, Reservation)> = vec![];
        for op in ops {
            match op {
                Op::Wait { ms } => now += ms,
                Op::Limit { limits: new } => limits = new,
                Op::Restart => {
                    let text = serde_json::to_string(&account).unwrap();
                    account = serde_json::from_str(&text).unwrap();
                }
                Op::End { which, percent } if !live.is_empty() => {
                    let (row, held) = live.swap_remove(which % live.len());
                    let consumed = Consumed { tokens: held.tokens * percent / 100, micros: held.micros * percent / 100 };
                    account.settle(held, consumed).unwrap();
                    model.all[row].3 = Some(consumed);
                }
                Op::End { .. } => {}
                Op::Reserve { prompt, output, pool } => {
                    let ask = Ask { pool: format!("p{pool}"), ..ask(prompt, output) };
                    let fits = model.fits(&limits, &ask, now);
                    let largest = account.largest_output(&limits, &ask, now);
                    let periods = limits.windows.iter().map(|w| w.period_s).collect();
                    match account.reserve(&limits, &ask, now) {
                        Ok(held) => {
                            prop_assert!(fits);
                            prop_assert_eq!(largest, output);
                            live.push((model.all.len(), held));
                            model.all.push((now, ask, periods, None));
                        }
                        Err(refusal) => {
                            prop_assert!(!fits, "{refusal}");
                            check_largest(&account, &limits, &ask, now, largest)?;
                        }
                    }
                }
            }
            for period in [60, 300] {
                prop_assert_eq!(account.window(period, now), model.window(period, now));
            }
            prop_assert_eq!(account.live_runs(), live.len() as u64);
        }
        for (_, held) in live { account.release(held).unwrap(); }
        prop_assert!(account.windows().all(|(_, _, w)| w.reserved_tokens == 0 && w.reserved_micros == 0));
        prop_assert_eq!(account.held_in_pool("p0") + account.held_in_pool("p1"), 0);
    }
}

/// The named output fits every limit that depends on it, and one token more does not.
fn check_largest(
    account: &Account,
    limits: &Limits,
    refused: &Ask,
    now: u64,
    largest: u64,
) -> Result<(), TestCaseError> {
    let sized = Limits {
        requests_per_minute: None,
        concurrent_runs: None,
        ..limits.clone()
    };
    let fits = |output| {
        account
            .check(&sized, &ask_like(refused, output), now)
            .is_ok()
    };
    if largest > 0 {
        prop_assert!(fits(largest));
    }
    if largest < refused.output_tokens {
        prop_assert!(!fits(largest + 1));
    }
    Ok(())
}

fn ask_like(like: &Ask, output: u64) -> Ask {
    Ask {
        pool: like.pool.clone(),
        ..ask(like.prompt_tokens, output)
    }
}
