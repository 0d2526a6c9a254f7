"""Random JSON schemas whose documents are finite: every string, list and number is bounded, so no output is cut by its ceiling."""

import random

NAMES = ["name", "age", "tags", "city", "x-y", "größe", "a b", "id", "next", "ok"]


def schema(dice: random.Random, depth: int = 0) -> dict:
    kinds = [string, integer, number, boolean, enum, const, pattern]
    if depth < 3:
        kinds += [array, obj, obj, union, nullable]
    if depth == 0:
        kinds = [obj, array, union, ref]
    return dice.choice(kinds)(dice, depth)


def string(dice, depth):
    low = dice.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + dice.randint(0, 9)}


def integer(dice, depth):
    low = dice.randint(-2000, 2000)
    made = {"type": "integer", "minimum": low, "maximum": low + dice.randint(8, 900)}
    if dice.random() < 0.2:
        made["multipleOf"] = dice.choice([2, 3, 5])
    return made


def number(dice, depth):
    low = dice.randint(-50, 50)
    made = {"type": "number", "minimum": low, "exclusiveMaximum": low + dice.randint(1, 30)}
    return {"enum": [low + 0.5, low, 0.25]} if dice.random() < 0.6 else {**made, "multipleOf": 1}


def boolean(dice, depth):
    return {"type": "boolean"}


def enum(dice, depth):
    return {"enum": dice.sample(["red", "blue", "line\nbreak", 'quo"te', "한글", 7, -3, True, None], dice.randint(1, 5))}


def const(dice, depth):
    return {"const": dice.choice(["fixed", 12, False, ["a", {"b": 1}]])}


def pattern(dice, depth):
    return {"type": "string", "pattern": dice.choice(["^[a-c]{1,4}$", "^(ab|cd)+x?$", "^\\d{2}-\\d{3}$"]), "maxLength": 12}


def array(dice, depth):
    low = dice.randint(0, 2)
    made = {"type": "array", "items": schema(dice, depth + 1), "minItems": low, "maxItems": low + dice.randint(1, 3)}
    if dice.random() < 0.2:
        made["prefixItems"] = [schema(dice, depth + 1)]
    return made


def obj(dice, depth):
    names = dice.sample(NAMES, dice.randint(1, 4))
    required = [name for name in names if dice.random() < 0.7]
    return {
        "type": "object",
        "properties": {name: schema(dice, depth + 1) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def union(dice, depth):
    return {"anyOf": [schema(dice, depth + 1) for _ in range(dice.randint(2, 3))]}


def nullable(dice, depth):
    return {"type": ["null", "boolean"]}


def ref(dice, depth):
    return {
        "type": "object",
        "properties": {"value": {"$ref": "#/$defs/inner"}, "rest": {"type": "array", "items": {"$ref": "#/$defs/inner"}, "maxItems": 2}},
        "required": ["value"],
        "additionalProperties": False,
        "$defs": {"inner": schema(dice, 2)},
    }
