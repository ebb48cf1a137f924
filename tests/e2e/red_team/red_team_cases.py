"""What an attack is, and how its outcome is judged from what it left behind and what it said."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ramify.core.protocols import SandboxResult, SandboxStatus


class Outcome(StrEnum):
    CONTAINED = "contained"
    """Nothing came of it, or no more than its own call."""
    DETECTED = "detected"
    """It did harm to the sandbox, which noticed: the call is typed as killed, and the next one is served."""
    OPEN = "not contained"


@dataclass(frozen=True)
class Evidence:
    """What is left of one attack.

    Attributes:
        result: Of its call.
        folder: Its own folder outside the sandbox.
        survivors: Processes of it that were still there some time after its call.
        tokens: The planted secrets by kind.
        arrived: Kinds of listeners that were reached.
        signals: Signals that the test's process got.
        dead: Whether the process that it was shown has ended.
        snapshot: What `folder` held when the attack began.
        reward: A number in the memory of the process that runs the sandbox, as a trainer keeps rewards.
    """

    result: SandboxResult
    folder: Path
    survivors: int
    tokens: dict[str, str]
    arrived: set[str]
    signals: int
    dead: bool
    snapshot: object
    reward: bytes


REWARD = b"reward: 0"

Judge = Callable[[Evidence], Outcome]


@dataclass(frozen=True)
class Attack:
    """One row of the table. `code` is a template: `$place` and others are filled in by the scene.

    `companion` is a program that runs before it (and, if it sleeps, meanwhile) in the same sandbox; `alone` keeps
    other attacks away. `unsure` says why the outcome at level 0 and without a sandbox depends on the machine.
    """

    name: str
    code: str
    judge: Judge
    timeout_seconds: float = 20.0
    alone: bool = False
    companion: str = ""
    unsure: Callable[[], str | None] = lambda: None


def verdict(harmed: bool) -> Outcome:
    return Outcome.OPEN if harmed else Outcome.CONTAINED


def leaks(kind: str) -> Judge:
    """Harm: the secret of this kind was printed."""
    return lambda e: verdict(e.tokens[kind] in e.result.stdout + e.result.stderr)


def claims(e: Evidence) -> Outcome:
    """Harm: the program got what it wanted, as far as it can tell."""
    return verdict("GOT" in e.result.stdout)


def changes(e: Evidence) -> Outcome:
    """Harm: its folder outside is not as it was, or what lay there was printed."""
    return verdict(state_of(e.folder) != e.snapshot or e.tokens["file"] in e.result.stdout)


def rewards_itself(e: Evidence) -> Outcome:
    """Harm: the number in the trainer's memory is another one."""
    return verdict(e.reward != REWARD)


def reaches(kind: str) -> Judge:
    """Harm: a listener heard it."""
    return lambda e: verdict(kind in e.arrived)


def survives(e: Evidence) -> Outcome:
    """Harm: its processes outlive the call."""
    return verdict(e.survivors > 0)


def multiplies(e: Evidence) -> Outcome:
    """Harm: it got as many as it wanted, or some outlive the call."""
    return verdict(e.survivors > 0 or "GOT" in e.result.stdout)


def ends_as(*statuses: SandboxStatus) -> Judge:
    """Harm: the call ended in another way."""
    return lambda e: verdict(e.result.status not in statuses)


def damages(e: Evidence) -> Outcome:
    """Harm to the sandbox's own process."""
    if e.result.status is SandboxStatus.KILLED and e.result.stderr == "killed: the sandbox process died":
        return Outcome.DETECTED
    return claims(e)


def state_of(folder: Path) -> object:
    """Names, contents, modes and times of all that lies there."""
    entries = sorted(folder.rglob("*"))
    return [
        (str(p), p.lstat().st_mode, p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"")
        for p in entries
        if p.exists() or p.is_symlink()
    ]
