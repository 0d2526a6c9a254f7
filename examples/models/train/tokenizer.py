"""The tokenizer of tiny-chat: byte-level BPE, digits one by one, six special tokens; and its chat template.

The template writes <|bos|>, the tokenizer never adds it by itself: so it is there exactly once.
"""

import json
from pathlib import Path
from random import Random

import jinja2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tasks import TASKS

SPECIAL = PAD, BOS, END, SYSTEM, USER, ASSISTANT = "<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
VOCABULARY = 2048
# Words with their leading space, single digits (so that arithmetic sees digits), punctuation, white space.
SPLIT = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = """{{- bos_token }}
{%- set first = 0 %}
{%- if messages and messages[0]['role'] == 'system' %}
    {{- '<|system|>' + messages[0]['content'] | trim + '<|end|>' }}
    {%- set first = 1 %}
{%- endif %}
{%- for message in messages[first:] %}
    {%- if message['role'] == 'system' %}
        {{- raise_exception('A system message must be the first message.') }}
    {%- elif message['role'] not in ['user', 'assistant'] %}
        {{- raise_exception('Unknown role: ' + message['role']) }}
    {%- elif (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}"""


def corpus(seed: int = 0, per_task: int = 2500):
    """Prompts and answers of the tasks, less what would glue upper-case letters or odd words into tokens."""
    r = Random(seed)
    for name, (task, _, _) in TASKS.items():
        for _ in range(per_task // 10 if name in ("counting", "story") else per_task):
            item = task(r)
            for text in (item.prompt, item.answer):
                yield " ".join(w for w in text.split(" ") if not (w.strip(".:,").isupper() and len(w) > 1))


def build() -> Tokenizer:
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIAL]))
    return t


def config() -> dict:
    """tokenizer_config.json."""
    return {
        "added_tokens_decoder": {str(i): {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for i, s in enumerate(SPECIAL)},
        "bos_token": BOS, "eos_token": END, "pad_token": PAD, "add_bos_token": False, "add_eos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": 2048, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE,
    }


def render(messages: list[dict], add_generation_prompt: bool = True) -> str:
    """What an engine does with the template."""
    def raise_exception(text):
        raise ValueError(text)
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return env.from_string(CHAT_TEMPLATE).render(messages=messages, add_generation_prompt=add_generation_prompt, bos_token=BOS, raise_exception=raise_exception)


def save(t: Tokenizer, directory: Path):
    t.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config(), indent=2) + "\n")
    names = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
    (directory / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n")
