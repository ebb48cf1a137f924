"""Programs that go on from the state that earlier ones left."""

import pytest

from ramify.sandbox.snippet import NOT_REPLAYED


def after(box, cells, code, timeout_seconds=20.0):
    return box.runner.run(box.sandbox.run(code, timeout_seconds, cells))


def test_names_files_and_modules_are_there_again_and_output_is_not(box):
    cells = (
        "import math\nx = [1]\nprint('said')\nopen('notes', 'w').write('kept')",
        "x.append(2)\ndef f(): return sum(x)\n'a value'",
        "import sys\nsys.stderr.write('said too')\nexit()",
    )
    result = after(box, cells, "print(f(), math.pi > 3, open('notes').read())")
    assert (result.status, result.stdout, result.stderr) == ("ok", "3 True kept\n", "")


def test_randomness_goes_on_where_it_was(box):
    code = "import random\nprint(random.random())\nrandom.random()"
    whole = box.text("import random\n[random.random() for _ in range(3)][2]")
    assert after(box, (code,), "random.random()").stdout.strip() == whole
    assert after(box, (code,), "random.random()") == after(box, (code,), "random.random()")


def test_threads_of_an_earlier_program_have_ended(box):
    cell = "import threading, time\nx = 0\ndef f():\n    global x\n    time.sleep(0.02)\n    x = 1\nthreading.Thread(target=f).start()"
    assert after(box, (cell,), "x").stdout == "1\n"


def test_one_that_fails_this_time_is_named(box):
    result = after(box, ("x = 1", "1 / 0"), "print(x)")
    assert (result.status, result.stdout) == ("error", "")
    assert '"<earlier program 2>", line 1' in result.stderr
    assert result.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_one_that_ends_the_process_is_told(box):
    result = after(box, ("import os\nos._exit(0)",), "print('never')")
    assert (result.status, result.stdout) == ("error", "")
    assert result.stderr == NOT_REPLAYED


# What a program finds that looks beside the first three descriptors, which are all that it has when it is not replayed.
_FORGERY = """
import os
for number in range(3, 64):
    try:
        {writes}
    except OSError:
        continue
"""
FORGERIES = {
    "bytes": ("os.write(number, b'forged\\n')", ""),
    "marks of old": ("os.write(number, b'\\x1e' * 100 + b'forged\\n')", "os._exit(0)"),
    "closed": ("os.close(number)", ""),
    "its own output in their place": ("os.dup2(os.open('own', os.O_RDWR | os.O_CREAT), number)", ""),
    "a mark of another call": (r"os.write(number, b'\x1e0123456789abcdef' * 3 + b'forged\n')", "os._exit(0)"),
}


@pytest.mark.parametrize("writes", FORGERIES)
def test_one_that_meddles_with_the_real_output_is_told_and_nothing_of_it_is_shown(box, writes):
    cell = _FORGERY.format(writes=FORGERIES[writes][0]) + FORGERIES[writes][1]
    result = after(box, ("x = 1", cell, "x = 3"), "import sys\nprint('the program', x)")
    assert (result.status, result.failed_cell) == ("error", 1)
    assert "forged" not in result.stdout + result.stderr
    assert result.stdout == ""


def test_what_is_forged_on_the_real_standard_error_is_dropped(box):
    cell = "import os\ntry: os.write(4, b'forged\\n')\nexcept OSError: pass"
    result = after(box, (cell,), "import sys\nsys.stderr.write('own')\n1 / 0")
    assert "forged" not in result.stderr
    assert result.stderr.startswith("own")


def test_errors_in_functions_of_earlier_programs_show_their_lines(box):
    result = after(box, ("def f():\n    raise KeyError('x')",), "f()")
    assert '"<snippet>", line 1' in result.stderr
    assert '"<earlier program 1>", line 2' in result.stderr
    assert "    raise KeyError('x')" in result.stderr


def test_the_time_limit_holds_for_all_together(box):
    cells = ("import time\ntime.sleep(0.3)",) * 2
    assert after(box, cells, "print('late')", 0.4).status == "timeout"


def test_output_is_cut_at_the_same_place(box):
    assert after(box, ("1",), "print('x' * 4095)").stdout == box.run("print('x' * 4095)").stdout
    assert after(box, ("1",), "print('x' * 5000)").stdout == box.run("print('x' * 5000)").stdout


def test_a_program_with_its_cells_has_a_greatest_length(box):
    result = after(box, ("#" * (1 << 20),), "1")
    assert result.status == "killed"
    assert "those before it are longer than 1048576 characters" in result.stderr


CLOSING = {
    "descriptors": "print('said')\nimport os\nos.close(1)\nos.close(2)",
    "descriptors, full of text": "print('said' * 1000)\nimport os\nos.close(1)",
    "streams": "import sys\nprint('said')\nsys.stdout.close()\nsys.stdout = sys.__stdout__ = open(1, 'w', closefd=False)\nprint('said')",
    "the stream's buffer": "import sys\nbuffer = sys.stdout.detach()\nbuffer.write(b'said')\nsys.stdout = open(1, 'w', closefd=False)",
    "its flushing": "import os, sys\nsys.stdout.flush = lambda: None\nprint('said')\nos.close(1)",
    "a stream of its own": "more = open(1, 'w', closefd=False)\nmore.write('said')",
    "a file in its place": "import os\nos.close(1)\nfile = open('notes', 'w')\nprint('said')",
    "another file above it": "import os\nfile = open('notes', 'w')\nos.dup2(file.fileno(), 1)\nprint('said')",
}


@pytest.mark.parametrize("cell", CLOSING)
def test_what_earlier_programs_said_is_dropped_whatever_they_did_to_their_streams(box, cell):
    program = "import sys\nprint('here')\nsys.stdout.flush()\n'buffer' in dir() and buffer.flush()\n'more' in dir() and more.flush()\nNone"
    result = after(box, (CLOSING[cell], "print('said too')"), program)
    assert (result.status, result.stdout, result.stderr) == ("ok", "here\n", "")


def test_what_an_earlier_program_pointed_its_output_to_is_there_again(box):
    cell = "import os\nfile = open('notes', 'w')\nos.dup2(file.fileno(), 1)\nprint('said')"
    assert after(box, (cell, "print('said too')"), "print(open('notes').read())").stdout == "said\n\n"
