"""The collapse detector's decisions."""

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from ramify.learner.guard import DEFAULT_GUARD, Action, Guard, GuardConfig, GuardState, Violation

EVERY = {
    "max_repetition": 0.5,
    "max_length": 0.25,
    "max_invalid_calls": 0.5,
    "max_zero_variance": 0.5,
    "max_fall": 0.9,
    "min_entropy": 0.1,
    "max_non_finite": 0,
}
FINE = {
    "health/repetition": 0.5,
    "health/written": 25.0,
    "health/invalid_calls": 0.5,
    "group/zero_variance": 0.5,
    "reward/fall": 0.9,
    "health/entropy": 0.1,
    "update/non_finite": 0.0,
}
BAD = Violation("health/repetition", 0.9, "max_repetition", 0.5)


def guard(**settings):
    return Guard(GuardConfig(**(settings or EVERY)), max_tokens=100)


@pytest.mark.parametrize(
    ("metric", "value", "setting", "shown"),
    [
        ("health/repetition", 0.51, "max_repetition", 0.51),
        ("health/written", 30.0, "max_length", 0.3),
        ("health/invalid_calls", 0.6, "max_invalid_calls", 0.6),
        ("group/zero_variance", 1.0, "max_zero_variance", 1.0),
        ("reward/fall", 0.95, "max_fall", 0.95),
        ("health/entropy", 0.09, "min_entropy", 0.09),
        ("update/non_finite", 1.0, "max_non_finite", 1.0),
    ],
)
def test_each_signal_beyond_its_threshold_is_found_and_no_other(metric, value, setting, shown):
    metrics = FINE | {metric: value}
    violation = guard().look(metrics)
    assert (violation.metric, violation.setting, violation.threshold) == (metric, setting, EVERY[setting])
    assert violation.value == pytest.approx(shown)
    assert guard(**{setting: EVERY[setting]}).look(metrics) == violation
    others = {key: value for key, value in EVERY.items() if key != setting}
    assert guard(**others).look(metrics) is None


def test_at_the_threshold_nothing_is_found_and_what_was_not_measured_breaks_nothing():
    assert guard().look(FINE) is None
    assert guard().look({}) is None
    assert guard().look(dict.fromkeys(FINE)) is None


def test_a_violation_says_what_broke_what():
    assert str(BAD) == "health/repetition = 0.9 breaks guard.max_repetition = 0.5"


LOST = {"health/repetition": 0.8, "health/written": 100.0, "health/entropy": 0.5}


def default_actions(steps):
    """Actions of the guard of a recipe without one, step by step."""
    rules = Guard(DEFAULT_GUARD, max_tokens=100)
    state, actions = rules.start(), []
    for number, metrics in enumerate(steps, start=1):
        violation = rules.look(metrics, state.passed)
        state, action = rules.count(rules.passed(state, metrics), violation)
        state = state.saved(number)
        assert not state.needed
        actions.append(action)
    return actions


def test_the_default_stops_a_run_that_was_well_and_is_lost_for_three_steps():
    fine = FINE | {"group/zero_variance": 1.0}
    assert default_actions([fine, LOST, LOST, fine, LOST, LOST, LOST]) == [Action.GO_ON] * 6 + [Action.STOP]
    assert set(default_actions([fine] * 9)) == {Action.GO_ON}


def test_the_default_leaves_a_model_alone_that_was_never_well():
    assert set(default_actions([LOST] * 9)) == {Action.GO_ON}
    # It has learned not to repeat itself; that it writes to its limit it never unlearned.
    long = {"health/repetition": 0.1, "health/written": 100.0}
    assert set(default_actions([LOST, *[long] * 9])) == {Action.GO_ON}
    assert default_actions([LOST, long, *[LOST] * 3])[-1] is Action.STOP


def run(rules, steps, save_every=1):
    """The actions and the last state of a run; True is a step that breaks a threshold."""
    state, actions = GuardState().saved(0), []
    for step, is_bad in enumerate(steps, start=1):
        state, action = rules.count(state, BAD if is_bad else None)
        actions.append(action)
        if step % save_every == 0:
            state = state.saved(step)
    return actions, state


