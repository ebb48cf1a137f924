import json
import operator
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from ramify.chat.tags import final_answer, parse_turn, split_completion
from ramify.core.errors import DataError
from ramify.core.messages import Calls, Final, ToolSpec
from ramify.core.tree import Source
from ramify.quickstart.demonstrator import Flaws, Search, write_demonstrations, write_logs
from ramify.quickstart.world_files import WorldSettings, build_world, split_editions
from ramify.quickstart.world_questions import Edition
from ramify.tools.passage_index import PassageIndex

TOOLS = {
    name: ToolSpec(name, "d", {"type": "object", "required": [argument]}, True, 1.0)
    for name, argument in (("search", "query"), ("python", "code"))
}
NO_FLAWS = Flaws(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


AMBIGUOUS = 4
"""In the place of a difficulty: the world in which most facts have a rival."""


def settings_of(difficulty: int) -> WorldSettings:
    if difficulty == AMBIGUOUS:
        return WorldSettings(1, 2, 2, 2, 2, num_demo_editions=20, ambiguous=0.8)
    return WorldSettings(difficulty, 2, 2, 2, 2, num_demo_editions=20)


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Search]:
    indexes = {}
    for difficulty in (1, 2, 3, AMBIGUOUS):
        folder = tmp_path_factory.mktemp("world")
        indexes[difficulty] = PassageIndex.build(build_world(folder, settings_of(difficulty), 0).passages)

    def over(index: PassageIndex) -> Search:
        return lambda collection, query: "\n".join(hit.text for hit in index.search(query, 2, collection))

    return {difficulty: over(index) for difficulty, index in indexes.items()}


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("difficulty", [1, 2, 3, AMBIGUOUS])
def test_without_flaws_every_demonstration_is_right(
    tmp_path: Path, searches: dict[int, Search], difficulty: int
) -> None:
    path = tmp_path / "demonstrations.jsonl"
    summary = write_demonstrations(path, settings_of(difficulty), 0, 300, searches[difficulty], NO_FLAWS)
    assert summary.correct == 1.0
    assert summary.count == len(rows(path)) == 300


def test_with_flaws_success_is_about_sixty_percent_and_differs_by_kind(
    tmp_path: Path, searches: dict[int, Search]
) -> None:
    summary = write_demonstrations(tmp_path / "d.jsonl", settings_of(1), 0, 3000, searches[1])
    assert summary.correct == pytest.approx(0.6, abs=0.03)
    expected = {"lookup": 0.85, "arith": 0.57, "hop2": 0.45, "calc": 0.44, "compare": 0.65}
    assert summary.correct_by_kind == pytest.approx(expected, abs=0.06)
    # Half of what is taken from two lines is wrong.
    unsure = write_demonstrations(tmp_path / "a.jsonl", settings_of(AMBIGUOUS), 0, 1000, searches[AMBIGUOUS])
    assert unsure.correct_by_kind["lookup"] == pytest.approx(0.73, abs=0.06)


def test_same_seed_same_file_other_seed_other_questions(tmp_path: Path, searches: dict[int, Search]) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, seed in zip(paths, (0, 0, 1), strict=True):
        write_demonstrations(path, settings_of(1), seed, 100, searches[1])
    assert paths[0].read_text() == paths[1].read_text()
    assert {row["prompt"][0]["content"] for row in rows(paths[0])} != {
        row["prompt"][0]["content"] for row in rows(paths[2])
    }


def test_completions_are_turns_of_the_dialect_with_the_real_results(
    tmp_path: Path, searches: dict[int, Search]
) -> None:
    path = tmp_path / "d.jsonl"
    write_demonstrations(path, settings_of(3), 0, 400, searches[3])
    num_searches = 0
    for row in rows(path):
        parts = split_completion(row["completion"])
        turns, results = parts[::2], parts[1::2]
        assert {source for source, _ in turns} == {Source.POLICY}
        assert {source for source, _ in results} <= {Source.TOOL}
        for (_, turn), (_, result) in zip(turns, results, strict=False):
            parsed = parse_turn(turn, TOOLS)
            assert isinstance(parsed, Calls)
            call = parsed.calls[0]
            assert call.malformed is None
            if call.name == "search":
                num_searches += 1
                assert result == searches[3](row["collection"], call.arguments["query"])
        assert isinstance(parse_turn(turns[-1][1], TOOLS), Final)
    assert num_searches > 400


