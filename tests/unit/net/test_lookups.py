import asyncio
import socket
import subprocess
import sys
import textwrap

import pytest

from ramify.net.addresses import Lookups

STUCK = """
import asyncio, socket, threading
from ramify.net.addresses import Lookups

def stuck(*arguments, **named):
    threading.Event().wait()

socket.getaddrinfo = stuck

async def whole():
    lookups = Lookups(at_one_time=3)
    tasks = [asyncio.ensure_future(lookups(f"host{i}", 80)) for i in range(60)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    names = [thread.name for thread in threading.enumerate()]
    print(names.count("name lookup"), await asyncio.to_thread(lambda: "free"))

asyncio.run(whole())
"""


def test_addresses_are_found() -> None:
    async def many() -> list[object]:
        lookups = Lookups(at_one_time=2)
        return list(await asyncio.gather(*(lookups(f"127.0.0.{i}", 80) for i in range(1, 21))))

    assert asyncio.run(many()) == [(f"127.0.0.{i}",) for i in range(1, 21)]


def test_a_name_without_an_address_is_an_error() -> None:
    with pytest.raises((socket.gaierror, UnicodeError)):
        asyncio.run(Lookups()("x" * 70 + ".invalid", 80))


def test_a_name_service_that_hangs_holds_neither_the_loops_threads_nor_the_end_of_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STUCK)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["3", "free"]
