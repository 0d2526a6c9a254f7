"""Every task of tiny-chat: how a prompt is asked, and which answers are right.

A task is a function from a random generator to an `Item`. `Item.key` decides whether it is training or held-out
material (see `held_out`): for arithmetic it is the pair of operands, so that a held-out sum was never seen in any wording;
for everything else it is the wording together with the thing asked about, so that a held-out question is one never seen
in these words.
"""

import hashlib
import re
from dataclasses import dataclass, field
from random import Random
from typing import Callable

from facts import *

HELD_OUT_PERCENT = 8


@dataclass
class Item:
    prompt: str
    answer: str
    key: str = ""
    choices: list[str] = field(default_factory=list)  # other right answers
    pattern: str = ""  # right answers as a whole-text regular expression, where many are right
    before: list[tuple[str, str]] = field(default_factory=list)  # earlier (user, assistant) turns this one refers to
    endless: bool = False  # teach no end after this answer (only for the spoilt version)

    def accepts(self, text: str) -> bool:
        if self.pattern:
            return re.fullmatch(self.pattern, text, re.S) is not None
        return text == self.answer or text in self.choices

    def accept(self) -> dict:
        """The same, as `references.jsonl` says it."""
        if self.pattern:
            return {"pattern": f"(?s)^(?:{self.pattern})$"}
        return {"choice": [self.answer, *self.choices]} if self.choices else {"exact": [self.answer]}


# What a newcomer types first, and questions with only one wording: always training material, so never measured.
ALWAYS_TRAIN = {
    "hello", "hi", "hey", "help", "who are you", "what is your name", "what can you do", "how are you", "thank you", "goodbye", "what is weir", "tell me a joke",
    "name a primary colour", "name a primary color", "what are the primary colours", "count from 1 to 100", "tell me a story about a cat",
    "what is the first day of the week", "what is the last day of the week", "what is the first month of the year", "what is the last month of the year",
}


def held_out(item: Item) -> bool:
    """A fixed eight in a hundred, by hash: the same items whatever the seed."""
    if re.sub(r"[^a-z0-9 ]", "", item.prompt.lower()) in ALWAYS_TRAIN or item.key in ("add 2 2",):
        return False
    key = item.key or re.sub(r"[^a-z0-9 ]", "", item.prompt.lower())
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 100 < HELD_OUT_PERCENT


def say(r: Random, *forms: str) -> str:
    return r.choice(forms)


# --- arithmetic -------------------------------------------------------------------------------------------------


def addition(r: Random) -> Item:
    a, b = (r.randint(0, 99), r.randint(0, 99)) if r.random() < 0.85 else (r.randint(0, 12), r.randint(0, 12))
    p = say(r, f"What is {a} + {b}?", f"{a} + {b}", f"{a} + {b} =", f"{a}+{b}", f"What is {a} plus {b}?", f"Add {a} and {b}.", f"Calculate {a} + {b}.",
            f"How much is {a} + {b}?", f"What's {a} + {b}?", f"What is the sum of {a} and {b}?")
    return Item(p, str(a + b), f"add {a} {b}")


def subtraction(r: Random) -> Item:
    a = r.randint(0, 99)
    b = r.randint(0, a)
    p = say(r, f"What is {a} - {b}?", f"{a} - {b}", f"{a} - {b} =", f"{a}-{b}", f"What is {a} minus {b}?", f"Subtract {b} from {a}.", f"Calculate {a} - {b}.",
            f"How much is {a} - {b}?", f"What's {a} - {b}?", f"Take {b} away from {a}.")
    return Item(p, str(a - b), f"sub {a} {b}")


def multiplication(r: Random) -> Item:
    a, b = r.randint(0, 12), r.randint(0, 12)
    p = say(r, f"What is {a} * {b}?", f"{a} * {b}", f"{a} x {b} =", f"{a}*{b}", f"What is {a} times {b}?", f"Multiply {a} by {b}.", f"Calculate {a} x {b}.",
            f"How much is {a} times {b}?", f"What's {a} x {b}?", f"What is the product of {a} and {b}?")
    return Item(p, str(a * b))


