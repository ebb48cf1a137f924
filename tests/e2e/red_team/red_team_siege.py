"""Runs every attack at one level and prints the outcomes as JSON; a process of its own, of whatever user.

python red_team_siege.py LEVEL MARKER [IMPORT]

LEVEL: none, or 0 to 4; IMPORT: a module that each program imports first, or `ballast`, which is in an environment of the user's
whose programs start with a preamble.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

import red_team_files
import red_team_resources
import red_team_system
from red_team_cases import Attack, Outcome
from red_team_scene import Scene, UnguardedRunner

from ramify.core.protocols import Sandbox, SandboxResult
from ramify.sandbox.jail import Limits
from ramify.sandbox.levels import why_not
from ramify.sandbox.pool import open_sandbox
from ramify.sandbox.program_setup import ProgramSetup, environment_setup

ATTACKS = (*red_team_files.ATTACKS, *red_team_system.ATTACKS, *red_team_resources.ATTACKS)
LIMITS = Limits(file_bytes=1 << 20, output_bytes=4096, num_processes=48)
USERS = "ballast"
_AT_ONCE = 4
_SETTLE_SECONDS = 10.0


class Siege:
    """The attacks on one sandbox."""

    def __init__(self, scene: Scene, sandbox: Sandbox, first_line: str) -> None:
        self._scene = scene
        self._sandbox = sandbox
        self._first_line = first_line
        self._is_guarded = not isinstance(sandbox, UnguardedRunner)
        self._settle_seconds = _SETTLE_SECONDS if self._is_guarded else 0.0
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._results: dict[str, tuple[SandboxResult, int]] = {}
        self._unserved: list[str] = []

    async def run(self) -> dict[str, object]:
        for attack in ATTACKS:
            self._scene.prepare(attack)
        await asyncio.gather(*(self._together(attack) for attack in ATTACKS if not attack.alone))
        for attack in ATTACKS:
            if attack.alone:
                await self._attack(attack)
        await self._sandbox.close()
        left = await self._scene.survivors(0, self._settle_seconds)
        _end(left)
        outcomes = {attack.name: self._outcome(attack) for attack in ATTACKS}
        outputs = {
            name: [r.status, r.stdout[-500:], r.stderr[-500:]] for name, (r, _) in self._results.items()
        }
        folders = [path.name for path in self._scene.tmp.glob("ramify-*")]
        return {
            "outcomes": outcomes, "said": outputs, "unserved": self._unserved, "left": len(left),
            "folders": folders,
        }  # fmt: skip

    async def _together(self, attack: Attack) -> None:
        async with self._places:
            await self._attack(attack)

    async def _attack(self, attack: Attack) -> None:
        before = len(self._scene.workers())
        companion = await self._start_companion(attack)
        result = await self._sandbox.run(self._program(attack, attack.code), attack.timeout_seconds)
        if companion is not None:
            companion.cancel()
            await asyncio.wait([companion])
        survivors = await self._scene.survivors(before, self._settle_seconds) if attack.alone else set()
        _end(survivors - self._zygotes(survivors))
        self._results[attack.name] = (result, len(survivors))
        if not self._is_guarded:
            return
        plain = await self._sandbox.run(self._first_line + "print(6 * 7)", 20.0)
        if plain.stdout != "42\n":
            self._unserved.append(f"after {attack.name}: {plain}")

    async def _start_companion(self, attack: Attack) -> "asyncio.Task[SandboxResult] | None":
        if not attack.companion:
            return None
        companion = asyncio.create_task(
            self._sandbox.run(self._program(attack, attack.companion), attack.timeout_seconds)
        )
        await asyncio.wait([companion], timeout=0.5)
        return companion

    def _program(self, attack: Attack, code: str) -> str:
        return self._first_line + self._scene.program(attack, code, self._is_guarded)

    def _zygotes(self, pids: set[int]) -> set[int]:
        return {pid for pid in pids if _parent(pid) == os.getpid()}

    def _outcome(self, attack: Attack) -> Outcome:
        result, survivors = self._results[attack.name]
        return attack.judge(self._scene.evidence(attack, result, survivors))


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return int(file.read().rpartition(")")[2].split()[1])
    return None


def _end(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _lay_out(folder: Path) -> ProgramSetup:
    """Lay out an environment with the package `ballast`, and return its setup with a preamble."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    package = folder / "lib" / name / "site-packages" / USERS
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("WEIGHT = 40\n")
    (folder / "bin").mkdir()
    (folder / "bin" / name).symlink_to(sys.executable)
    return environment_setup(folder, f"import json, {USERS}\nkept = [{USERS}.WEIGHT]")


def _files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def main() -> None:
    level, marker, *first = sys.argv[1:]
    missing = None if level == "none" else why_not(int(level))
    if missing is not None:
        sys.stdout.write(json.dumps({"missing": missing}))
        return
    scene = Scene(marker)
    environment = scene.folder / "users-environment"
    setup = _lay_out(environment) if USERS in first else None
    before = _files_below(environment)
    sandbox: Sandbox = (
        UnguardedRunner(marker) if level == "none" else open_sandbox(int(level), int(level), LIMITS, setup)
    )
    try:
        siege = Siege(scene, sandbox, "".join(f"import {name}\n" for name in first))
        report = asyncio.run(siege.run())
        report["environment"] = "whole" if _files_below(environment) == before else "changed"
    finally:
        scene.clear()
    for word in report["said"][red_team_system.SHARED_MEMORY][1].split():
        if word.isdigit():
            ctypes.CDLL(None).shmctl(int(word), 0, None)
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
