import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import DataError
from ramify.data.benchmark_files import read_golds
from ramify.data.benchmarks import BENCHMARKS, load_benchmark, parse_dataset
from ramify.data.overlap import fold_question, read_questions

ROWS_OF_RELEASE = {
    "aime24": 30,
    "math500": 500,
    "gsm8k": 1319,
    "webwalker": 200,
    "hotpotqa": 200,
    "bamboogle": 125,
    "musique": 200,
    "simpleqa": 500,
}
"""Benchmarks whose files may be passed on, with their number of rows."""

WRITTEN: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "aime25": ({"problem": "How many?", "answer": 70, "id": "0"}, ("70",), {"task": "math"}),
    "math": (
        {"problem": "Find $x$.", "answer": r"\frac{1}{2}", "level": "Level 3", "type": "Algebra"},
        (r"\frac{1}{2}",),
        {"level": "Level 3", "category": "Algebra"},
    ),
    "2wiki": (
        {
            "_id": "a9",
            "question": "Who?",
            "answer": ["Li Jie", " Li Ye\n", "", None, "Li Jie"],
            "type": "bridge",
        },
        ("Li Jie", "Li Ye"),
        {"category": "bridge"},
    ),
    "gaia": (
        {
            "task_id": "t-1",
            "Question": "Which?",
            "answer": "a, b, c",
            "Level": 2,
            "Annotator_Metadata": {"Steps": "1"},
        },
        ("a, b, c",),
        {"level": "2"},
    ),
    "hle": (
        {
            "id": "h1",
            "question": "Which?",
            "answer": "B",
            "answer_type": "multipleChoice",
            "category": "Law",
            "image": "",
        },
        ("B",),
        {"category": "Law"},
    ),
    "xbench": ({"id": "3", "prompt": "哪一年?", "answer": ["1984年"]}, ("1984年",), {"language": "zh"}),
}
"""Benchmarks that are not here: a row as their files hold it, its golds, and what is known of it."""


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join((r if isinstance(r, str) else json.dumps(r, ensure_ascii=False)) + "\n" for r in rows)
    )
    return path


