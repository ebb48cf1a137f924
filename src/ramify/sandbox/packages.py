"""Packages beside the standard library that snippets may import, for the zygote that has them loaded."""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

_NAMES = ("numpy", "mpmath", "sympy")
_LATE_PARTS = """
sympy.assumptions.wrapper sympy.combinatorics sympy.integrals.heurisch sympy.integrals.manualintegrate
sympy.integrals.prde sympy.integrals.rde sympy.integrals.risch sympy.physics.units sympy.polys.polymatrix
sympy.sets.setexpr
"""
# Imported when sympy first expands, differentiates, integrates or simplifies, which takes 20 to 100 ms.
_MENTIONS = {name: re.compile(rf"\b{name}\b") for name in _NAMES}


@dataclass(frozen=True, slots=True)
class Packages:
    """What a zygote loads.

    Attributes:
        modules: Imported before the first snippet; parts of a package that it does not have are left out.
        paths: Where they are found.
        folders: The places below those that stay readable.
    """

    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


def mentioned(code: str, cells: Sequence[str]) -> frozenset[str]:
    """The names of packages that occur in a program or the cells before it.

    The word is looked for, not the import: parsing a program that nobody has read could crash the parser's process,
    and a word that is no import costs a slower start only. A program that puts the name together as it runs finds
    the standard library alone.
    """
    texts = (*cells, code)
    return frozenset(
        name for name in _NAMES if any(name in text and _MENTIONS[name].search(text) for text in texts)
    )


@functools.cache
def everything() -> Packages:
    """All that are installed, with the parts that they would import later: for a zygote of many snippets."""
    found = scientific(_NAMES)
    parts = [part for part in _LATE_PARTS.split() if part.split(".")[0] in found.modules]
    return replace(found, modules=(*found.modules, *parts))


@functools.cache
def scientific(names: Iterable[str]) -> Packages:
    """Those of `names` that are installed."""
    modules: list[str] = []
    paths: list[str] = []
    folders: list[str] = []
    for name in sorted(names, key=_NAMES.index):
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            continue
        folder = Path(spec.submodule_search_locations[0])
        modules.append(name)
        paths.append(str(folder.parent))
        libraries = folder.parent / f"{name}.libs"
        folders.extend(str(place) for place in (folder, libraries) if place.exists())
    return Packages(tuple(modules), tuple(dict.fromkeys(paths)), tuple(folders))