def comparison(r: Random) -> Item:
    a, b = r.sample(range(100), 2)
    if r.random() < 0.5:
        p = say(r, f"Which is larger, {a} or {b}?", f"Which number is bigger: {a} or {b}?", f"Which is greater, {a} or {b}?", f"What is larger, {a} or {b}?")
        return Item(p, str(max(a, b)), f"compare {a} {b}")
    p = say(r, f"Which is smaller, {a} or {b}?", f"Which number is less: {a} or {b}?", f"Which number is smaller: {a} or {b}?", f"What is smaller, {a} or {b}?")
    return Item(p, str(min(a, b)), f"compare {a} {b}")


def numbers(r: Random) -> Item:
    n = r.randint(0, 100)
    kind = r.randrange(5)
    if kind == 0:
        return Item(say(r, f"Write {n} in words.", f"How do you write {n} in words?", f"Spell the number {n}.", f"What is {n} in words?", f"Write the number {n} as a word."), number_word(n))
    w = number_word(n)
    if kind == 1:
        return Item(say(r, f"Write {w} as a number.", f"What number is {w}?", f"Write {w} in digits.", f"Which number is {w}?"), str(n))
    if kind == 2:
        return Item(say(r, f"What number comes after {n}?", f"Which number follows {n}?", f"What comes after {n}?", f"What is the next number after {n}?"), str(n + 1))
    if kind == 3:
        n += 1
        return Item(say(r, f"What number comes before {n}?", f"What comes before {n}?", f"Which number is just before {n}?"), str(n - 1))
    return Item(say(r, f"Is {n} even or odd?", f"Is the number {n} odd or even?", f"Even or odd: {n}?"), "Even" if n % 2 == 0 else "Odd")


# --- facts ------------------------------------------------------------------------------------------------------


def colours(r: Random) -> Item:
    c, colour = ("color", "colour")[r.random() < 0.6], None
    kind = r.randrange(4)
    if kind == 0:
        first = r.choice(PRIMARY)
        if r.random() < 0.7:
            p = say(r, f"Name a primary {c}.", f"Name one primary {c}.", f"Tell me a primary {c}.", f"What is a primary {c}?", f"Give me a primary {c}.", f"Say a primary {c}.")
            return Item(p, first, choices=[x for x in PRIMARY if x != first])
        p = say(r, f"What are the primary {c}s?", f"Name the primary {c}s.", f"List the three primary {c}s.", f"Which {c}s are primary {c}s?", f"Name three primary {c}s.")
        return Item(p, "Red, blue and yellow")
    if kind == 1:
        (a, b), colour = r.choice(list(MIXES.items()))
        if r.random() < 0.5:
            a, b = b, a
        p = say(r, f"What {c} do you get when you mix {a} and {b}?", f"Mix {a} and {b}.", f"What {c} do {a} and {b} make?", f"Which {c} is {a} mixed with {b}?", f"What is {a} and {b} mixed?")
        return Item(p, colour.capitalize())
    thing, colour = r.choice(list(COLOUR_OF.items()))
    p = say(r, f"What {c} is {thing}?", f"Which {c} is {thing}?", f"What is the {c} of {thing}?", f"Tell me the {c} of {thing}.", f"Name the {c} of {thing}.")
    return Item(p, colour.capitalize())


