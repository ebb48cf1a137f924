import pytest

from ramify.rewards.judge_prompt import read_verdict
from ramify.rewards.responses import RowAverages, row_scores, text_reward, text_scores

THINK, BOX = "<think> t </think>", "<answer> \\boxed{Paris} </answer>"
SEARCH, PYTHON = "<search> q </search><result> r </result>", "<python>\n1\n</python> <result>\n1\n</result>"


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (THINK + BOX, 1.0),
        (THINK + SEARCH + BOX, 1.0),
        (THINK + SEARCH + PYTHON + BOX, 1.1),
        (THINK + SEARCH + PYTHON + "<answer> \\boxed{Rome} </answer>", 0.0),
        (THINK + SEARCH + PYTHON + "<answer> \\boxed{Paris, Texas} </answer>", 2 / 3 + 0.1),
        ("<think> </search> </python> </think>" + BOX, 1.0),
        ("<think> <search> q </search> </think>" + BOX, 1.0),
        (THINK + "<search> q </search><result> has </python> and <think> </result>" + BOX, 1.0),
        (THINK + "<search> q </search><result> <answer> x </answer> </result>" + BOX, 1.0),
        # what follows the answer was never run
        (THINK + BOX + SEARCH + PYTHON, 1.0),
        (THINK + SEARCH + BOX + PYTHON, 1.0),
        (THINK + BOX + " and more text", 1.0),
        (THINK + BOX + "<think> t </think>", 1.0),
        (BOX + THINK, -1.0),
        ("<think> <answer> x </answer> </think>" + BOX, 1.0),
        (BOX + "<think> <answer> x </answer> </think>", -1.0),
        (BOX, -1.0),
        (THINK + "</think>" + BOX, -1.0),
        (THINK + "\\boxed{Paris}", -1.0),
        (THINK + "<answer> Paris </answer>", -1.0),
        (THINK + "</answer> \\boxed{Paris} <answer>", -1.0),
        (THINK + BOX + BOX, -1.0),
        (THINK + "<result> r </result>" + BOX, -1.0),
        (THINK + "<search> q </search>" + BOX, -1.0),
        (THINK + "<search> q </search><result> r" + BOX, -1.0),
        (THINK + "<search> q </search><python> 1 </python><result> r </result>" + BOX, -1.0),
        (THINK + "<search> q <python> 1 </search> </python><result> r </result>" + BOX, -1.0),
        (THINK + "<search> q <result> r </result> </search>" + BOX, -1.0),
        ("", -1.0),
    ],
)
def test_rewards_of_text_follow_its_structure(response: str, reward: float) -> None:
    assert text_reward(response, "Paris").value == pytest.approx(reward)


@pytest.mark.parametrize("text", ["<result>" * 100_000, "<search>" * 100_000, "<think>" * 300_000, "<search>a</search><result>" * 50_000])  # fmt: skip
def test_megabytes_are_read_once(text: str) -> None:
    assert text_reward(text, "x").value == -1.0


def test_verdicts_are_averaged_over_the_rows_that_have_one() -> None:
    averages = RowAverages("qa")
    row = text_scores(THINK + SEARCH + BOX, ["Paris"], "qa")
    for verdict in (1.0, None, 0.5, None):
        averages.add(row, verdict)
    result = averages.result()
    assert result["llm_equal"] == 0.75
    assert result["tool_productivity"] == pytest.approx(0.75 / 1.1 * 100)


def test_a_row_of_results() -> None:
    row = text_scores(THINK + SEARCH + BOX, ["Paris", "Lutetia"], "qa")
    assert (row["prediction"], row["em"], row["tools_used"], row["tool_counts"]) == (
        "Paris",
        1.0,
        "search",
        1,
    )
    cut = text_scores("<think> partial\n[Timeout (exceeding 1500s)]", "1", "math", "Timeout")
    broken = text_scores("Error: boom", "1", "math", "Error: boom")
    assert (cut["is_valid_answer"], broken["is_valid_answer"]) == (False, False)
    assert text_scores("Paris", "Paris", "qa")["em"] == 0.0


@pytest.mark.parametrize(("task", "score"), [("math", "math_equal"), ("reward", "correct")])
def test_means_count_what_could_not_be_read(task: str, score: str) -> None:
    averages = RowAverages(task)
    for answer in ("5", "3 4 nothing)", "6"):
        averages.add(row_scores(f"<think> t </think><answer>\\boxed{{{answer}}}</answer>", "5", task, None))
    means = averages.result()
    assert (means["n"], means[score], means["unread"], means["timeout"]) == (
        3,
        pytest.approx(1 / 3),
        1,
        0,
    )


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Correct", True),
        ("**correct.**", True),
        ("Correct. Nothing wrong with it.", True),
        ("INCORRECT", False),
        ("Incorrect. The correct answer is y.", False),
        ("<think> It seems incorrect. </think> Correct", True),
        ("thinking <judgment>Correct</judgment>", True),
        ("<judgment>Correct", True),
        ("It looks correct at first. <judgment>Incorrect</judgment>", False),
        ("That isn't correct", None),
        ("I cannot verify that it is correct", None),
        ("Correct? No.", None),
        ("Correctly stated.", None),
        ("Yes", None),
        ("", None),
    ],
)
def test_recorded_verdicts_by_a_strict_grammar(reply: str, verdict: bool | None) -> None:
    assert read_verdict(reply) is verdict
