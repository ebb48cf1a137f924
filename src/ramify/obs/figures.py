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
