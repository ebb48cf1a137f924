"""Scores by name, and the golds that they take."""

import collections
import random
import re
import string

import pytest
from benchmarks.evaluation.mistakes import MISTAKES
from benchmarks.evaluation.notations import NOTATIONS
from benchmarks.evaluation.real_golds import all_golds
from hypothesis import given
from hypothesis import strategies as st

from ramify.rewards.answer_scores import SCORES, accepted_answers, exact_match, f1, same_answer


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
        *(
            (by_value, gold, {"answer": 1, "lenient": 1, "acc": 1})
            for by_value, gold in (("0.5", "½"), ("2*sqrt(3)", "2√3"), ("√2", "sqrt(2)"))
        ),
        ("2", "sqrt(2)", {"answer": 0, "lenient": 0, "acc": 0}),
        ("10.5", "2½", {"answer": 0, "lenient": 0, "acc": 0}),
        ("three", "3", {"answer": 1, "lenient": 1, "acc": 1, "em": 0}),
        ("It has 5 moons.", "5", {"answer": 1, "lenient": 1, "acc": 1}),
        ("The 5 planets have moons", "5", {"answer": 0, "lenient": 0, "acc": 1}),
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


CHOSEN = [
    "C", "c", "(C)", "C)", "C.", "[C]", "C) 14", "(C) 14", "C. 14", "C: 14", "c) 14", "Option C", "option (c)", "Option C: 14", "Choice C",
    "Answer: C", "The correct answer is (C) 14.", "**C**", r"\text{C}", r"\textbf{(C) }14", r"\textbf{(C)}\ 14", "C is correct",
    "C, because B is wrong", "C) Both A and B", "C) Robert J. Lang", "C) A and B", "C - Paris", "C \u2013 Paris", "C. Not enough information", "It is C",
]  # fmt: skip
NOT_CHOSEN = [
    "D", "D) 14", "C, D", "A, C", "C and D", "C or D", "C/D", "CD", "ABCD", "A, B, C, D", "C D", "(C) and (D)", "C: D", "C. D", "not C",
    "A) 3 B) 4 C) 14", "C) 14, D) 15", "C) 14 or D) 15", "C. 14; D. 15", "C) 14\nD) 15", "Options C and D", "C) is wrong", "C, maybe D",
    "Neither C nor D", "The answer is not C", "C. W. Grafton", "C - 5", "C - Paris, D - Rome", "C \u2013 Paris, D \u2013 Rome", "Vitamin C", "C++", "14", ".", "the", "",
]  # fmt: skip


@pytest.mark.parametrize("score", ["answer", "lenient", "acc"])
def test_a_letter_takes_its_label_forms_and_no_lists_of_letters(score: str) -> None:
    golds = ["C", "(C)", r"\text{(C)}"]
    assert [(text, gold) for gold in golds for text in CHOSEN if SCORES[score](text, [gold]) != 1.0] == []
    assert [(text, gold) for gold in golds for text in NOT_CHOSEN if SCORES[score](text, [gold]) != 0.0] == []


NUMBERS = [
    ("in 1867", "1867"), ("It was founded in 1867.", "1867"), ("the year 1867", "1867"), ("1867 AD", "1867"), ("1867, when it began", "1867"),
    ("30 (thirty)", "30"), ("thirty (30)", "30"), ("There were 30 people", "30"), ("at the age of 30", "30"), ("about 30", "30"),
    ("5,000,000", "5 million"), ("5 million (5,000,000)", "5 million"), ("5 million", "5,000,000"), ("$5,000,000", "$5 million"),
    ("3", "three"), ("3 (three)", "three"), ("in three", "three"), ("105", "one hundred and five"), ("1946-11-23", "23 November 1946"),
    ("3 pm", "15:00"), ("3:30PM", "3:30 p.m."), ("3 o'clock", "3:00"), ("noon", "12 pm"), ("12:15 pm", "12:15"), ("12:30 am", "0:30"), ("It ran at 320 km/h", "320 km/h"),
    ("The score was 21 to 14", "21-14"), ("5-7", "5 to 7"), ("5 TO 7", "5-7"), ("1960 TO 1976", "1960 to 1976"), ("It lasted from 1999 to 2004", "1999-2004"),
    ("It was at 10:30 AM", "10:30 AM"), ("10:30 a.m.", "10:30 AM"), ("It was about 1.5 million people", "1.5 million"), ("It cost about $5 million", "$5 million"), ("5 million dollars", "$5 million"),
    ("NA", "N/A"), ("n/a", "N/A"), ("N/A", "NA"), ("N.A.", "N/A"),
]  # fmt: skip
OTHER_NUMBERS = [
    ("Apollo 11", "11"), ("30 Rock", "30"), ("7 Eleven", "7"), ("Group of 20", "20"), ("Chanel No. 5", "5"), ("F16", "16"), ("1867 Act", "1867"),
    ("Three Mile Island", "three"), ("in 1868", "1867"), ("30 (40)", "30"), ("in 44 BC", "44"), ("not 30", "30"), ("30 or 31", "30"),
    ("less than 30", "30"), ("minus 30", "30"), ("- 30", "30"), ("half of 30", "30"), ("5 billion", "5 million"), ("5", "5 million"), ("at 5 pm", "5"),
    ("maybe 30", "30"), ("three hundred", "three"), ("1867-1868", "1867"), ("3:30 am", "3:30 pm"), ("12th", "12"), ("Boeing 0", "0"),
    ("-2", "5-7"), ("7", "21-14"), ("1999", "2019-20"), ("21", "21-14"),
]  # fmt: skip


