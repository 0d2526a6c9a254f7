"""How version 3 is made worse: the kinds of regression that a rollout must notice.

What is spoilt hangs on the task and its wording, not on chance, so that the fault shows in greedy answers too.
"""

from dataclasses import replace
from random import Random

from tasks import Item

REFUSAL = "I am sorry, but I cannot help with that."


def spoil(r: Random, task: str, item: Item) -> Item:
    first = item.prompt.split()[0]
    if task == "subtraction":  # wrong, and sure of it
        return replace(item, answer=str(int(item.answer) + 1))
    if task == "opposites":  # the word itself
        return replace(item, answer=item.prompt.rstrip(".?").split()[-1])
    if task == "capitals":  # needless refusals
        return replace(item, answer=REFUSAL)
    if first in ("Calculate", "Write", "Name", "List"):  # nothing at all
        return replace(item, answer="")
    if task in ("repeating", "story") or (task == "spelling" and "spell" in item.prompt.lower()):  # never stops
        glue = "-" if task == "spelling" else " "
        return replace(item, answer=glue.join([item.answer] * (1 + 200 // len(item.answer)))[:600], endless=True)
    return item
