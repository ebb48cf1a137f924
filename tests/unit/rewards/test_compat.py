"""The references' released arithmetic on cases that their own functions decided (defects included)."""

import asyncio

import pytest

from ramify.core.messages import Message, Problem
from ramify.core.tree import Node, Source, StopReason, Trajectory
from ramify.rewards import compat_arpo as arpo
from ramify.rewards import compat_toolstar as toolstar
from ramify.rewards.trajectory_rewards import CompatReward

ANSWER = "<think> t </think><answer> \\boxed{%s} </answer>"


@pytest.mark.parametrize(
    ("output", "prediction"),
    [
        ("<answer> \\boxed{ 42 } </answer>", " 42 "),
        ("<answer> forty-two </answer>", " forty-two "),
        ("<answer>\\boxed {42}</answer>", "\\boxed {42}"),
        ("<answer>\\boxed{}</answer>", "\\boxed{}"),
        ("<answer>\\boxed{\\text{Paris}, \\text{Rome}}</answer>", "Paris}, \\text{Rome"),
        ("<result>\\boxed{9}</result>", "9"),
        ("no box", ""),
    ],
)
def test_arpo_extraction(output: str, prediction: str) -> None:
    assert arpo.extract(output) == prediction


@pytest.mark.parametrize(
    ("prediction", "gold", "equal"),
    [
        ("0.5", "\\frac{1}{2}", True),
        ("14/3", "\\frac{14}{3}", True),
        ("x=5", "5", True),
        ("90", "90^\\circ", True),
        (".5", "0.5", True),
        ("5.0", "5", False),
        ("2,125", "2125", False),
        ("\\sqrt", "\\sqrt", True),
        ("1\\text{ a}\\text{ b}", "1", False),
        (["Paris"], "Paris", False),
        (None, None, True),
    ],
)
def test_arpo_string_rules(prediction: object, gold: object, equal: bool) -> None:
    assert arpo.strings_equal(prediction, gold) is equal


def test_arpo_scores_of_questions() -> None:
    assert arpo.qa_scores("Tokyo", ["northeastern Oklahoma", "OK"])["acc"] == 1
    assert arpo.qa_scores("Vitamin", "Vitamin A")["em"] == 1
    assert arpo.qa_scores("City of Light", "[Paris, City of Light]")["em"] == 1
    assert arpo.qa_scores("x", []) == {"em": 0, "acc": 0, "f1": 0, "math_equal": 0}
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        arpo.qa_scores("70", 70)


def test_arpo_rows_and_means() -> None:
    row = arpo.sample_scores("qa", "<search>a</search><result>b</result>x", "Paris", ["Paris"])
    assert (row["search_calls"], row["tools_used"], row["output_length"], row["em"]) == (1, "search", 19, 1)
    row = arpo.sample_scores("qa", " a<r>b<result>c</r>d</result>e\n", "Paris", ["Paris"])
    assert row["output_length"] == len("ad</result>e")
    assert arpo.sample_scores("qa", " ", "", ["Paris"])["is_valid_answer"] is False
    assert arpo.sample_scores("qa", "a\nParis", "", ["Paris"])["acc"] == 1
    rows = [{"answer": ["Paris"], "prediction": "Paris", "output": "<search>a</search>", "judge": 0}]
    means = arpo.overall_scores("qa", rows)
    assert (means["num_valid_answer"], means["tool_productivity"], means["f1"]) == ("1 of 1", 0.0, 1.0)
    assert arpo.overall_scores("math", [])["em"] == 0.0


@pytest.mark.parametrize(
    ("reply", "failures", "equal"),
    [
        ("Correct", 0, 1),
        ("That isn't correct", 0, 1),
        ("Correct. Nothing wrong with it.", 0, 0),
        ("It looks correct. <judgment>Incorrect</judgment>", 0, 0),
        ("Correct", 2, 1),
        ("Correct", 3, 0),
        ("</judgment> Correct <judgment>", 0, 0),
    ],
)
def test_arpo_verdicts(reply: str, failures: int, equal: int) -> None:
    assert arpo.judge_scores("x", "y", reply, failures)["llm_equal"] == equal


def test_arpo_keeps_a_reply_without_the_blanks_around_it() -> None:
    assert arpo.judge_scores("x", "y", "\nCorrect ", 0) == {"llm_equal": 1, "llm_response": "Correct"}