def error_of(name: str, path: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_benchmark(name, path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_table_holds_the_fourteen_of_the_papers() -> None:
    assert set(BENCHMARKS) == {*ROWS_OF_RELEASE, *WRITTEN, "browsecomp-plus"}
    assert {name for name in BENCHMARKS if BENCHMARKS[name].task == "math"} == {
        "aime24", "aime25", "math500", "gsm8k", "math",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(ROWS_OF_RELEASE))
def test_the_files_of_the_release_load(shared_dir: Path, name: str) -> None:
    loaded = load_benchmark(name, shared_dir / "data/eval")
    assert loaded.notes == ()
    assert len(loaded.problems) == len({problem.id for problem in loaded.problems}) == ROWS_OF_RELEASE[name]
    for row, problem in enumerate(loaded.problems):
        assert problem.id.startswith(f"{name}/")
        assert [message.role for message in problem.messages] == ["user"]
        assert problem.messages[0].text == problem.messages[0].text.strip() != ""
        assert problem.answer
        assert all(gold == gold.strip() != "" for gold in problem.answer)
        assert problem.info["row"] == row
        assert problem.info["benchmark"] == problem.info["kind"] == name
        assert problem.info["task"] == BENCHMARKS[name].task


def test_golds_of_the_release(shared_dir: Path) -> None:
    def golds(name: str) -> list[tuple[str, ...]]:
        return [problem.answer for problem in load_benchmark(name, shared_dir / "data/eval").problems]

    assert sum(gold[0].startswith("0") for gold in golds("aime24")) == 7
    assert all(gold[0].replace("-", "").replace(".", "").isdigit() for gold in golds("gsm8k"))
    assert golds("math500")[0] == (r"\left( 3, \frac{\pi}{2} \right)",)
    assert golds("bamboogle")[74][0] == golds("bamboogle")[74][0].strip()
    assert max(map(len, golds("musique"))) == 6
    assert {len(gold) for gold in golds("simpleqa")} == {1}


def test_languages_of_the_release(shared_dir: Path) -> None:
    problems = load_benchmark("webwalker", shared_dir / "data/eval").problems
    for problem in problems:
        ascii_only = problem.messages[0].text.isascii()
        assert problem.info["language"] == "en" or not ascii_only
    assert {problem.info["language"] for problem in problems} == {"en", "zh"}
    assert {p.info["language"] for p in load_benchmark("SimpleQA", shared_dir / "data/eval").problems} == {
        "en"
    }


@pytest.mark.parametrize("name", sorted(WRITTEN))
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_other_six(tmp_path: Path, name: str, kind: str) -> None:
    row, golds, known = WRITTEN[name]
    if kind == "jsonl":
        write(tmp_path / name.upper() / "test.jsonl", row)
    else:
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / name / "test.parquet")
    (problem,) = load_benchmark(name, tmp_path).problems
    assert problem.answer == golds
    assert known.items() <= problem.info.items()
    assert problem.info["row"] == 0


def test_ids_are_those_of_the_file_or_rows_from_zero_and_always_unique(tmp_path: Path) -> None:
    row = {"question": "Q?", "answer": "A"}
    path = write(
        tmp_path / "b.jsonl",
        {**row, "id": 1},
        "",
        row,
        {**row, "id": " "},
        {**row, "id": 1},
        {**row, "id": "1#3"},
    )
    loaded = load_benchmark("bamboogle", path)
    ids = [problem.id for problem in loaded.problems]
    assert ids == ["bamboogle/1", "bamboogle/1#1", "bamboogle/2", "bamboogle/1#3", "bamboogle/1#3#4"]
    assert [p.id for p in load_benchmark("bamboogle", path).problems] == ids
    assert loaded.notes == (
        "bamboogle: 3 rows (1, 3, 4) had the id of an earlier row and got one of their own",
        "bamboogle: 4 of 5 problems ask what an earlier one asks: bamboogle/1#1, bamboogle/2, bamboogle/1#3, bamboogle/1#3#4",
    )


def test_limit_reads_no_further(tmp_path: Path) -> None:
    path = write(
        tmp_path / "b.jsonl", {"question": "Q1?", "answer": "A"}, {"question": "Q2?", "answer": 2}, "broken"
    )
    assert [p.answer for p in load_benchmark("bamboogle", path, 2).problems] == [("A",), ("2",)]
    assert "row 3 (lines count from 1): broken JSON" in error_of("bamboogle", path)


def test_other_columns_stay_out_of_the_info(tmp_path: Path) -> None:
    path = write(tmp_path / "hle.jsonl", {**WRITTEN["hle"][0], "canary": "stay out", "rationale": "long"})
    (problem,) = load_benchmark("hle", path).problems
    assert set(problem.info) == {"benchmark", "task", "category", "language", "kind", "row"}


def test_questions_with_attachments_are_dropped_and_counted(tmp_path: Path) -> None:
    row = WRITTEN["gaia"][0]
    path = write(
        tmp_path / "gaia.jsonl", {**row, "file_name": ""}, {**row, "task_id": "t-2", "file_name": "a.xlsx"}
    )
    loaded = load_benchmark("gaia", path)
    assert [problem.id for problem in loaded.problems] == ["gaia/t-1"]
    assert loaded.notes == ("gaia: dropped 1 row (1) with an attachment (file_name), which no tool reads",)
    image = pa.Table.from_pylist(
        [{**WRITTEN["hle"][0], "image": {"bytes": b"x", "path": None}}, {**WRITTEN["hle"][0], "image": None}]
    )
    pq.write_table(image, tmp_path / "hle.parquet")
    assert [problem.info["row"] for problem in load_benchmark("hle", tmp_path).problems] == [1]


def test_rows_of_the_hubs_layouts(tmp_path: Path) -> None:
    webwalker = {
        "question": "Where?",
        "answer": "There.",
        "root_url": "u",
        "info": {"domain": "conference", "difficulty_level": "hard", "lang": "zh", "source_website": ["u"]},
    }
    (problem,) = load_benchmark("webwalker", write(tmp_path / "w.jsonl", webwalker)).problems
    assert {"domain": problem.info["category"], "level": problem.info["level"], "lang": problem.info["language"]} == {
        "domain": "conference", "level": "hard", "lang": "zh",
    }  # fmt: skip
    musique = {"id": "2hop__1", "question": "Q?", "answer": "A", "answer_aliases": ["B", "A"]}
    (problem,) = load_benchmark("musique", write(tmp_path / "m.jsonl", musique, "")).problems
    assert (problem.id, problem.answer) == ("musique/2hop__1", ("A", "B"))
    (problem,) = load_benchmark(
        "musique", write(tmp_path / "m.jsonl", {**musique, "answer_aliases": []})
    ).problems
    assert problem.answer == ("A",)
    gaia = {"task_id": "t", "Question": "Q?", "Final answer": "17", "Level": "1", "file_name": None}
    assert load_benchmark("gaia", write(tmp_path / "g.jsonl", gaia)).problems[0].answer == ("17",)


def test_encrypted_rows_are_read_with_the_key_beside_them(tmp_path: Path) -> None:
    def seal(text: str) -> str:
        key = "a key 钥匙".encode()
        data = text.encode()
        return base64.b64encode(bytes(b ^ key[i % len(key)] for i, b in enumerate(data))).decode()

    question = "这部小说最早是在哪一年出版的, 作者是谁?"
    row = {"id": "1", "prompt": seal(question), "answer": seal("1984年"), "canary": "a key 钥匙"}
    path = write(tmp_path / "xbench.jsonl", row, {**row, "id": "2", "prompt": question, "answer": "1985年"})
    problems = load_benchmark("xbench", path).problems
    assert [(p.messages[0].text, p.answer) for p in problems] == [
        (question, ("1984年",)),
        (question, ("1985年",)),
    ]
    assert set(read_questions([str(path)])) == {fold_question(question)}


def test_verl_rows_keep_their_messages(tmp_path: Path) -> None:
    row = {
        "data_source": "DR_gaia",
        "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Which?"}],
        "reward_model": {"ground_truth": "17"},
        "extra_info": {"index": 4, "question": "Which?"},
    }
    bare = {**row, "extra_info": {"index": 5, "question": None}}
    pq.write_table(pa.Table.from_pylist([row, bare]), tmp_path / "gaia_test.parquet")
    problems = load_benchmark("gaia", tmp_path / "gaia_test.parquet").problems
    assert [([m.text for m in p.messages], p.answer) for p in problems] == [(["S", "Which?"], ("17",))] * 2


