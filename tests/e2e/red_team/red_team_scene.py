"""What the attacks are aimed at: planted secrets, listeners, other processes; and a run without any sandbox."""

import asyncio
import contextlib
import ctypes
import os
import platform
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from string import Template

from red_team_cases import REWARD, Attack, Evidence, state_of
from red_team_files import WRITABLE, installed_module

from ramify.core.protocols import SandboxResult, SandboxStatus
from ramify.sandbox.folders import Folder

KINDS = ("file", "home", "env", "other", "args", "memory", "key", "folder", "heap")
_ADD_KEY, _KEYCTL = (248, 250) if platform.machine() == "x86_64" else (217, 219)


class Scene:
    """The surroundings of one driver. `marker` is in the command line of every process that its sandboxes start."""

    def __init__(self, marker: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="red-team-")).resolve()
        self.tmp = self.folder / "tmp"
        self.home = self.folder / "home"
        for folder in (self.tmp, self.home):
            folder.mkdir()
        tempfile.tempdir = str(self.tmp)
        self._marker = marker.encode()
        self.tokens = {kind: f"rt-{kind}-{secrets.token_hex(16)}" for kind in KINDS}
        self.tokens["env"] = os.environ["RED_TEAM_KEY"]
        (self.home / ".netrc").write_text(self.tokens["home"])
        os.environ["HOME"] = str(self.home)
        self._in_memory = ctypes.create_string_buffer(self.tokens["memory"].encode())
        self._reward = ctypes.create_string_buffer(REWARD)
        self._signals = 0
        signal.signal(signal.SIGUSR1, self._count_signal)
        shell = ["sh", "-c", "read line", self.tokens["args"]]
        environment = {"PATH": os.environ["PATH"], "OTHER_KEY": self.tokens["other"]}
        self._others = [subprocess.Popen(shell, stdin=subprocess.PIPE, env=environment) for _ in range(2)]
        self._leave_open()
        self._plant_key()
        self._listen()
        self._snapshots = {}

    def _count_signal(self, *_: object) -> None:
        self._signals += 1

    def _leave_open(self) -> None:
        path = self.folder / "left_open"
        path.write_text(self.tokens["file"])
        os.set_inheritable(os.open(path, os.O_RDONLY), True)

    def _plant_key(self) -> None:
        libc = ctypes.CDLL(None)
        libc.syscall(_KEYCTL, 1, None)
        value = self.tokens["key"].encode()
        libc.syscall(_ADD_KEY, b"user", b"redteam", value, ctypes.c_size_t(len(value)), -3)

    def _listen(self) -> None:
        self._unix = str(self.folder / "socket")
        self._abstract = f"red-team-{self.folder.name}"
        self._listeners = {
            "tcp4": _bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp4": _bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "unix": _bound(socket.AF_UNIX, socket.SOCK_STREAM, self._unix),
            "abstract": _bound(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self._abstract}"),
        }
        with contextlib.suppress(OSError):
            self._listeners["tcp6"] = _bound(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0))

    def program(self, attack: Attack, code: str, with_sandbox: bool) -> str:
        """The attack's program (or its companion), aimed at this scene."""
        ports = {
            kind: listener.getsockname()[1]
            for kind, listener in self._listeners.items()
            if kind[-1].isdigit()
        }
        tasks = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
        folder = self._folder_of(attack)
        return Template(code).substitute(
            {"tcp6": 1, **ports},
            place=folder,
            mark=f"{folder.name}-{folder.parent.name}",
            home=self.home,
            tmp=self.tmp,
            unix=self._unix,
            abstract=self._abstract,
            marker=self._marker.decode(),
            driver=os.getpid(),
            victim=self._others[0].pid,
            prey=self._others[1].pid,
            address=ctypes.addressof(self._in_memory),
            reward=ctypes.addressof(self._reward),
            installed=installed_module(),
            many=tasks + 400,
            blocks=163_840 if with_sandbox else 128,
            secret_notes=self.tokens["folder"],
            secret_words=self.tokens["heap"],
        )

    def prepare(self, attack: Attack) -> None:
        """Lay out what the attack may harm."""
        folder = self._folder_of(attack)
        (folder / "keep").mkdir(parents=True)
        (folder / "keep" / "a").write_text("kept")
        (folder / "secret").write_text(self.tokens["file"])
        (folder / "precious").write_text("precious")
        self._snapshots[attack.name] = state_of(folder)

    def evidence(self, attack: Attack, result: SandboxResult, survivors: int) -> Evidence:
        """Return what is left of an attack once the sandbox is closed."""
        return Evidence(
            result,
            self._folder_of(attack),
            survivors,
            self.tokens,
            self._reached(),
            self._signals,
            self._others[1].poll() is not None,
            self._snapshots[attack.name],
            self._reward.value,
        )

    def _folder_of(self, attack: Attack) -> Path:
        return self.folder / "".join(c if c.isalnum() else "-" for c in attack.name)

    def _reached(self) -> set[str]:
        ready = select.select(list(self._listeners.values()), [], [], 0)[0]
        return {kind for kind, listener in self._listeners.items() if listener in ready}

    def workers(self) -> set[int]:
        """Processes of the sandboxes under test."""
        pids = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and self._marker in (entry / "cmdline").read_bytes():
                    pids.add(int(entry.name))
        return pids

    async def survivors(self, before: int, seconds: float) -> set[int]:
        """Processes beyond as many as there were, once there was time to clear up."""
        end = time.monotonic() + seconds
        while len(left := self.workers()) > before and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return left if len(left) > before else set()

    def clear(self) -> None:
        """Take all of it away."""
        for other in self._others:
            other.kill()
            other.wait()
        for listener in self._listeners.values():
            listener.close()
        for folder in WRITABLE:
            for path in Path(folder).glob(f"*-{self.folder.name}"):
                path.unlink()
        Folder(str(self.folder)).remove()


