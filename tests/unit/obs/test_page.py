"""Charts: points where they belong, labels apart, titles for screen readers; as part of a page and as files."""

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.obs.charts import HEIGHT, LABEL_GAP, WIDTH, Bar, BarGroup, Line, bar_chart, line_chart
from ramify.obs.page import Page, Section, write_figures, write_page

HOSTILE = '<script>alert(1)</script>&"\x00\x1b\ud800\u202e'


def points_of(chart):
    return [
        [tuple(map(float, pair.split(","))) for pair in path.split()]
        for path in re.findall(r'<polyline[^>]* points="([^"]+)"', chart.body)
    ]


def test_line_stays_inside_and_rises_with_the_values():
    chart = line_chart("Loss", [Line("loss", ((1, 0.5), (2, 7.2), (3, 3.0)), 1)], "step", "nats")
    (places,) = points_of(chart)
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places)
    (x1, low), (x2, high), (x3, middle) = places
    assert x1 < x2 < x3
    assert high < middle < low
    assert "log scale" not in chart.body


def test_a_loss_that_falls_from_25_to_a_tenth_is_readable_at_its_end():
    points = tuple((step, 25.0 if step < 5 else 0.2 - step / 1000) for step in range(1, 101))
    chart = line_chart("Loss", [Line("loss", points, 1)], "step", "nats")
    assert "nats, log scale" in chart.body
    (places,) = points_of(chart)
    # A fifth of its height for a fall from 0.195 to 0.1, which a linear axis would show as a pixel.
    assert places[-1][1] - places[4][1] > HEIGHT / 12


def test_titles_and_units_are_there():
    chart = line_chart("A < B", [Line("x & y", ((1, 2.0), (9, 4.0)), 0)], "optimiser step", "nats per token")
    svg = chart.__html__()
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
    svg = line_chart("t", lines, "x", "y", (0.0, 1.0)).body
    ys = sorted(float(y) for y in re.findall(r'class="label [^>]* y="([\d.]+)"', svg))
    assert len(ys) == 3
    assert min(b - a for a, b in itertools.pairwise(ys)) >= LABEL_GAP - 0.11


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
    st.text(st.characters(), max_size=30),
)
def test_any_finite_values_and_any_names_give_a_drawing_or_none(values, name):
    chart = line_chart(name, [Line(name, tuple(enumerate(values)), 0)], "x", name)
    if chart.body is None:
        assert max(map(abs, values)) > 1e300
    else:
        (places,) = points_of(chart)
        assert all(0 < x < WIDTH and -1 < y < HEIGHT for x, y in places)
        ElementTree.fromstring(chart.as_file().encode("utf-8", "replace"))


def test_bar_heights_are_in_proportion():
    groups = [BarGroup("all", (Bar("SFT", 0.25, 0.2, 0.3, 1), Bar("RL", 0.75, 0.7, 0.8, 2)))]
    svg = bar_chart("pass", groups, "share").__html__()
    low, high = (float(h) for h in re.findall(r'class="bar[^>]* height="([\d.]+)"', svg))
    assert abs(high / low - 3) < 0.01
    assert "all: SFT 25.0 % (20.0 to 30.0), RL 75.0 % (70.0 to 80.0)" in svg


def test_the_value_of_a_bar_of_zero_stands_at_its_foot_and_names_on_the_axis_stay_apart():
    names = [f"/home/somebody/runs/evaluation-of-a-model-{number}" for number in range(4)]
    svg = bar_chart("t", [BarGroup(name, (Bar("a", 0.0, 0.0, 0.5, 0),)) for name in names], "percent").body
    heights = [float(y) for y in re.findall(r'class="value" x="[\d.]+" y="([\d.]+)"', svg)]
    assert len(heights) == 4
    assert min(heights) > HEIGHT - 60
    shown = re.findall(r"</title>([^<]+)</text>", svg)
    assert len(shown) == 4
    assert max(map(len, shown)) * 6 < WIDTH / 4
    assert all(name in svg for name in names)


def test_figures_are_whole_files_in_fixed_colours_with_a_name_each(tmp_path):
    charts = [
        line_chart(title, [Line("a", ((1, 2.0), (2, 3.0)), colour)], "step", HOSTILE)
        for colour, title in enumerate(("Loss", "loss", HOSTILE, "../../x"))
    ]
    page = Page("t", "", (), (Section("s", charts=(*charts, line_chart("empty", [], "x", "y"))),))
    paths = write_figures(page, tmp_path / "figures")
    svgs = [path for path in paths if path.suffix == ".svg"]
    assert [path.name for path in svgs] == ["loss.svg", "loss-2.svg", "script-alert-1-script.svg", "x.svg"]
    assert {path.parent for path in paths} == {tmp_path / "figures"}
    for path in svgs:
        text = path.read_text("utf-8")
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not [each for each in root.iter() if each.tag.endswith("script")]
        assert "var(" not in text
        assert ".l0 { stroke: #" in text


def test_figures_are_pictures_too_with_the_extra(tmp_path):
    pytest.importorskip("resvg_py")
    chart = line_chart("Loss", [Line("a", ((1, 2.0), (2, 3.0)), 1)], "step", "nats")
    paths = write_figures(Page("t", "", (), (Section("s", charts=(chart,)),)), tmp_path)
    assert [path.name for path in paths] == ["loss.svg", "loss.png"]
    picture = paths[1].read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20]) == 3 * WIDTH


def test_no_text_of_a_page_reorders_or_hides_what_stands_beside_it(tmp_path):
    write_page(tmp_path / "page.html", Page(HOSTILE, HOSTILE, (), (Section(HOSTILE, HOSTILE),)))
    page = (tmp_path / "page.html").read_text()
    assert not {"\x00", "\x1b", "\u202e"} & set(page)
    assert page.count(r"\x00\x1b\ud800\u202e") >= 4
