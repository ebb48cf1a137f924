"""Areas at equal cost, paired contrasts and their verdicts, by hand."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.errors import DataError
from ramify.files.durable import dump_line
from ramify.obs.page import render_page
from ramify.study.contrasts import arm_names, compare_arms, mean_success, success_at
from ramify.study.lines import RunLine, YokedMatch, read_lines, write_lines
from ramify.study.page import ablation_page, blind_table, contrasts_table

SLEEP = (1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4)


def line(arm, seed, successes, tokens=100, branches=(4, 6), match=None, commit="abc", mixed=(), **more):
    """A run whose step costs so many tokens, a tenth as many calls and a second."""
    curve = tuple(
        (step, tokens * step, tokens * step / 10, float(step), success)
        for step, success in enumerate(successes)
    )
    rule, packages = {"name": arm}, {"ramify": "1"}
    return RunLine(arm, seed, rule, "recipe", curve, branches, mixed, match, commit, packages, **more)


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
    # Steps that call no tool: what they teach came after the budget was spent.
    idle = replace(run, curve=tuple((*point[:2], min(point[2], 10.0), *point[3:]) for point in run.curve))
    assert mean_success(idle, "calls", 10) == pytest.approx(0.3)
    assert mean_success(idle, "calls", 5) == pytest.approx(0.25)
    # What they teach counts behind them: no call in the first step, then none in the third.
    costs = (0, 0, 10, 10, 20)
    paused = line("rule", 0, [0.1, 0.2, 0.4, 0.6, 0.8])
    paused = replace(
        paused,
        curve=tuple((*point[:2], cost, *point[3:]) for point, cost in zip(paused.curve, costs, strict=True)),
    )
    assert mean_success(paused, "calls", 5) == pytest.approx((0.2 + 0.3) / 2)
    assert mean_success(paused, "calls", 15) == pytest.approx((0.3 * 10 + 0.65 * 5) / 15)
    assert success_at(paused, "calls", np.array([0.0, 5.0, 10.0, 15.0, 20.0])) == pytest.approx(
        [0.1, 0.3, 0.4, 0.7, 0.8]
    )


def test_the_cheapest_arm_sets_the_budget_of_each_seed():
    lines = [line("flat", 0, [0.0, 0.5, 1.0]), line("rule", 0, [0.0, 0.5, 1.0], tokens=80)]
    result = compare_arms(lines, ["flat", "rule"])
    assert result.budgets == {"tokens": (160,), "calls": (16,), "seconds": (2.0,)}
    assert result.areas["tokens"]["rule"] == pytest.approx((0.5,))
    # 0.5 at 100 tokens, 0.8 at 160.
    assert result.areas["tokens"]["flat"] == pytest.approx(((0.25 * 100 + 0.65 * 60) / 160,))
    assert result.contrasts == ()
    assert "an interval needs at least 2" in result.warnings[0]
    silent = replace(lines[1], curve=tuple((*point[:2], 0.0, *point[3:]) for point in lines[1].curve))
    assert "A run executed no call" in compare_arms([lines[0], silent], ["flat", "rule"]).warnings[-1]


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
    assert rule.areas["tokens"].low == pytest.approx(0.07001142)
    assert (rule.adjusted, yoked.adjusted) == (pytest.approx(2 * 0.00283289), 1.0)
    # At Holm's first step of two the interval has level .975; t of 9 degrees of freedom 2.6850.
    assert rule.verdict == "rule is better than yoked by 0.1580 [+0.0536, +0.2624] (0.975), p 0.0057"
    assert yoked.verdict == (
        "no verdict on yoked and flat: all 10 pairs differ by +0.0000, so their spread is not known"
    )
    assert result.warnings == ()


def test_an_interval_that_holds_zero_bounds_the_difference():
    lines = [*steady("flat", [0.5] * 3), *steady("rule", [0.51, 0.49, 0.53])]
    (contrast,) = compare_arms(lines, ["flat", "rule"]).contrasts
    # Mean .01, sd .02, t of 2 degrees of freedom 4.3027.
    assert contrast.verdict == (
        "no difference between rule and flat beyond 0.0597: +0.0100 [-0.0397, +0.0597] (0.95), p 0.48"
    )


def test_there_is_no_verdict_below_three_pairs():
    lines = [*steady("flat", [0.5] * 2), *steady("rule", [0.6, 0.7])]
    (contrast,) = compare_arms(lines, ["flat", "rule"]).contrasts
    assert contrast.verdict == "no verdict on rule and flat yet: 2 pairs, a verdict needs 1 more"


@pytest.mark.parametrize("gains", [[0.0] * 3, [0.1, 0.2 - 0.1, 0.3 - 0.2]])
def test_pairs_that_all_differ_by_the_same_have_no_verdict_and_no_interval(gains):
    """Three failed runs are no proof of equality, and three equal gains none of a difference; they loosen no other correction."""
    lines = [
        *steady("flat", [0.0] * 3),
        *steady("same", gains),
        *steady("other", [0.10, 0.11, 0.12]),
    ]
    result = compare_arms(lines, ["flat", "same", "other"])
    same, other = result.contrasts
    assert same.verdict.startswith("no verdict on same and flat: all 3 pairs differ by")
    assert (other.alpha, other.adjusted) == (0.025, 2 * other.areas["tokens"].p_value)
    record = json.loads(dump_line(result.to_json()))["contrasts"][0]
    bounds = [record["decided"][end] for end in ("low", "high")] + [
        record["tokens"][end] for end in ("low", "high")
    ]
    assert (bounds, record["pairs_for_0.005"], record["p_value_adjusted"]) == ([None] * 4, None, 1.0)
    assert contrasts_table(result.contrasts).rows[0][2] == f"{gains[0]:+.4f}"
    assert blind_table(result.contrasts).rows[0][3:] == ["", ""]


gains = st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3)


@settings(deadline=None)
@given(st.lists(gains, min_size=2, max_size=5))
def test_a_verdict_and_its_interval_never_contradict_each_other(arms):
    names = ["flat", *(f"arm{number}" for number in range(len(arms)))]
    lines = [
        run for name, values in zip(names, [[0.0] * 3, *arms], strict=True) for run in steady(name, values)
    ]
    for contrast in compare_arms(lines, names).contrasts:
        holds_zero = contrast.decided.low <= 0 <= contrast.decided.high
        without = "no difference" if contrast.decided.sd else "no verdict"
        assert holds_zero == (contrast.adjusted >= 0.05) == contrast.verdict.startswith(without)
        assert (
            contrast.decided.high - contrast.decided.low
            >= contrast.areas["tokens"].high - contrast.areas["tokens"].low
        )


def test_mixed_groups_are_compared_beside_the_endpoint_where_all_lines_have_them():
    lines = [line("flat", seed, [0.5, 0.5], mixed=(0.5, 0.7)) for seed in range(3)]
    lines += [line("rule", seed, [0.5, 0.5], mixed=(0.6, 0.7 + seed / 10)) for seed in range(3)]
    result = compare_arms(lines, ["flat", "rule"])
    (contrast,) = result.contrasts
    assert (contrast.mixed.value, contrast.mixed.n) == (pytest.approx(0.1), 3)
    assert result.to_json()["arms"]["flat"]["mixed"] == pytest.approx([0.6] * 3)
    page = render_page(ablation_page(result, Path("runs/x"), Path("runs/x/results.jsonl")))
    assert "share of mixed groups" in page
    lines[0] = line("flat", 0, [0.5, 0.5])
    assert compare_arms(lines, ["flat", "rule"]).contrasts[0].mixed is None


def test_what_is_blind_is_the_same_whichever_arm_is_better():
    values = [0.51, 0.49, 0.53]
    blind = []
    for first, second in ((values, [0.5] * 3), ([0.5] * 3, values)):
        (contrast,) = compare_arms(
            [*steady("flat", first), *steady("rule", second)], ["flat", "rule"]
        ).contrasts
        blind.append(
            ({**contrast.blind_json(), "sd": round(contrast.decided.sd, 9)}, blind_table([contrast]))
        )
    assert blind[0] == blind[1]
    fields, table = blind[0]
    assert fields == {
        "first": "flat", "second": "rule", "n": 3, "sd": 0.02, "pairs_for_0.005": [128, 128], "pairs_for_0.01": [34, 34]
    }  # fmt: skip
    assert table.rows == [["rule minus flat", 3, "0.02000", "128 (128)", "34 (34)"]]


def test_runs_of_a_seed_that_were_made_from_different_files_are_no_pair():
    inputs = {"data.train": "aa", "rollout.branching.path": "bb"}
    other_rule = {**inputs, "rollout.branching.path": "cc"}
    runs = [
        line("flat", seed, [0.1, 0.2], inputs=each)
        for seed, each in enumerate((inputs, {"data.train": "dd"}))
    ]
    lines = [*runs, line("rule", 0, [0.1, 0.2], inputs=other_rule), line("rule", 1, [0.1, 0.2])]
    (warning,) = compare_arms(lines, ["flat", "rule"]).warnings
    assert warning.startswith("Some lines do not say what files")
    lines[-1] = line("rule", 1, [0.1, 0.2], inputs=inputs)
    with pytest.raises(DataError, match=r"flat-1 and rule-1 were made from different content of data.train"):
        compare_arms(lines, ["flat", "rule"])


def test_an_arm_that_is_not_compared_changes_nothing():
    usual = [*steady("flat", [0.1, 0.2], inputs={"data.train": "aa"})]
    usual += steady("rule", [0.1, 0.2], inputs={"data.train": "aa"})
    odd = steady("odd", [0.3, 0.4], inputs={"data.train": "bb"}, commit="other")
    odd[1] = replace(odd[1], branching={"name": "random", "rate": 0.5})
    assert compare_arms([*usual, *odd], ["flat", "rule"]) == compare_arms(usual, ["flat", "rule"])


def test_further_arms_are_compared_with_the_control():
    arms = ["flat", "yoked", "rule", "aepo"]
    lines = [run for arm in arms for run in steady(arm, [0.1, 0.2])]
    pairs = [(each.first, each.second) for each in compare_arms(lines, arms).contrasts]
    assert pairs == [("yoked", "rule"), ("flat", "yoked"), ("yoked", "aepo")]
    assert [(each.first, each.second) for each in compare_arms(lines, ["rule", "aepo"]).contrasts] == []


def test_only_seeds_that_every_arm_has_are_compared():
    lines = [*steady("flat", [0.1, 0.2, 0.3]), *steady("rule", [0.1, 0.2])]
    result = compare_arms(lines, ["flat", "rule"])
    assert (result.seeds, result.contrasts[0].decided.n) == ((0, 1), 2)
    assert result.warnings[-1].startswith("1 runs are left out, such as flat-2")


def test_what_compares_nothing_is_a_warning():
    rule = steady("rule", [0.1, 0.2], branches=(0, 0))
    (nothing, flat) = compare_arms(rule, ["rule"]).warnings
    assert nothing.startswith("No arms are compared")
    assert flat == "rule took no branch in any run, so it was flat sampling."
    assert compare_arms([*rule, *steady("flat", [0.1, 0.2])], ["flat", "rule"]).warnings == (flat,)


def test_an_arm_has_one_rule():
    lines = steady("rule", [0.1, 0.2])
    lines[1] = replace(lines[1], branching={"name": "random", "rate": 0.5})
    with pytest.raises(DataError, match=r"rule-0 and rule-1 have different rules, .* Leave one of them out"):
        compare_arms(lines, ["rule"])


def test_a_control_that_does_not_match_is_a_warning():
    match = YokedMatch(30, 15, 0.4)
    lines = [
        *steady("yoked", [0.1, 0.2], branches=(4, 5), match=match),
        *steady("rule", [0.1, 0.2], branches=(4, 6)),
    ]
    result = compare_arms(lines, ["yoked", "rule"])
    assert [round(each.ratio, 3) for each in result.matches] == [0.9, 0.9]
    assert re.match("2 of 2 yoked runs have more than 5% more or fewer branches", result.warnings[0])
    page = render_page(ablation_page(result, Path("runs/x"), Path("runs/x/results.jsonl")))
    assert "trees with as many" in page


def test_versions_that_differ_and_runs_that_learn_nothing_are_warnings():
    lines = [*steady("rule", [0.1, 0.2], commit="def"), *steady("flat", [0.1, 0.2])]
    assert arm_names(lines) == ["flat", "rule"]
    assert compare_arms(lines, ["flat", "rule"]).warnings == ("The runs were made by 2 commits.",)
    lines = [*steady("rule", [0.1, 0.1]), *steady("flat", [0.1, 0.1])]
    (warning,) = compare_arms(lines, ["flat", "rule"]).warnings
    assert warning.startswith("Success never changed in any run")


@settings(deadline=None)
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
        ({"curve": [[0, 0, 0, 0, 0.1], [1, 5, 5, 5, 0.1], [2, 4, 5, 5, 0.1]]}, "costs that never fall"),
        ({"curve": [[1, 5, 5, 5, 0.1]]}, "from step 0 and no cost"),
        ({"curve": [[0, 0, 0, 0, 7.5]]}, "success from 0 to 1"),
        ({"arm": "../x"}, "arm: expected at most 60 letters"),
        ({"branches": [-1]}, "branches: expected numbers from 0"),
        ({"mixed": [5]}, "mixed: expected numbers from 0 to 1"),
        ({"match": {"trees": 1, "same": 9, "difference": 0}}, "at most as many same trees"),
        ({"schema": 9}, "schema 9, expected 1"),
        ({"seed": "0"}, "seed"),
    ):
        path.write_text(json.dumps({**fields, **change}) + "\n")
        with pytest.raises(DataError, match=f"row 1: .*{message}"):
            read_lines(path)
    # Lines of versions that wrote no checksums, and empty ones.
    path.write_text(f"{json.dumps({key: fields[key] for key in fields if key != 'inputs'})}\n\n")
    assert read_lines(path) == lines[:1]
    path.write_text(f"{rows[0]}\n{rows[1][:-9]}")
    with pytest.raises(DataError, match=r"row 2: the line is cut off .* delete this line: the same command"):
        read_lines(path)
    path.write_text("\n".join([rows[0], rows[0]]) + "\n")
    with pytest.raises(DataError, match="row 2: a second line of rule-0"):
        read_lines(path)