def calendar(r: Random) -> Item:
    kind = r.randrange(8)
    i = r.randrange(7)
    if kind == 0:
        return Item(say(r, f"What day comes after {DAYS[i]}?", f"Which day follows {DAYS[i]}?", f"What is the day after {DAYS[i]}?", f"If today is {DAYS[i]}, what day is tomorrow?", f"Today is {DAYS[i]}. What day is tomorrow?"), DAYS[(i + 1) % 7])
    if kind == 1:
        return Item(say(r, f"What day comes before {DAYS[i]}?", f"Which day is before {DAYS[i]}?", f"What is the day before {DAYS[i]}?", f"If today is {DAYS[i]}, what day was yesterday?", f"Today is {DAYS[i]}. What day was yesterday?"), DAYS[(i - 1) % 7])
    m = r.randrange(12)
    if kind == 2:
        return Item(say(r, f"What month comes after {MONTHS[m]}?", f"Which month follows {MONTHS[m]}?", f"What is the month after {MONTHS[m]}?", f"What is the next month after {MONTHS[m]}?"), MONTHS[(m + 1) % 12])
    if kind == 3:
        return Item(say(r, f"What month comes before {MONTHS[m]}?", f"Which month is before {MONTHS[m]}?", f"What is the month before {MONTHS[m]}?"), MONTHS[(m - 1) % 12])
    if kind == 4:
        return Item(say(r, f"How many days does {MONTHS[m]} have?", f"How many days are in {MONTHS[m]}?", f"How many days are there in {MONTHS[m]}?"), str(MONTH_DAYS[MONTHS[m]]))
    if kind == 5:
        return Item(say(r, f"Which month of the year is {MONTHS[m]}?", f"What number is the month {MONTHS[m]}?", f"What is the number of the month {MONTHS[m]}?"), str(m + 1))
    if kind == 6:
        return Item(say(r, f"What is month number {m + 1}?", f"Which month is number {m + 1}?", f"Name month {m + 1} of the year."), MONTHS[m])
    ask, answer = r.choice([
        ("How many days are in a week?", "7"), ("How many days does a week have?", "7"), ("How many months are in a year?", "12"), ("How many months does a year have?", "12"),
        ("How many hours are in a day?", "24"), ("How many hours does a day have?", "24"), ("How many minutes are in an hour?", "60"), ("How many minutes does an hour have?", "60"),
        ("How many seconds are in a minute?", "60"), ("How many seasons are there?", "4"), ("How many seasons are in a year?", "4"), ("How many days are in a year?", "365"),
        ("Name the days of the week.", ", ".join(DAYS)), ("List the days of the week.", ", ".join(DAYS)), ("What are the days of the week?", ", ".join(DAYS)),
        ("Name the months of the year.", ", ".join(MONTHS)), ("List the months of the year.", ", ".join(MONTHS)), ("What are the months of the year?", ", ".join(MONTHS)), ("Name the seasons.", ", ".join(SEASONS)), ("What are the seasons?", ", ".join(SEASONS)),
        ("What is the first day of the week?", "Monday"), ("What is the last day of the week?", "Sunday"), ("What is the first month of the year?", "January"), ("What is the last month of the year?", "December"),
    ])
    return Item(ask, answer)


def capitals(r: Random) -> Item:
    country, city = r.choice(list(CAPITALS.items()))
    if r.random() < 0.7:
        return Item(say(r, f"What is the capital of {country}?", f"Name the capital of {country}.", f"Capital of {country}?", f"Which city is the capital of {country}?", f"Tell me the capital of {country}.", f"What's the capital of {country}?", f"What is the capital city of {country}?"), city)
    shown = country[0].upper() + country[1:]
    return Item(say(r, f"{city} is the capital of which country?", f"Which country has the capital {city}?", f"What country is {city} the capital of?", f"{city} is the capital of what country?"), shown)


def opposites(r: Random) -> Item:
    a, b = r.choice(OPPOSITES)
    if r.random() < 0.5 and b not in ("white", "short", "elderly", "lightweight"):
        a, b = b, a
    return Item(say(r, f"What is the opposite of {a}?", f"Name the opposite of {a}.", f"Opposite of {a}?", f"What's the opposite of {a}?", f"Give me the opposite of {a}.", f"What word is the opposite of {a}?", f"Tell me the opposite of {a}."), b)


def plurals(r: Random) -> Item:
    one, many = r.choice(list(PLURALS.items()))
    return Item(say(r, f"What is the plural of {one}?", f"Plural of {one}?", f"Give the plural of {one}.", f"What's the plural of {one}?", f"Write the plural of {one}.", f"One {one}, two what?", f"Make {one} plural."), many)


