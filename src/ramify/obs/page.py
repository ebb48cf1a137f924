"""Self-contained pages without scripts or network access: cards, charts, tables and texts that unfold; and their charts as files."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ramify.files.durable import replace_file
from ramify.net.secrets import printable, shown
from ramify.obs.charts import Chart

Cell: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True)
class Card:
    """One of the key figures at the top of a page; `colour` is that of its value: s0, s1, ..."""

    title: str
    value: str
    note: str
    colour: int = 1


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header; numbers are right-aligned, None is an empty cell."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class FoldedText:
    """A text that opens on a click."""

    title: str
    body: Markup


@dataclass(frozen=True, slots=True)
class Section:
    """Text, a legend (colour of the style, meaning), a drawing, charts, tables, then folded texts, under a heading.

    `folded` tables open on a click. `commands` are lines for a shell.
    """

    heading: str
    text: str = ""
    warnings: Sequence[str] = ()
    legend: Sequence[tuple[str, str]] = ()
    drawing: Markup | None = None
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    texts: Sequence[FoldedText] = ()
    commands: Sequence[str] = ()
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page, before it is HTML."""

    title: str
    subtitle: str
    cards: Sequence[Card]
    sections: Sequence[Section]


def write_page(path: Path, page: Page) -> None:
    """Write a page as one HTML file."""
    # A text of the data may not reorder or hide what stands beside it.
    replace_file(path, printable(render_page(page), keep="\n\t\r\u200c\u200d").encode())


def render_page(page: Page) -> str:
    """Return a page as HTML; all of its values are escaped."""
    environment = Environment(
        loader=PackageLoader("ramify.obs", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.jinja")
    return template.render(page=page, is_number=lambda value: isinstance(value, int | float))


def in_a_line(text: str, chars: int) -> str:
    """Return a text on one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= chars else f"{line[:chars]}\u2026"


def flat(config: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Return dotted keys with their values, as the `-s` option spells them."""
    pairs: list[tuple[str, object]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            pairs.extend(flat(value, f"{prefix}{key}."))
        else:
            pairs.append((f"{prefix}{key}", value))
    return pairs


def settings_table(config: Mapping[str, object]) -> Table:
    """Return a table of settings, without keys of services."""
    return Table("", ("key", "value"), [(key, shown(str(value))) for key, value in flat(config)])


_ZOOM = 3
"""Pixels of a PNG for each unit of the SVG: 1,680 wide."""


def write_figures(page: Page, folder: Path) -> tuple[Path, ...]:
    """Write the charts of a page as SVG, and as PNG if the extra `figures` is installed; returns the files.

    Each is named by its title. Without the extra there are SVG files only.
    """
    paths: list[Path] = []
    for name, chart in _named(page):
        svg = chart.as_file()
        files = {".svg": svg.encode("utf-8", "replace"), ".png": _as_png(svg)}
        for suffix, content in files.items():
            if content is not None:
                paths.append(folder / f"{name}{suffix}")
                replace_file(paths[-1], content)
    return tuple(paths)


def _as_png(svg: str) -> bytes | None:
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        return None
    return bytes(svg_to_bytes(svg_string=svg, zoom=_ZOOM))


def _named(page: Page) -> Iterator[tuple[str, Chart]]:
    names: set[str] = set()
    for section in page.sections:
        for chart in section.charts:
            if chart.body is None:
                continue
            name = re.sub(r"[^a-z0-9]+", "-", chart.title.casefold())[:60].strip("-") or "figure"
            numbers = (f"{name}-{number}" for number in range(2, 1000))
            while name in names:
                name = next(numbers)
            names.add(name)
            yield name, chart