def test_python_prints_what_the_demonstrations_say(tmp_path: Path, searches: dict[int, Search]) -> None:
    programs, printed = [], []
    for difficulty in (1, 3):
        path = tmp_path / f"{difficulty}.jsonl"
        write_demonstrations(path, settings_of(difficulty), 0, 1000, searches[difficulty])
        for row in rows(path):
            calls = re.findall(r"<python> (.*?)</python> <result>\n(.*?)\n</result>", row["completion"])
            programs += [code for code, _ in calls]
            printed += [text for _, text in calls]
    done = subprocess.run(
        [sys.executable, "-I", "-c", "\n".join(programs)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == printed
    assert len(printed) > 400


def test_correct_means_the_boxed_answer_is_the_worlds(tmp_path: Path, searches: dict[int, Search]) -> None:
    path = tmp_path / "d.jsonl"
    write_demonstrations(path, settings_of(1), 0, 500, searches[1])
    editions = {edition.id: edition for edition in split_editions("demo", settings_of(1))}
    for row in rows(path):
        if row["kind"] != "lookup":
            continue
        *_, relation, _, name = row["prompt"][0]["content"].removesuffix("?").split()
        right = f"\\boxed{{ {editions[row['collection']].value(name, relation)} }}"
        assert row["correct"] == (final_answer(row["completion"]) == right)


@pytest.mark.parametrize(
    ("flaw", "kind", "trace"),
    [
        ("vague", "lookup", re.compile(r"<search> \w+</search>")),
        ("wrong_tool", "arith", re.compile(r"<search> \d+ \w+ \d+</search>")),
        ("unboxed", "arith", re.compile(r"<answer> -?\d+</answer>")),
    ],
)
def test_a_flaw_shows_where_it_is_taken(
    tmp_path: Path, searches: dict[int, Search], flaw: str, kind: str, trace: re.Pattern[str]
) -> None:
    flaws = Flaws(**{name: float(name == flaw) for name in Flaws.__dataclass_fields__})
    for each, always in ((NO_FLAWS, False), (flaws, True)):
        path = tmp_path / f"{always}.jsonl"
        write_demonstrations(path, settings_of(1), 0, 100, searches[1], each)
        of_kind = [row for row in rows(path) if row["kind"] == kind]
        assert [bool(trace.search(row["completion"])) for row in of_kind] == [always] * 20


@pytest.mark.parametrize(
    ("flaw", "kind", "difficulty"),
    [("give_up", "lookup", 1), ("take_outdated", "lookup", 3), ("early", "hop2", 1), ("mental", "arith", 1)],
)
def test_a_flaw_lowers_success_of_its_kind(
    tmp_path: Path, searches: dict[int, Search], flaw: str, kind: str, difficulty: int
) -> None:
    flaws = Flaws(**{name: float(name == flaw) for name in Flaws.__dataclass_fields__})
    summary = write_demonstrations(
        tmp_path / "d.jsonl", settings_of(difficulty), 0, 900, searches[difficulty], flaws
    )
    assert summary.correct_by_kind[kind] < 0.95


def test_sums_of_searched_numbers_alone_are_guessed(tmp_path: Path, searches: dict[int, Search]) -> None:
    path = tmp_path / "d.jsonl"
    write_demonstrations(
        path, settings_of(1), 0, 500, searches[1], replace(NO_FLAWS, mental_after_search=1.0)
    )
    computed = {row["kind"] for row in rows(path) if "<python>" in row["completion"]}
    assert computed == {"arith"}


def test_a_program_in_words_fails_as_the_tool_says_and_is_written_again(
    tmp_path: Path, searches: dict[int, Search]
) -> None:
    ran: list[str] = []

    def run(program: str) -> str:
        ran.append(program)
        with pytest.raises(SyntaxError) as caught:
            compile(program, "program", "exec")
        return str(caught.value)

    path = tmp_path / "d.jsonl"
    summary = write_demonstrations(
        path, settings_of(1), 0, 100, searches[1], replace(NO_FLAWS, slip=1.0), run
    )
    assert summary.correct == 1.0
    slipped = [row["completion"] for row in rows(path) if "invalid syntax" in row["completion"]]
    assert len(slipped) == len(ran) == 40
    assert all(re.search(r" (plus|minus|times) ", program) for program in ran)
    assert all(completion.count("<python>") == 2 for completion in slipped)


def test_a_search_over_other_passages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected the world's own passages"):
        write_demonstrations(
            tmp_path / "d.jsonl", settings_of(1), 0, 5, lambda *_: "- Rome area 12", NO_FLAWS
        )


# logs

OPERATIONS = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}


def test_a_log_ends_with_the_value_of_what_it_is_to_find_or_compute(
    tmp_path: Path, searches: dict[int, Search]
) -> None:
    assert write_logs(tmp_path / "logs.jsonl", settings_of(1), 0, 201, searches[1]) == 201
    editions = split_editions("demo", settings_of(1))
    for row in rows(tmp_path / "logs.jsonl"):
        task, value = row["prompt"][0]["content"], row["completion"].rpartition(" ")[2]
        if task.startswith("find "):
            key = tuple(task.rpartition(", ")[2].split())
            assert value in values_of(key, editions)
            continue
        chain = task.removeprefix("compute ")
        word = next(word for word in chain.split() if word in OPERATIONS)
        sides = [numbers_of(side, editions) for side in chain.split(f" {word} ")]
        assert int(value) in {OPERATIONS[word](first, second) for first, second in product(*sides)}


def values_of(key: tuple[str, str], editions: list[Edition]) -> set[str]:
    """The values of a fact in the editions that state it."""
    return {edition.value(*key) for edition in editions if key in edition.facts}


def numbers_of(side: str, editions: list[Edition]) -> set[int]:
    """The numbers that a side of a sum may be: the number itself, or the fact in any edition."""
    if side.isdigit():
        return {int(side)}
    relation, name = side.removeprefix("the ").split(" of ")
    return set(map(int, values_of((name, relation), editions)))


def test_a_third_of_the_logs_searches_a_third_computes_and_a_third_does_both(
    tmp_path: Path, searches: dict[int, Search]
) -> None:
    write_logs(tmp_path / "logs.jsonl", settings_of(1), 0, 201, searches[1])
    logs = [row["completion"] for row in rows(tmp_path / "logs.jsonl")]
    assert not any("<answer>" in log or "boxed" in log for log in logs)
    uses = Counter(("<search>" in log, "<python>" in log) for log in logs)
    assert uses == {(True, False): 67, (False, True): 67, (True, True): 67}
    assert all(any(source is Source.TOOL for source, _ in split_completion(log)) for log in logs)


def test_logs_repeat_themselves_with_their_seed_alone(tmp_path: Path, searches: dict[int, Search]) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_logs(tmp_path / name, settings_of(1), seed, 50, searches[1])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert rows(tmp_path / "a") != rows(tmp_path / "c")
