"""Programs as their authors see them: output, errors, files, threads, determinism; and the state that earlier ones left."""

import json

import pytest


def test_prints_and_the_value_of_a_last_expression_are_shown(box):
    assert box.run("print('a')\n1 + 1").stdout == "a\n2\n"
    assert box.run("x = [1]\nx").stdout == "[1]\n"
    assert box.run("print('only once')").stdout == "only once\n"
    assert box.run("if True:\n    5").stdout == ""
    assert box.run("").status == "ok"
    assert box.run("'text'").stdout == "text\n"


def test_a_traceback_shows_the_snippet_alone(box):
    result = box.run("import json\ndef f():\n    return json.loads('{')\nf()")
    assert result.status == "error"
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line for line in lines if "File" in line] == [
        '  File "<snippet>", line 4, in <module>',
        '  File "<snippet>", line 3, in f',
    ]
    assert "    return json.loads('{')" in lines
    assert lines[-1].startswith("json.decoder.JSONDecodeError: ")


@pytest.mark.parametrize(("chain", "text"), [(" from error", "direct cause"), ("", "During handling")])
def test_chained_errors_show_the_snippet_alone(box, chain, text):
    code = (
        f"import json\ntry:\n    json.loads('{{')\nexcept ValueError as error:\n    raise KeyError(1){chain}"
    )
    stderr = box.run(code).stderr
    assert text in stderr
    assert stderr.count("File ") == stderr.count('File "<snippet>"') == 2


def test_errors_in_threads_show_the_snippet_alone(box):
    stderr = box.run("import threading\nthreading.Thread(target=lambda: 1 / 0).start()").stderr
    assert "ZeroDivisionError" in stderr
    assert stderr.count("File ") == stderr.count('File "<snippet>"') == 1


def test_a_syntax_error_names_the_line(box):
    result = box.run("x = 1\ndef f(:\n")
    assert result.status == "error"
    assert result.stderr.startswith('  File "<snippet>", line 2\n')


def test_code_that_cannot_be_parsed_at_all_is_an_error(box):
    for code in ("\0", "\ud800", "(" * 5000, "-" * 100_000 + "1", "1 +" * 50_000):
        result = box.run(code)
        assert result.status in ("error", "killed"), code[:5]
        assert result.stderr


def test_exit_statuses(box):
    assert box.run("exit()").status == "ok"
    assert box.run("import sys\nsys.exit(0)").status == "ok"
    assert box.run("import sys\nprint('x')\nsys.exit(3)").status == "error"
    assert box.run("raise SystemExit('bye')").stderr == "bye\n"
    assert box.run("import os\nos._exit(7)").status == "error"


def test_output_written_before_an_error_is_kept_and_order_is_by_stream(box):
    result = box.run("import sys\nprint('out')\nsys.stderr.write('err')\n1/0")
    assert result.stdout == "out\n"
    assert result.stderr.startswith("errTraceback")


def test_text_is_unicode_whatever_the_environment(box):
    assert box.run("'\u00e9\u4e2d\U0001f600'").stdout == "\u00e9\u4e2d\U0001f600\n"
    assert box.run("import sys\nsys.stdout.buffer.write(b'\\xff\\n')\nNone").stdout == "\ufffd\n"


@pytest.mark.parametrize("name", ["random", "numpy.random"])
def test_equal_programs_have_equal_output(box, name):
    code = f"import {name}, os\n[hash('x'), {name}.random(), {{'a', 'b', 'c'}}, os.getcwd()]"
    assert box.text(code) == box.text(code)
    assert "/sandbox" in box.text(code)


def test_the_main_module_is_the_program(box):
    assert box.text("__name__") == "__main__"
    assert box.text("x = 3\nimport __main__\n__main__.x") == "3"
    assert box.text("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))).__name__") == "A"


# Without its name in the program, numpy is not there either.
@pytest.mark.parametrize(("imports", "package"), [("sys", "'num' + 'py'"), ("sys, numpy", "'scipy'")])
def test_nothing_of_ours_or_of_other_packages_can_be_imported(box, imports, package):
    code = f"""
import {imports}
imported = []
for name in ("ramify", "torch", "pytest", "pyseccomp", {package}):
    try:
        __import__(name)
        imported.append(name)
    except ModuleNotFoundError:
        pass
imported, [name for name in sys.modules if "ramify" in name]"""
    assert box.text(code) == "([], [])"


def test_the_standard_library_works(box):
    code = """
import asyncio, concurrent.futures, ctypes, decimal, hashlib, lzma, shutil, sqlite3, tempfile, threading, zlib

async def nap():
    await asyncio.sleep(0.001)
    return "awake"

with concurrent.futures.ThreadPoolExecutor(8) as pool:
    squares = list(pool.map(lambda x: x * x, range(8)))
with tempfile.TemporaryDirectory() as folder:
    with open(folder + "/a", "w") as file:
        file.write("text")
    shutil.copy2(folder + "/a", "b")
with open("b") as file:
    copied = file.read()
base = sqlite3.connect("base.db")
base.execute("create table t (x)")
base.execute("insert into t values (5)")
base.commit()
import json
json.dumps([asyncio.run(nap()), squares, copied, base.execute("select x from t").fetchall()])"""
    assert json.loads(box.text(code)) == ["awake", [x * x for x in range(8)], "text", [[5]]]


def test_threads_that_run_on_are_waited_for(box):
    code = "import threading, time\ndef f():\n    time.sleep(0.02)\n    print('late')\nthreading.Thread(target=f).start()"
    assert box.run(code).stdout == "late\n"


def test_input_is_empty(box):
    assert box.text("import sys\nrepr(sys.stdin.read())") == "''"


def test_a_program_that_closes_its_streams_still_ends_well(box):
    assert box.run("import sys\nprint('x')\nsys.stdout.flush()\nsys.stdout.close()").stdout == "x\n"
    assert box.run("import os\nos.close(1)\nos.close(2)\n").status == "ok"


# Cells: earlier programs, which are run again to restore their state.


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


def test_limits_are_read_of_oneself_alone(box):
    """Named by its number, the program itself stands for any other."""
    read = "import os, resource\nresource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)"
    result = box.run(read)
    assert result.status == ("error" if box.level else "ok"), result
    assert box.level == 0 or result.stderr.endswith("PermissionError: [Errno 1] Operation not permitted\n")
