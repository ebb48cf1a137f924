"""What a user adds to every program: a preamble, and packages of an environment of the user's. Standard library only.

Only names and versions of files are read here; nothing of the environment runs in this process.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from ramify.core.errors import ConfigError

PREAMBLE_KEY, PACKAGES_KEY, ENVIRONMENT_KEY = (
    f"tools.python.{name}" for name in ("preamble", "packages", "environment")
)
_PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
_TOOLS_OF_ENVIRONMENTS = frozenset({"pip", "setuptools", "wheel", "pkg_resources"})
_REQUIREMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class ProgramSetup:
    """The preamble and the packages of every program.

    Attributes:
        preamble: Python that runs once in each zygote; programs start with its names.
        environment: The site-packages folder from which all packages come; None: ramify's own, for numpy, mpmath and sympy.
        paths: Folders from which programs can import at any time.
        names: The only modules that they can import from these folders; None: all.
        folders: Files and folders that programs may read.
        versions: The version of each distribution that programs can import.
    """

    preamble: str = ""
    environment: str | None = None
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    folders: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)


def environment_setup(folder: Path, preamble: str = "") -> ProgramSetup:
    """Return the setup whose packages are those of a virtual or conda environment.

    Raises:
        ConfigError: The folder is no environment, or one of another version of Python.
    """
    home = folder.expanduser().resolve()
    if not home.is_dir():
        raise ConfigError(f"{ENVIRONMENT_KEY}: expected the folder of an environment, found none at {folder}")
    if not (home / "bin" / _PYTHON).exists():
        others = sorted(path.name for path in (home / "bin").glob("python[0-9]*.[0-9]*") if path.exists())
        has = " and ".join(other.removeprefix("python") for other in others if "-" not in other)
        if has:
            raise ConfigError(
                f"{ENVIRONMENT_KEY}: {folder} has Python {has}, and programs run with Python {_PYTHON[6:]}. "
                f"Make the environment with {_PYTHON}."
            )
        raise ConfigError(
            f"{ENVIRONMENT_KEY}: {folder} has no Python, expected bin/{_PYTHON}. Set the folder of a virtual or conda "
            f"environment."
        )
    library = home / "lib"
    site = library / _PYTHON / "site-packages"
    if not site.is_dir():
        raise ConfigError(
            f"{ENVIRONMENT_KEY}: {folder} is no virtual or conda environment, because it has no lib/{_PYTHON}/site-packages. "
            f"Make one with {_PYTHON} -m venv."
        )
    is_conda = (home / "conda-meta").is_dir()  # its packages load libraries from `lib`
    return ProgramSetup(
        preamble,
        str(site),
        (str(site),),
        None,
        (str(library), str(site)) if is_conda else (str(site),),
        _versions(distributions(path=[str(site)])),
    )


def packages_setup(names: Sequence[str], preamble: str = "") -> ProgramSetup:
    """Return the setup with distributions that are installed beside ramify, and what they require.

    Raises:
        ConfigError: One is not installed, or not in files of its own.
    """
    for name in names:
        if (match := _REQUIREMENT.match(name)) and match[0] != name:
            raise ConfigError(
                f"{PACKAGES_KEY}: expected the name of an installed package alone, got {name!r:.60}. Write {match[0]!r}; its version "
                "is the one that is installed."
            )
    chosen: dict[str, Distribution] = {}
    named = {_key(name) for name in names}
    pending = [*names]
    while pending:
        name = pending.pop()
        key = _key(name)
        if key in chosen:
            continue
        try:
            chosen[key] = distribution(name)
        except (PackageNotFoundError, ValueError):
            if key in named:
                raise ConfigError(
                    f"{PACKAGES_KEY}: {name!r} is not installed beside ramify. Install it, or set "
                    f"{ENVIRONMENT_KEY.rpartition('.')[2]} to an environment that has it."
                ) from None
            continue  # required on other machines only
        required = [text for text in chosen[key].requires or () if "extra ==" not in text]
        matches = [match for text in required if (match := _REQUIREMENT.match(text))]
        pending += [match[0] for match in matches]
    modules: set[str] = set()
    folders: set[Path] = set()
    for name, each in chosen.items():
        tops = {file.parts[0] for file in each.files or () if file.parts[0] not in ("..", "/", "__pycache__")}
        own = {top.partition(".")[0] for top in tops if not top.endswith((".dist-info", ".pth"))}
        if name in named and not any(map(str.isidentifier, own)):
            raise ConfigError(
                f"{PACKAGES_KEY}: {name!r} has no files of its own, as one that was installed with -e. "
                "Install it without -e."
            )
        modules |= {top for top in own if top.isidentifier()}
        folders |= {Path(str(each.locate_file(top))) for top in tops}
    existing = sorted(folder for folder in folders if folder.exists())
    paths = sorted({str(folder.parent) for folder in existing})
    return ProgramSetup(
        preamble,
        None,
        tuple(paths),
        tuple(sorted(modules)),
        tuple(map(str, existing)),
        _versions(chosen.values()),
    )


def _key(name: str) -> str:
    """Return the normalised name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def importable(setup: ProgramSetup) -> tuple[str, ...]:
    """Return the names of the distributions in a setup's environment or list, without the installers."""
    return tuple(name for name in setup.versions if name not in _TOOLS_OF_ENVIRONMENTS)


def _versions(every: Iterable[Distribution]) -> dict[str, str]:
    """Return the versions of distributions by name; damaged ones are left out."""
    versions = {name: each.version for each in every if isinstance(name := each.metadata["Name"], str)}
    return dict(sorted(versions.items(), key=lambda item: item[0].lower()))
