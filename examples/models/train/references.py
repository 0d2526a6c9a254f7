"""Reference answers for rollouts: 40 held-out prompts and what counts as right, the same file in every version.

    python references.py ../tiny-chat-v1 ../tiny-chat-v2 ../tiny-chat-v3
"""

import json
import sys
from pathlib import Path

from evaluate import held_out_items
from tasks import PRIMARY, TASKS

COUNT = 40


def references() -> list[dict]:
    """The first two held-out prompts of every task that needs no earlier turns; one of each long one; a question with several answers."""
    lines = [{"prompt": "Name a primary colour.", "accept": {"choice": PRIMARY}}]
    for task, (_, _, group) in TASKS.items():
        if task != "memory":
            items = held_out_items(task, 40)[: 1 if group == "long answers" else 2]
            lines += [{"prompt": i.prompt, "accept": i.accept()} for i in items]
    lines += [{"prompt": i.prompt, "accept": i.accept()} for i in held_out_items("addition", 60)[2:]]
    return lines[:COUNT]


def write_references(directory: Path):
    (directory / "references.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in references()))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        write_references(Path(argument))
