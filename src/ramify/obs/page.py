"""Self-contained pages without scripts or network access: cards, tables, and line and bar charts as inline SVG.

Colours come from the page's CSS classes, and screen readers can read the charts.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ramify.obs.metrics import Curve

Cell: TypeAlias = str | int | float | None
WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 120, 16, 44
MAX_POINTS = 200
LABEL_GAP = 15.0


@dataclass(frozen=True, slots=True)
class Card:
    """One of the key figures at the top of a page."""

    title: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header; numbers are right-aligned, None is an empty cell."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Section:
    """Charts, then tables, under a heading; `folded` tables open on a click."""

    heading: str
    text: str = ""
    charts: Sequence[Markup] = ()
    tables: Sequence[Table] = ()
    folded: bool = False


def render_page(title: str, subtitle: str, cards: Sequence[Card], sections: Sequence[Section]) -> str:
    """Return the page as HTML."""
    return render_template(
        "page.html.jinja",
        title=title,
        subtitle=subtitle,
        cards=cards,
        sections=sections,
        is_number=lambda value: isinstance(value, int | float),
    )


def render_template(name: str, **values: object) -> str:
    """Render a template of this package, escaping all values; a missing value is an error."""
    environment = Environment(
        loader=PackageLoader("ramify.obs", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)


def flat(config: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Return dotted keys with their values, as the `-s` option spells them."""
    pairs: list[tuple[str, object]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            pairs.extend(flat(value, f"{prefix}{key}."))
        else:
            pairs.append((f"{prefix}{key}", value))
    return pairs


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with its name; `colour` picks the CSS classes `s0`, `s1`, ..."""

    name: str
    points: Curve
    colour: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with the ends of its interval."""

    name: str
    value: float
    low: float
    high: float
    colour: int


@dataclass(frozen=True, slots=True)
class BarGroup:
    """A group of bars over one name on the axis."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values to pixels: `low` to `start`, `high` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)


def line_chart(
    title: str, lines: Sequence[Line], x_label: str, y_label: str, y_range: tuple[float, float] | None = None
) -> Markup:
    """Draw curves over steps, with their names at their right ends.

    For a curve of more than 200 points, means of neighbouring points are drawn. `y_range` fixes the axis (0 to 1 for a
    share); otherwise it spans the data.
    """
    drawn = [Line(line.name, _thin(line.points), line.colour) for line in lines if line.points]
    if not drawn:
        return Markup('<p class="nodata">No data for "{}" in this run.</p>').format(title)
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points]
    x_ticks = _ticks(min(xs), max(xs), whole=True)
    y_ticks = _ticks(*(y_range or (min(ys), max(ys))))
    x_scale = _Scale(min(min(xs), x_ticks[0]), max(max(xs), x_ticks[-1]), LEFT, WIDTH - RIGHT)
    y_scale = _Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    body = [_y_axis(y_ticks, y_scale, y_label), _x_axis(x_ticks, x_scale, x_label)]
    ends = _spread([y_scale(line.points[-1][1]) for line in drawn])
    for line, end in zip(drawn, ends, strict=True):
        body.append(_line(line, x_scale, y_scale, end))
    summary = "; ".join(
        f"{line.name} from {line.points[0][1]:.3g} to {line.points[-1][1]:.3g}" for line in drawn
    )
    return _svg(title, f"{y_label} by {x_label}: {summary}", body)


def bar_chart(title: str, groups: Sequence[BarGroup], y_label: str) -> Markup:
    """Draw bars of shares (0 to 1), drawn in percent, with whiskers for their intervals and the value above each."""
    if not groups:
        return Markup('<p class="nodata">No data for "{}" in this run.</p>').format(title)
    y_scale = _Scale(0.0, 100.0, HEIGHT - BOTTOM, TOP)
    slot = (WIDTH - LEFT - 16) / len(groups)
    body = [_y_axis([0.0, 25.0, 50.0, 75.0, 100.0], y_scale, y_label, right=WIDTH - 16)]
    for index, group in enumerate(groups):
        left = LEFT + index * slot
        body.append(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                left + slot / 2, HEIGHT - BOTTOM + 18, group.name
            )
        )
        width = min(slot * 0.8 / len(group.bars), 64.0)
        start = left + (slot - width * len(group.bars)) / 2
        body.extend(
            _bar(bar, group.name, start + number * width, width, y_scale)
            for number, bar in enumerate(group.bars)
        )
    summary = "; ".join(f"{group.name}: " + ", ".join(map(_spoken, group.bars)) for group in groups)
    return _svg(title, summary, body)


def _svg(title: str, summary: str, body: Sequence[Markup]) -> Markup:
    return Markup(
        '<figure><figcaption>{0}</figcaption><svg class="chart" viewBox="0 0 {1} {2}" role="img" aria-label="{0}. {3}">'
        "<title>{0}</title><desc>{3}</desc>{4}</svg></figure>"
    ).format(title, WIDTH, HEIGHT, summary, Markup("").join(body))


def _line(line: Line, x_scale: _Scale, y_scale: _Scale, label_y: float) -> Markup:
    points = [(x_scale(x), y_scale(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = Markup("").join(
        Markup('<circle class="hit s{}" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>').format(
            line.colour, px, py, f"{line.name}: {y:.4g} at {x:.0f}"
        )
        for (px, py), (x, y) in zip(points, line.points, strict=True)
    )
    return Markup(
        '<polyline class="line s{0}" points="{1}"/>{2}<text class="label s{0}" x="{3:.1f}" y="{4:.1f}">{5}</text>'
    ).format(line.colour, path, dots, points[-1][0] + 8, label_y + 4, line.name)


def _bar(bar: Bar, group: str, left: float, width: float, y_scale: _Scale) -> Markup:
    top, middle = y_scale(100 * bar.value), left + width / 2
    return Markup(
        '<g><title>{}</title><rect class="bar s{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"/>'
        '<path class="whisker" d="{}"/><text class="value" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text></g>'
    ).format(
        f"{group}: {_spoken(bar)}",
        bar.colour,
        left + 2,
        top,
        width - 4,
        y_scale(0.0) - top,
        f"M{middle - 4:.1f} {y_scale(100 * bar.low):.1f}h8m-4 0V{y_scale(100 * bar.high):.1f}m-4 0h8",
        middle,
        y_scale(100 * bar.high) - 4,
        f"{100 * bar.value:.0f}",
    )


def _spoken(bar: Bar) -> str:
    return f"{bar.name} {100 * bar.value:.1f} % ({100 * bar.low:.1f} to {100 * bar.high:.1f})"


def _y_axis(ticks: Sequence[float], scale: _Scale, label: str, right: float = WIDTH - RIGHT) -> Markup:
    marks = Markup("").join(
        Markup(
            '<path class="grid" d="M{} {:.1f}H{}"/><text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
        ).format(LEFT, scale(tick), right, LEFT - 6, scale(tick) + 4, _number(tick))
        for tick in ticks
    )
    middle = (scale.start + scale.stop) / 2
    return marks + Markup(
        '<text class="axis" transform="translate(14 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>'
    ).format(middle, label)


def _x_axis(ticks: Sequence[float], scale: _Scale, label: str) -> Markup:
    marks = Markup("").join(
        Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            scale(tick), HEIGHT - BOTTOM + 18, _number(tick)
        )
        for tick in ticks
    )
    return marks + Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
        (scale.start + scale.stop) / 2, HEIGHT - 6, label
    )


def _ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Return four to seven round numbers that enclose the range."""
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    if whole:
        step = max(step, 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _spread(positions: Sequence[float]) -> list[float]:
    """Move labels apart downwards until no two overlap, keeping their order."""
    moved = list(positions)
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    for above, below in itertools.pairwise(order):
        moved[below] = max(moved[below], moved[above] + LABEL_GAP)
    return moved


def _thin(points: Curve) -> Curve:
    run = math.ceil(len(points) / MAX_POINTS)
    chunks = [points[start : start + run] for start in range(0, len(points), run)]
    return tuple(
        (sum(x for x, _ in chunk) / len(chunk), sum(y for _, y in chunk) / len(chunk)) for chunk in chunks
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"
