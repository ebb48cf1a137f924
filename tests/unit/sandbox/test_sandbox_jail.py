"""What a program that reaches a limit gets to see. That limits hold is for the attacks to show (tests/e2e/red_team)."""

import pytest

CUT = "\n[output cut at 4096 bytes]"


@pytest.fixture(autouse=True)
def box_still_works(box):
    yield
    if box.level >= 1:  # at level 0 no two calls share a process
        assert box.text("6 * 7") == "42"


def test_what_was_printed_before_the_time_was_over_is_kept(box):
    result = box.run("print('before', flush=True)\nwhile True: pass", 0.2)
    assert (result.status, result.stdout) == ("timeout", "before\n")


@pytest.mark.parametrize(
    "code", ["x = bytearray(10 << 30)", "x = []\nwhile True: x.append(bytearray(1 << 20))"]
)
def test_too_much_memory_is_an_error_of_the_program(box, code):
    result = box.run(code)
    assert result.status == "error"
    assert "MemoryError" in result.stderr


def test_a_little_too_much_output_is_cut_only(box):
    result = box.run("print('x' * 5000)")
    assert (result.status, result.stdout) == ("ok", "x" * 4096 + CUT)


def test_of_much_too_much_output_the_beginning_is_kept(box):
    result = box.run("import sys\nfor _ in range(1 << 14): sys.stdout.write('x' * (1 << 16))")
    assert (result.status, result.stdout) == ("killed", "x" * 4096 + CUT)
    assert result.stderr == "killed: more than 65536 bytes of output"


def test_of_standard_error_the_end_is_kept(box):
    # The pause lets the first part be read alone, so that what comes later has to push it out.
    result = box.run(
        "import os, time\nos.write(2, b'x' * 5000)\ntime.sleep(0.1)\nraise ValueError('the end')"
    )
    assert result.status == "error"
    assert result.stderr.endswith("ValueError: the end\n")
    assert result.stderr.startswith("[output cut at 4096 bytes]\n")


@pytest.mark.parametrize(
    "code",
    [
        "with open('f', 'wb', 0) as f:\n    while True: f.write(bytes(1 << 18))",
        "files = []\nwhile True: files.append(open('f', 'w'))",
    ],
)
def test_too_large_or_too_many_files_are_an_error_of_the_program(box, code):
    result = box.run(code)
    assert result.status == "error"
    assert "OSError: [Errno 2" in result.stderr


def test_a_program_that_crashes_is_told_so(box):
    result = box.run("import ctypes\nctypes.string_at(0)")
    assert result.status == "killed"
    assert result.stderr.endswith("killed by SIGSEGV")


def test_a_program_starts_with_an_empty_environment(box, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "do not tell")
    assert box.text("import os\ndict(os.environ)") == "{}"
