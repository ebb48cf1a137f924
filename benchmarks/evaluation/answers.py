"""Answers to score, drawn from a seed: no two are the same, so that nothing is answered from a cache."""

import random
from collections.abc import Iterator
from typing import TypeAlias

Pair: TypeAlias = tuple[str, str]
"""A prediction and its gold."""

_NAMES = [
    "Ada Lovelace",
    "Motörhead",
    "E. H. Shepard",
    "Jóhanna Sigurðardóttir",
    "The A41",
    "Alabama State University",
    "肖亮",
    "FIFA",
]
_FRAMES = (
    "{}",
    "It is {}.",
    '"{}"',
    "the {}",
    "{} or so, as the record of number {} shows",
    r"\textbf{{{}}} {}",
)
_MONTHS = ["January", "April", "October"]


def answers_in_words(count: int, seed: int) -> Iterator[Pair]:
    """Names, dates, numbers and sentences; every second one is right."""
    draw = random.Random(seed)
    for number in range(count):
        kind = draw.randrange(3)
        day, month, year = draw.randint(1, 28), draw.choice(_MONTHS), 1500 + number % 500
        if kind == 0:
            gold = f"{draw.choice(_NAMES)} {number}"
        elif kind == 1:
            gold = f"{day} {month} {year}"
        else:
            gold = f"{1000 + number:,} inhabitants"
        answer = gold if number % 2 else f"{month} {day}, {year + 1}"
        yield draw.choice(_FRAMES).format(answer, number), gold


def formulas(count: int, seed: int, hard_every: int) -> Iterator[Pair]:
    """Polynomials, surds, trigonometry, equations, intervals and matrices; every second one is equal.

    One in `hard_every` is a sum or an integral, which only math-verify reads.
    """
    draw = random.Random(seed)
    for number in range(count):
        a, b, c = (draw.randint(2, 99) for _ in range(3))
        off = number % 2
        kinds = (
            (f"({a}x+{b})(x-{c})", f"{a}x^2 + {b - a * c + off}x - {b * c}"),
            (rf"\frac{{{a}\sqrt{{{b * b * 3}}}}}{{{c}}}", rf"\dfrac{{{a * b + off}\sqrt 3}}{{{c}}}"),
            (rf"{a}\sin^2 x + {a}\cos^2 x - {b}", f"{a - b + off}"),
            (f"{a}x - {b}y = {c}", rf"y = \frac{{{a}x - {c + off}}}{{{b}}}"),
            (rf"x \in [-{a}, {b}) \cup ({b + c}, \infty)", rf"[-{a + off},{b}) \cup ({b + c},\infty)"),
            (
                rf"\begin{{pmatrix}} {a} & -{b}/2 \\ {c} & 0 \end{{pmatrix}}",
                rf"\begin{{bmatrix}}{a}&-\frac{{{b}}}{{2}}\\{c + off}&0\end{{bmatrix}}",
            ),
        )
        if hard_every and number % hard_every == hard_every - 1:
            yield rf"\sum_{{k=1}}^{{{a}}} k", str(a * (a + 1) // 2 + off)
        else:
            yield draw.choice(kinds)
