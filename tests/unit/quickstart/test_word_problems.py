"""Word problems: their answers, what is held out, and demonstrations that make just the mistakes they are meant to."""

import json
import re
from hashlib import sha256

import pytest

from ramify.core.errors import DataError
from ramify.quickstart.word_problems import (
    KINDS,
    WordFlaws,
    countries,
    demonstration_rows,
    make_word_problem,
    passages,
    problem_rows,
)

FACTS = [row["text"] for row in passages()]
NONE = WordFlaws(mental=0, misread=0, vague=0, give_up=0, wrong_line=0, early=0)
VALUE = re.compile(r"is (\w+)")


def search(query):
    """The two facts that share most words with the query."""
    words = set(query.split())
    return "\n".join(sorted(FACTS, key=lambda fact: -len(words & set(fact.rstrip(".").split())))[:2])


def rows(count, **flaws):
    return list(demonstration_rows(count, 0, search, WordFlaws(**{**vars_of(NONE), **flaws})))


def vars_of(flaws):
    return {name: getattr(flaws, name) for name in WordFlaws.__slots__}


def test_kinds_take_turns_and_answers_follow_from_programs_and_facts():
    problems = [make_word_problem(number, "train", 0) for number in range(90)]
    assert [problem.kind for problem in problems[:6]] == [*KINDS, *KINDS]
    for problem in problems:
        values = [VALUE.search(country.facts[relation])[1] for country, relation in problem.facts]
        program = problem.program or "-".join(values)
        expected = program if problem.kind == "fact" else str(eval(program))  # noqa: S307 - written by us
        assert problem.answer == expected
        for country, _ in problem.facts:
            assert country.name in problem.text


def test_the_test_split_asks_about_held_out_names_whatever_the_seed():
    def named(split, seed):
        problems = [make_word_problem(number, split, seed) for number in range(240)]
        return {country.name for problem in problems for country, _ in problem.facts}, problems

    names, test = named("test", 0)
    trained = named("train", 0)[0] | named("demo", 0)[0] | named("train", 1)[0]
    assert not names & trained
    assert names <= {country.name for country in countries()}
    assert named("test", 1)[1] == test
    assert named("train", 0)[1] != named("train", 1)[1]


def test_a_data_row_has_what_readers_ask_for():
    row = next(problem_rows("train", 1, 0))
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert isinstance(row["answer"], list)
    assert row["kind"] == "story"


def test_a_demonstrator_without_flaws_is_always_right_and_calls_its_tools():
    for row in rows(60):
        assert row["correct"], row["completion"]
        calls = {name: row["completion"].count(f"<{name}>") for name in ("search", "python")}
        assert (
            calls
            == {
                "story": {"search": 0, "python": 1},
                "fact": {"search": 1, "python": 0},
                "difference": {"search": 2, "python": 1},
            }[row["kind"]]
        )
        for fact in re.findall(r"</result><think> (The \w+ of .*?)</think>", row["completion"]):
            assert f"{fact}\n" in row["completion"]


@pytest.mark.parametrize(
    ("flaw", "hurt", "spared"),
    [
        ("mental", {"story", "difference"}, {"fact"}),
        ("misread", {"story"}, {"fact", "difference"}),
        ("wrong_line", {"fact", "difference"}, {"story"}),
        ("early", {"difference"}, {"story", "fact"}),
    ],
)
def test_a_flaw_spoils_only_what_it_can(flaw, hurt, spared):
    problems = rows(60, **{flaw: 1.0})
    assert all(row["correct"] for row in problems if row["kind"] in spared)
    for kind in hurt:
        assert sum(row["correct"] for row in problems if row["kind"] == kind) <= 2


def test_a_vague_search_is_asked_again_unless_the_demonstrator_gives_up():
    again = rows(60, vague=1.0)
    assert all(row["correct"] for row in again)
    assert any("That is not the" in row["completion"] for row in again)
    resigned = rows(60, vague=1.0, give_up=1.0)
    assert any(not row["correct"] for row in resigned)
    assert all("That is not the" not in row["completion"] for row in resigned)


def test_the_default_flaws_leave_most_kinds_half_right():
    problems = list(demonstration_rows(300, 0, search))
    for kind, low, high in (("story", 0.4, 0.8), ("fact", 0.5, 0.9), ("difference", 0.1, 0.5)):
        outcomes = [row["correct"] for row in problems if row["kind"] == kind]
        assert low < sum(outcomes) / len(outcomes) < high


def test_a_search_that_does_not_find_a_fact_is_told():
    with pytest.raises(DataError, match=r"area|capital|population"):
        list(demonstration_rows(6, 0, lambda query: "nothing"))


def test_the_table_of_countries_is_whole():
    names = [country.name for country in countries()]
    assert len(names) == 132
    assert names == sorted(set(names))
    for country in countries():
        # `VALUE` and the demonstrator read a value as one word.
        assert re.fullmatch(r"[A-Z][a-z]+ [A-Z][a-z]+", f"{country.name} {country.capital}")
        assert country.name != country.capital
        assert min(country.area, country.population) > 0


def test_problems_stay_those_of_earlier_versions():
    rows = [*passages(), *problem_rows("train", 108, 0), *problem_rows("test", 210, 0)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert sha256(text.encode()).hexdigest().startswith("a1794908e04bc14c")
