"""A small English encyclopedia: three facts a country, from the tables of the package `countryinfo` (MIT licence).

The package is the source of every answer, so some facts are out of date; a question is about what the table says.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from countryinfo import all_countries

_WORD = re.compile(r"[A-Z][a-z]+")


@dataclass(frozen=True, slots=True)
class Country:
    """A country; `area` is in square kilometres."""

    name: str
    capital: str
    area: int
    population: int

    @property
    def facts(self) -> dict[str, str]:
        """A sentence by what it tells."""
        return {
            "area": f"The area of {self.name} is {self.area} square kilometres.",
            "capital": f"The capital of {self.name} is {self.capital}.",
            "population": f"The population of {self.name} is {self.population} people.",
        }


@cache
def countries() -> tuple[Country, ...]:
    """All countries of the package whose name and capital are one word of plain letters each, by name."""
    found: dict[str, Country] = {}
    for country in all_countries():
        facts = country.info()
        name, capital = str(facts.get("name")), str(facts.get("capital"))
        area, population = facts.get("area"), facts.get("population")
        plain = _WORD.fullmatch(name) and _WORD.fullmatch(capital) and name != capital
        if plain and area and population and float(area).is_integer():
            found[name] = Country(name, capital, int(area), int(population))
    return tuple(found[name] for name in sorted(found))


def passages() -> Iterator[dict[str, str]]:
    """Rows {id, text} of a corpus for the search tool, one a fact."""
    for country in countries():
        for what, text in country.facts.items():
            yield {"id": f"{country.name}/{what}", "text": text}
