import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import DataError
from ramify.core.messages import Message, Problem
from ramify.data.benchmarks import BENCHMARKS, load_benchmark
from ramify.data.overlap import (
    find_duplicates,
    find_overlaps,
    fold_question,
    questions_of,
    read_questions,
    subtract,
    without_questions,
)
from ramify.data.problems import ProblemSet, load_problems
from ramify.quickstart.demonstrator import write_demonstrations
from ramify.quickstart.world_files import WorldSettings, build_world

pytestmark = pytest.mark.integration


def asks(identifier: str, text: str, **info: object) -> Problem:
    messages = (Message.of("system", "Be brief."), Message.of("user", text))
    return Problem(identifier, messages, ("A",), info)


@pytest.mark.parametrize(
    ("question", "other"),
    [
        ("Who wrote it?", "  who  WROTE it ?"),
        ("Who wrote “Ulysses”?", 'who wrote "Ulysses"'),
        ("the U.S. state", "the US state"),
        ("a twenty-one-year-old", "a twenty one year old"),
        ("COVID-19", "covid 19"),
        ("\uff37\uff48\uff4f\uff1f", "who?"),
        ("Straße", "STRASSE"),
        ("谁是主讲人\uff1f", "谁 是主讲人?"),
        ("caf\u00e9", "cafe\u0301"),
        ("What is 3 - 5?", "What is 3-5 ?"),
        ("either/or", "either or"),
    ],
)
def test_spellings_that_are_the_same_question(question: str, other: str) -> None:
    assert fold_question(question) == fold_question(other) != ""


@pytest.mark.parametrize(
    ("question", "other"),
    [
        ("What is 3 - 5?", "What is 35?"),
        ("What is 3 - 5?", "What is 3 + 5?"),
        ("What is x - y?", "What is x / y?"),
        ("What is x*y?", "What is xy?"),
        ("Find x = -3", "Find x = 3"),
        ("What is 1.5 m in feet?", "What is 15 m in feet?"),
        (r"$2 - \frac12$", r"$2 + \frac12$"),
        ("a < b", "a > b"),
        ("x^2", "x2"),
        ("Who was the first?", "Who was the last?"),
    ],
)
def test_questions_that_only_look_alike(question: str, other: str) -> None:
    assert fold_question(question) != fold_question(other)


@given(st.text())
def test_folding_is_done_at_once_and_knows_no_blanks(text: str) -> None:
    folded = fold_question(text)
    assert fold_question(f"  {text}\n") == folded
    assert not any(character.isspace() for character in folded)


def test_every_known_overlap_of_the_release_and_no_other(shared_dir: Path) -> None:
    folder = shared_dir / "data"
    known = json.loads((folder / "overlaps.json").read_text())
    tests = {
        name: load_benchmark(name, folder / "eval")
        for name in BENCHMARKS
        if name in {each.name.casefold() for each in (folder / "eval").iterdir()}
    }
    overlaps = set()
    for file in sorted((folder / "rl").glob("*.parquet")):
        train = load_problems(file)
        for name, test in tests.items():
            for pair in find_overlaps(train, test):
                overlaps.add((file.name, pair.train.id, name, pair.test.info["row"]))
    assert len(known) == 139
    assert overlaps == {
        (each["rl_file"], f"{each['rl_file'].split('.')[0]}-{each['rl_row']}", each["eval_set"].casefold(), each["eval_row"])
        for each in known
    }  # fmt: skip


def test_duplicates_of_the_release(shared_dir: Path) -> None:
    groups = find_duplicates(load_problems(shared_dir / "data/rl/train_10k.parquet").problems)
    extra = sum(len(group) - 1 for group in groups)
    # 37 of its rows repeat a question letter by letter; other spellings come to it
    assert extra >= 37
    for group in groups:
        assert len({fold_question(problem.messages[-1].text) for problem in group}) == 1
    assert find_duplicates(load_benchmark("gsm8k", shared_dir / "data/eval").problems) == ()


def test_pairs_come_in_the_order_of_the_training_set() -> None:
    train = ProblemSet((asks("a", "Q one?"), asks("b", "Q two"), asks("c", "q ONE")))
    test = ProblemSet((asks("x", "q one"), asks("y", "Q three"), asks("z", "Q one!")))
    pairs = [(pair.train.id, pair.test.id) for pair in find_overlaps(train, test)]
    assert pairs == [("a", "x"), ("a", "z"), ("c", "x"), ("c", "z")]
    assert [[p.id for p in group] for group in find_duplicates(train.problems)] == [["a", "c"]]


def test_a_bare_question_counts_beside_the_prompt() -> None:
    wrapped = asks("a", "Answer in a box. Question: Who wrote it?", question="Who wrote it?")
    assert find_overlaps(ProblemSet((wrapped,)), ProblemSet((asks("x", "who wrote it"),)))
    (group,) = find_duplicates((wrapped, asks("b", "Who wrote it")))
    assert [problem.id for problem in group] == ["a", "b"]
    twice = asks("c", "Answer in a box. Question: Who wrote it?", question="Who wrote it?")
    assert len(find_duplicates((wrapped, twice))) == 1


