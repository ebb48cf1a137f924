import pytest

from ramify.rewards.answer_scores import SCORES, answer, scores
from ramify.rewards.response_scores import means, text_reward, text_scores
from ramify.rewards.response_text import read_response
from ramify.rewards.verdict import read_verdict

THINK, BOX = "<think> t </think>", "<answer> \\boxed{Paris} </answer>"
SEARCH, PYTHON = "<search> q </search><result> r </result>", "<python>\n1\n</python> <result>\n1\n</result>"


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (THINK + BOX, 1.0),
        (THINK + SEARCH + BOX, 1.0),
        (THINK + SEARCH + PYTHON + BOX, 1.1),
        ("<think> </search> </python> </think>" + BOX, 1.0),
        ("<think> <search> q </search> </think>" + BOX, 1.0),
        (THINK + "<search> q </search><result> has </python> and <think> </result>" + BOX, 1.0),
        (THINK + "<search> q </search><result> <answer> x </answer> </result>" + BOX, 1.0),
        (BOX, -1.0),
        (THINK + "</think>" + BOX, -1.0),
        (THINK + "\\boxed{Paris}", -1.0),
        (THINK + "<answer> Paris </answer>", -1.0),
        (THINK + "</answer> \\boxed{Paris} <answer>", -1.0),
        (THINK + "<result> r </result>" + BOX, -1.0),
        (THINK + "<search> q </search>" + BOX, -1.0),
        (THINK + "<search> q </search><result> r" + BOX, -1.0),
        (THINK + "<search> q </search><python> 1 </python><result> r </result>" + BOX, -1.0),
        (THINK + "<search> q <python> 1 </search> </python><result> r </result>" + BOX, -1.0),
        (THINK + "<search> q <result> r </result> </search>" + BOX, -1.0),
        (THINK + "<answer> \\boxed{Rome} </answer>", 0.0),
        ("", -1.0),
    ],
)
def test_rewards_of_text_follow_its_structure(response: str, reward: float) -> None:
    assert text_reward(response, "Paris").value == pytest.approx(reward)


def test_calls_are_what_a_result_answered() -> None:
    assert read_response(SEARCH + PYTHON + SEARCH).calls == ("search", "python", "search")
    refused = "<search>b</search><result>The maximum search limit is exceeded. You are not allowed to search.</result>"
    assert read_response(SEARCH + refused).calls == ("search",)
    assert read_response("<search>a</search>").calls == ()


def test_megabytes_are_read_once() -> None:
    for text in (
        "<result>" * 100_000,
        "<search>" * 100_000,
        "<think>" * 300_000,
        "<search>a</search><result>" * 50_000,
    ):
        assert text_reward(text, "x").value == -1.0


def test_a_row_of_results() -> None:
    row = text_scores(THINK + SEARCH + BOX, ["Paris", "Lutetia"], "qa")
    assert (row["prediction"], row["em"], row["tools_used"], row["tool_counts"]) == (
        "Paris",
        1.0,
        "search",
        1,
    )
    assert (
        text_scores("<think> partial\n[Timeout (exceeding 1500s)]", "1", "math", "Timeout")["is_valid_answer"]
        is False
    )
    assert text_scores("Error: boom", "1", "math", "Error: boom")["is_valid_answer"] is False
    assert text_scores("Paris", "Paris", "qa")["em"] == 0.0


def test_more_calls_for_the_same_answer_are_not_worth_more() -> None:
    one, nine = (means([text_scores(THINK + SEARCH * n + BOX, "Paris", "qa")]) for n in (1, 9))
    assert one["correct_per_call"] == 1.0
    assert nine["correct_per_call"] == pytest.approx(1 / 9)
    assert means([])["n"] == 0


def test_scores_by_name() -> None:
    assert SCORES.keys() == {"em", "f1", "acc", "math_equal", "answer"}
    assert all(score("5", ["5"]) == 1.0 and score("5", ["6"]) == 0.0 for score in SCORES.values())
    assert scores("0.5", ["\\frac12"], "math") == {"em": 0.0, "f1": 1.0, "acc": 1.0, "math_equal": 1.0}
    assert scores("-5", ["5"], "qa") == {"em": 0.0, "f1": 0.0, "acc": 0.0, "math_equal": 0.0}
    assert set(scores("  ", ["5"], "math").values()) == {0.0}


def test_an_answer_is_measured_as_its_gold_asks() -> None:
    assert answer("2.5", ["-\\frac{5}{2}"]) == 0.0
    assert answer("-2.5", ["-\\frac{5}{2}"]) == 1.0
    assert answer("It is Frank Lowy", ["Frank Lowy"]) == pytest.approx(2 / 3)
    assert answer("three", ["3"]) == 1.0
    assert answer("April", ["April 4, 2016"]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Correct", True),
        ("**correct.**", True),
        ("Correct. Nothing wrong with it.", True),
        ("INCORRECT", False),
        ("Incorrect. The correct answer is y.", False),
        ("thinking <judgment>Correct</judgment>", True),
        ("<judgment>Correct", True),
        ("It looks correct at first. <judgment>Incorrect</judgment>", False),
        ("That isn't correct", None),
        ("I cannot verify that it is correct", None),
        ("The prediction correctly states y? No.", None),
        ("Correct? No.", None),
        ("Correctly stated.", None),
        ("Yes", None),
        ("", None),
    ],
)
def test_verdicts_by_a_strict_grammar(reply: str, verdict: bool | None) -> None:
    assert read_verdict(reply) is verdict
