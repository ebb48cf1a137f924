import re
from itertools import product

import pytest

from ramify.chat.tags import TAG_NAMES, parse_turn, split_completion
from ramify.core.messages import Calls, Final, Message, Problem, ToolSpec
from ramify.core.tree import Source
from ramify.data.benchmarks import LANGUAGES, instructions
from ramify.data.prompts import PromptTexts

ALL_TOOLS = ({"search", "python"}, {"search"}, {"python"}, set[str]())
CHINESE = re.compile("[\u4e00-\u9fff]")


def spec(name: str, argument: str) -> ToolSpec:
    return ToolSpec(name, "A tool.", {"required": [argument]}, forks=True, timeout_seconds=1.0)


SPECS = {tool.name: tool for tool in (spec("search", "query"), spec("python", "code"))}


@pytest.mark.parametrize(("tools", "language"), list(product(ALL_TOOLS, LANGUAGES)))
def test_the_example_is_a_trajectory_that_the_renderer_reads(tools: set[str], language: str) -> None:
    example = re.search(r"^<think>.*\Z", instructions(tools, language), re.DOTALL | re.MULTILINE)
    assert example is not None
    specs = {name: SPECS[name] for name in tools}
    turns = [text for source, text in split_completion(example[0]) if source is Source.POLICY]
    called = []
    for turn in turns[:-1]:
        assert turn.strip().startswith("<think>")
        parsed = parse_turn(turn, specs)
        assert isinstance(parsed, Calls)
        assert parsed.calls[0].malformed is None
        called.append(parsed.calls[0].name)
    last = parse_turn(turns[-1], specs)
    assert isinstance(last, Final)
    assert last.answer.count(r"\boxed{") == 1
    assert set(called) == tools


@pytest.mark.parametrize(("tools", "language"), list(product(ALL_TOOLS, LANGUAGES)))
def test_every_tag_is_explained_and_no_other_named(tools: set[str], language: str) -> None:
    text = instructions(tools, language)
    named = {*re.findall(r"</?(\w+)>", text)}
    assert named == {"think", "answer", *tools, *(["result"] if tools else [])}
    assert named <= set(TAG_NAMES)
    for name in named:
        assert re.search(rf"^- <{name}> \S+ </{name}>", text, re.MULTILINE)
    assert r"\boxed{}" in text
    assert bool(CHINESE.search(text)) == (language == "zh")


def test_the_printed_results_of_the_examples_are_true() -> None:
    assert round(224.701 - 87.969, 3) == 136.732
    assert sum(n * n for n in range(1, 41)) == 40 * 41 * 81 / 6 == 22140
    assert sum(range(1, 41)) == 820
    for language in LANGUAGES:
        assert r"\boxed{136.732}" in instructions({"search", "python"}, language)
        assert r"\boxed{22140}" in instructions({"python"}, language)
        assert r"\boxed{820}" in instructions((), language)


def test_each_problem_is_told_in_its_language_once() -> None:
    question = Message.of("user", "Q?")
    english = Problem("a", (question,), ("A",))
    chinese = Problem("b", (question,), ("A",), {"language": "zh"})
    own = Problem("c", (Message.of("system", "Mine."), question), ("A",))
    french = Problem("d", (question,), ("A",), {"language": "fr"})
    own_texts = PromptTexts("tags", own=True)
    problems = own_texts.in_front((english, chinese, own, french), ("search",))
    assert [problem.messages[0].text for problem in problems] == [
        instructions(("search",), "en"),
        instructions(("search",), "zh"),
        "Mine.",
        instructions(("search",), "en"),
    ]
    assert all(problem.messages[-1] == question for problem in problems)
    assert own_texts.in_front(problems, ("search",)) == problems


def test_tools_of_ones_own_are_left_to_the_renderer() -> None:
    assert instructions(("search", "lookup"), "en") == instructions(("search",), "en")
    assert instructions(("lookup",), "en") == instructions((), "en")


@pytest.mark.parametrize("language", LANGUAGES)
def test_in_the_hermes_dialect_the_template_explains_the_calls(language: str) -> None:
    text = instructions({"search"}, language, "hermes")
    assert not re.findall(r"</?(\w+)>", text)
    assert r"\boxed{}" in text
    assert bool(CHINESE.search(text)) == (language == "zh")
    bare = Problem("a", (Message.of("user", "Q?"),), ())
    (problem,) = PromptTexts("hermes", own=True).in_front((bare,), ("search",))
    assert problem.messages[0].text == instructions((), "en", "hermes")