@pytest.mark.parametrize(
    ("response", "gold", "score", "reason"),
    [
        (ANSWER % "-5", "5", 1.0, "correct answer, get f1 score: 1.0"),
        (ANSWER % "Rome", "Paris", 0, "wrong answer but good format: Rome"),
        ("<answer>\\boxed{1}</answer>", "1", -1, "bad format: <think> or </think> not found"),
        ("<think></think><answer>1</answer>", "1", -1, "bad format: answer is missing \\boxed{} format"),
        (
            "<think></think><answer>{} \\boxed{1</answer>",
            "1",
            -1,
            "find box error: argument of type 'NoneType' is not iterable",
        ),
        ("<think> </search></python> </think><answer>\\boxed{1}</answer>", ["2", "1"], 1.1, None),
        (
            "<think></think><search><answer>\\boxed{1}</answer>",
            "1",
            -1,
            "bad format: search/result tags are incomplete",
        ),
        (ANSWER % "no, it is not", "no", 0, None),
    ],
)
def test_arpo_reward(response: str, gold: str, score: float, reason: str | None) -> None:
    result = arpo.reward(response, gold)
    assert result["score"] == pytest.approx(score)
    assert reason is None or result["reason"] == reason


@pytest.mark.parametrize(
    ("prediction", "gold", "equal"),
    [
        ("3\\sqrt{3}+6", "3\\sqrt{3}-6", True),
        ("P - Q", "p - q", True),
        ("2{,}125", "2125", True),
        ("3, 5", "3, 5, 7", False),
        ("-q + p", "p - q", False),
        ("total = 7", "7", True),
        ("a 7", "7", False),
        ("x=1, y=2", "1", False),
        ("\\[2k\\]", "2k", True),
        ("\\(20\\) and \\(7\\)", "20", True),
        ("is \\(7\\%\\) ok", "7", False),
        ("\\text{\\textbf{2k}}", "2k", True),
        ("is \\(1\N{UNION}2\\) ok", "is \\(1\\cup 2\\) ok", True),
        ("1\N{FULLWIDTH COMMA}2", "1,2", True),
        ("is \\(x<3\\) ok", "is \\((-\\infty,3)\\) ok", True),
        ("is \\((-\\infty,3)\\) ok", "is \\(x<3\\) ok", False),
        ("70", None, False),
    ],
)
def test_toolstar_equality(prediction: str, gold: str | None, equal: bool) -> None:
    assert toolstar.equal(prediction, gold) is equal


def test_toolstar_equality_fails_on_a_number_as_gold() -> None:
    with pytest.raises(AttributeError, match="'int' object has no attribute 'strip'"):
        toolstar.equal("70", 70)  # type: ignore[arg-type]


def test_toolstar_rewards() -> None:
    chat = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n" + ANSWER % "10"
    assert toolstar.reward(chat, "10\\%")["score"] == 1.0
    assert toolstar.math_reward(chat + "<|im_end|>", "10")["score"] == 1.0
    assert toolstar.math_reward(chat + "<|im_end|>", "11")["score"] == 0.1
    assert toolstar.math_reward(chat, "10") == {"score": 0, "reason": "over length"}
    unclosed = "Assistant:<think> t </think><answer>{} \\boxed{10</answer>"
    assert toolstar.math_reward(unclosed, "10")["reason"].startswith("find box error")
    assert toolstar.math_reward(chat + "<|im_end|>", None)["score"] == 0.1
    assert toolstar.math_reward("Assistant: no", "10")["score"] == 0
    assert toolstar.math_reward(chat + "<|im_end|>", 10)["score"] == -1
    assert toolstar.reward("no", "x")["score"] == -1


def test_toolstar_rows() -> None:
    assert toolstar.scores("math", "\\boxed{204}", "", "204", extract=True)["pred_answer"] == "{204"
    assert toolstar.scores("qa", "GDR", "", ["GDR", "East Germany"], extract=True)["em"] == 0
    assert (
        toolstar.scores("qa", "Paris", "```python\n1\n```</answer><search>a</search>", "Paris", True)[
            "tool_counts"
        ]
        == 1
    )
    assert (
        toolstar.scores("math", "x" * 300 + "\n" * 2 + "5\n" * 12, "", "5", False)["pred_answer"] == "5\n5\n5"
    )
    with pytest.raises(IndexError):
        toolstar.scores("qa", "x", "", "", extract=True)