def test_questions_of_marks_alone_match_nothing() -> None:
    blank = ProblemSet((asks("a", "???"), asks("b", "!")))
    assert find_overlaps(blank, blank) == ()
    assert find_duplicates(blank.problems) == ()


def test_questions_are_taken_out_of_a_training_set(shared_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = tmp_path / "own" / "mine.jsonl"
    own.write_text(
        '{"prompt": [{"role": "user", "content": "Mine?"}]}\n{"Question": "Or yours?"}\n{"instruction": "Answer.", "input": "His?"}\n'
    )
    folded = read_questions([str(tmp_path)])
    problems = (asks("a", "mine"), asks("b", "Theirs?"), asks("c", "OR YOURS"), asks("d", "his"))
    assert [problem.id for problem in without_questions(problems, folded)] == ["b"]
    assert without_questions(problems, read_questions([])) == problems
    train = load_problems(shared_dir / "data/rl/train_10k.parquet").problems
    remaining = without_questions(train, read_questions([str(shared_dir / "data/eval")]))
    assert len(remaining) == len(train) - 19


def test_the_same_words_about_another_world_are_another_problem(tmp_path: Path) -> None:
    """Names of collections are a file's own: across files the answers decide, within a file the collection does."""
    here, there = asks("a", "Age of Bo?", collection="x"), asks("b", "Age of Bo?", collection="y")
    other = Problem("c", there.messages, ("B", " C"), {"collection": "z"})
    turns = (Message.of("user", "Take 2."), Message.of("assistant", "Yes?"), Message.of("user", "Age of Bo?"))
    assert find_duplicates((here, there, other, Problem("d", turns, ("A",)))) == ()
    maze, same, wide = (
        asks(name, "Go.", environment="maze", width=width) for name, width in (("e", 1), ("f", 1), ("g", 2))
    )
    assert find_duplicates((maze, same, wide)) == ((maze, same),)
    pairs = find_overlaps(ProblemSet((here,)), ProblemSet((there, other)))
    assert [pair.test.id for pair in pairs] == ["b"]
    path = tmp_path / "t.jsonl"
    row = {"prompt": "age of bo", "answer": ["c", "D"], "collection": "t"}
    path.write_text(json.dumps(row))
    assert without_questions((here, other), questions := read_questions([str(path)])) == (here,)
    assert not subtract(questions, questions_of([other]))
    assert subtract(questions, questions_of([here])) == questions
    # An example has no gold that shows another answer.
    path.write_text(json.dumps({"prompt": "age of bo", "completion": "9", "collection": "t"}))
    assert without_questions((here, other), read_questions([str(path)])) == ()


def test_a_world_of_the_quick_start_has_its_overlaps_and_no_repeats(tmp_path: Path) -> None:
    """Test problems are about names of their own: only arithmetic of the demonstrations can be among them, letter by letter."""
    settings = WorldSettings(num_test=500)
    files = build_world(tmp_path, settings, 0)
    sentences: dict[str, list[str]] = {}
    for line in files.passages.read_text().splitlines():
        passage = json.loads(line)
        sentences.setdefault(passage["collection"], []).append(passage["text"])
    demonstrations = tmp_path / "demonstrations.jsonl"
    write_demonstrations(
        demonstrations, settings, 0, 3000, lambda collection, query: "\n".join(sentences[str(collection)])
    )
    rows = [json.loads(line) for line in demonstrations.read_text().splitlines()]
    demonstrated = {row["prompt"][0]["content"] for row in rows}
    problems = load_problems(files.test).problems
    texts = [problem.messages[0].text for problem in problems]
    verbatim = [problem.id for problem in problems if problem.messages[0].text in demonstrated]
    assert len(set(texts)) < len(texts)
    assert find_duplicates(problems) == ()
    remaining = without_questions(problems, read_questions([str(demonstrations)]))
    assert len(verbatim) > 3
    assert {problem.id for problem in problems} - {problem.id for problem in remaining} == set(verbatim)
    assert {problem.info["kind"] for problem in problems if problem.id in verbatim} == {"arith"}


def test_places_without_questions_are_told(tmp_path: Path) -> None:
    (empty := tmp_path / "empty").mkdir()
    (tmp_path / "a.json").touch()
    for source, expected in (
        (empty, "expected .jsonl or .parquet files in this folder or one level below, found none$"),
        (tmp_path, r"found none\. Name a \.json file itself"),
        (tmp_path / "absent", "no such file or folder"),
    ):
        with pytest.raises(DataError, match=expected):
            read_questions([str(source)])
    path = tmp_path / "t.jsonl"
    path.write_text('{"question": "Q?"}\n{"query": "Q?"}\n')
    with pytest.raises(DataError) as caught:
        read_questions([str(path)])
    assert str(caught.value) == (
        f"{path} row 2 (lines count from 1): no field 'question' (nor 'problem', 'prompt', 'messages', 'conversations', 'instruction'); "
        "found query"
    )
