import subprocess
import sys

import numpy as np
import pytest

from ramify.algos.branch_arpo import BernoulliBrancher, ThresholdBrancher
from ramify.algos.branch_none import FlatBrancher
from ramify.core.draws import stream, uniforms
from ramify.core.errors import ConfigError
from ramify.core.records import BranchCandidate
from ramify.core.tree import Entropy


def candidate(rise, draw=0.5, width=0.0):
    turns = (Entropy(1.0, 1.0 + width), Entropy(1.0 + rise, 1.0 + rise + width))
    return BranchCandidate((0, 0), 1, 0, turns, 0, draw)


def threshold(**changes):
    return ThresholdBrancher(**({"m": 8, "min_rise": 0.0, "children": 1, "probe_tokens": 6} | changes))


def bernoulli(**changes):
    settings = {"m": 8, "alpha": 0.5, "beta": 0.335, "children": 1, "probe_tokens": 6}
    return BernoulliBrancher(**(settings | changes))


def test_threshold_branches_where_the_rise_exceeds_the_minimum():
    rule = threshold(min_rise=0.25, children=2)
    assert [rule.propose(candidate(r), ()).children for r in (-1.0, 0.0, 0.24, 0.26)] == [0, 0, 0, 2]
    assert [rule.propose(candidate(r), ()).probability for r in (0.24, 0.26)] == [0.0, 1.0]
    assert threshold().propose(candidate(0.0), ()).children == 0


@pytest.mark.parametrize(
    ("min_rise", "rise", "acted"), [(0.25, 0.3, True), (0.25, 0.2, False), (-0.1, 0.0, False)]
)
def test_threshold_says_whether_entropy_decided(min_rise, rise, acted):
    assert threshold(min_rise=min_rise).propose(candidate(rise), ()).entropy_acted is acted


def test_the_lower_ends_of_the_brackets_decide():
    assert threshold(min_rise=0.1).propose(candidate(0.2, width=5.0), ()).children == 1


@pytest.mark.parametrize("rise", [-2.0, -0.4, 0.0, 0.4, 2.0])
def test_bernoulli_branches_at_its_rate(rise):
    rule = bernoulli()
    draws = uniforms(np.full(20_000, stream("rate"), np.uint64), np.arange(20_000, dtype=np.uint64))
    made = [rule.propose(candidate(rise, draw), ()) for draw in draws]
    expected = min(max(0.5 + 0.335 * rise, 0), 1)
    assert all(p.probability == pytest.approx(expected) for p in made)
    assert np.mean([p.children for p in made]) == pytest.approx(expected, abs=0.012)
    acted = np.mean([p.entropy_acted for p in made])
    assert acted == pytest.approx(abs(expected - 0.5), abs=0.012)


def test_probability_stays_in_the_unit_interval():
    assert bernoulli().propose(candidate(9.0, 0.999999), ()).probability == 1.0
    assert bernoulli().propose(candidate(-9.0, 0.0), ()).children == 0


def test_roots():
    assert threshold(m=8).num_roots(16, ()) == 8
    assert bernoulli(m=16).num_roots(16, ()) == 16
    assert FlatBrancher(probe_tokens=6).num_roots(16, ()) == 16
    assert FlatBrancher(probe_tokens=6).propose(candidate(5.0, 0.0), ()).children == 0
    with pytest.raises(ConfigError, match="m = 17 roots, expected at most n = 16"):
        threshold(m=17).num_roots(16, ())


@pytest.mark.parametrize("name", ["m", "children", "probe_tokens"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name} = 0, expected at least 1"):
        bernoulli(**{name: 0})


def test_rules_load_without_torch():
    code = "import sys, ramify.algos.branch_arpo, ramify.algos.branch_none, ramify.algos.arpo; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
