"""Line and bar charts as inline SVG, and the same as files.

On a page the colours come from its style, and screen readers can read the charts.
"""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from markupsafe import Markup

from ramify.obs.metrics import Curve

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 66, 120, 16, 44
MAX_POINTS = 200
LABEL_GAP = 15.0
_CHAR_WIDTH = 6.6
"""Pixels of a character of a label, roughly."""
_SLANTED_BELOW, _SLANTED_WIDTH = 90.0, 60.0
"""Pixels of a bar group under which names that do not fit are slanted, and pixels of a slanted name."""
_TITLE_HEIGHT = 26
_LOG_FROM = 30.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
_MOST = 1e300
"""Largest value that is drawn: the ends of an axis must be finite too."""
_LOG_ROOM = 1.3
"""Factor by which a logarithmic axis goes beyond its values."""
_LEAST_BAR = 12.0
"""Pixels of a bar that is seen, and of a whisker that is long."""


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with its name; `colour` picks the CSS classes `l0`, `l1`, ..."""

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
class Chart:
    """A chart: its title, a summary in words, and the drawing; `body` is None if there was nothing to draw."""

    title: str
    summary: str = ""
    body: Markup | None = None

    def __html__(self) -> str:
        """Return the chart as part of a page."""
        if self.body is None:
            return Markup('<p class="nodata">No data for "{}" in this run.</p>').format(self.title)
        return Markup(
            '<figure><figcaption>{0}</figcaption><svg class="chart" viewBox="0 0 {1} {2}" role="img" aria-label="{0}. {3}">'
            "<title>{0}</title><desc>{3}</desc>{4}</svg></figure>"
        ).format(self.title, WIDTH, HEIGHT, self.summary, self.body)

    def as_file(self) -> str:
        """Return the chart as an SVG file with its title, in the colours of a light page."""
        height = HEIGHT + _TITLE_HEIGHT
        svg = Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 {2} {0} {1}" role="img">'
            '<title>{3}</title><desc>{4}</desc><style>{5}</style><rect y="{2}" width="{0}" height="{1}" fill="#ffffff"/>'
            '<text class="title" x="{6}" y="-6">{3}</text>{7}</svg>\n'
        ).format(
            WIDTH,
            height,
            -_TITLE_HEIGHT,
            self.title,
            self.summary,
            _light_style(),
            12,
            self.body,
        )
        return _legal(svg)


def _legal(text: str) -> str:
    """Return a text without the characters that XML forbids."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _light_style() -> Markup:
    """Return the rules of a page's style for charts, with the colours of a light page filled in."""
    style = files("ramify.obs").joinpath("style.html.jinja").read_text(encoding="utf-8")
    colours = dict(re.findall(r"(--\w+): (#\w+);", style.partition("@media")[0]))
    rules = style.partition("/* charts */")[2].partition("/* end */")[0]
    return Markup(re.sub(r"var\((--\w+)\)", lambda match: colours[match[1]], rules))


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values to pixels: `low` to `start`, `high` to `stop`."""

    low: float
    high: float
    start: float
    stop: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.stop - self.start)


def line_chart(
    title: str, lines: Sequence[Line], x_label: str, y_label: str, y_range: tuple[float, float] | None = None
) -> Chart:
    """Draw curves over steps, with their names at their right ends.

    For a curve of more than 200 points, means of neighbouring points are drawn. `y_range` fixes the axis (0 to 1 for a
    share); otherwise it spans the data, on a logarithmic scale if they are positive and far apart.
    """
    drawn = [Line(line.name, _thin(line.points), line.colour) for line in lines if line.points]
    if not drawn:
        return Chart(title)
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points]
    if max(map(abs, ys)) > _MOST:
        return Chart(title)
    is_log = y_range is None and min(ys) > 1 / _MOST and max(ys) / min(ys) >= _LOG_FROM
    x_ticks = _ticks(min(xs), max(xs), whole=True)
    ends = (min(ys) / _LOG_ROOM, max(ys) * _LOG_ROOM)
    y_ticks = _log_ticks(*ends) if is_log else _ticks(*(y_range or (min(ys), max(ys))))
    x_scale = _Scale(min(min(xs), x_ticks[0]), max(max(xs), x_ticks[-1]), LEFT, WIDTH - RIGHT)
    y_scale = _Scale(*(ends if is_log else (y_ticks[0], y_ticks[-1])), HEIGHT - BOTTOM, TOP, is_log)
    shown_label = f"{y_label}, log scale" if is_log else y_label
    body = [_y_axis(y_ticks, y_scale, shown_label), _x_axis(x_ticks, x_scale, x_label)]
    labels = _spread([y_scale(line.points[-1][1]) for line in drawn])
    body += (_line(line, x_scale, y_scale, label) for line, label in zip(drawn, labels, strict=True))
    summary = "; ".join(
        f"{line.name} from {line.points[0][1]:.3g} to {line.points[-1][1]:.3g}" for line in drawn
    )
    return Chart(title, f"{y_label} by {x_label}: {summary}", Markup("").join(body))


def bar_chart(title: str, groups: Sequence[BarGroup], y_label: str) -> Chart:
    """Draw bars of shares (0 to 1), drawn in percent, with whiskers for their intervals and the value at each."""
    if not groups:
        return Chart(title)
    y_scale = _Scale(0.0, 100.0, HEIGHT - BOTTOM, TOP)
    slot = (WIDTH - LEFT - 16) / len(groups)
    body = [_y_axis([0.0, 25.0, 50.0, 75.0, 100.0], y_scale, y_label, right=WIDTH - 16)]
    is_slanted = any(_CHAR_WIDTH * len(group.name) > slot for group in groups) and slot < _SLANTED_BELOW
    for index, group in enumerate(groups):
        left = LEFT + index * slot
        body.append(_group_name(group.name, left + slot / 2, slot, is_slanted))
        width = min(slot * 0.8 / len(group.bars), 64.0)
        start = left + (slot - width * len(group.bars)) / 2
        middles = [start + (number + 0.5) * width for number in range(len(group.bars))]
        drawn = list(zip(group.bars, middles, strict=True))
        body += [_bar(bar, group.name, middle, width, y_scale) for bar, middle in drawn]
        # Over all bars of the group.
        body += [_bar_value(bar, middle, y_scale, is_first=bar is group.bars[0]) for bar, middle in drawn]
    summary = "; ".join(f"{group.name}: " + ", ".join(map(_spoken, group.bars)) for group in groups)
    return Chart(title, summary, Markup("").join(body))


def _group_name(name: str, x: float, slot: float, is_slanted: bool) -> Markup:
    y = HEIGHT - BOTTOM + (9 if is_slanted else 18)
    return Markup(
        '<text class="tick" text-anchor="{}" transform="translate({:.1f} {}){}"><title>{}</title>{}</text>'
    ).format(
        "end" if is_slanted else "middle",
        x + (4 if is_slanted else 0),
        y,
        " rotate(-30)" if is_slanted else "",
        name,
        _shorten(name, _SLANTED_WIDTH if is_slanted else slot - 6),
    )


def _shorten(text: str, width: float) -> str:
    """Return the end of a path that fits, or the beginning of any other text."""
    most = max(3, int(width / _CHAR_WIDTH))
    if len(text) <= most:
        return text
    return f"\u2026{text[1 - most :]}" if "/" in text else f"{text[: most - 1]}\u2026"


def _line(line: Line, x_scale: _Scale, y_scale: _Scale, label_y: float) -> Markup:
    points = [(x_scale(x), y_scale(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = Markup("").join(
        Markup('<circle class="{}s{}" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>').format(
            "hit " if len(points) > 1 else "", line.colour, px, py, f"{line.name}: {y:.4g} at {x:.0f}"
        )
        for (px, py), (x, y) in zip(points, line.points, strict=True)
    )
    return Markup(
        '<polyline class="line l{0}" points="{1}"/>{2}<text class="label s{0}" x="{3:.1f}" y="{4:.1f}"><title>{5}</title>{6}</text>'
    ).format(
        line.colour,
        path,
        dots,
        points[-1][0] + 8,
        label_y + 4,
        line.name,
        _shorten(line.name, WIDTH - points[-1][0] - 8),
    )


def _bar(bar: Bar, group: str, middle: float, width: float, y_scale: _Scale) -> Markup:
    top = y_scale(100 * bar.value)
    return Markup(
        '<g><title>{}</title><rect class="bar s{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"/>'
        '<path class="whisker" d="{}"/></g>'
    ).format(
        f"{group}: {_spoken(bar)}",
        bar.colour,
        middle - width / 2 + 2,
        top,
        width - 4,
        y_scale(0.0) - top,
        f"M{middle - 4:.1f} {y_scale(100 * bar.low):.1f}h8m-4 0V{y_scale(100 * bar.high):.1f}m-4 0h8",
    )


def _bar_value(bar: Bar, middle: float, y_scale: _Scale, is_first: bool) -> Markup:
    """Return the value over the whisker; of a bar that hardly shows, beside its foot, so that it is not read at the whisker's end."""
    top, end = y_scale(100 * bar.value), y_scale(100 * bar.high)
    x, y, anchor = middle, end - 5, "middle"
    if y_scale(0.0) - top < _LEAST_BAR < top - end:
        x, y, anchor = (middle - 6, top - 3, "end") if is_first else (middle + 6, top - 3, "start")
    return Markup('<text class="value" x="{:.1f}" y="{:.1f}" text-anchor="{}">{:.0f}</text>').format(
        x, y, anchor, 100 * bar.value
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
    if high - low < 1e-9 * max(1.0, abs(low)):
        around = max(0.5, 1e-6 * abs(low))
        low, high = low - around, high + around
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    if whole:
        step = max(step, 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return numbers with one digit within the range: powers of ten, with 2 and 5 between them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 5) if last - first <= 2 else (1,)
    step = math.ceil((last - first) / 6)
    ticks = (digit * 10.0**power for power in range(first, last + 1, step) for digit in digits)
    return [tick for tick in ticks if low <= tick <= high]


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
    return f"{value:,.0f}" if abs(value) < 1e6 and value == int(value) else f"{value:.4g}"
