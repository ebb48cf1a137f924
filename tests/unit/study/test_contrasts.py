"""Areas at equal cost, paired contrasts and their verdicts, by hand."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import DataError
from ramify.obs.page import render_page
from ramify.study.contrasts import arm_names, compare_arms, mean_success
from ramify.study.lines import RunLine, YokedMatch, read_lines, write_lines
from ramify.study.page import ablation_page

SLEEP = (1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4)


def line(arm, seed, successes, tokens=100, branches=(4, 6), match=None, commit="abc"):
    """A run whose step costs so many tokens, a tenth as many calls and a second."""
    curve = tuple(
        (step, tokens * step, tokens * step / 10, float(step), success)
        for step, success in enumerate(successes)
    )
    return RunLine(arm, seed, {"name": arm}, "recipe", curve, branches, (), match, commit, {"ramify": "1"})


def steady(arm, values, **more):
    """Runs whose success never changes, so that it is their area."""
    return [line(arm, seed, [value, value], **more) for seed, value in enumerate(values)]


def test_the_area_ends_where_the_budget_ends():
    run = line("rule", 0, [0.2, 0.4, 0.8])
    assert mean_success(run, "tokens", 200) == pytest.approx((0.3 + 0.6) / 2)
    # 0.2 to 0.4 over 100 tokens, 0.4 to 0.6 over 50.
    assert mean_success(run, "tokens", 150) == pytest.approx((0.3 * 100 + 0.5 * 50) / 150)
    assert mean_success(run, "seconds", 1.0) == pytest.approx(0.3)
    assert mean_success(run, "calls", 0) == 0.2


def test_the_cheapest_arm_sets_the_budget_of_each_seed():
    lines = [line("flat", 0, [0.0, 0.5, 1.0]), line("rule", 0, [0.0, 0.5, 1.0], tokens=80)]
    result = compare_arms(lines, ["flat", "rule"])
    assert result.budgets == {"tokens": (160,), "calls": (16,), "seconds": (2.0,)}
    assert result.areas["tokens"]["rule"] == pytest.approx((0.5,))
    # 0.5 at 100 tokens, 0.8 at 160.
    assert result.areas["tokens"]["flat"] == pytest.approx(((0.25 * 100 + 0.65 * 60) / 160,))
    assert result.contrasts == ()
    assert "an interval needs at least 2" in result.warnings[0]


def test_contrasts_are_student_s_with_holm_s_correction():
    match = YokedMatch(2, 2, 0.0)
    lines = [
        *steady("flat", [0.0] * 10),
        *steady("yoked", [0.0] * 10, match=match),
        *steady("rule", [gain / 10 for gain in SLEEP]),
    ]
    result = compare_arms(lines, ["flat", "yoked", "rule"])
    rule, yoked = result.contrasts
    assert (rule.first, rule.second, yoked.first, yoked.second) == ("yoked", "rule", "flat", "yoked")
    assert rule.endpoint.low == pytest.approx(0.07001142)
    assert (rule.adjusted, yoked.adjusted) == (pytest.approx(2 * 0.00283289), 1.0)
    assert rule.verdict == "rule is better than yoked by 0.1580 [+0.0700, +0.2460], p 0.0057"
    assert (
        yoked.verdict == "no difference between yoked and flat beyond 0.0000: +0.0000 [+0.0000, +0.0000], p 1"
    )
    assert result.warnings == ()


def test_an_interval_that_holds_zero_bounds_the_difference():
    lines = [*steady("flat", [0.5] * 3), *steady("rule", [0.51, 0.49, 0.53])]
    (contrast,) = compare_arms(lines, ["flat", "rule"]).contrasts
    # Mean .01, sd .02, t of 2 degrees of freedom 4.3027.
    assert contrast.verdict == (
        "no difference between rule and flat beyond 0.0597: +0.0100 [-0.0397, +0.0597], p 0.48"
    )


def test_further_arms_are_compared_with_the_control():
    arms = ["flat", "yoked", "rule", "aepo"]
    lines = [run for arm in arms for run in steady(arm, [0.1, 0.2])]
    pairs = [(each.first, each.second) for each in compare_arms(lines, arms).contrasts]
    assert pairs == [("yoked", "rule"), ("flat", "yoked"), ("yoked", "aepo")]
    assert [(each.first, each.second) for each in compare_arms(lines, ["rule", "aepo"]).contrasts] == []


def test_only_seeds_that_every_arm_has_are_compared():
    lines = [*steady("flat", [0.1, 0.2, 0.3]), *steady("rule", [0.1, 0.2])]
    result = compare_arms(lines, ["flat", "rule"])
    assert (result.seeds, result.contrasts[0].endpoint.n) == ((0, 1), 2)


def test_a_control_that_does_not_match_is_a_warning():
    match = YokedMatch(30, 15, 0.4)
    lines = [
        *steady("yoked", [0.1, 0.2], branches=(4, 5), match=match),
        *steady("rule", [0.1, 0.2], branches=(4, 6)),
    ]
    result = compare_arms(lines, ["yoked", "rule"])
    assert [round(each.ratio, 3) for each in result.matches] == [0.9, 0.9]
    assert re.match("2 of 2 yoked runs have more than 5% more or fewer branches", result.warnings[0])
    page = render_page(ablation_page(result, Path("runs/x")))
    assert "trees with as many" in page


def test_versions_that_differ_and_runs_that_learn_nothing_are_warnings():
    lines = [*steady("rule", [0.1, 0.2], commit="def"), *steady("flat", [0.1, 0.2])]
    assert arm_names(lines) == ["flat", "rule"]
    assert compare_arms(lines, ["flat", "rule"]).warnings == ("The runs were made by 2 commits.",)
    lines = [*steady("rule", [0.1, 0.1]), *steady("flat", [0.1, 0.1])]
    (warning,) = compare_arms(lines, ["flat", "rule"]).warnings
    assert warning.startswith("Success never changed in any run")


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(1, 500))
def test_an_area_lies_between_the_least_and_the_largest_success(successes, budget):
    run = line("rule", 0, successes)
    budget = min(budget, run.column("tokens")[-1])
    assert min(successes) - 1e-12 <= mean_success(run, "tokens", budget) <= max(successes) + 1e-12


def test_lines_come_back_as_they_were_and_damaged_ones_are_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    assert read_lines(path) == ()
    lines = (line("rule", 0, [0.1, 0.3]), line("yoked", 0, [0.1, 0.2], match=YokedMatch(2, 1, 0.5)))
    write_lines(path, lines)
    assert read_lines(path) == lines
    rows = path.read_text().splitlines()
    fields = json.loads(rows[0])
    for change, message in (
        ({"curve": [[0, 1, 2, 3]]}, "curve"),
        ({"curve": []}, "curve"),
        ({"curve": fields["curve"][::-1]}, "rising steps"),
        ({"schema": 9}, "schema 9, expected 1"),
        ({"seed": "0"}, "seed"),
    ):
        path.write_text(json.dumps({**fields, **change}) + "\n")
        with pytest.raises(DataError, match=f"row 1: .*{message}"):
            read_lines(path)
    path.write_text("\n".join([rows[0], rows[0]]) + "\n")
    with pytest.raises(DataError, match="row 2: a second line of rule-0"):
        read_lines(path)
