"""The published metrics, against the published scripts written out again, on perturbed answers to real questions."""

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

from ramify.rewards.squad import exact_match, f1


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


def test_the_best_gold_counts() -> None:
    assert f1("New York City", ["Rome", "New York"]) == pytest.approx(0.8)
    assert f1("yes", ["yes it is", "yes"]) == exact_match("The yes.", ["no", "yes"]) == 1.0
    assert f1("yes, that is so", ["yes"]) == f1("", []) == exact_match("", []) == 0.0
    assert f1("An apple.", ["a pear", "the apple"]) == exact_match("An apple.", ["apple"]) == 1.0
    assert f1("-5", ["5"]) == exact_match("3.14", ["314"]) == 1.0
