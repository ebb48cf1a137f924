"""Prompts, turns and results of exact token counts, in the dialect of ramify."""

from pathlib import Path

from benchmarks.harness.tiny_model import words_of
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tags import RESULT_CLOSE, RESULT_OPEN
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Message, Problem


class Texts:
    """Writes texts for the tokenizer of a folder made by `benchmarks.harness.tiny_model`."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = ChatTokenizer(folder)
        self.words = words_of(folder)
        self.renderer = TagRenderer(self.tokenizer)

    def problem(self, name: str, size: int) -> Problem:
        """A problem whose prompt has `size` tokens; the text depends on the name."""
        first = sum(name.encode())

        def of(count: int) -> Problem:
            return Problem(name, (Message.of("user", self._filler(first, count)),), ("",))

        problem = of(1 + size - len(self.renderer.render_prompt(of(1), ())))
        _require(len(self.renderer.render_prompt(problem, ())), size)
        return problem

    def turn(self, size: int, query: str | None, first_word: int) -> tuple[int, ...]:
        """A turn of `size` tokens that calls with `query`, or answers."""
        end = f"<search> {query} </search>" if query else f"<answer> {self.words[0]} </answer>"
        closing = self.tokenizer.encode(end)
        turn = self.tokenizer.encode(self._filler(first_word, size - len(closing))) + closing
        _require(len(turn), size)
        return turn

    def result(self, size: int) -> str:
        """A text whose rendered result has `size` tokens."""
        wrapping = len(self.tokenizer.encode(RESULT_OPEN)) + len(self.tokenizer.encode(RESULT_CLOSE))
        return self._filler(0, size - wrapping)

    def _filler(self, first_word: int, count: int) -> str:
        return "".join(f" {self.words[(first_word + i) % 500]}" for i in range(count))


def _require(came_out: int, size: int) -> None:
    if came_out != size:
        raise ValueError(f"{size} tokens were wanted, {came_out} came out")
