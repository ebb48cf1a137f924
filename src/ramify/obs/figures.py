"""The charts of a page as files, `figures/NAME.svg` and `figures/NAME.png`."""

import re
from collections.abc import Iterator
from pathlib import Path

from ramify.files.durable import replace_file
from ramify.obs.charts import Chart
from ramify.obs.page import Page

_ZOOM = 3
"""Pixels of a PNG for each unit of the SVG: 1,680 wide."""


def write_figures(page: Page, folder: Path) -> tuple[Path, ...]:
    """Write the charts of a page as SVG, and as PNG if the extra `figures` is installed; returns the files.

    Each is named by its title. Without the extra there are SVG files only.
    """
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        svg_to_bytes = None
    paths: list[Path] = []
    for name, chart in _named(page):
        svg = chart.as_file()
        paths.append(folder / f"{name}.svg")
        replace_file(paths[-1], svg.encode("utf-8", "replace"))
        if svg_to_bytes is not None:
            paths.append(folder / f"{name}.png")
            replace_file(paths[-1], bytes(svg_to_bytes(svg_string=svg, zoom=_ZOOM)))
    return tuple(paths)


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