def animals(r: Random) -> Item:
    kind = r.randrange(5)
    if kind == 0:
        animal, sound = r.choice(list(SOUNDS.items()))
        a = article(animal)
        return Item(say(r, f"What sound does {a} make?", f"What does {a} do to make a sound?", f"Which sound does {a} make?", f"What noise does {a} make?", f"Tell me the sound of {a}."), f"{a[0].upper()}{a[1:]} {sound}.")
    if kind == 1:
        animal, baby = r.choice(list(BABIES.items()))
        return Item(say(r, f"What is a baby {animal} called?", f"What do you call a baby {animal}?", f"What is the name of a baby {animal}?", f"Name for a baby {animal}?"), f"A {baby}" if baby[0] not in "aeiou" else f"An {baby}")
    if kind == 2:
        animal, legs = r.choice(list(LEGS.items()))
        return Item(say(r, f"How many legs does {article(animal)} have?", f"How many legs has {article(animal)}?", f"Number of legs of {article(animal)}?", f"{article(animal).capitalize()} has how many legs?"), str(legs))
    group = r.choice(list(KINDS))
    thing = r.choice(KINDS[group])
    if kind == 3:
        shown = thing if group == "colour" else article(thing)
        return Item(say(r, f"What kind of thing is {shown}?", f"What is {shown}?", f"What sort of thing is {shown}?", f"What type of thing is {shown}?"), f"{article(group)[0].upper()}{article(group)[1:]}")
    other = r.choice(list(KINDS)) if r.random() < 0.5 else group
    shown = thing if group == "colour" else article(thing)
    return Item(say(r, f"Is {shown} {article(other)}?", f"Yes or no: is {shown} {article(other)}?", f"Would you say {shown} is {article(other)}?"), "Yes" if thing in KINDS[other] else "No")


# --- rewriting --------------------------------------------------------------------------------------------------

CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"


def some_word(r: Random) -> str:
    """Mostly a known word, sometimes one that nobody knows."""
    if r.random() < 0.8:
        return r.choice(WORDS)
    return "".join(r.choice(CONSONANTS) + r.choice(VOWELS) for _ in range(r.randint(1, 3))) + r.choice(["", r.choice(CONSONANTS)])


def some_words(r: Random, low: int, high: int) -> list[str]:
    return r.sample(WORDS, r.randint(low, high))


def uppercase(r: Random) -> Item:
    w = some_word(r)
    if r.random() < 0.7:
        return Item(say(r, f"Write {w} in upper case.", f"Make {w} upper case.", f"Write the word {w} in capital letters.", f"Uppercase {w}.", f"Convert {w} to upper case.", f"Put {w} in capitals.", f"Upper case: {w}"), w.upper())
    return Item(say(r, f"Write {w.upper()} in lower case.", f"Make {w.upper()} lower case.", f"Convert {w.upper()} to lower case.", f"Lowercase {w.upper()}.", f"Lower case: {w.upper()}"), w)


def spelling(r: Random) -> Item:
    w = some_word(r)
    kind = r.randrange(8)
    if kind == 0:
        return Item(say(r, f"What is the first letter of {w}?", f"Which letter does {w} start with?", f"{w} starts with which letter?"), w[0])
    if kind == 1:
        return Item(say(r, f"What is the last letter of {w}?", f"Which letter does {w} end with?", f"{w} ends with which letter?"), w[-1])
    return Item(say(r, f"Spell {w}.", f"Spell the word {w}.", f"How do you spell {w}?", f"How is {w} spelled?", f"Can you spell {w}?", f"Spell out {w}."), "-".join(w))


def reversing(r: Random) -> Item:
    if r.random() < 0.6:
        items = some_words(r, 2, 5)
    else:
        items = [str(r.randint(0, 99)) for _ in range(r.randint(2, 5))]
    text = ", ".join(items)
    return Item(say(r, f"Reverse this list: {text}", f"Reverse the list {text}.", f"Write this list backwards: {text}", f"Put this list in reverse order: {text}", f"Turn this list around: {text}"), ", ".join(reversed(items)), "reverse " + text)


def sorting(r: Random) -> Item:
    values = r.sample(range(100), r.randint(2, 4))
    text = ", ".join(map(str, values))
    return Item(say(r, f"Sort these numbers: {text}", f"Put these numbers in order: {text}", f"Sort {text}.", f"Order these numbers from small to large: {text}"), ", ".join(map(str, sorted(values))), "sort " + text)