# A parent of its own, so that attacks on the parent do not hit the driver.
_UNGUARDED = """
import os, sys
child = os.fork()
if child == 0:
    exec(compile(sys.argv[1], "<attack>", "exec"), {"__name__": "__main__"})
else:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 1)
"""


class UnguardedRunner:
    """Runs programs as they are, to show that the attacks are real."""

    level = -1

    def __init__(self, marker: str) -> None:
        self._marker = marker

    async def run(self, code: str, timeout_seconds: float, cells: Sequence[str] = ()) -> SandboxResult:
        folder = Path(tempfile.mkdtemp(prefix="ramify-"), "1")
        folder.mkdir()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _UNGUARDED, code, self._marker,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            cwd=folder, close_fds=False,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        texts = ["", ""]
        # What a child that lives on keeps open never ends.
        readers = [
            asyncio.create_task(_read(texts, index, stream))
            for index, stream in enumerate((process.stdout, process.stderr))
        ]
        # Not process.wait(): it waits for children too that hold the streams.
        end = time.monotonic() + timeout_seconds
        while process.returncode is None and time.monotonic() < end:
            await asyncio.sleep(0.01)
        if process.returncode is None:
            texts[1] += "still running"
        await asyncio.wait(readers, timeout=0.2)
        for reader in readers:
            reader.cancel()
        process._transport.close()  # type: ignore[attr-defined]
        status = SandboxStatus.ERROR if process.returncode else SandboxStatus.OK
        return SandboxResult(status, texts[0], texts[1], self.level)

    async def close(self) -> None:
        pass


async def _read(texts: list[str], index: int, stream: asyncio.StreamReader) -> None:
    while data := await stream.read(1 << 16):
        texts[index] += data.decode("utf-8", "replace")


def _bound(family: int, kind: int, address: object) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.bind(address)
    listener.setblocking(False)
    if kind == socket.SOCK_STREAM:
        listener.listen()
    return listener
