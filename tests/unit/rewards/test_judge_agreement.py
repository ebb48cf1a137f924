import random

import pytest

from ramify.rewards.judge_agreement import judge_agreement, kappa


def textbook_kappa(pairs):
    """Cohen (1960), equation 1, with shares counted one by one."""
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    chance = sum((sum(a == c for a, _ in pairs) / n) * (sum(b == c for _, b in pairs) / n) for c in (0, 1))
    return (observed - chance) / (1 - chance)


def test_cohens_example_of_fifty():
    assert kappa(both_right=20, judge_only=5, score_only=10, both_wrong=15) == pytest.approx(0.4)


@pytest.mark.parametrize("seed", range(20))
def test_kappa_is_the_textbooks(seed):
    draw = random.Random(seed)
    pairs = [(0, 1), (1, 0), *((draw.randrange(2), draw.randrange(2)) for _ in range(draw.randrange(1, 40)))]
    found = judge_agreement([{"judge": float(judge), "em": float(score)} for judge, score in pairs])["em"]
    assert found["kappa"] == pytest.approx(textbook_kappa(pairs))
    assert found["rate"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))


def test_the_table_of_each_score():
    parts = [
        {"judge": 1.0, "em": 1.0, "f1": 1.0},
        {"judge": 1.0, "em": 0.0, "f1": 0.5},
        {"judge": 0.0, "em": 0.0, "f1": 0.49},
        {"judge": 0.0, "em": 1.0, "f1": 1.0},
        {"em": 1.0, "f1": 1.0},
        {"judge": 1.0},
    ]
    tables = judge_agreement(parts)
    assert tables.keys() == {"em", "f1"}
    assert tables["em"] == {
        "right_from": 1.0, "n": 4, "without_verdict": 1, "both_right": 1, "judge_only": 1, "score_only": 1,
        "both_wrong": 1, "rate": 0.5, "kappa": 0.0,
    }  # fmt: skip
    cells = [tables["f1"][name] for name in ("both_right", "judge_only", "score_only", "both_wrong")]
    assert cells == [2, 0, 1, 1]


def test_what_cannot_be_said_is_none():
    assert judge_agreement([]) == {}
    unjudged = judge_agreement([{"em": 1.0}, {"em": 0.0}])["em"]
    assert (unjudged["n"], unjudged["rate"], unjudged["kappa"], unjudged["without_verdict"]) == (
        0,
        None,
        None,
        2,
    )
    all_right = judge_agreement([{"em": 1.0, "judge": 1.0}] * 3)["em"]
    assert (all_right["rate"], all_right["kappa"]) == (1.0, None)
