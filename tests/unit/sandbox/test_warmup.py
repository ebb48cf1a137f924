"""Large pages are asked of the real kernel, in a process of its own."""

import subprocess
import sys

import pytest

# How many pages of 2 MiB lie wholly in the heap is by chance: the kernel chooses addresses anew for each process.
PROGRAM = """
import gc
from ramify.sandbox.zygote import use_huge_pages
size = 2 << 20
rows = [[number, str(number)] for number in range(400_000)]
wanted = sum(number for number, _ in rows)
ends = [line.split()[0].split("-") for line in open("/proc/self/maps")]
blocks = {id(each) // size for each in gc.get_objects()}
whole = sum(any(int(a, 16) <= n * size and (n + 1) * size <= int(b, 16) for a, b in ends) for n in blocks)
found = use_huge_pages()
lines = open("/proc/self/smaps_rollup").read().splitlines()
kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
assert sum(number for number, _ in rows) == wanted
assert all(text == str(number) for number, text in rows)
print(whole, found, kilobytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages of 2 MiB are asked of Linux")
def test_objects_move_to_large_pages_and_stay_as_they_are():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    whole, found, kilobytes = map(int, done.stdout.split())
    if found == 0:
        pytest.skip("this kernel does not collapse pages on demand")
    # The kernel may have no large page free just now, and blocks made of several mappings may count beside these.
    assert found >= whole / 2 > 0
    assert kilobytes >= 2048 * whole / 2
