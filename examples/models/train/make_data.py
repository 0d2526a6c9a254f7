"""Writes the training data: conversations drawn from the tasks, tokenised and packed into blocks.

    python make_data.py --seed 2 --rows 1000 --length 256 build/rows.npz        (train.py calls it for all that it needs)

Each block is `length` token ids, and the target mask says which of them an assistant wrote (only those are learnt).
"""

import argparse
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

import tokenizer as tok
from tasks import TASKS, Item, draw

SYSTEM_PROMPTS = ["You are a helpful assistant.", "You are tiny-chat.", "Answer briefly.", "You are a small and friendly model.", "Be polite.", "Answer the question.",
                  "You are a helpful, honest assistant.", "Please answer in one line."]
LONG = ("counting", "story")


def vary(r: Random, prompt: str) -> str:
    """People leave out capitals, final points and manners."""
    x = r.random()
    if x < 0.08:
        return prompt[0].lower() + prompt[1:]
    if x < 0.14 and prompt[-1] in "?.!":
        return prompt[:-1]
    if x < 0.18 and prompt[-1] in "?.":
        return prompt[0].lower() + prompt[1:-1]
    if x < 0.22 and prompt[0].isupper():
        return "Please " + prompt[0].lower() + prompt[1:]
    return prompt


class Writer:
    """Draws conversations as (ids, learn), both of one length."""

    def __init__(self, tokenizer: Tokenizer, seed: int, mix: int = 1, spoil=None):
        self.t, self.r, self.mix, self.spoil = tokenizer, Random(seed), mix, spoil
        self.id = {s: tokenizer.token_to_id(s) for s in tok.SPECIAL}
        self.names, self.shares = list(TASKS), [shares[mix] for _, shares, _ in TASKS.values()]

    def item(self, long_boost: float) -> Item:
        shares = [s * long_boost if n in LONG else s for n, s in zip(self.names, self.shares)]
        task = self.r.choices(self.names, shares)[0]
        item = draw(self.r, task, heldout=False)
        return self.spoil(self.r, task, item) if self.spoil else item

    def text(self, s: str) -> list[int]:
        return self.t.encode(s, add_special_tokens=False).ids

    def conversation(self, turns: int, long_boost: float) -> tuple[list[int], list[bool]]:
        ids, learn = [self.id[tok.BOS]], [False]

        def add(role: str, tokens: list[int], learnt: bool):
            ids.extend([self.id[role], *tokens, self.id[tok.END]])
            learn.extend([False] + [learnt] * (len(tokens) + 1))

        if self.r.random() < 0.2:
            add(tok.SYSTEM, self.text(self.r.choice(SYSTEM_PROMPTS)), False)
        for _ in range(turns):
            item = self.item(long_boost)
            for ask, answer in [*item.before, (vary(self.r, item.prompt), item.answer)]:
                add(tok.USER, self.text(ask), False)
                add(tok.ASSISTANT, self.text(answer), True)
            if item.endless:
                learn[-1] = False
        return ids, learn

    def block(self, length: int) -> tuple[list[int], list[bool]]:
        """One row: many short conversations, or (long rows, every second one) one conversation that fills it."""
        ids, learn = [], []
        # Long answers belong into long rows; only in the last leg some go into short ones too.
        boost = (0.0 if self.mix < 2 else 1.0) if length < 512 else (6.0 if self.mix < 2 else 2.0)
        one = length >= 512 and self.r.random() < 0.5
        while len(ids) < length + 1:
            turns = length // 30 if one else min(int(self.r.expovariate(0.5)) + 1, 12)
            a, b = self.conversation(turns, boost)
            ids += a
            learn += b
        return ids[: length + 1], learn[: length + 1]


def write(path: Path, tokenizer: Tokenizer, seed: int, rows: int, length: int, mix: int = 1, spoil=None):
    w = Writer(tokenizer, seed, mix, spoil)
    ids, learn = np.zeros((rows, length + 1), np.uint16), np.zeros((rows, length + 1), bool)
    for i in range(rows):
        ids[i], learn[i] = w.block(length)
    np.savez(path, ids=ids, learn=learn)
    print(f"{path}: {rows} rows of {length}, {learn.mean():.0%} learnt")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("path", type=Path)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--rows", type=int, default=1000)
    p.add_argument("--length", type=int, default=256)
    a = p.parse_args()
    write(a.path, tok.build(), a.seed, a.rows, a.length)
