#!/usr/bin/env python3
"""Golden rows of the statistics, written from the formulas alone, in 60 decimal digits.

Prints one row per line: kind, step count, margin in ppm, then strata `step:weight:a:A:b:B` (canary bad:judged, stable
bad:judged), then floor(1000 ln E). Usage: kernel.py > kernel.txt
"""
import random
from decimal import Decimal as D, getcontext, ROUND_FLOOR

getcontext().prec = 60
random.seed(20261129)


def mean_exp(logs):
    return (sum(x.exp() for x in logs) / len(logs)).ln()


def worse(steps, delta, strata):
    logs = []
    for start in range(1, steps + 1):
        for k in range(8):
            total = D(0)
            for step, weight, a, A, b, B in strata:
                if step < start:
                    continue
                w = D(weight) / 100
                lam = D("0.9") / 2**k / (1 / (1 - w) + delta)
                total += a * (1 + lam * (1 / w - delta)).ln()
                total += b * (1 - lam * (1 / (1 - w) + delta)).ln()
                total += (A - a + B - b) * (1 - lam * delta).ln()
            logs.append(total)
    return mean_exp(logs)


def fine(delta, strata):
    logs = []
    for k in range(6):
        total = D(0)
        for _, weight, a, A, b, B in strata:
            w = D(weight) / 100
            lam = D("0.9") / 2**k / (1 / w - delta)
            total += a * (1 - lam * (1 / w - delta)).ln()
            total += b * (1 + lam * (1 / (1 - w) + delta)).ln()
            total += (A - a + B - b) * (1 + lam * delta).ln()
        logs.append(total)
    return mean_exp(logs)


def arm(size):
    judged = random.randrange(size)
    return random.randrange(min(judged, 40) + 1), judged


for row in range(120):
    steps = random.choice([1, 2, 3, 5])
    ppm = random.choice([0, 250, 2500, 10000, 12500, 50000])
    strata = []
    for step in range(1, random.randrange(1, steps + 1) + 1):
        size = random.choice([10, 100, 5000, 200000])
        strata.append((step, random.choice([1, 5, 10, 25, 50, 75, 99]), *arm(size), *arm(size)))
    if row % 2:
        strata = strata[-1:]
        value = fine(D(ppm) / 1000000, strata)
    else:
        value = worse(steps, D(ppm) / 1000000, strata)
    milli = int((1000 * value).to_integral_value(ROUND_FLOOR))
    print("fine" if row % 2 else "worse", steps, ppm, *(":".join(map(str, s)) for s in strata), milli)