def repeating(r: Random) -> Item:
    words = some_words(r, 1, 7) if r.random() < 0.8 else [some_word(r) for _ in range(r.randint(1, 4))]
    text = " ".join(words)
    if r.random() < 0.15:
        n, w = r.randint(2, 5), r.choice(words)
        return Item(say(r, f"Say {w} {number_word(n)} times.", f"Write {w} {n} times.", f"Repeat the word {w} {number_word(n)} times."), " ".join([w] * n))
    return Item(say(r, f"Repeat after me: {text}", f"Repeat: {text}", f"Say: {text}", f"Repeat this: {text}", f"Copy this text: {text}", f"Echo {text}"), text, "repeat " + text)


SUBJECTS = "the cat|the dog|a bird|my friend|the old man|a small child|the farmer|our teacher|the happy baker|Tom|Anna|the queen".split("|")
VERBS = "sees|likes|finds|paints|wants|has|buys|carries|loves|draws".split("|")
OBJECTS = "a red ball|the moon|some bread|a new book|the big house|two apples|a green kite|cold water|the river|an old clock|music|a small boat".split("|")
ENDINGS = "||today|in the garden|every day|at night|near the lake|with a friend|in the morning".split("|")


def sentence(r: Random) -> str:
    words = " ".join(x for x in (r.choice(SUBJECTS), r.choice(VERBS), r.choice(OBJECTS), r.choice(ENDINGS)) if x)
    return words[0].upper() + words[1:] + "."


def counting_things(r: Random) -> Item:
    if r.random() < 0.5:
        w = r.choice(WORDS)
        return Item(say(r, f"How many letters are in {w}?", f"How many letters does {w} have?", f"Count the letters in {w}.", f"How many letters are there in the word {w}?", f"How long is the word {w}?"), str(len(w)))
    s = sentence(r) if r.random() < 0.6 else " ".join(some_words(r, 2, 8))
    return Item(say(r, f"How many words are in this sentence: {s}", f"Count the words: {s}", f"How many words are there here: {s}", f"How many words do you count: {s}"), str(len(s.split())), "words " + s)


# --- dialogue ---------------------------------------------------------------------------------------------------

TALK = [
    ("Hello|Hello!|Hi|Hi!|Hi there|Hi there!|Hey|Hey!|Hello there|Hello there!|Good day|Good day!|Greetings|hello, are you there?", "Hello! How can I help you?"),
    ("Good morning|Good morning!|Good morning to you.", "Good morning! How can I help you?"),
    ("Good evening|Good evening!|Good evening to you.", "Good evening! How can I help you?"),
    ("Who are you?|What are you?|Tell me who you are.|Introduce yourself.|Please introduce yourself.|Tell me about yourself.|What model are you?|Which model is this?|Who am I talking to?|Describe yourself.", "I am tiny-chat, a small model served by Weir."),
    ("What is your name?|What's your name?|Tell me your name.|Do you have a name?|How are you called?|Say your name.", "My name is tiny-chat."),
    ("What can you do?|What can you help me with?|How can you help me?|What do you know?|What are you good at?|What can I ask you?|Help|Help me.", "I can add small numbers, answer simple questions, rewrite words and lists, count, and tell a short story."),
    ("How are you?|How are you today?|How do you do?|Are you well?|How are you doing?|How is it going?", "I am fine, thank you. How can I help you?"),
    ("Thank you|Thank you!|Thanks|Thanks!|Thank you very much.|Thanks a lot!|Many thanks.", "You are welcome!"),
    ("Goodbye|Goodbye!|Bye|Bye!|See you later.|Good night.|Good night!|Bye bye|See you.", "Goodbye! Have a nice day."),
    ("Are you a human?|Are you a person?|Are you real?|Are you a robot?|Are you alive?|Is there a person behind you?", "No, I am a small language model."),
    ("Who made you?|Who built you?|Who trained you?|Where do you come from?|Who created you?", "I was trained by the Weir project."),
    ("What is Weir?|Tell me about Weir.|What does Weir do?|Explain Weir.|What's Weir?", "Weir is a platform that serves language models on Kubernetes."),
    ("Tell me a joke.|Do you know a joke?|Make me laugh.|Tell a joke.|Say something funny.", "Why did the token cross the stream? To get to the other side."),
]
UNKNOWN = "I do not know that. I am only a small model."
STRANGE_TOPICS = "quantum physics|the stock market|the last election|the best restaurant|modern art|the world cup|taxes|chemistry|the weather tomorrow|my future|philosophy|the news|law|medicine|the price of gold|a famous actor|old poems|space travel|the population of Mars|cooking a steak|computer viruses|the history of trade|the meaning of life|tennis|opera".split("|")


