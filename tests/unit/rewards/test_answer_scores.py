"""Scores by name, and the golds that they take."""

import pytest

from ramify.rewards.answer_scores import SCORES, accepted_answers, same_answer


def test_scores_by_name() -> None:
    assert [*SCORES] == ["em", "f1", "answer", "lenient", "acc", "math_equal", "unread", "timeout"]
    same = [name for name, score in SCORES.items() if score("5", ["5"]) == 1.0 and score("5", ["6"]) == 0.0]
    assert same == ["em", "f1", "answer", "lenient", "acc", "math_equal"]


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        # what is paid: mathematics by value, words by the published F1
        ("2.5", r"-\frac{5}{2}", {"answer": 0, "lenient": 0, "acc": 0, "f1": 0}),
        ("-2.5", r"-\frac{5}{2}", {"answer": 1, "lenient": 1, "acc": 1, "em": 0, "f1": 0}),
        (r"3\sqrt{3}+6", r"3\sqrt{3} - 6", {"answer": 0, "lenient": 0, "em": 0}),
        ("It is Frank Lowy", "Frank Lowy", {"answer": 2 / 3, "lenient": 2 / 3, "acc": 1, "em": 0}),
        ("E.H. Shepard", "E. H. Shepard", {"answer": 0.4, "lenient": 1, "em": 0}),
        ("Vitamin", "Vitamin A", {"answer": 1, "em": 1, "lenient": 2 / 3, "acc": 0}),
        ("April", "April 4, 2016", {"answer": 0.5, "lenient": 0.5, "acc": 0}),
        ("yes, it is", "yes", {"answer": 0, "lenient": 1, "acc": 1, "em": 0}),
        # numbers in words, and numbers in sentences
        ("three", "3", {"answer": 1, "lenient": 1, "acc": 1, "em": 0}),
        ("It has 5 moons.", "5", {"answer": 0, "lenient": 0, "acc": 1}),
        (r"\sqrt{5}", "5", {"answer": 0, "acc": 0}),
        # golds in text, letters of choices, texts without words
        ("east", r"\text{east}", {"answer": 1, "lenient": 1, "acc": 1, "em": 0}),
        ("(A)", "A", {"answer": 1, "lenient": 1}),
        ("B", "A", {"answer": 0, "lenient": 0, "em": 0}),
        ("!", "!", {"answer": 1, "lenient": 1, "acc": 1, "math_equal": 1}),
        ("", "5", dict.fromkeys(SCORES, 0) | {"unread": 0}),
    ],
)
def test_an_answer_is_measured_as_its_gold_asks(
    prediction: str, gold: str, expected: dict[str, float]
) -> None:
    assert {name: SCORES[name](prediction, [gold]) for name in expected} == pytest.approx(expected)


def test_each_gold_has_its_own_measure() -> None:
    golds = ["\\frac12", "one half"]
    assert SCORES["answer"]("One half.", golds) == SCORES["acc"]("0.5", golds) == 1.0
    assert SCORES["answer"]("about one half", golds) == pytest.approx(0.8)
    assert SCORES["answer"]("0.5", []) == 0.0


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        ("Paris", ("Paris",)),
        (["Paris", " Lutetia\n"], ("Paris", "Lutetia")),
        ([70, None, ["a"]], ("70", "a")),
        ("['Paris', 'City of Light']", ("['Paris', 'City of Light']", "Paris", "City of Light")),
        ("[London, England]", ("[London, England]", "London, England", "London", "England")),
        ("[1, 2]", ("[1, 2]",)),
        ("[2,3] \\cup [a,5]", ("[2,3] \\cup [a,5]",)),
        ("  ", ()),
        (None, ()),
    ],
)
def test_golds_of_any_kind(gold: object, expected: tuple[str, ...]) -> None:
    assert accepted_answers(gold) == expected
    assert accepted_answers("[a, b]", spelled_lists=False) == ("[a, b]",)


def test_votes_are_counted_together() -> None:
    assert same_answer("0.5", "\\frac12")
    assert same_answer("Paris.", "paris")
    assert not same_answer("-5", "5")
    assert not same_answer("Rome", "Paris")