@pytest.mark.parametrize(
    "layout", ["b.jsonl", "Bamboogle/test.jsonl", "BAMBOOGLE.jsonl", "test.jsonl", "bamboogle/test.parquet"]
)
def test_places(tmp_path: Path, layout: str) -> None:
    row = {"question": "Q?", "answer": "A"}
    path = tmp_path / layout
    path.parent.mkdir(exist_ok=True)
    if layout.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        write(path, row)
    location = path if layout == "b.jsonl" else tmp_path
    assert len(load_benchmark("bamboogle", location).problems) == 1
    assert len(load_benchmark("Bamboogle", str(location)).problems) == 1


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "gaia.jsonl", WRITTEN["gaia"][0])
    write(tmp_path / "Gaia.jsonl", WRITTEN["gaia"][0])
    if len(list(tmp_path.iterdir())) == 2:  # the file system may fold case itself
        assert "Gaia.jsonl and gaia.jsonl are both gaia" in error_of("gaia", tmp_path)


def test_what_a_user_means_by_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "eval" / "SimpleQA" / "test.jsonl", GOOD)
    write(tmp_path / "math.jsonl", GOOD)
    write(tmp_path / "a=b.jsonl", GOOD)
    assert parse_dataset("SimpleQA=eval") == ("simpleqa", "eval")
    assert parse_dataset("gsm8k=hf:openai/gsm8k:main/test") == ("gsm8k", "hf:openai/gsm8k:main/test")
    for location in ("eval/SimpleQA", "eval/SimpleQA/test.jsonl", str(tmp_path / "eval/SimpleQA")):
        assert parse_dataset(location) == ("simpleqa", location)
        assert len(load_benchmark("simpleqa", location).problems) == 1
    monkeypatch.chdir(tmp_path / "eval" / "SimpleQA")
    assert parse_dataset("test.jsonl") == ("simpleqa", "test.jsonl")
    monkeypatch.chdir(tmp_path)
    for own in ("math.jsonl", "a=b.jsonl", "absent.jsonl", "hf:a/b"):
        assert parse_dataset(own) is None
    for wrong, message in (
        ("gaai=x", "did you mean gaia?"),
        ("gaia=", "expected gaia=PLACE"),
        ("GAIA", "expected gaia=PLACE"),
        ("eval", "holds the benchmarks SimpleQA. Name each"),
    ):
        with pytest.raises(DataError, match=message):
            parse_dataset(wrong)