@pytest.mark.parametrize(
    ("output", "prediction"),
    [
        ("a \\boxed{1} b \\boxed{\\frac{1}{2}} c", "{\\frac{1}{2}"),
        ("\\boxed{1} and \\boxed{2", "\\boxed{2"),
        ("\\boxed{1\n}", "\\boxed{1\n}"),
        (" x\nANSWER: **12** ", "**12**"),
        (" 12 ", " 12 "),
        ("\\boxed{\\text{A} or \\text{B}}", "A} or \\text{B"),
        ("\\text{(C)} ANSWER", "C"),
        ("\\textbf{(D)}", "\\textbf{(D)}"),
    ],
)
def test_toolstar_extraction(output: str, prediction: str) -> None:
    assert toolstar.scores("qa", output, "", "x", extract=True)["pred_answer"] == prediction


def test_toolstar_rows_without_an_extraction() -> None:
    row = toolstar.scores("qa", " a\n\nb\nc\nParis ", "", "Paris", extract=False)
    assert (row["pred_answer"], row["f1"]) == ("a\n\nb\nc\nParis", pytest.approx(0.5))
    empty = toolstar.scores("math", "", "", "5", extract=True)
    assert (empty["is_valid_answer"], empty["em"]) == (False, 0)
    last = toolstar.scores("math", "ANSWER:", "", "answer:", extract=True)
    assert (last["pred_answer"], last["is_valid_answer"], last["em"]) == ("", False, 1)


def test_toolstar_finds_an_alias_within_a_word() -> None:
    row = toolstar.scores("qa", "Tokyo", "", ["Tokyo", "ok"], extract=True)
    assert (row["acc"], row["em"], row["f1"]) == (1, 0, 0)


def test_toolstar_counts_calls_before_the_last_answer_or_box() -> None:
    call = "<python>1</python>"
    assert toolstar.num_calls(call + "\\boxed{1}" + call) == 1
    assert toolstar.num_calls(call + "</answer>" + call + "\\boxed{1}" + call) == 1
    assert toolstar.num_calls(call + "</answer>" + call + "</answer>" + call) == 2
    assert toolstar.num_calls("<|begin_of_query|>q<|end_of_query|>" + call) == 2


def test_toolstar_scores_the_last_lines_of_a_long_output() -> None:
    assert toolstar.scored_part("\n" * 200) == "\n" * 200
    assert toolstar.scored_part("x" * 201) == "x" * 201
    assert toolstar.scored_part("x" * 200 + "\n\n5" * 6) == "\n5\n\n5\n\n5\n\n5\n\n5"


@pytest.mark.parametrize(
    ("system", "info", "value"),
    [("arpo", {}, 1.0), ("toolstar", {}, 1.0), ("toolstar", {"data_source": "grpo_math"}, 1.0)],
)
def test_recorded_trajectories_are_paid_for_their_text(system, info, value: float) -> None:
    problem = Problem("p", (Message.of("user", "q"),), ("5",), info)
    prompt = Node("", (), None, Source.PROMPT, (0,), "q")

    def ended(text: str, stop: StopReason = StopReason.ANSWERED) -> Trajectory:
        return Trajectory(
            problem, (prompt, Node("0", (0,), "", Source.POLICY, (1,), text, (-0.5,), stop=stop))
        )

    rewards = asyncio.run(CompatReward(system).score([ended(ANSWER % "5"), ended("hm", StopReason.TOKENS)]))
    assert rewards[0].value == value
    assert rewards[0].parts == {"correct": 1.0, "format": 1.0}
    assert rewards[1].parts["format"] == 0.0
    assert rewards[1].value == (0.0 if info else -1.0)


@pytest.mark.parametrize(
    "text",
    [
        "<result>" * 300_000,
        "<search>" * 300_000,
        "\\boxed{" * 300_000,
        "<answer>" * 300_000,
        "$" * 2_000_000,
        "a " * 500_000,
    ],
)
def test_megabytes_are_scored(text: str) -> None:
    assert arpo.sample_scores("qa", text, arpo.extract(text), ["Paris"])["em"] == 0
    assert arpo.reward(text, "Paris")["score"] == toolstar.reward(text, "Paris")["score"] == -1
    assert toolstar.equal(text, "Paris") is False
    assert toolstar.scores("qa", text, text, "Paris", extract=True)["em"] == 0
    assert arpo.judge_scores("x", "y", "<judgment>" * 100_000, 0)["llm_equal"] == 0
