import gzip
import json
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from ramify.cli import main
from ramify.core.messages import Message, Problem
from ramify.core.records import Reward
from ramify.core.tree import Node, Source, StopReason, TreeKey, make_tree
from ramify.obs.trace import TracedTree, write_trees
from ramify.rewards.responses import RowAverages, row_scores

RIGHT = "<think> t </think><answer> \\boxed{0.5} </answer>"


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def score(capsys, *arguments: str):
    status = main(["score", *arguments])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else None, err


def test_a_file_of_responses(tmp_path, capsys) -> None:
    rows = [
        {"id": "a", "response": RIGHT, "gold": "\\frac12"},
        {"id": "b", "output": "no", "answer": ["1", 2]},
        {"id": "c", "response": RIGHT, "gold": None},
    ]
    file, out = write(tmp_path / "r.jsonl", *rows), tmp_path / "rows.jsonl"
    status, scores, _ = score(capsys, file, "--task", "math", "--out", str(out))
    assert (status, scores["n"], scores["math_equal"], scores["is_valid_answer"]) == (0, 3, 1 / 3, 2 / 3)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["math_equal"]) for row in written] == [("a", 1.0), ("b", 0.0), ("c", 0.0)]


@pytest.mark.parametrize(
    ("task", "compat", "key", "value"),
    [
        ("reward", (), "reward", 1.0),
        ("reward", ("--compat", "arpo"), "reward", 0.0),
        ("reward", ("--compat", "toolstar"), "reward", 0.0),
        ("math", ("--compat", "arpo"), "math_equal", 1.0),
        ("math", ("--compat", "toolstar"), "math_equal", 1.0),
        ("qa", (), "em", 0.0),
    ],
)
def test_tasks_and_modes(
    tmp_path, capsys, task: str, compat: tuple[str, ...], key: str, value: float
) -> None:
    file = write(tmp_path / "r.jsonl", {"response": RIGHT, "gold": "\\frac{1}{2}"})
    status, scores, _ = score(capsys, file, "--task", task, *compat)
    assert (status, scores[key]) == (0, value)


def test_a_whole_number_that_a_table_turned_into_a_float_is_that_number(tmp_path, capsys) -> None:
    row = {"response": "<answer> \\boxed{1867} </answer>", "gold": 1867.0}
    status, scores, _ = score(capsys, write(tmp_path / "r.jsonl", row), "--task", "qa")
    assert (status, scores["em"], scores["f1"]) == (0, 1.0, 1.0)


def run_of(folder: Path, text: str, golds: tuple[str, ...]) -> str:
    """The trace of an evaluation with one attempt, which says this."""
    problem = Problem("p", (Message.of("user", "q"),), golds, {})
    nodes = [
        Node("", (), None, Source.PROMPT, (0,), "q"),
        Node("0", (0,), "", Source.POLICY, (1,), text, (-0.5,), stop=StopReason.MALFORMED),
    ]
    tree = make_tree(problem, TreeKey(step=0, slot=0), nodes)
    write_trees(folder / "trees.jsonl", [TracedTree(tree, (Reward(0.0, {}),))])
    return str(folder)


@pytest.mark.parametrize("end", ["<|im_end|>", "<|eot_id|>"])
def test_the_released_code_sees_no_control_token_of_a_run(tmp_path, capsys, end: str) -> None:
    run = run_of(tmp_path, f"Paris{end}", ("Paris",))
    status, scores, _ = score(capsys, run, "--task", "qa", "--compat", "arpo")
    assert (status, scores["em"]) == (0, 1.0)


def test_a_run_without_golds_is_refused_where_the_released_code_scores_it(tmp_path, capsys) -> None:
    run = run_of(tmp_path, "Paris", ())
    status, _, err = score(capsys, run, "--task", "math", "--compat", "arpo")
    assert status == 2
    assert "problem 'p', attempt 0: has no accepted answer. The released code scores answers only" in err