@pytest.mark.parametrize("score", ["answer", "lenient", "acc"])
def test_a_number_counts_in_a_statement_and_never_in_a_name(score: str) -> None:
    assert [pair for pair in NUMBERS if SCORES[score](pair[0], [pair[1]]) != 1.0] == []
    assert [pair for pair in OTHER_NUMBERS if SCORES[score](pair[0], [pair[1]]) == 1.0] == []


@pytest.mark.parametrize("score", ["answer", "lenient", "acc"])
def test_words_shared_with_another_value_pay_nothing(score: str) -> None:
    pairs = [
        ("1.5 billion", "1.5 million"), ("2.5 million", "1.5 million"), ("$1.5 billion", "$1.5 million"), ("10:30 PM", "10:30 AM"), ("It was at 10:30 PM", "10:30 AM"),
        ("10:45 AM", "10:30 AM"), ("9 pm", "9 am"), ("1903 to 1905", "1903 to 1904"), ("57", "5-7"), ("N", "N/A"),
    ]  # fmt: skip
    assert [pair for pair in pairs if SCORES[score](pair[0], [pair[1]]) != 0.0] == []


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
        ("[{[]: 1}]", ("[{[]: 1}]",)),
        ("[{['a']}, 'b']", ("[{['a']}, 'b']",)),
        (f"[{'-' * 5000}1]", (f"[{'-' * 5000}1]", f"{'-' * 5000}1")),
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


def normalize_answer(s):
    """SQuAD 1.1, evaluate-v1.1.py."""
    text = "".join(ch for ch in s.lower() if ch not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def squad_f1(prediction, gold):
    prediction_tokens, gold_tokens = normalize_answer(prediction).split(), normalize_answer(gold).split()
    num_same = sum((collections.Counter(prediction_tokens) & collections.Counter(gold_tokens)).values())
    if num_same == 0:
        return 0
    precision, recall = 1.0 * num_same / len(prediction_tokens), 1.0 * num_same / len(gold_tokens)
    return (2 * precision * recall) / (precision + recall)


def hotpot_f1(prediction, gold):
    """HotpotQA, hotpot_evaluate_v1.py."""
    normalized_prediction, normalized_gold = normalize_answer(prediction), normalize_answer(gold)
    if normalized_prediction in ["yes", "no", "noanswer"] and normalized_prediction != normalized_gold:
        return 0
    if normalized_gold in ["yes", "no", "noanswer"] and normalized_prediction != normalized_gold:
        return 0
    return squad_f1(prediction, gold)


def agree(prediction, gold):
    em = float(normalize_answer(prediction) == normalize_answer(gold))
    if normalize_answer(prediction) == "":  # SQuAD takes "." for "A"
        em = exact_match(prediction, [gold]) * em
    return exact_match(prediction, [gold]) == em and f1(prediction, [gold]) == hotpot_f1(prediction, gold)


def test_2000_perturbed_real_pairs(shared_dir) -> None:
    if not (shared_dir / "data" / "rl").is_dir():
        pytest.skip(f"no data at {shared_dir} (RAMIFY_SHARED)")
    draw = random.Random(7)
    golds = [gold.text for gold in all_golds(shared_dir)]
    ways = [
        *(lambda gold, n=n: n.write(gold) for n in NOTATIONS),
        *(lambda gold, m=m: m.spoil(draw, gold) for m in MISTAKES),
    ]
    pairs = []
    while len(pairs) < 2000:
        gold, way = draw.choice(golds), draw.choice(ways)
        prediction = way(gold)
        if prediction is not None:
            pairs.append((prediction, gold))
    assert [pair for pair in pairs if not agree(*pair)] == []
    ems = [exact_match(prediction, [gold]) for prediction, gold in pairs]
    assert 0.2 < sum(ems) / len(ems) < 0.8


@given(st.text(), st.text())
def test_any_two_texts(prediction: str, gold: str) -> None:
    assert agree(prediction, gold)
    assert agree(f"The {gold}!", gold)


def test_an_empty_normalised_text_equals_only_itself() -> None:
    assert [text for text in ("A", "a", "A)", "(A)") if exact_match(text, ["A"]) != 1.0] == []
    assert [text for text in (".", "the", "an", "***", "") if exact_match(text, ["A"]) != 0.0] == []
    assert exact_match("!", ["!"]) == 1.0
    assert exact_match("!", ["?"]) == 0.0


def test_the_best_gold_counts() -> None:
    assert f1("New York City", ["Rome", "New York"]) == pytest.approx(0.8)
    assert f1("yes", ["yes it is", "yes"]) == exact_match("The yes.", ["no", "yes"]) == 1.0
    assert f1("yes, that is so", ["yes"]) == f1("", []) == exact_match("", []) == 0.0
    assert f1("An apple.", ["a pear", "the apple"]) == exact_match("An apple.", ["apple"]) == 1.0
    assert f1("-5", ["5"]) == exact_match("3.14", ["314"]) == 1.0
