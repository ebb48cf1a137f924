"""What an ordinary program sees: output, errors, files, threads, determinism."""

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


def test_equal_programs_have_equal_output(box):
    code = "import random, os\n[hash('x'), random.random(), {'a', 'b', 'c'}, os.getcwd()]"
    assert box.text(code) == box.text(code)
    assert "/sandbox" in box.text(code)


def test_the_main_module_is_the_program(box):
    assert box.text("__name__") == "__main__"
    assert box.text("x = 3\nimport __main__\n__main__.x") == "3"
    assert box.text("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))).__name__") == "A"


def test_nothing_of_ours_or_of_other_packages_can_be_imported(box):
    code = """
found = []
for name in ("ramify", "num" + "py", "torch", "pyseccomp", "scipy"):
    try:
        __import__(name)
        found.append(name)
    except ModuleNotFoundError:
        pass
import sys
found, [name for name in sys.modules if "ramify" in name]"""
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


def test_limits_are_read_of_oneself_alone(box):
    """Named by its number, the program itself stands for any other."""
    read = "import os, resource\nresource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)"
    result = box.run(read)
    assert result.status == ("error" if box.level else "ok"), result
    assert box.level == 0 or result.stderr.endswith("PermissionError: [Errno 1] Operation not permitted\n")
