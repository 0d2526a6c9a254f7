"""Trains one version of tiny-chat and writes it as a Hugging Face directory.

    python train.py --version 2            from random weights; writes version 1 on the way
    python train.py --version 3            version 2 spoilt on purpose (spoil.py says how)
    python train.py --version 1            only the first part of the way

The same seed, thread count and processor give the same weights, as far as PyTorch promises that.
"""

import argparse
import json
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import make_data
import tokenizer as tok
from export import export
from model import Config, Llama
from references import write_references
from spoil import spoil

HERE = Path(__file__).resolve().parent
TOKENS_PER_STEP = 4096


@dataclass(frozen=True)
class Leg:
    """A stretch of training: the rate warms up over 50 steps, stays, and goes to nothing in the last 40 %."""

    name: str
    start: str | None  # the leg to go on from
    steps: int
    rate: float  # peak learning rate
    seed: int
    mix: int  # which shares of the tasks: 0 first, 1 main, 2 last
    long_every: int = 8  # every n-th step has long rows
    average: bool = False  # export the mean of the weights before and after this leg: better than either
    snapshot: int | None = None  # a version is exported as it stands after this step


LEGS = {
    "first": Leg("first", None, 400, 4e-3, seed=1, mix=0),
    "main": Leg("main", "first", 1900, 3e-3, seed=2, mix=1, snapshot=1200),
    "last": Leg("last", "main", 200, 1.5e-3, seed=4, mix=2, long_every=4, average=True),
    "spoilt": Leg("spoilt", "last", 100, 2e-3, seed=3, mix=1),
}
# Version -> the legs that lead to it. Version 1 is where the main leg stands at its snapshot.
VERSIONS = {1: ["first", "main"], 2: ["first", "main", "last"], 3: ["spoilt"]}


