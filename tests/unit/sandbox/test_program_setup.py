"""An environment or a list of packages that cannot be used is refused by name, in one sentence that says what differs."""

import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from ramify.core.errors import ConfigError
from ramify.sandbox.launch import installed
from ramify.sandbox.program_setup import environment_setup, packages_setup

HERE = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def lay_out(folder, *pythons, site=None):
    (folder / "bin").mkdir(parents=True)
    for name in pythons:
        (folder / "bin" / name).symlink_to(sys.executable)
    if site is not None:
        (folder / "lib" / site / "site-packages").mkdir(parents=True)
    return folder


def test_a_virtual_environment_is_one(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    setup = environment_setup(tmp_path / "env")
    site = str((tmp_path / "env" / "lib" / HERE / "site-packages").resolve())
    assert (setup.environment, setup.paths, setup.folders, dict(setup.versions)) == (
        site,
        (site,),
        (site,),
        {},
    )
    assert installed(setup) == ()


def test_packages_of_conda_may_read_the_libraries_of_their_environment(tmp_path):
    folder = lay_out(tmp_path / "conda", "python", HERE, site=HERE)
    (folder / "conda-meta").mkdir()
    library = str((folder / "lib").resolve())
    assert environment_setup(folder).folders == (library, f"{library}/{HERE}/site-packages")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: folder, "expected the folder of an environment, found none at"),
        (lambda folder: lay_out(folder), f"has no Python, expected bin/{HERE}. Set the folder of"),
        (lambda folder: lay_out(folder, "python", "python3"), f"has no Python, expected bin/{HERE}."),
        (
            lambda folder: lay_out(folder, "python3", "python3.8", site="python3.8"),
            f"has Python 3.8, and programs run with Python {HERE[6:]}. Make the environment with {HERE}.",
        ),
        (
            lambda folder: lay_out(folder, HERE),
            f"is no virtual or conda environment, because it has no lib/{HERE}/site-packages.",
        ),
    ],
)
def test_what_is_no_environment_of_this_python_is_refused_by_name(tmp_path, make, reason):
    folder = make(tmp_path / "env")
    with pytest.raises(ConfigError, match=re.escape(reason)) as error:
        environment_setup(folder)
    message = str(error.value)
    assert message.startswith("tools.python.environment: ")
    assert str(folder) in message
    assert "\n" not in message


def test_a_package_is_listed_with_what_it_requires():
    setup = packages_setup(["jinja2"])
    assert setup.versions["Jinja2"] == version("jinja2")
    assert {"jinja2", "markupsafe"} == {*setup.names}
    assert installed(setup) == ("numpy", "mpmath", "sympy", "Jinja2", "MarkupSafe")


def test_a_package_that_is_not_installed_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"^tools\.python\.packages: 'no-such-package' is not installed"):
        packages_setup(["numpy", "no-such-package"])
