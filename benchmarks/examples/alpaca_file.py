"""A file in the layout of Tool-Star-SFT-54K: 53,971 alpaca rows of about 5 kB in one JSON array, with planted faults."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

NUM_ROWS = 53_971
"""Of final_sft_edition9_v2.json."""
_LONGEST_CHARS = 12_000
"""Of a result; no row has more tokens than the recipe takes."""
_ANSWER = "<answer> It is \\[ \\boxed{{{}}} \\]. </answer>"


@dataclass(frozen=True, slots=True)
class AlpacaFile:
    """A file that was written.

    Attributes:
        size: In bytes.
        bad: Rows that no rollout could give.
        escaped: Good rows with a program whose line breaks are escaped.
    """

    size: int
    bad: int
    escaped: int


def write_file(path: Path, words: Sequence[str], rows: int = NUM_ROWS, seed: int = 0) -> AlpacaFile:
    """Write the file; `words` make up its texts."""
    draw = random.Random(seed)
    text = _Text(draw, words)
    bad = escaped = 0
    with path.open("w", encoding="utf-8") as file:
        file.write("[\n")
        for number in range(rows):
            output, is_escaped = _output(draw, text)
            is_bad = draw.random() < 0.01
            row = {
                "instruction": text.prompt,
                "input": text.sentence(20) + "?",
                "output": draw.choice(_FAULTS)(output) if is_bad else output,
            }
            bad, escaped = bad + is_bad, escaped + (is_escaped and not is_bad)
            file.write(json.dumps(row, ensure_ascii=False) + (",\n" if number < rows - 1 else "\n]\n"))
    return AlpacaFile(path.stat().st_size, bad, escaped)


class _Text:
    """Sentences of the words, some with characters that are not ASCII."""

    def __init__(self, draw: random.Random, words: Sequence[str]) -> None:
        self._draw, self._words = draw, words
        self.prompt = (
            files("ramify.data").joinpath("instructions", "search_python_en.txt").read_text(encoding="utf-8")
        )

    def sentence(self, size: int) -> str:
        return " ".join(self._draw.choices(self._words, k=size))

    def paragraph(self, chars: int) -> str:
        sentences: list[str] = []
        while chars > 0:
            sentences.append(
                self.sentence(self._draw.randint(6, 24))
                + self._draw.choice([".", ".", ".", " \u201cso\u201d.", ", caf\u00e9."])
            )
            chars -= len(sentences[-1])
        return " ".join(sentences)


def _output(draw: random.Random, text: _Text) -> tuple[str, bool]:
    """An answer with one to four calls and their results, and whether a program's line breaks are escaped."""
    parts, escapes = [], False
    for _ in range(draw.choice([1, 1, 2, 2, 3, 4])):
        parts.append(f"<think>{text.paragraph(draw.randint(80, 500))}</think>\n")
        if draw.random() < 0.5:
            chars = min(int(draw.lognormvariate(7.4, 0.6)), _LONGEST_CHARS)
            pages = "\n".join(f"Page {page}: {text.paragraph(chars // 5)}" for page in range(1, 6))
            parts.append(f"<search>{text.sentence(5)}</search> <result>\n{pages}\n</result>\n")
        else:
            lines = ["# " + text.sentence(6), "import math", "", f"x = {draw.randint(1, 999)}"]
            lines += [
                f"for i in range({draw.randint(2, 9)}):",
                "    x += math.gcd(x, i)",
                'print("x is", x, "\\n")',
            ]
            escapes = escapes or (escaped := draw.random() < 0.5)
            program = ("\\n" if escaped else "\n").join(lines)
            parts.append(f"<python>\n{program}\n</python> <result>\nx is {draw.randint(1, 999)}\n</result>\n")
    parts.append(f"<think>{text.paragraph(200)}</think>\n{_ANSWER.format(draw.randint(1, 999))}")
    return "".join(parts), escapes


def _cut_answer(output: str) -> str:
    return output.partition("</answer>")[0]


def _open_thought(output: str) -> str:
    return output.replace("</think>", "", 1)


def _second_result(output: str) -> str:
    return output.replace("</result>", "</result> <result>\nagain\n</result>", 1)


def _lost_call(output: str) -> str:
    return output.replace("</search>", "").replace("</python>", "")


def _answer_in_result(output: str) -> str:
    return output.replace("\n</result>", " <answer> 1 </answer>\n</result>", 1)


_FAULTS: tuple[Callable[[str], str], ...] = (
    _cut_answer,
    _open_thought,
    _second_result,
    _lost_call,
    _answer_in_result,
)
