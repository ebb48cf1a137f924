"""The packages that snippets may import besides the standard library; a zygote loads them once."""

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
# sympy imports these when it first expands, differentiates, integrates or simplifies, which takes 20 to 100 ms.
_MENTIONS = {name: re.compile(rf"\b{name}\b") for name in _NAMES}


@dataclass(frozen=True, slots=True)
class Packages:
    """What a zygote loads.

    Attributes:
        modules: Imported before the first snippet; submodules that the installed version lacks are skipped.
        paths: Folders to import them from.
        folders: Folders that snippets may read.
    """

    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


def mentioned(code: str, cells: Sequence[str]) -> frozenset[str]:
    """The names of packages that occur in a program or in the cells before it.

    This looks for the word, not for an import: parsing untrusted code could crash our process, and a word that is not
    an import only costs a slower start. A program that builds the name at run time finds only the standard library.
    """
    texts = (*cells, code)
    return frozenset(
        name for name in _NAMES if any(name in text and _MENTIONS[name].search(text) for text in texts)
    )


@functools.cache
def everything() -> Packages:
    """All installed packages, with the submodules that they would import later: for a zygote of many snippets."""
    found = scientific(_NAMES)
    parts = [part for part in _LATE_PARTS.split() if part.split(".")[0] in found.modules]
    return replace(found, modules=(*found.modules, *parts))


@functools.cache
def scientific(names: Iterable[str]) -> Packages:
    """The installed packages among `names`."""
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