def test_patience_then_fallbacks_then_the_end():
    rules = guard(max_repetition=0.5, patience=2, max_fallbacks=1)
    actions, state = run(rules, [True, False, True, True, True, False, True, True])
    go_on = Action.GO_ON
    assert actions == [go_on, go_on, go_on, Action.FALL_BACK, go_on, go_on, go_on, Action.STOP]
    assert (state.fallbacks, state.in_a_row) == (1, 2)


def test_without_fallbacks_the_run_stops_at_once():
    actions, state = run(guard(max_repetition=0.5, patience=1, max_fallbacks=0), [False, True])
    assert actions == [Action.GO_ON, Action.STOP]
    assert state.last_good == 0


def test_a_checkpoint_is_good_when_its_window_was_clean_and_the_step_after_it_passed():
    rules = guard(max_repetition=0.5, patience=9)
    assert run(rules, [False])[1].needed == {0, 1}
    assert run(rules, [False, False])[1].last_good == 1
    # The weights of step 1 broke a threshold at step 2.
    assert run(rules, [False, True])[1].needed == {0}
    # Checkpoint 2 has the violation in its window, checkpoint 3 passes at step 4.
    assert [run(rules, [False, True, False, False][:n])[1].last_good for n in (2, 3, 4)] == [0, 0, 3]


def test_with_rare_checkpoints_one_violation_spoils_the_window():
    rules = guard(max_repetition=0.5, patience=9)
    clean = [False] * 4
    assert run(rules, [*clean, False], 4)[1].last_good == 4
    assert run(rules, [False, True, False, False, False], 4)[1].last_good == 0
    assert run(rules, [False, True, False, False, *clean, False], 4)[1].last_good == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "expected at least one of"),
        ({"keep_good": False, "max_length": 0.5}, "leaves no checkpoint to go back to"),
        ({"patience": 0, "max_length": 0.5}, "greater than or equal to 1"),
        ({"max_repetition": 1.0}, "less than 1"),
        ({"max_zero_variance": -0.1}, "greater than or equal to 0"),
        ({"min_entropy": 0.0}, "greater than 0"),
        ({"max_non_finite": True}, "valid integer"),
    ],
)
def test_thresholds_that_cannot_act_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(GuardConfig).validate_python(settings)


def falls(shares, problems):
    """The fall after each step, from the steps' shares of right answers."""
    state, results = GuardState(), []
    for share in shares:
        state = state.after_batch(share, problems)
        results.append(state.fall)
    return results


@pytest.mark.parametrize("problems", [1, 15, 64, 500])
def test_a_success_that_is_gone_is_seen_within_some_three_hundred_problems(problems):
    steps = max(4, 300 // problems)
    measured = falls([0.7] * steps + [0.0] * steps, problems)
    assert all(fall is None or fall == pytest.approx(0, abs=1e-9) for fall in measured[:steps])
    assert measured[-1] > 0.9
    assert measured[-1] < 1.0 or problems >= 64


@pytest.mark.parametrize(("problems", "rate"), [(1, 0.15), (4, 0.2), (16, 0.3), (128, 0.1)])
def test_a_healthy_run_stays_within_whatever_its_steps_are(problems, rate):
    rng = np.random.default_rng(0)
    shares = rng.binomial(problems, rate, 4000) / problems
    assert max(fall for fall in falls(shares.tolist(), problems) if fall is not None) < 0.9


def test_without_answers_that_are_right_there_is_nothing_to_fall_from():
    assert set(falls([0.0] * 50 + [0.05] * 50, 64)) == {None}
    assert GuardState().after_batch(None, 64) == GuardState()


def test_a_run_that_goes_back_starts_a_new_share_and_keeps_the_best():
    state = GuardState(in_a_row=0, last_good=4).after_batch(0.8, 64).after_batch(0.0, 64)
    after, action = guard(max_fall=0.9, patience=1, max_fallbacks=1).count(state, BAD)
    assert action is Action.FALL_BACK
    assert (after.fall, after.best) == (None, 0.8)
    assert after.after_batch(0.4, 64).fall == pytest.approx(0.5)