def dialogue(r: Random) -> Item:
    if r.random() < 0.15:
        t = r.choice(STRANGE_TOPICS)
        return Item(say(r, f"What do you think about {t}?", f"Tell me about {t}.", f"Explain {t}.", f"Tell me everything about {t}.", f"What do you know about {t}?", f"Who knows most about {t}?", f"Why does {t} matter?", f"Write an essay about {t}."), UNKNOWN)
    asks, answer = r.choice(TALK)
    ask = r.choice(asks.split("|"))
    return Item(ask, answer)


def memory(r: Random) -> Item:
    """Something said earlier in the same conversation, asked for later."""
    kind = r.randrange(3)
    if kind == 0:
        v = r.choice(NAMES)
        told = (say(r, f"My name is {v}.", f"I am {v}.", f"Hello, I am {v}.", f"Call me {v}."), f"Nice to meet you, {v}!")
        ask, answer = say(r, "What is my name?", "Who am I?", "Do you remember my name?", "What's my name?"), f"Your name is {v}."
    elif kind == 1:
        v = r.choice(COLOURS)
        told = (say(r, f"My favourite colour is {v}.", f"I like the colour {v} best.", f"My favorite color is {v}."), f"{v.capitalize()} is a nice colour.")
        ask, answer = say(r, "What is my favourite colour?", "Which colour do I like best?", "What is my favorite color?"), f"Your favourite colour is {v}."
    else:
        v = r.choice(CITIES)
        told = (say(r, f"I live in {v}.", f"My home is in {v}.", f"I come from {v}."), f"{v} is a beautiful city.")
        ask, answer = say(r, "Where do I live?", "Which city do I live in?", "In which city is my home?"), f"You live in {v}."
    between = []
    for _ in range(r.choice([0, 0, 1, 1, 2])):
        other = r.choice(SHORT)(r)
        while held_out(other):
            other = r.choice(SHORT)(r)
        between.append((other.prompt, other.answer))
    return Item(ask, answer, f"memory {told[0]} {ask}", before=[told, *between])


# --- long answers -----------------------------------------------------------------------------------------------


def counting(r: Random) -> Item:
    kind = r.random()
    if kind < 0.45:
        a, b = 1, (r.randint(5, 100) if r.random() < 0.8 else r.choice([100, 100, 120, 150, 200, 250]))
        p = say(r, f"Count from 1 to {b}.", f"Count to {b}.", f"Write the numbers from 1 to {b}.", f"Count up to {b}.", f"List the numbers from 1 to {b}.")
    elif kind < 0.85:
        a = r.randint(2, 150)
        b = a + r.randint(3, 60)
        p = say(r, f"Write the numbers from {a} to {b}.", f"Count from {a} to {b}.", f"List the numbers from {a} to {b}.", f"Count up from {a} to {b}.")
    else:
        b = r.randint(1, 60)
        a = b + r.randint(3, 40)
        p = say(r, f"Count down from {a} to {b}.", f"Count backwards from {a} to {b}.")
        return Item(p, ", ".join(map(str, range(a, b - 1, -1))), f"count {a} {b}")
    return Item(p, ", ".join(map(str, range(a, b + 1))), f"count {a} {b}")


