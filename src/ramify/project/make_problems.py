"""Writes prices.json, train.jsonl and test.jsonl."""

import json
import random
from pathlib import Path

from ramify.quickstart.world_questions import HELD_OUT_NAMES, TRAINING_NAMES

draw = random.Random(0)
names = draw.sample([*TRAINING_NAMES, *HELD_OUT_NAMES], 64)  # one token each
ITEMS, SHOPS = names[:40], names[40:]
PRICES = {f"{item} {shop}": draw.randint(10, 59) for item in ITEMS for shop in SHOPS}
pairs = draw.sample(list(PRICES), len(PRICES))
TRAIN, TEST = pairs[:640], pairs[640:]  # no training problem asks for a price of TEST


def problem(pairs, size):
    """Return an order of one item or two at a shop that sells them."""
    shop = draw.choice(SHOPS)
    items = [pair.split()[0] for pair in pairs if pair.endswith(f" {shop}")]
    order = [(draw.randint(2, 9), item) for item in draw.sample(items, size)]
    wanted = " plus ".join(f"{number} {item}" for number, item in order)
    total = sum(number * PRICES[f"{item} {shop}"] for number, item in order)
    prompt = f"what is the price of {wanted} at {shop}?"
    kind = "two items" if size == 2 else "one item"
    return {"prompt": prompt, "answer": total, "kind": kind, "order": order, "shop": shop}


def problems(pairs, count):
    """Return different problems, with one item and with two in turn."""
    rows = {}
    while len(rows) < count:
        row = problem(pairs, 1 + len(rows) % 2)
        rows[str(row["prompt"])] = row  # a text, or messages
    return list(rows.values())


def write(name, rows):
    """Write rows as JSON lines, and print one of them."""
    Path(__file__).with_name(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{name}: {len(rows)} rows, such as {rows[0]}")


if __name__ == "__main__":
    Path(__file__).with_name("prices.json").write_text(json.dumps(PRICES))
    write("train.jsonl", problems(TRAIN, 600))
    write("test.jsonl", problems(TEST, 400))