def test_trees_that_another_reward_cannot_score_are_noted(tmp_path, capsys) -> None:
    for name, gold in (("a", "5"), ("b", "6")):
        (tmp_path / name).mkdir()
        run_of(tmp_path / name, "<answer>5</answer>", (gold,))
    (tmp_path / "mine.py").write_text("def mine(answer, final_answer):\n    return 1 // (answer == ['5'])\n")
    (tmp_path / "r.toml").write_text(
        f'[reward]\nname = "parts"\n[[reward.own]]\npath = "{tmp_path}/mine.py"\nfunction = "mine"\n'
    )
    traces = [str(tmp_path / name / "trees.jsonl") for name in "ab"]
    status, scores, err = score(capsys, *traces, "--reward", str(tmp_path / "r.toml"))
    assert (status, scores["n"], scores["counted"], scores["new"]) == (0, 2, 1, 1.0)
    assert "failed and skipped: problem 'p': reward mine: " in err


def test_vectors(tmp_path, capsys) -> None:
    vector = {
        "id": "extract_answer-1",
        "task": "extract",
        "scorer": "s",
        "response": "<answer>\\boxed{ 42 }</answer>",
        "gold": None,
        "expected": {"prediction": " 42 "},
        "seed_wrong": True,
        "wrong_fields": ["prediction"],
        "right": {"prediction": "42", "reason": "padding"},
    }
    wrong = {**vector, "id": "extract_answer-2", "right": {"prediction": "43"}}
    status, scores, _ = score(capsys, "--golden", write(tmp_path / "v.jsonl", vector, wrong))
    (tmp_path / "other").mkdir()
    files = [str(tmp_path / "v.jsonl"), write(tmp_path / "other" / "v.jsonl", vector)]
    assert {name: each["n"] for name, each in score(capsys, "--golden", *files)[1].items()} == {
        files[0]: 2,
        files[1]: 1,
    }
    assert status == 0
    assert scores == {
        "v.jsonl": {
            "n": 2,
            "compat_ok": 2,
            "right_n": 2,
            "right_ok": 1,
            "kept_n": 0,
            "kept_ok": 0,
            "failures": ["extract_answer-2"],
        }
    }


