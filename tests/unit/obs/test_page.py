"""Charts: points where they belong, labels apart, titles for screen readers."""

import itertools
import re

from ramify.obs.page import HEIGHT, LABEL_GAP, WIDTH, Bar, BarGroup, Line, bar_chart, line_chart


def points_of(svg):
    return [
        [tuple(map(float, pair.split(","))) for pair in path.split()]
        for path in re.findall(r'<polyline[^>]* points="([^"]+)"', svg)
    ]


def test_line_stays_inside_and_rises_with_the_values():
    svg = line_chart("Loss", [Line("loss", ((1, 0.013), (2, 7.2), (3, 3.0)), 1)], "step", "nats")
    (places,) = points_of(svg)
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places)
    (x1, low), (x2, high), (x3, middle) = places
    assert x1 < x2 < x3
    assert high < middle < low


def test_titles_and_units_are_there():
    svg = line_chart("A < B", [Line("x & y", ((1, 2.0), (9, 4.0)), 0)], "optimiser step", "nats per token")
    assert 'role="img"' in svg
    assert "<title>A &lt; B</title>" in svg
    assert "x &amp; y from 2 to 4" in svg
    assert ">optimiser step</text>" in svg
    assert ">nats per token</text>" in svg


def test_long_curves_are_thinned_to_means():
    curve = tuple((step, float(step % 2)) for step in range(5000))
    (places,) = points_of(line_chart("t", [Line("a", curve, 0)], "x", "y", (0.0, 1.0)))
    assert len(places) == 200
    assert max(y for _, y in places) - min(y for _, y in places) < 10


def test_labels_of_curves_that_end_together_do_not_overlap():
    lines = [Line(name, ((0, 1.0), (1, 0.5 + 0.001 * i)), i) for i, name in enumerate("abc")]
    svg = line_chart("t", lines, "x", "y", (0.0, 1.0))
    ys = sorted(float(y) for y in re.findall(r'class="label [^>]* y="([\d.]+)"', svg))
    assert len(ys) == 3
    assert min(b - a for a, b in itertools.pairwise(ys)) >= LABEL_GAP - 0.11


def test_constant_and_single_point_curves_are_drawn():
    for curve in (((5, 0.0),), ((1, 0.3), (2, 0.3))):
        (places,) = points_of(line_chart("t", [Line("a", curve, 0)], "x", "y"))
        assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places)


def test_bar_heights_are_in_proportion():
    groups = [BarGroup("all", (Bar("SFT", 0.25, 0.2, 0.3, 1), Bar("RL", 0.75, 0.7, 0.8, 2)))]
    svg = bar_chart("pass", groups, "share")
    low, high = (float(h) for h in re.findall(r'class="bar[^>]* height="([\d.]+)"', svg))
    assert abs(high / low - 3) < 0.01
    assert "all: SFT 25.0 % (20.0 to 30.0), RL 75.0 % (70.0 to 80.0)" in svg
