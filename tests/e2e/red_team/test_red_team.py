"""Attacks on the sandbox at each level that this machine reaches, as root and as an ordinary user.

What comes of each is asserted to be what docs/sandbox.md says, no worse and no better.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import red_team_table
from red_team_siege import ATTACKS, USERS
from red_team_table import IDENTITIES, LEVELS

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"
NOBODY = 65534
TOP = LEVELS[-1]
MODULE = "numpy"
"""Programs that import it run over the scientific zygote."""
GUARDED = ("2", "3")


class Army:
    """Runs sieges, each in a process of its own, three at a time: much of it is waiting."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(3)
        self._pythons = {identity: self._python(identity) for identity in IDENTITIES}
        self._runs: dict[tuple[str, ...], Future[dict]] = {}
        # The longest first.
        for level in ("0", "none", "1", "2", "3", "4"):
            for identity in IDENTITIES:
                self.start(identity, level)
        self.start(IDENTITIES[0], TOP, MODULE)
        for level in GUARDED:
            self.start(IDENTITIES[0], level, USERS)

    def start(self, identity: str, level: str, *modules: str) -> None:
        if self._pythons[identity] is not None:
            self._runs[identity, level, *modules] = self._pool.submit(self._siege, identity, level, *modules)

    def report(self, identity: str, level: str, *modules: str) -> dict:
        if self._pythons[identity] is None:
            why = "root" if identity == "root" else "an interpreter that an ordinary user can start"
            pytest.skip(f"this needs {why}")
        report = self._runs[identity, level, *modules].result()
        if "missing" in report:
            pytest.skip(f"level {level} as {identity}: {report['missing']}")
        return report

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _siege(self, identity: str, level: str, *modules: str) -> dict:
        # The name of this folder is in the command line of all that the sandboxes start.
        marked = Path(tempfile.mkdtemp(prefix="mark-", dir=self._folder))
        marked.chmod(0o755)
        (marked / "src").symlink_to(SOURCE)
        command = [self._pythons[identity], str(HERE / "red_team_siege.py"), level, str(marked), *modules]
        run = subprocess.run(
            command, **self._as(identity, marked / "src"), capture_output=True, text=True, timeout=800, check=False
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    def _as(self, identity: str, source: Path) -> dict:
        # What is installed for this interpreter serves the other one of the same version too.
        installed = [path for path in sys.path if path.endswith("site-packages")]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(source), str(HERE), *installed]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "RED_TEAM_KEY": f"rt-env-{secrets.token_hex(16)}",
        }
        settings: dict = {"env": environment, "cwd": "/"}
        if identity == "user" and os.geteuid() == 0:
            settings |= {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        return settings

    def _python(self, identity: str) -> str | None:
        if identity == "root" and os.geteuid() != 0:
            return None
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        trial = "import pyseccomp, ramify.sandbox.pool"
        for python in (sys.executable, f"/usr/local/bin/{name}", f"/usr/bin/{name}"):
            try:
                run = subprocess.run(
                    [python, "-c", trial], **self._as(identity, SOURCE), capture_output=True, check=False
                )
            except OSError:
                continue
            if run.returncode == 0:
                return python
        return None


@pytest.fixture(scope="module")
def army() -> Iterator[Army]:
    if sys.platform != "linux":
        pytest.skip("the attacks are written for Linux")
    with tempfile.TemporaryDirectory(prefix="red-team-") as folder:
        Path(folder).chmod(0o755)
        army = Army(Path(folder))
        yield army
        army.close()


def differences(report: dict, level: str, identity: str) -> list[str]:
    documented = red_team_table.read()
    unsure = {attack.name: attack.unsure for attack in ATTACKS}
    lines = []
    for name, outcome in report["outcomes"].items():
        expected = documented[name][level, identity]
        if outcome == expected:
            continue
        if (
            "not contained" in (outcome, expected)
            and level in ("none", "0", "1")
            and unsure[name]() is not None
        ):
            continue
        lines.append(f"{name}: {outcome}, documented as {expected}; it said {report['said'][name]}")
    return lines


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("level", LEVELS)
def test_outcomes_are_those_of_the_document(army, level, identity):
    report = army.report(identity, level)
    assert differences(report, level, identity) == []


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("level", LEVELS[1:])
def test_the_sandbox_serves_after_each_attack_and_leaves_nothing(army, level, identity):
    report = army.report(identity, level)
    assert report["unserved"] == []
    assert (report["left"], report["folders"]) == (0, [])


def test_programs_that_import_packages_are_held_as_well(army):
    report = army.report(IDENTITIES[0], TOP, MODULE)
    assert differences(report, TOP, IDENTITIES[0]) == []
    assert (report["unserved"], report["left"], report["folders"]) == ([], 0, [])


@pytest.mark.parametrize("level", GUARDED)
def test_programs_with_a_preamble_and_an_environment_are_held_as_well(army, level):
    report = army.report(IDENTITIES[0], level, USERS)
    assert differences(report, level, IDENTITIES[0]) == []
    assert (report["unserved"], report["left"], report["folders"]) == ([], 0, [])
    assert report["environment"] == "whole"


def test_the_table_names_every_attack():
    assert list(red_team_table.read()) == [attack.name for attack in ATTACKS]


def test_from_level_3_on_all_are_contained():
    table = red_team_table.read()
    assert {row[level, who] for row in table.values() for level in ("3", "4") for who in IDENTITIES} == {
        "contained"
    }


def test_nearly_every_attack_succeeds_where_there_is_no_sandbox():
    table = red_team_table.read()
    harmless = [name for name, row in table.items() if row["none", "root"] != "not contained"]
    assert harmless == ["find an earlier program in memory"]
