"""One sandbox of each level that this machine reaches."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ramify.core.protocols import SandboxResult
from ramify.sandbox.jail import Limits
from ramify.sandbox.levels import why_not
from ramify.sandbox.pool import ProcessSandbox, open_sandbox
from sandbox_levels import ALL, at_levels

SMALL = Limits(memory_bytes=128 << 20, file_bytes=1 << 20, output_bytes=4096, num_files=32, num_processes=48)


@dataclass(frozen=True)
class Box:
    """A sandbox with the event loop that it lives on."""

    runner: asyncio.Runner
    sandbox: ProcessSandbox

    @property
    def level(self) -> int:
        return self.sandbox.level

    def run(self, code: str, timeout_seconds: float = 20.0) -> SandboxResult:
        return self.runner.run(self.sandbox.run(code, timeout_seconds))

    def text(self, code: str) -> str:
        """Standard output of a program that must succeed."""
        result = self.run(code)
        assert result.status == "ok", result
        return result.stdout.strip()


@pytest.fixture(scope="session", params=at_levels(ALL))
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    level = request.param
    if reason := why_not(level):
        pytest.skip(f"sandbox level {level}: {reason}")
    with asyncio.Runner() as runner:
        sandbox = open_sandbox(level, level, SMALL)
        yield Box(runner, sandbox)
        runner.run(sandbox.close())
