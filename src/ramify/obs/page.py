"""Self-contained pages without scripts or network access: cards, charts and tables in the style of all reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

Cell: TypeAlias = str | int | float | None


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
    """The page as HTML."""
    return render_template(
        "page.html.jinja",
        title=title,
        subtitle=subtitle,
        cards=cards,
        sections=sections,
        is_number=_is_number,
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
    """Dotted keys with their values, as the `-s` option spells them."""
    pairs: list[tuple[str, object]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            pairs.extend(flat(value, f"{prefix}{key}."))
        else:
            pairs.append((f"{prefix}{key}", value))
    return pairs


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
