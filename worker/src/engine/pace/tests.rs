use proptest::prelude::*;

use super::*;

/// A device as it really is.
#[derive(Clone, Copy, Debug)]
struct Device {
    fixed: f64,
    decode: f64,
    prompt: f64,
}

impl Device {
    fn step_ms(&self, size: StepSize) -> f64 {
        self.fixed + self.decode * f64::from(size.decodes) + self.prompt * f64::from(size.prompt)
    }

    /// The longest a step with decodes should be.
    fn target_ms(&self, decodes: u32) -> f64 {
        shared_ms(self.fixed + self.decode * f64::from(decodes))
    }
}

/// Numbers from 0 to 1 that look random (`SplitMix64`).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed >> 33) as f64 / f64::from(1_u32 << 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        let at = self.next() * f64::from(bound);
        (1..=bound).rev().find(|n| f64::from(*n) <= at).unwrap_or(0)
    }

    /// Within a tenth, and now and then far longer: something else had the processor.
    fn noise(&mut self) -> f64 {
        let small = 0.9 + 0.2 * self.next();
        if self.next() < 0.03 {
            small * (2.0 + 6.0 * self.next())
        } else {
            small
        }
    }
}

const MOST: u32 = 4096;

fn budget(pace: &Pace, decodes: u32, others: u32) -> StepSize {
    StepSize {
        decodes,
        prompt: (pace.budget(decodes, others) - decodes).min(MOST),
    }
}

fn note(pace: &mut Pace, size: StepSize, millis: f64) {
    pace.note(size, Duration::from_secs_f64(millis / 1e3));
}

/// Lets a pace choose the steps of a device in phases: a prompt alone, decodes alone, both. Returns (length, target) of the
/// steps with both whose piece was neither the smallest nor the largest possible.
fn mixed_steps(device: Device, seed: u64) -> Vec<(f64, f64)> {
    let (mut pace, mut random, mut steps) = (Pace::default(), Random(seed), Vec::new());
    for step in 0..300 {
        let size = match step / 20 % 3 {
            0 => budget(&pace, 0, 0),
            1 => StepSize {
                decodes: 1 + random.below(15),
                prompt: 0,
            },
            _ => budget(&pace, 1 + random.below(15), 1),
        };
        let length = device.step_ms(size);
        let is_free = size.prompt > LEAST && size.prompt < MOST;
        if size.decodes > 0 && is_free && step > 60 {
            steps.push((length, device.target_ms(size.decodes)));
        }
        note(&mut pace, size, length * random.noise());
    }
    steps
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_a_device_costs_decodes_keep_their_gap_and_prompts_their_share(
        fixed in 0.2..60.0_f64,
        decode in 0.02..2.0_f64,
        prompt in 0.02..3.0_f64,
        seed: u64,
    ) {
        let mut ratios: Vec<f64> = mixed_steps(Device { fixed, decode, prompt }, seed)
            .into_iter()
            .map(|(length, target)| length / target)
            .collect();
        prop_assume!(ratios.len() >= 20);
        ratios.sort_by(f64::total_cmp);
        let (half, most) = (ratios[ratios.len() / 2], ratios[ratios.len() * 95 / 100]);
        prop_assert!(most < 1.35, "1 of 20 steps takes {most:.2} of what it should");
        prop_assert!(half > 0.75, "half of the steps take less than {half:.2} of what they may");
    }

    #[test]
    fn no_step_breaks_the_fit(
        steps in prop::collection::vec((0..64_u32, 0..2048_u32, 0.0..1e5_f64), 1..100),
    ) {
        let mut pace = Pace::default();
        for (decodes, prompt, millis) in steps {
            note(&mut pace, StepSize { decodes, prompt }, millis);
        }
        if let Some(Costs { fixed, decode, prompt }) = pace.fit.costs() {
            prop_assert!(fixed.is_finite() && decode.is_finite() && prompt.is_finite());
            prop_assert!(fixed >= 0.0 && decode >= 0.0 && prompt > 0.0);
        }
        prop_assert!(pace.budget(3, 0) >= 3 + LEAST);
    }
}