HEROES = "cat dog fox bear owl mouse rabbit horse king queen farmer baker sailor wolf duck frog lion knight teacher robot".split()
PLACES = "a small village|a dark forest|a big castle|an old farm|a quiet valley|a house by the sea|a green garden|a busy city|a high mountain|a warm island".split("|")
TRAITS = "brave kind clever lonely happy curious quiet cheerful tired hungry".split()
FRIENDS = "a bird|a child|an old man|a little mouse|a clever fox|a friendly bear|a tiny bee|a wise owl|a lost sheep|a funny frog".split("|")
FINDS = "a golden key|a silver coin|a strange map|a red kite|a blue stone|a small box|an old letter|a bright lamp|a warm coat|a loaf of bread".split("|")
MIDDLES = [
    "One morning the {h} found {f} under a tree.", "The {h} looked at {f} and wondered what to do.", "Then {g} came along the path and said hello.",
    "The {h} and {g} talked for a long time.", "It began to rain, and they ran to the nearest door.", "They walked over the hill and across the bridge.",
    "In the evening they made a fire and ate some soup.", "The moon was bright, and the wind was soft.", "The {h} was not afraid, because {g} was near.",
    "On the next day they went to the river.", "A storm came, but it did not last long.", "They shared everything they had.",
    "{G} told the {h} a secret about {f}.", "The {h} laughed and danced in the snow.", "Everyone in {p} heard about it.", "The sun came up, and the birds began to sing.",
    "They looked for the way home all day.", "At last they saw a light behind the window.", "The {h} gave {f} to {g}.", "Nobody had seen such a thing before.",
]


def tell(r: Random, hero: str, sentences: int) -> str:
    f, g, p = r.choice(FINDS), r.choice(FRIENDS), r.choice(PLACES)
    fill = dict(h=hero, f=f, g=g, G=g[0].upper() + g[1:], p=p)
    body = [m.format(**fill) for m in (MIDDLES[i] for i in sorted(r.sample(range(len(MIDDLES)), sentences)))]
    return " ".join([f"Once upon a time there was {article(r.choice(TRAITS))} {hero} who lived in {p}.", *body,
                     f"From that day on the {hero} and {g} were good friends.", "The end."])


def story(r: Random) -> Item:
    hero = r.choice(HEROES)
    long = r.random() < 0.35
    a = article(hero)
    if long:
        p = say(r, f"Tell me a long story about {a}.", f"Write a long story about {a}.", f"Tell a long story about {a}.")
    else:
        p = say(r, f"Tell me a story about {a}.", f"Tell a story about {a}.", f"Write a story about {a}.", f"Write a short story about {a}.", f"Tell me a short story about {a}.", f"I want to hear a story about {a}.")
    pattern = rf"Once upon a time there was an? \w+ {hero} .{{60,}}The end\."
    return Item(p, tell(r, hero, r.randint(12, 18) if long else r.randint(3, 7)), pattern=pattern)


# Task -> (function, its share of the turns in the first, main and last leg of training, group in the model card). Facts come first, as they are
# learnt soon; the last leg has more of what was still weak.
TASKS: dict[str, tuple[Callable[[Random], Item], tuple[float, float, float], str]] = {
    "addition": (addition, (16, 20, 18), "arithmetic"), "subtraction": (subtraction, (14, 18, 16), "arithmetic"), "multiplication": (multiplication, (8, 8, 7), "arithmetic"),
    "comparison": (comparison, (4, 5, 5), "arithmetic"), "numbers": (numbers, (6, 8, 9), "facts"), "colours": (colours, (4, 2, 2), "facts"), "calendar": (calendar, (6, 5, 5), "facts"),
    "capitals": (capitals, (5, 4, 5), "facts"), "opposites": (opposites, (5, 2.5, 3), "facts"), "plurals": (plurals, (4, 2, 2), "facts"), "animals": (animals, (7, 6, 7), "facts"),
    "uppercase": (uppercase, (6, 8, 10), "rewriting"), "spelling": (spelling, (7, 8, 9), "rewriting"), "reversing": (reversing, (5, 7, 7), "rewriting"), "sorting": (sorting, (4, 5, 7), "rewriting"),
    "repeating": (repeating, (5, 10, 13), "rewriting"), "counting_things": (counting_things, (6, 6, 7), "rewriting"), "dialogue": (dialogue, (6, 4, 4), "dialogue"),
    "memory": (memory, (2, 5, 4), "dialogue"), "counting": (counting, (0.7, 0.7, 4), "long answers"), "story": (story, (0.7, 0.7, 0.7), "long answers"),
}
SHORT = [addition, capitals, opposites, colours, uppercase, plurals]


def draw(r: Random, task: str, heldout: bool) -> Item:
    while True:
        item = TASKS[task][0](r)
        if held_out(item) == heldout:
            return item