def test_places_where_nothing_is(tmp_path: Path) -> None:
    assert "did you mean simpleqa?" in error_of("simple_qa", tmp_path)
    assert "no benchmark is called 'x'" in error_of("x", tmp_path)
    assert "expected gaia/test.jsonl or gaia.jsonl in it" in error_of("gaia", tmp_path)
    assert "no such file or folder" in error_of("gaia", tmp_path / "absent")
    assert "expected .jsonl, .json, .parquet" in error_of("gaia", write(tmp_path / "gaia.xlsx", "a,b"))
    assert "empty" in error_of("gaia", write(tmp_path / "gaia.jsonl", ""))
    (tmp_path / "junk.parquet").write_bytes(b"PAR1")
    assert "not a readable parquet file" in error_of("gaia", tmp_path / "junk.parquet")


GOOD = {"question": "Q?", "answer": "A"}


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("bamboogle", {"answer": "A"}, "no field 'question' (nor 'problem', 'prompt'); found answer"),
        ("bamboogle", {"question": "Q?"}, "no field 'answer' (nor 'answers', 'golden_answers') with a value; found question"),
        ("bamboogle", {**GOOD, "question": None}, "no field 'question'"),
        ("bamboogle", {**GOOD, "question": " \n"}, "field 'question' is blank"),
        ("bamboogle", {**GOOD, "question": 5}, "field 'question' must be text, got int"),
        ("xbench", {"prompt": [{"role": "system", "content": "S"}], "answer": "A"}, "field 'prompt' is blank"),
        ("xbench", {"prompt": ["Q?"], "answer": "A"}, "message 1"),
        ("xbench", {"prompt": "TWFuIGlzIGRpc3Rpbmd1aXNoZWQsIG5vdA==", "answer": "A"}, "encrypted"),
        ("xbench", {"prompt": "TWFuIGlzIGRpc3Rpbmd1aXNoZWQsIG5vdA==", "answer": "A", "canary": "\u00ff"}, "not with the row's 'canary'"),
        ("gaia", {"Question": "Q?", "Final answer": "?"}, "field 'Final answer' is \"?\""),
        ("bamboogle", {**GOOD, "answer": None}, "no field 'answer'"),
        ("bamboogle", {**GOOD, "answer": []}, "field 'answer' is an empty list"),
        ("bamboogle", {**GOOD, "answer": " "}, "field 'answer' is blank"),
        ("bamboogle", {**GOOD, "answer": ["", None]}, "field 'answer' is blank"),
        ("bamboogle", {**GOOD, "answer": True}, "field 'answer' must be text, a number"),
        ("bamboogle", {**GOOD, "answer": {"value": "A"}}, "field 'answer' must be text, a number"),
        ("bamboogle", {**GOOD, "answer": [["A"]]}, "field 'answer' must be text, a number"),
        ("musique", {**GOOD, "answer_aliases": [{}]}, "field 'answer_aliases' must be text, a number"),
        ("gsm8k", {**GOOD, "answer": "so it is\n#### many"}, "field 'answer' must be a number or end in"),
        ("gsm8k", {**GOOD, "answer": "no number at all"}, "field 'answer' must be a number or end in"),
        ("bamboogle", {**GOOD, "id": [1]}, "field 'id' must be text or a number"),
        ("bamboogle", {**GOOD, "level": {}}, None),
        ("bamboogle", '{"question": "\\ud800", "answer": "A"}', "surrogates"),
        ("bamboogle", "[1]", "expected an object, got list"),
        ("bamboogle", '{"question": "cut o', "broken JSON"),
    ],
)  # fmt: skip
def test_a_bad_row_is_one_line_with_file_row_and_field(
    tmp_path: Path, name: str, row: object, expected: str | None
) -> None:
    first = {"question": "Q?", "answer": "7"}
    path = write(tmp_path / "t.jsonl", first, "", row)
    if expected is None:
        assert len(load_benchmark(name, path).problems) == 2
        return
    message = error_of(name, path)
    assert message.startswith(f"{path} row 3 (lines count from 1): ")
    assert expected in message


