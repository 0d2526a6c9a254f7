"""Measures a version on held-out prompts, greedily: a prompt counts when its whole answer is right.

    python evaluate.py ../tiny-chat-v2 [--count 200] [--show 3]     accuracy per task
    python evaluate.py ../tiny-chat-v2 --parity                      the same text as Hugging Face transformers?
    python evaluate.py ../tiny-chat-v2 --ask "What is 2 + 2?"        one answer
"""

import argparse
import json
import re
import time
from pathlib import Path
from random import Random

import torch

from generate import answers, load
from tasks import TASKS, Item, draw


def messages(item: Item) -> list[dict]:
    turns = [m for ask, answer in item.before for m in ({"role": "user", "content": ask}, {"role": "assistant", "content": answer})]
    return turns + [{"role": "user", "content": item.prompt}]


def held_out_items(task: str, count: int) -> list[Item]:
    """The same for every version. Small tasks have fewer than `count` different held-out prompts: then all that 20 draws each find."""
    r, items = Random(f"held out {task}"), {}
    for _ in range(20 * count):
        item = draw(r, task, heldout=True)
        items.setdefault((item.prompt, str(item.before)), item)
        if len(items) == count:
            break
    return list(items.values())


def measure(directory: Path, count: int, show: int = 0, only: list[str] | None = None) -> dict:
    model, tokenizer = load(directory)
    result = {}
    for task, (_, _, group) in TASKS.items():
        if only and task not in only:
            continue
        long = group == "long answers"
        items = held_out_items(task, count // 5 if long else count)
        # 420 tokens hold every held-out answer but the longest counts.
        texts = answers(model, tokenizer, [messages(i) for i in items], 420 if long else 64, batch=20 if long else 64)
        wrong = [(i, t) for i, t in zip(items, texts) if not i.accepts(t)]
        result[task] = {"group": group, "prompts": len(items), "right": len(items) - len(wrong)}
        if task == "counting":  # a count that goes on past its end is wrong, but less so than one that goes astray
            result[task]["begun"] = sum(t.startswith(i.answer) for i, t in zip(items, texts))
            print(f"counting begun   {result[task]['begun']:4}")
        print(f"{task:16} {len(items) - len(wrong):4} of {len(items):4}  {100 - 100 * len(wrong) / len(items):5.1f} %", flush=True)
        for i, t in wrong[:show]:
            print(f"      {i.prompt[:70]!r} -> {t[:90]!r}, not {i.answer[:60]!r}")
    total, right = sum(x["prompts"] for x in result.values()), sum(x["right"] for x in result.values())
    mean = sum(x["right"] / x["prompts"] for x in result.values()) / len(result)
    print(f"all {right} of {total}; mean of the tasks {100 * mean:.1f} %")
    lines = [json.loads(x) for x in (directory / "references.jsonl").read_text().splitlines()] if (directory / "references.jsonl").exists() else []
    texts = answers(model, tokenizer, [[{"role": "user", "content": x["prompt"]}] for x in lines], 400)
    good = sum(accepted(x["accept"], t) for x, t in zip(lines, texts))
    print(f"references {good} of {len(lines)}")
    return {"tasks": result, "references": {"prompts": len(lines), "right": good}}


def accepted(accept: dict, text: str) -> bool:
    """What a rollout does with a line of references.jsonl."""
    if "pattern" in accept:
        return re.search(accept["pattern"], text) is not None
    return text in accept.get("exact", accept.get("choice"))


def parity(directory: Path, per_task: int) -> bool:
    """Greedy text of transformers' LlamaForCausalLM and AutoTokenizer against ours, both fp32 on the stored bf16 weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    theirs, their_tokenizer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32), AutoTokenizer.from_pretrained(directory)
    model, tokenizer = load(directory)
    same = total = 0
    for task in TASKS:
        for item in held_out_items(task, per_task):
            chat = messages(item)
            ids = their_tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
            out = theirs.generate(**ids, do_sample=False, temperature=None, top_p=None, max_new_tokens=160)
            text = their_tokenizer.decode(out[0, ids["input_ids"].shape[1]:], skip_special_tokens=True)
            ours = answers(model, tokenizer, [chat], 160)[0]
            total += 1
            same += text == ours
            if text != ours:
                print(f"{item.prompt!r}: {text!r} against {ours!r}")
    print(f"{same} of {total} greedy answers are the same text")
    return same == total


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("directory", type=Path)
    p.add_argument("--count", type=int, default=200)
    p.add_argument("--show", type=int, default=0, help="wrong answers to print per task")
    p.add_argument("--task", action="append", help="only this task")
    p.add_argument("--json", type=Path)
    p.add_argument("--ask", action="append")
    p.add_argument("--parity", action="store_true")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    if a.ask:
        model, tokenizer = load(a.directory)
        for ask, text in zip(a.ask, answers(model, tokenizer, [[{"role": "user", "content": x}] for x in a.ask], 1000)):
            print(f"{ask}\n  {text}")
    elif a.parity:
        raise SystemExit(0 if parity(a.directory, 2) else 1)
    else:
        start = time.time()
        result = measure(a.directory, a.count, a.show, a.task)
        print(f"{time.time() - start:.0f} s")
        if a.json:
            a.json.write_text(json.dumps(result, indent=1) + "\n")
