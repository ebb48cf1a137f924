"""What attempts amount to, against plain counting."""

from itertools import combinations

import pytest
from eval_records import attempt, evaluation
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import DataError
from ramify.eval.evaluation import majority, make_evaluation, summarise
from ramify.obs.token_counts import PriceConfig


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5), st.integers(1, 4))
def test_pass_at_k_is_that_of_all_ways_to_draw(problems, k):
    shares = [[any(draw) for draw in combinations(verdicts, k)] for verdicts in problems]
    expected = sum(sum(draws) / len(draws) for draws in shares) / len(shares)
    assert evaluation(*problems).pass_at(k).value == pytest.approx(expected, abs=1e-12)


def test_mean_at_k_takes_the_first_attempts():
    scores = evaluation([True, False, False, False], [True, True, False, False])
    assert scores.mean_at(1).value == 1.0
    assert scores.mean_at(2).value == 0.75
    assert scores.mean_at(4).value == scores.pass_at(1).value == pytest.approx(3 / 8)


@pytest.mark.parametrize(
    ("answers", "right", "wins"),
    [
        (["7", "8", "8"], "8", True),
        (["7", "8", "8"], "7", False),
        (["7", "8"], "7", True),
        (["7", "8"], "8", False),
        (["", "", "8"], "8", True),
        (["", ""], "8", False),
        (["New York", "new york ", "Paris"], "New York", True),
        (["$\\frac12$", "\\frac12", "3"], "\\frac12", True),
        (["3", "0.5", "\\frac{1}{2}"], "0.5", True),
        (["2", "1,000", "1000"], "1,000", True),
        (["Rome", "Paris.", "paris"], "paris.", True),
        (["-5", "5", "-5"], "5", False),
    ],
)
def test_majority_of_answers(answers, right, wins):
    spelt = right.casefold().replace(" ", "")
    attempts = [
        attempt("p", i, answer, spelt == answer.casefold().replace(" ", "").strip("$"))
        for i, answer in enumerate(answers)
    ]
    assert majority(attempts) is wins


def test_the_winning_answer_is_right_when_any_attempt_with_it_was():
    attempts = [attempt("p", i, "5", correct) for i, correct in enumerate([False, True, True])]
    assert majority([*attempts, attempt("p", 3, "6", False)])
    assert not majority(
        [attempt("p", 0, "5", False), attempt("p", 1, "6", True), attempt("p", 2, "5", False)]
    )


@given(st.permutations(["a", "a", "b", "b", "c"]))
def test_a_tie_goes_to_the_answer_that_came_first(answers):
    attempts = [attempt("p", i, answer, answer == "a") for i, answer in enumerate(answers)]
    assert majority(attempts) is (answers.index("a") < answers.index("b"))


def test_missing_and_foreign_attempts_are_refused():
    attempts = [attempt("p", 0), attempt("q", 0)]
    with pytest.raises(DataError, match=r"2 are missing, the first is attempt 1 at problem 'p'"):
        make_evaluation(attempts, ["p", "q"], 2, 0)
    with pytest.raises(DataError, match=r"1 belong to no problem .* attempt 0 at problem 'q'"):
        make_evaluation(attempts, ["p"], 1, 0)


CALLS = (
    ("search", "ok", False),
    ("search", "ok", True),
    ("search", "timeout", False),
    ("search", "over_limit", False),
    ("python", "error", False),
    ("python", "malformed", False),
)


def graded():
    records = [
        attempt("p", 0, "1", True, CALLS, groups={"level": "1", "kind": "math"}, tokens=(10, 20, 30, 100)),
        attempt("q", 0, "2", False, (), groups={"level": "2", "kind": "math"}, tokens=(10, 40, 0, 10)),
    ]
    return make_evaluation(records, ["p", "q"], 1, 0)


def test_calls_are_told_apart():
    tools = summarise(graded(), [1], None)["tools"]
    counts = {
        name: [tool[key] for key in ("calls", "executed", "failed", "refused", "repeated")]
        for name, tool in tools.items()
    }
    assert counts == {"search": [4, 2, 1, 1, 1], "python": [2, 0, 1, 1, 0]}
    assert (tools["search"]["attempts_with"], tools["search"]["correct_with"]) == (1, 1)
    assert (tools["python"]["attempts_with"], tools["python"]["attempts_without"]) == (0, 2)


def test_groups_tokens_and_cost():
    summary = summarise(graded(), [1], PriceConfig(input=2.0, output=10.0))
    by_level = {level: group["pass_at"]["1"]["value"] for level, group in summary["groups"]["level"].items()}
    assert by_level == {"1": 1.0, "2": 0.0}
    assert summary["groups"]["kind"]["math"]["pass_at"]["1"]["n"] == 2
    assert "language" not in summary["groups"]
    assert summary["tokens"]["total"] == {"prompt": 20, "written": 60, "results": 30, "sent": 110}
    assert summary["cost"]["total"] == pytest.approx((110 * 2 + 60 * 10) / 1e6)
    assert "cost" not in summarise(graded(), [1], None)


def test_parts_that_some_attempts_lack_are_means_over_those_that_have_them():
    records = [
        attempt("p", 0, parts={"correct": 0.0, "judge": 1.0}),
        attempt("q", 0, parts={"correct": 0.0}),
    ]
    parts = summarise(make_evaluation(records, ["p", "q"], 1, 0), [1], None)["parts"]
    assert (parts["judge"]["value"], parts["judge"]["n"], parts["correct"]["n"]) == (1.0, 1, 2)


def test_what_could_not_be_compared_is_counted():
    parts_of_attempts = [
        {"correct": 0.0, "unread": unread, "timeout": timeout}
        for unread, timeout in ((1.0, 0.0), (0.0, 1.0), (1.0, 0.0))
    ]
    records = [attempt("p", number, parts=parts) for number, parts in enumerate(parts_of_attempts)]
    summary = summarise(make_evaluation(records, ["p"], 3, 0), [1], None)
    assert summary["not_compared"] == {"unread": 2, "timeout": 1}
    assert summarise(graded(), [1], None)["not_compared"] == {"unread": 0, "timeout": 0}
