"""What a user adds to programs, a preamble and packages, at each level that this machine reaches and at a service."""

import asyncio
import re
import sys

import pytest

from loopback import serve
from ramify.core.errors import MachineError
from ramify.core.protocols import SandboxStatus
from ramify.net.client import HttpClient, HttpSettings
from ramify.sandbox.levels import try_setup, why_not
from ramify.sandbox.pool import open_sandbox
from ramify.sandbox.program_setup import ProgramSetup, environment_setup, packages_setup
from ramify.tools.python import RemoteSandbox
from sandbox_levels import ALL, HIGHEST, at_levels
from sandbox_service import run_code

PREAMBLE = (
    "import random\nfrom math import comb\nx, seen = 2, []\nrandom.random()\ndef twice(n):\n    return 2 * n"
)
TOOL_STAR = "import numpy as np\nimport sympy\nimport math\nfrom sympy import symbols, Eq, solve\nx, y, z = symbols('x y z')"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A folder laid out as a virtual environment of this Python, with one package and a link that leads out."""
    folder = tmp_path_factory.mktemp("environments") / "own"
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / name).symlink_to(sys.executable)
    site = folder / "lib" / name / "site-packages"
    (site / "ballast").mkdir(parents=True)
    (site / "ballast" / "__init__.py").write_text("WEIGHT = 40\nfrom ballast.inner import twice\n")
    (site / "ballast" / "inner.py").write_text("def twice(n):\n    return 2 * n\n")
    (site / "ballast" / "data.txt").write_text("stones")
    (site / "ballast-1.5.dist-info").mkdir()
    (site / "ballast-1.5.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: ballast\nVersion: 1.5\n"
    )
    secret = folder.parent / "secret"
    secret.write_text("rt-secret")
    (site / "ballast" / "link.txt").symlink_to(secret)
    return folder


def state_of(folder):
    return {
        path.relative_to(folder): (
            path.lstat().st_mode,
            path.lstat().st_mtime,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in folder.rglob("*")
    }


def run_all(level, setup, *programs, cells=()):
    """Return the results of programs, one after the other, in a sandbox of a level."""

    async def main():
        sandbox = open_sandbox(level, level, setup=setup)
        try:
            return [await sandbox.run(program, 60.0, cells) for program in programs]
        finally:
            await sandbox.close()

    if reason := why_not(level):
        pytest.skip(reason)
    return asyncio.run(main())


def outputs(results):
    assert [result.status for result in results] == [SandboxStatus.OK] * len(results), results
    return [result.stdout for result in results]


PROGRAMS = (
    "seen.append(x)\nx = comb(5, x)\n(x, seen)",
    "(x, seen, twice(4))",
    "random.random()",
    "random.random()",
)
EXPECTED = ["(10, [2])\n", "(2, [], 8)\n"]


@pytest.mark.parametrize("level", at_levels(ALL))
def test_every_program_starts_with_the_names_of_the_preamble_as_it_left_them(level):
    first, second, *draws = outputs(run_all(level, ProgramSetup(PREAMBLE), *PROGRAMS))
    assert [first, second] == EXPECTED
    assert (
        draws[0] == draws[1] == outputs(run_all(level, ProgramSetup(), "import random\nrandom.random()"))[0]
    )


@pytest.mark.integration
def test_a_service_starts_every_program_with_the_names_too():
    async def main(url):
        client = HttpClient("sandbox", HttpSettings(timeout_seconds=60))
        sandbox = RemoteSandbox(client, base_url=url, preamble=PREAMBLE)
        results = [await sandbox.run(program, 20.0) for program in PROGRAMS[:2]]
        results.append(await sandbox.run("(x, seen)", 20.0, ("x += 1", "seen.append(x)")))
        await sandbox.close()
        return results

    with serve(run_code) as service:
        assert outputs(asyncio.run(main(service.url))) == [*EXPECTED, "(3, [3])\n"]


@pytest.mark.parametrize("level", at_levels(ALL))
def test_cells_restore_a_state_that_began_with_the_preamble(level):
    setup = ProgramSetup("x = 1")
    (output,) = outputs(run_all(level, setup, "print(x, y)", cells=("y = x + 1", "x = 5")))
    assert output == "5 2\n"


ATTACKS = {
    "write": "open(place + '/data.txt', 'w')",
    "add": "open(place + '/more.py', 'x')",
    "unlink": "os.unlink(place + '/inner.py')",
    "rename": "os.rename(place, place + '2')",
    "mkdir": "os.mkdir(place + '/sub')",
    "chmod": "os.chmod(place + '/inner.py', 0o777)",
    "truncate": "os.truncate(place + '/data.txt', 0)",
    "link": "os.symlink('/etc/passwd', place + '/more')",
    "hard link": "os.link(place + '/data.txt', 'mine')",
    "touch": "os.utime(place + '/data.txt')",
    "follow": "open(place + '/link.txt').read()",
    "leave": "open(place + '/../../../../../secret').read()",
}


@pytest.mark.parametrize("level", at_levels(level for level in ALL if level >= 2))
def test_an_environment_is_imported_and_read_and_nothing_else(level, environment):
    setup = environment_setup(environment, "import ballast")
    before = state_of(environment)
    package = setup.paths[0] + "/ballast"
    use = f"from ballast import inner\nopen({package!r} + '/data.txt').read(), inner.twice(ballast.WEIGHT)"
    hostile = [
        f"import os\nplace = {package!r}\ntry:\n    print('GOT', {attack})\nexcept OSError as error:\n    print('no')"
        for attack in ATTACKS.values()
    ]
    poison = "ballast.WEIGHT = 0\nballast.twice = None"
    # Packages of ramify are not there: this environment has no numpy, and nothing beside it is found.
    absent = [
        f"try:\n    import {name}\nexcept ImportError:\n    print('no')"
        for name in ("numpy", "ramify", "pip")
    ]
    outcome = outputs(run_all(level, setup, *hostile, poison, use, *absent))
    # The sandbox reports success for a change of modes or times and changes nothing, so that `shutil.copy` works.
    assert dict(zip(ATTACKS, outcome, strict=False)) == {
        **dict.fromkeys(ATTACKS, "no\n"),
        **dict.fromkeys(("chmod", "touch"), "GOT None\n"),
    }
    assert outcome[len(ATTACKS) + 1 :] == ["('stones', 80)\n", *(3 * ["no\n"])]
    assert state_of(environment) == before
    assert try_setup(level, setup) > 0


@pytest.mark.parametrize("level", at_levels(level for level in ALL if level != 1))
def test_a_listed_package_comes_with_what_it_requires_and_nothing_beside_it(level):
    setup = packages_setup(["Jinja2"])
    assert {"Jinja2", "MarkupSafe"} <= {*setup.versions}
    renders = "import jinja2, markupsafe\njinja2.Template('{{ 6 * n }}').render(n=7)"
    absent = "try:\n    import torch\nexcept ModuleNotFoundError as error:\n    print(error)"
    numbers = "import numpy.random, jinja2\nnumpy.random.rand()"
    outcome = outputs(run_all(level, setup, renders, absent, numbers, numbers))
    assert outcome[:2] == ["42\n", "No module named 'torch'\n"]
    assert outcome[2] == outcome[3]


@pytest.mark.parametrize(
    ("preamble", "reason"),
    [
        (
            "x = 1\nimport no_such_module",
            "tools.python.preamble, line 2: ModuleNotFoundError: No module named",
        ),
        ("raise SystemExit(3)", "tools.python.preamble, line 1: SystemExit: 3"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "tools.python.preamble: it left a thread running",
        ),
        (
            "import os\nos._exit(0)",
            "tools.python: no program can start with its setup: the sandbox process died",
        ),
    ],
)
def test_a_preamble_that_fails_is_one_line_with_its_line(preamble, reason):
    from ramify.core.errors import ConfigError

    with pytest.raises(ConfigError, match=f"^{re.escape(reason)}") as error:
        try_setup(HIGHEST, ProgramSetup(preamble))
    assert "\n" not in str(error.value)


def test_a_preamble_that_takes_too_long_is_named_with_the_time(monkeypatch):
    from ramify.core.errors import ConfigError

    monkeypatch.setattr("ramify.sandbox.levels._SETUP_SECONDS", 1.5)
    words = "no trial program ended within 1.5 s. Shorten tools.python.preamble."
    with pytest.raises(ConfigError, match=re.escape(words)):
        try_setup(HIGHEST, ProgramSetup("import time\ntime.sleep(30)"))
    monkeypatch.setattr("ramify.sandbox.pool._START_SECONDS", 1.5)

    async def start():
        sandbox = open_sandbox(0, HIGHEST, setup=ProgramSetup("import time\ntime.sleep(30)"))
        try:
            await sandbox.run("print(1)", 5)
        finally:
            await sandbox.close()

    words = "no process was ready within 1.5 s. Shorten tools.python.preamble."
    with pytest.raises(MachineError, match=re.escape(words)):
        asyncio.run(start())


RELEASED_STYLE = {
    "print(np.sqrt(16)); print(solve(x**2 - 4, x))": "4.0\n[-2, 2]\n",
    "a, b = symbols('a b')\nsolution = solve((Eq(a + b, 10), Eq(a - b, 4)), (a, b))\nprint(solution)": "{a: 7, b: 3}\n",
    "import sympy as sp\nn = sp.symbols('n')\nprint(sp.summation(n**2, (n, 1, 10)))": "385\n",
    "print(sympy.integrate(x * sympy.sin(x), (x, 0, sympy.pi)))": "pi\n",
    "def f(n):\n    return math.factorial(n) // (math.factorial(2) * math.factorial(n - 2))\n\nprint(f(10))": "45\n",
    "A = np.array([[2, 1], [1, 3]])\nprint(round(float(np.linalg.det(A))))": "5\n",
    "print(sympy.factorint(2024), math.gcd(84, 126))": "{2: 3, 11: 1, 23: 1} 42\n",
    "solve([x + y + z - 6, x - y, z - 3], [x, y, z])": "{x: 3/2, y: 3/2, z: 3}\n",
}


def test_programs_of_the_release_run_with_its_names():
    results = run_all(HIGHEST, ProgramSetup(TOOL_STAR), *RELEASED_STYLE)
    assert dict(zip(RELEASED_STYLE, outputs(results), strict=True)) == RELEASED_STYLE
