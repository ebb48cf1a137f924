"""The references' scoring vectors: reproduced in compatibility mode, right by default."""

import json
from pathlib import Path

import pytest

from ramify.core.errors import DataError
from ramify.rewards.golden_vectors import Verdicts, case_of, judge_vector

FILES = [
    "extract_answer",
    "llm_judge",
    "math_equiv_toolstar",
    "math_eval",
    "overall_metrics",
    "qa_eval",
    "rl_reward_arpo",
    "rl_reward_toolstar",
    "sample_metrics",
    "toolstar_eval",
]
NOT_READ = {"qa_eval": ["qa_eval-2115976eac"]}
"""A month and a day as "4-14"."""


@pytest.fixture(scope="module")
def golden(shared_dir: Path) -> Path:
    folder = shared_dir / "golden"
    if not folder.is_dir():
        pytest.skip(f"no scoring vectors at {folder} (RAMIFY_SHARED)")
    return folder


@pytest.mark.parametrize("name", FILES)
def test_every_vector_is_reproduced_and_right(golden: Path, name: str) -> None:
    vectors = [json.loads(line) for line in (golden / f"{name}.jsonl").read_text().splitlines()]
    wrong = frozenset(case_of(vector) for vector in vectors if vector.get("seed_wrong"))
    verdicts = {vector["id"]: judge_vector(vector, wrong) for vector in vectors}
    assert [key for key, each in verdicts.items() if not each.compat] == []
    assert [key for key, each in verdicts.items() if each.preserved is False] == []
    assert [key for key, each in verdicts.items() if each.right is False] == NOT_READ.get(name, [])
    assert len(verdicts) == len(vectors)


def test_a_vector_says_what_holds() -> None:
    vector = {
        "id": "math_equiv_toolstar-1",
        "task": "math",
        "scorer": "Tool-Star",
        "response": "3\\sqrt{3} + 6",
        "gold": "3\\sqrt{3} - 6",
        "expected": {"equal": True},
        "truth": "incorrect",
        "seed_wrong": True,
        "wrong_fields": ["equal"],
        "right": {"equal": False, "reason": "the last sign differs"},
    }
    assert judge_vector(vector) == Verdicts(compat=True, right=True, preserved=None)
    assert judge_vector({**vector, "right": {"equal": True}}).right is False
    assert judge_vector({**vector, "expected": {"equal": False}}).compat is False
    unmarked = {key: value for key, value in vector.items() if key != "seed_wrong"} | {
        "expected": {"equal": False}
    }
    assert judge_vector(unmarked) == Verdicts(compat=False, right=None, preserved=True)


def test_a_vector_of_no_scorer_is_refused() -> None:
    with pytest.raises(DataError, match=r"nobody-1.*expected a scorer"):
        judge_vector({"id": "nobody-1"})


@pytest.mark.parametrize(
    ("kind", "response"),
    [
        ("toolstar_eval", {"Output": None, "Full_output": None}),
        ("math_eval", None),
        ("qa_eval", 7),
        ("rl_reward_arpo", None),
        ("overall_metrics", [None]),
        ("llm_judge", {}),
        ("sample_metrics", {"output": "\ud800", "prediction": None}),
    ],
)
def test_a_vector_without_a_text_does_not_hold(kind: str, response: object) -> None:
    vector = {
        "id": f"{kind}-1",
        "task": "qa",
        "scorer": "",
        "response": response,
        "gold": ["x"],
        "expected": {"em": 1},
    }
    assert judge_vector({**vector, "truth": "correct"}).compat is False
    assert judge_vector({**vector, "truth": "correct"}).preserved is False
    assert (
        judge_vector({**vector, "seed_wrong": True, "right": {"em": 1}, "wrong_fields": ["em"]}).right
        is False
    )