@pytest.mark.parametrize(
    ("line", "arguments", "message"),
    [
        ('{"response": "x", "gold": "y"}', (), "--task: expected math, choose, qa or reward"),
        ('{"response": "x", "gold": "y"}', ("--golden", "--task", "qa"), "--golden: it takes no --task"),
        ("{", ("--task", "qa"), "line 1: not JSON"),
        ("[]", ("--task", "qa"), "the file is empty; expected a JSONL file or one JSON array"),
        ("[1]", ("--task", "qa"), "row 1: expected an object, got int"),
        ('[{"output": "x", "answer": "y"},', ("--task", "qa"), "row 2: the array does not end"),
        ('[{"output": "x", "answer": "y"}, {"text": 1}]', ("--task", "qa"), "row 2: expected one of the keys response, output"),
        ('{"gold": "y"}', ("--task", "qa"), "line 1: expected one of the keys response, output, completion"),
        ('{"response": "x"}', ("--task", "qa"), "line 1: expected one of the keys gold, golds, answer"),
        ('{"response": 5, "gold": "y"}', ("--task", "qa"), "line 1: expected a text as its response, got int"),
        ('{"response": "<answer>1</answer>", "gold": 1}', ("--task", "qa", "--compat", "arpo"), "the released code fails"),
        ('{"id": "x-1"}', ("--golden",), "line 1: expected the key 'task'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path, capsys, line: str, arguments: tuple[str, ...], message: str) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(line + "\n")
    status, scores, err = score(capsys, str(file), *arguments)
    assert (status, scores) == (2, None)
    assert message in err
    assert err.count("\n") == 1


def test_a_file_that_is_missing_is_named(tmp_path, capsys) -> None:
    status, _, err = score(capsys, str(tmp_path / "none.jsonl"), "--task", "qa")
    assert status == 2
    assert "none.jsonl: expected a JSONL file" in err


def test_no_option_is_passed_over(tmp_path, capsys) -> None:
    """Scores of each line were asked for, and none were written."""
    rows = tmp_path / "rows.jsonl"
    status, _, err = score(capsys, str(tmp_path), "--compat", "arpo", "--out", str(rows))
    assert (status, err.count("\n")) == (2, 1)
    assert "--out: expected --task too" in err


def test_responses_are_never_overwritten(tmp_path, capsys) -> None:
    file = write(tmp_path / "r.jsonl", {"response": RIGHT, "gold": "0.5"})
    part = write(tmp_path / "s.part", {"response": RIGHT, "gold": "0.5"})
    (tmp_path / "link").symlink_to(file)
    for out in ("r.jsonl", "link", "s"):  # the last is written as s.part first
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        status, scores, err = score(capsys, file, part, "--task", "math", "--out", str(tmp_path / out))
        assert (status, scores, err.count("\n")) == (2, None, 1)
        assert "would be overwritten" in err
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("none/rows.jsonl", "does not exist"),
        ("", "is a folder"),
        ("r.jsonl/rows", "does not exist"),
        ("x" * 300, "too long"),
    ],
)
def test_where_scores_go_is_checked_before_there_are_any(tmp_path, capsys, out: str, message: str) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text("no JSON, which scoring would find")
    status, scores, err = score(capsys, str(file), "--task", "qa", "--out", str(tmp_path / out))
    assert (status, scores, err.count("\n")) == (2, None, 1)
    assert err.startswith(f"ramify score: --out {tmp_path / out}: ")
    assert message in err
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("locked", ["rows", ""])
def test_what_may_not_be_written_is_left(tmp_path, with_permissions, locked: str) -> None:
    file, out = write(tmp_path / "r.jsonl", {"response": RIGHT, "gold": "0.5"}), tmp_path / "rows"
    out.write_text("kept")
    (tmp_path / locked).chmod(0o555)
    done = with_permissions("score", file, "--task", "qa", "--out", out)
    tmp_path.chmod(0o755)
    assert (done.returncode, out.read_text()) == (2, "kept")
    assert done.stderr == f"ramify score: --out {out}: may not be written; name another file\n"


def test_lone_surrogates_are_written(tmp_path, capsys) -> None:
    row = {"id": "\ud800", "response": "<answer>\\boxed{\udfff é}</answer>", "gold": "\udfff é"}
    out = tmp_path / "rows"
    status, scores, _ = score(capsys, write(tmp_path / "r", row), "--task", "qa", "--out", str(out))
    assert (status, scores["n"]) == (0, 1)
    (line,) = out.read_text("ascii").splitlines()
    assert (json.loads(line)["id"], json.loads(line)["prediction"]) == ("\ud800", "\udfff é")


def test_lines_without_a_gold_are_counted(tmp_path, capsys) -> None:
    golds = [None, "", " ", [], True, {"a": 1}, [None, ""], "0.5", 0.5, 0, ["", "0.5"]]
    file = write(tmp_path / "r", *({"response": RIGHT, "gold": gold} for gold in golds))
    status, scores, _ = score(capsys, file, "--task", "qa")
    assert (status, scores["n"], scores["no_gold"], scores["em"]) == (0, 11, 7, 3 / 11)
    none = write(
        tmp_path / "n", *({"response": "<answer>a, True</answer>", "gold": gold} for gold in golds[4:6])
    )
    status, scores, _ = score(capsys, none, "--task", "qa")
    assert (status, scores["no_gold"], scores["f1"], scores["acc"]) == (0, 2, 0.0, 0.0)
    status, scores, _ = score(capsys, write(tmp_path / "s", {"response": RIGHT, "gold": 1}), "--task", "qa")
    assert (status, "no_gold" in scores) == (0, False)


def test_files_that_are_no_jsonl_are_one_line(tmp_path, capsys) -> None:
    line = json.dumps({"response": RIGHT, "gold": "0.5"}) + "\n"
    pyarrow.parquet.write_table(pyarrow.table({"response": [RIGHT]}), tmp_path / "parquet")
    files = {
        "gzip": gzip.compress(line.encode()),
        "UTF-16": line.encode("utf-16"),
        "empty": b"\n \n",
        "no UTF-8": b"{\xff",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name in ("parquet", *files):
        status, scores, err = score(capsys, str(tmp_path / name), "--task", "qa")
        assert (status, scores, err.count("\n")) == (2, None, 1)
        assert "expected a JSONL file" in err or "expected UTF-8 text" in err
        assert name in err.partition(": expected")[2] or name in err.partition("expected")[0]
    (tmp_path / "marked").write_bytes(line.encode("utf-8-sig"))
    assert score(capsys, str(tmp_path / "marked"), "--task", "math")[1]["math_equal"] == 1.0


def test_an_array_and_lines_of_the_release_give_the_same_figures(tmp_path, capsys) -> None:
    called = "<search> q </search><result> r </result><search> q </search><result> r </result>"
    rows = [
        {"input": "q", "answer": ["Paris"], "prediction": "Paris", "output": called + "<answer>\\boxed{Paris}</answer>"},
        {"input": "q", "answer": ["Rome"], "prediction": "Oslo", "output": "<answer>\\boxed{Oslo}</answer>"},
        {"input": "q", "answer": ["Bonn"], "prediction": "Timeout", "output": called + "\n[Timeout (exceeding 9s)]"},
    ]  # fmt: skip
    lines = write(tmp_path / "r.jsonl", *rows)
    (tmp_path / "gaia_output_1.json").write_text(json.dumps(rows, indent=2))
    array = str(tmp_path / "gaia_output_1.json")
    for mode in ((), ("--compat", "arpo")):
        status, scores, _ = score(capsys, array, "--task", "qa", *mode)
        assert (status, scores) == (0, score(capsys, lines, "--task", "qa", *mode)[1])
        productivity = pytest.approx(100 / 3 * (4 / 3) / (4 / 3 + 0.1))
        assert (scores["tool_productivity"], scores["m1m2"]) == (productivity, productivity)
        assert (scores["TE"], scores["average_datas_used_tool_number"]) == (0.5, 2 / 3)
        assert (scores["tool_call"], scores["average_search_calls"]) == (4 / 3, 4 / 3)
    judged = write(tmp_path / "j.jsonl", *({**row, "llm_equal": 1} for row in rows))
    assert score(capsys, judged, "--task", "qa")[1]["TE"] == 1.0
    tool_star = {"Prompt": "q", "Full_output": rows[0]["output"], "Output": "Paris", "answer": "Paris"}
    status, scores, _ = score(
        capsys, write(tmp_path / "t.jsonl", tool_star), "--task", "qa", "--compat", "toolstar"
    )
    assert (scores["em"], scores["tool_productivity"]) == (1.0, 0.5)
    # Where no judge was asked, the release writes llm_equal 0 for each row.
    assert "llm_equal" not in scores
    assert scores["m1m2"] == pytest.approx(100 / 2.1)


def test_the_figures_of_the_release_are_those_of_its_vectors() -> None:
    vectors = Path(os.environ.get("RAMIFY_SHARED", ""), "golden", "overall_metrics.jsonl")
    if not vectors.is_file():
        pytest.skip("RAMIFY_SHARED names no folder with golden/overall_metrics.jsonl")
    compared = 0
    for vector in map(json.loads, vectors.read_text().splitlines()):
        averages = RowAverages(vector["task"], "arpo")
        for row in vector["response"]:
            scores = row_scores(row["output"], row["answer"], vector["task"], "arpo", row["prediction"])
            averages.add(scores, row.get("judge"))
        for name, value in averages.result().items():
            if name in vector["expected"]:
                assert value == pytest.approx(vector["expected"][name]), (vector["id"], name)
                compared += 1
    assert compared > 50