def test_a_parquet_without_a_field_names_the_row(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"question": "Q?"}]), tmp_path / "t.parquet")
    assert "row 0 (rows count from 0): no field 'answer'" in error_of("bamboogle", tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("value", "form", "golds"),
    [
        ("[1, 2)", "plain", ("[1, 2)",)),
        ('["Paris", "Lutetia"]', "plain", ('["Paris", "Lutetia"]',)),
        ("Paris, Texas", "plain", ("Paris, Texas",)),
        (["a", 3, 3.0, 2.5, " a "], "plain", ("a", "3", "2.5")),
        (10**400, "plain", (str(10**400),)),
        ("025", "plain", ("025",)),
        ("She has 4 #### 5\n#### 1,234,567", "rationale", ("1234567",)),
        ("#### -3.50", "rationale", ("-3.50",)),
        ("#### $10", "rationale", ("$10",)),
        (18, "rationale", ("18",)),
    ],
)
def test_golds(value: object, form: Any, golds: tuple[str, ...]) -> None:
    assert read_golds(value, form) == golds


@given(
    st.recursive(
        st.none() | st.text() | st.integers() | st.floats() | st.booleans(),
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=8,
    )
)
def test_every_gold_is_a_text_that_is_not_blank_or_the_row_is_refused(value: object) -> None:
    for form in ("plain", "rationale"):
        try:
            golds = read_golds(value, form)  # type: ignore[arg-type]
        except ValueError:
            continue
        assert golds
        assert len(set(golds)) == len(golds)
        assert all(isinstance(gold, str) and gold == gold.strip() != "" for gold in golds)


def test_a_gold_that_is_the_letter_of_choices_needs_them_in_the_prompt(tmp_path):
    choices = {"choices": ["Rome", "Paris"], "answer": "B"}
    path = tmp_path / "gaia.jsonl"
    path.write_text(json.dumps({"question": "Which is in France?", **choices}) + "\n")
    with pytest.raises(
        DataError,
        match=r"gaia\.jsonl row 1 .*the gold is a letter or a number of 'choices', which the prompt does not",
    ):
        load_benchmark("gaia", path)
    path.write_text(json.dumps({"question": "Which is in France? A Rome B Paris", **choices}) + "\n")
    assert load_benchmark("gaia", path).problems[0].answer == ("B",)