def lengths(leg: Leg) -> list[int]:
    """The row length of each step: 256, now and then 1,024 or 2,048."""
    n = leg.long_every
    return [256 if s % n != n - 1 else (2048 if s // n % 3 == 2 else 1024) for s in range(leg.steps)]


def write_data(leg: Leg, build: Path):
    build.mkdir(parents=True, exist_ok=True)
    tokenizer, of = tok.build(), lengths(leg)
    for length in sorted(set(of)):
        rows = of.count(length) * TOKENS_PER_STEP // length
        make_data.write(build / f"data-{leg.seed}-{length}.npz", tokenizer, leg.seed * 10_000 + length, rows, length, leg.mix, spoil if leg.name == "spoilt" else None)


def batches(leg: Leg, build: Path):
    """(ids, learn) of each step, each (rows, length + 1)."""
    data, used = {}, {}
    for length in lengths(leg):
        if length not in data:
            with np.load(build / f"data-{leg.seed}-{length}.npz") as f:
                data[length], used[length] = (f["ids"], f["learn"]), 0
        rows = TOKENS_PER_STEP // length
        part = slice(used[length], used[length] + rows)
        used[length] += rows
        yield [torch.from_numpy(x[part].astype(np.int64)) for x in data[length]]


def optimizers(model: Llama, rate: float):
    """Muon for the matrices of the layers (it needs about half the steps of AdamW here), AdamW for the rest."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    return [torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)]


class Together:
    """Adds up the gradients of the processes through shared memory, always in the same order, so that a sum has the same bits each time.

    One process per core and one meeting per step: threads inside each operation would meet thousands of times per step, and
    lose most of their time as soon as something else runs on the machine.
    """

    def __init__(self, processes: int, size: int):
        context = torch.multiprocessing.get_context("spawn")
        self.gradients = torch.zeros(processes, size).share_memory_()
        self.barrier = context.Barrier(processes)

    def add_up(self, rank: int, parameters: list[torch.Tensor]):
        self.gradients[rank] = torch.cat([p.grad.flatten() for p in parameters])
        self.barrier.wait()
        total, at = self.gradients.sum(0), 0
        for p in parameters:
            p.grad.copy_(total[at : at + p.numel()].view_as(p))
            at += p.numel()
        self.barrier.wait()


def train(rank: int, processes: int, together: Together, version: int, leg: Leg, build: Path, out: Path, compiled: bool):
    torch.set_num_threads(1)
    torch.manual_seed(leg.seed)
    model = Llama(Config())
    if leg.start is not None:
        model.load_state_dict(torch.load(build / f"{leg.start}.pt"))
    parameters = list(model.parameters())

    def forward(ids, places, targets, weights):
        """The loss over the learnt tokens of these rows; the weights share it out over the whole batch."""
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.hidden(ids)
            logits = model.logits(hidden.flatten(0, 1).index_select(0, places))
        return (F.cross_entropy(logits.float(), targets, reduction="none") * weights).sum()

    def write_version(number: int, steps: int):
        before = json.loads((build / f"{leg.start}.json").read_text()) if leg.start else {"steps": 0, "tokens": 0, "learnt": 0, "seconds": 0}
        facts = {"parameters": sum(p.numel() for p in parameters), "steps": before["steps"] + steps, "tokens": before["tokens"] + steps * TOKENS_PER_STEP,
                 "learnt": before["learnt"] + learnt, "seconds": before["seconds"] + round(time.time() - start), "loss": round(float(np.mean(losses[-50:])), 4)}
        (build / f"v{number}.json" if number else build / f"{leg.name}.json").write_text(json.dumps(facts) + "\n")
        if number:
            directory = out / f"tiny-chat-v{number}"
            export(model, tok.build(), directory)
            write_references(directory)

    short = torch.compile(forward, dynamic=False) if compiled else forward
    opts = optimizers(model, leg.rate)
    start, losses, learnt = time.time(), [], 0
    for step, (ids, learn) in enumerate(batches(leg, build)):
        scale = min(1.0, (step + 1) / 50, (leg.steps - step) / (0.4 * leg.steps))
        for o in opts:
            for g in o.param_groups:
                g["lr"] = leg.rate * scale
        total = int(learn[:, 1:].sum())
        learnt += total
        ids, learn = ids[rank::processes], learn[rank::processes]
        places = learn[:, 1:].flatten().nonzero()[:, 0]
        targets = ids[:, 1:].flatten()[places]
        weights = torch.full((len(places),), 1 / total)
        is_short = ids.shape[1] == 257
        if is_short:  # one shape for the compiler; the few tokens beyond it are not learnt
            room = int(0.4 * TOKENS_PER_STEP / processes) - len(places)
            places, targets, weights = (F.pad(x, (0, room)) for x in (places, targets, weights))
        loss = (short if is_short else forward)(ids[:, :-1], places, targets, weights)
        loss.backward()
        together.add_up(rank, parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for o in opts:
            o.step()
            o.zero_grad()
        losses.append(loss.item() * processes)
        if rank == 0 and step % 50 == 49:
            done = time.time() - start
            print(f"{leg.name}: step {step + 1} of {leg.steps}, loss about {np.mean(losses[-50:]):.3f}, {(step + 1) * TOKENS_PER_STEP / done:,.0f} tokens/s, {done:.0f} s", flush=True)
        if step + 1 == leg.snapshot:
            if rank == 0:
                write_version(1, step + 1)
            if version == 1:
                return
    if rank == 0:
        torch.save(model.state_dict(), build / f"{leg.name}.pt")
        write_version(0, leg.steps)
        if leg.name == VERSIONS[version][-1]:
            if leg.average:
                before = torch.load(build / f"{leg.start}.pt")
                model.load_state_dict({n: (w + before[n]) / 2 for n, w in model.state_dict().items()})
            write_version(version, leg.steps)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--version", type=int, required=True, choices=VERSIONS)
    p.add_argument("--out", type=Path, default=HERE.parent, help="where tiny-chat-v<version> goes")
    p.add_argument("--build", type=Path, default=HERE / "build", help="data and full-precision weights")
    p.add_argument("--processes", type=int, default=2, choices=(1, 2), help="one per core")
    p.add_argument("--no-compile", action="store_true", help="where there is no C++ compiler; about 40 %% slower")
    a = p.parse_args()
    # An exit that Python sees, so that the processes started below end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    size = sum(x.numel() for x in Llama(Config()).parameters())
    for leg in (LEGS[name] for name in VERSIONS[a.version]):
        write_data(leg, a.build)
        together = Together(a.processes, size)
        torch.multiprocessing.spawn(train, (a.processes, together, a.version, leg, a.build, a.out, not a.no_compile), a.processes, daemon=True)
