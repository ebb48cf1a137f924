# ruff: noqa: RUF001 - Chinese has punctuation of its own
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.rewards.judge_prompt import PROMPT_VERSION, is_chinese, judge_messages, marked_verdict

MARK = "0123456789abcdef"


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (f"{MARK} CORRECT", True),
        (f"{MARK} INCORRECT", False),
        (f"Same person.\n\n  {MARK} CORRECT \r\n\n", True),
        (f"It looks correct at first, but the year differs.\n{MARK} INCORRECT", False),
        (f"I have to end with `{MARK} CORRECT` or `{MARK} INCORRECT`.\n{MARK} CORRECT", True),
        (f"{MARK} CORRECT\nand again\n{MARK} CORRECT", True),
        # as real models write it
        (f"{MARK} correct", True),
        (f"{MARK} Incorrect.", False),
        (f"**{MARK} CORRECT**", True),
        (f"__{MARK} CORRECT__", True),
        (f"{MARK} INCORRECT\n___\n", False),
        (f"The same.\n`{MARK} INCORRECT`", False),
        (f"```\n{MARK} CORRECT\n```", True),
        (f"<think>{MARK} INCORRECT?</think> {MARK} Correct", True),
        (f"so I say\n</think>\n{MARK} CORRECT\n\n", True),
    ],
)
def test_a_verdict_is_the_last_line(reply, verdict):
    assert marked_verdict(reply, MARK) is verdict


@pytest.mark.parametrize(
    "reply",
    [
        "", " \n", "CORRECT", "Correct", "correct.", "INCORRECT", "Yes", "正确",
        "That isn't correct", "I cannot verify that it is correct", "Correct. Nothing wrong with it.",
        "The prediction correctly states y? No.", "<judgment>Correct</judgment>", "Correct, nothing wrong",
        MARK, f"{MARK}\nCORRECT", f"{MARK}CORRECT", f"{MARK} CORRECT INCORRECT", f"{MARK} NOT CORRECT", f"{MARK} correctly",
        f"{MARK} CORRECT\nbecause it is.", f"verdict: {MARK} CORRECT", f"{MARK} INCORRECT\n{MARK} CORRECT",
        f"{MARK} CORRECT\n{MARK} INCORRECT", "fedcba9876543210 CORRECT", f"{MARK[:-1]} CORRECT",
        f"<think>{MARK} CORRECT</think>", f"<think>\n{MARK} CORRECT", "<think> t </think> Correct",
    ],
)  # fmt: skip
def test_anything_else_is_no_verdict(reply):
    assert marked_verdict(reply, MARK) is None


@given(st.text())
def test_nobody_who_does_not_know_the_mark_gives_a_verdict(reply):
    assert marked_verdict(reply, MARK) is None
    assert marked_verdict(f"{reply}\nCORRECT", MARK) is None


@given(st.text(), st.sampled_from([True, False]))
def test_whatever_stands_before_the_verdict_does_not_matter(reasons, verdict):
    if "think>" not in reasons:
        assert marked_verdict(f"{reasons}\n{MARK} {'CORRECT' if verdict else 'INCORRECT'}", MARK) is verdict


@pytest.mark.parametrize(
    ("question", "chinese"),
    [
        ("谁写了《红楼梦》？", True),
        ("Taylor Swift 的第一张专辑叫什么名字？", True),
        ("Who wrote 红楼梦 in the eighteenth century?", False),
        ("Who wrote Hamlet?", False),
        ("東京の人口はいくつですか", False),
        ("", False),
        ("2 + 2 = ?", False),
    ],
)
def test_the_language_is_that_of_the_question(question, chinese):
    assert is_chinese(question) is chinese
    instructions, _ = judge_messages(question, ["x"], "y", MARK)
    assert ("考生" in instructions.text) is chinese


@given(st.text(), st.lists(st.text(), min_size=1, max_size=3), st.text())
def test_the_candidate_stays_in_its_place(question, golds, prediction):
    instructions, data = judge_messages(question, golds, prediction, MARK)
    first, *body, last = data.text.split("\n")
    assert first == last == MARK
    assert json.loads("\n".join(body)) == {
        "question": question,
        "accepted_answers": golds,
        "candidate_answer": prediction,
    }
    blank, _ = judge_messages(question, [], "", MARK)
    assert instructions == blank


def test_the_wording_belongs_to_its_version():
    """Another wording is another version: count PROMPT_VERSION up, then put the new checksum here."""
    texts = [judge_messages(question, [], "", "M")[0].text for question in ("Who?", "谁？")]
    assert (PROMPT_VERSION, hashlib.sha256("".join(texts).encode()).hexdigest()) == (
        1,
        "96cd2f7d4c1dcd2ad9f642061a677579e0f43c9f91568f1c3938e2a7a5640af8",
    )
