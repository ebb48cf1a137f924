"""Large pages are asked of the real kernel, in a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
from ramify.sandbox.huge_pages import gather
rows = [[number, str(number)] for number in range(200_000)]
wanted = sum(number for number, _ in rows)
found = gather()
lines = open("/proc/self/smaps_rollup").read().splitlines()
kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
assert sum(number for number, _ in rows) == wanted
assert all(text == str(number) for number, text in rows)
print(found, kilobytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages of 2 MiB are asked of Linux")
def test_objects_move_to_large_pages_and_stay_as_they_are():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found, kilobytes = map(int, done.stdout.split())
    if found == 0:
        pytest.skip("this kernel does not collapse pages on demand")
    assert found >= 5
    assert kilobytes >= 2048 * 5