const SMALL: Device = Device {
    fixed: 5.0,
    decode: 0.5,
    prompt: 0.36,
};

#[test]
fn nothing_is_known_at_first_and_one_step_is_enough_to_begin_with() {
    let mut pace = Pace::default();
    assert_eq!(pace.budget(7, 3), 7 + FIRST);
    let first = budget(&pace, 0, 1);
    note(&mut pace, first, SMALL.step_ms(first));
    let length = SMALL.step_ms(budget(&pace, 0, 1));
    assert!(
        (0.7 * SHARED_MS..1.3 * SHARED_MS).contains(&length),
        "{length} ms"
    );
}

#[test]
fn small_pieces_do_not_make_the_price_of_a_token_dear() {
    // A third of the step's time is the fixed cost; booked as a price of tokens it would halve the next piece again and again.
    let device = Device {
        fixed: 15.0,
        ..SMALL
    };
    let mut pace = Pace::default();
    for step in 0..60 {
        let size = StepSize {
            decodes: 8,
            prompt: if step % 3 == 0 { 0 } else { 20 },
        };
        note(&mut pace, size, device.step_ms(size));
    }
    let prompt = budget(&pace, 8, 1).prompt;
    let right = (device.target_ms(8) - 15.0 - 8.0 * 0.5) / 0.36;
    let ratio = f64::from(prompt) / right;
    assert!(
        (0.8..1.2).contains(&ratio),
        "a piece of {prompt}, {right:.0} would be right"
    );
}

#[test]
fn a_machine_that_becomes_slower_is_followed_within_a_dozen_steps_and_back() {
    let mut pace = Pace::default();
    let mut factor = 1.0;
    let mut random = Random(7);
    for step in 0..160 {
        if step == 60 || step == 110 {
            factor = if step == 60 { 3.0 } else { 1.0 };
        }
        let size = budget(&pace, 4, 1);
        let length = factor * SMALL.step_ms(size);
        let target = shared_ms(factor * (SMALL.fixed + 4.0 * SMALL.decode));
        let is_settled = !(60..72).contains(&step) && !(110..122).contains(&step) && step > 12;
        assert!(
            !is_settled || length < 1.6 * target,
            "step {step} takes {length:.0} ms"
        );
        assert!(
            !is_settled || length > 0.5 * target,
            "step {step} takes only {length:.0} ms"
        );
        note(&mut pace, size, length * (0.9 + 0.2 * random.next()));
    }
}

#[test]
fn one_slow_step_changes_little() {
    let mut pace = Pace::default();
    for _ in 0..30 {
        let size = budget(&pace, 4, 1);
        note(&mut pace, size, SMALL.step_ms(size));
    }
    let before = budget(&pace, 4, 1);
    note(&mut pace, before, 20.0 * SMALL.step_ms(before));
    let after = budget(&pace, 4, 1).prompt;
    assert!(
        after > before.prompt / 2,
        "{} became {after}",
        before.prompt
    );
}

#[test]
fn a_slow_device_gives_prompts_most_of_a_step_and_never_nothing() {
    let slow = Device {
        fixed: 70.0,
        decode: 1.0,
        prompt: 1.0,
    };
    let mut pace = Pace::default();
    for step in 0..60 {
        let size = if step % 2 == 0 {
            StepSize {
                decodes: 4,
                prompt: 0,
            }
        } else {
            budget(&pace, 4, 1)
        };
        note(&mut pace, size, slow.step_ms(size));
    }
    let prompt = budget(&pace, 4, 1).prompt;
    assert!((100..140).contains(&prompt), "a piece of {prompt}");
    let mut very_slow = Pace::default();
    note(
        &mut very_slow,
        StepSize {
            decodes: 0,
            prompt: 16,
        },
        16_000.0,
    );
    assert_eq!(very_slow.budget(2, 0), 2 + LEAST);
}
