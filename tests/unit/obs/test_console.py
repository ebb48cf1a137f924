"""What the console shows on a terminal and in a log."""

import io
import json
import os
import re
import subprocess
import sys
import types
from contextlib import suppress

import pytest

from ramify.obs.console import LOG_INTERVAL_SECONDS, RunConsole


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def log(out, clock):
    return RunConsole(out, clock, stamp=lambda: f"at {clock.now:.0f}: ")


def test_a_log_gets_a_line_a_minute_with_the_time_and_how_long_it_will_take():
    out, clock = io.StringIO(), Clock()
    with log(out, clock).phase("rl", 100) as phase:
        for step in range(1, 101):
            clock.now += LOG_INTERVAL_SECONDS / 40
            phase.advance(reward=step / 100, waiting="3 tool calls, 12 sequences")
    assert out.getvalue().splitlines() == [
        "at 100: rl 0/100  begins",
        "at 160: rl 40/100  1:00 min, 1:30 min left  reward 0.4, waiting for 3 tool calls, 12 sequences",
        "at 220: rl 80/100  2:00 min, 30 s left  reward 0.8, waiting for 3 tool calls, 12 sequences",
        "at 250: rl 100/100  done after 2:30 min  reward 1",
    ]


def test_a_wait_without_progress_is_shown():
    out, clock = io.StringIO(), Clock()
    with log(out, clock).phase("rollout", 3) as phase:
        clock.now += 40
        phase.advance(loss=0.123456)
        clock.now += 20
        phase.advance(0, waiting="1 tool call")
        clock.now += 100
        phase.advance(0)
    assert out.getvalue().splitlines()[1:3] == [
        "at 160: rollout 1/3  1:00 min, 1:00 min left  loss 0.1235, waiting for 1 tool call",
        "at 260: rollout 1/3  2:40 min  loss 0.1235, waiting for 1 tool call",
    ]


def test_what_was_done_before_a_resume_says_nothing_about_the_pace():
    out, clock = io.StringIO(), Clock()
    with log(out, clock).phase("sft", 1000, 900) as phase:
        clock.now += LOG_INTERVAL_SECONDS
        phase.advance(0)
        clock.now += LOG_INTERVAL_SECONDS
        phase.advance(25)
    lines = [line.split(": ", 1)[1] for line in out.getvalue().splitlines()]
    assert lines[:3] == [
        "sft 900/1000  begins",
        "sft 900/1000  1:00 min",
        "sft 925/1000  2:00 min, 6:00 min left",
    ]


def test_a_plan_is_announced_and_tells_how_long_all_its_phases_will_take():
    out, clock = io.StringIO(), Clock()
    console = log(out, clock)
    with console.plan({"data": 1, "sft": 5, "rl": 4}):
        with console.phase("data", 1) as phase:
            clock.now += 10
            phase.advance()
        with console.phase("sft", 10) as phase:
            clock.now += LOG_INTERVAL_SECONDS
            phase.advance(6)
        with console.phase("preflight", 1):
            clock.now += 1
        with console.phase("rl", 2) as phase:
            clock.now += LOG_INTERVAL_SECONDS
            phase.advance()
    lines = [line.split(": ", 1)[1] for line in out.getvalue().splitlines()]
    assert lines[0] == "3 phases, with about these shares of the time: data 10%, sft 50%, rl 40%"
    assert lines[3] == "sft 0/10  begins, phase 2/3"
    # 70 s gone and 40 s left are 60 % of all.
    assert lines[4] == "sft 6/10  1:00 min, 40 s left (all phases: 1:53 min)"
    assert lines[6] == "preflight 0/1  begins"
    assert lines[9] == "rl 1/2  1:00 min, 1:00 min left"


def test_failed_phase_says_where_it_stopped():
    out, clock = io.StringIO(), Clock()
    with pytest.raises(KeyboardInterrupt), log(out, clock).phase("sft", 10) as phase:  # noqa: PT012
        clock.now += 3
        phase.advance(4)
        clock.now += 4000
        raise KeyboardInterrupt
    assert out.getvalue().splitlines()[-1] == "at 4103: sft 4/10  stopped after 1:06 h"


def test_letters_that_a_log_lacks_are_escapes():
    """A note with one ended a run that Python started."""
    log = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    RunConsole(log).result("Möbius 模型")
    assert log.buffer.getvalue() == b"M\xf6bius \\u6a21\\u578b\n"


def test_a_log_whose_reader_is_gone_takes_no_result_along(monkeypatch, capsys):
    """With --json and `2> >(head)` the object went where the log went: nowhere."""
    reader, writer = os.pipe()
    os.close(reader)
    log = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stderr", log)
    console = RunConsole(as_json=True)
    console.note("checkpoint written")
    console.record({"state": "finished"})
    with suppress(BrokenPipeError):
        log.close()
    assert json.loads(capsys.readouterr().out) == {"state": "finished"}


def test_notes_of_a_log_have_the_time_and_results_have_not():
    out = io.StringIO()
    console = RunConsole(out)
    console.note("checkpoint written")
    console.result("pass@1 0.5")
    note, result = out.getvalue().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  checkpoint written", note)
    assert result == "pass@1 0.5"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_what_others_say_acts_on_no_terminal(stream):
    out, clock = stream(), Clock()
    console = RunConsole(out, clock)
    console.note("service said \x1b[2J\ud800\u202e\nsecond line")
    with console.phase("eval \x1b]0;x\x07", 1) as phase:
        phase.advance(waiting="\x1b[5m tool", answer="\x9b1m")
        clock.now += LOG_INTERVAL_SECONDS
        phase.advance(0)
    written = out.getvalue()
    written.encode()
    assert "service said \\x1b[2J\\ud800\\u202e\nsecond line\n" in written
    assert not any(sequence in written for sequence in ("\x1b[2J", "\x1b[5m", "\x1b]0", "\x9b", "\u202e"))


def test_note_is_written_as_it_is():
    out = io.StringIO()
    long = "[bold]see[/bold] :smile: " + "x" * 300
    RunConsole(out, stamp=str).note(long)
    assert out.getvalue() == long + "\n"


def test_terminal_shows_a_bar_with_times_and_values_and_keeps_notes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    out, clock = Terminal(), Clock()
    console = RunConsole(out, clock)
    with console.plan({"rl [red]": 3, "eval": 1}), console.phase("rl [red]", 5) as phase:
        clock.now += 20
        phase.advance(2, reward="[b]0.5", waiting="3 tool calls")
        console.note("checkpoint written")
    shown = out.getvalue()
    assert "\x1b[" in shown
    for expected in (
        "rl [red] 75%, eval 25%",
        "1/2 rl [red]",
        "2/5",
        "20 s, 30 s left (all phases: 47 s)",
        "reward [b]0.5",
        "checkpoint written\n",
    ):
        assert expected in shown


@pytest.mark.integration
def test_a_reader_that_goes_away_does_not_end_the_run():
    program = (
        "from ramify.obs.console import RunConsole\n"
        "console = RunConsole()\n"
        "for number in range(20000):\n"
        "    console.note(f'line {number}')\n"
        "import sys; sys.stderr.write('done')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b"done"
    assert process.wait(timeout=60) == 0
    process.stderr.close()


def test_in_a_notebook_a_phase_is_one_bar_that_is_updated(monkeypatch):
    """A stand-in for IPython, which is no dependency: a kernel's `get_ipython`, and `display` with its handle."""
    shown = []

    class Handle:
        def update(self, data, *, raw):
            assert raw
            shown.append(data)

    def display(data, *, raw, display_id):
        assert raw
        assert display_id is True
        shown.append(data)
        return Handle()

    ipython, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    clock = Clock()
    console = RunConsole(clock=clock)
    with console.phase("rl", 4) as phase:
        for reward in (0.25, 0.5):
            clock.now += 10
            phase.advance(reward=reward, waiting="<b>1 call</b>")
            phase.advance(0)
    texts = [data["text/plain"] for data in shown]
    assert texts == [
        "rl 0/4  0 s",
        "rl 1/4  10 s, 30 s left  reward 0.25, waiting for <b>1 call</b>",
        "rl 2/4  20 s, 20 s left  reward 0.5, waiting for <b>1 call</b>",
        "rl 2/4  20 s, 20 s left  reward 0.5",
    ]
    assert shown[1]["text/html"].startswith('<progress value="1" max="4"></progress> rl 1/4')
    assert "&lt;b&gt;" in shown[1]["text/html"]
    assert "<b>" not in shown[1]["text/html"]
    # A terminal's shell has no kernel.
    ipython.get_ipython = lambda: types.SimpleNamespace()
    assert RunConsole()._notebook is None


def test_quiet_leaves_results_and_warnings_and_json_is_alone_on_standard_output(capsys):
    for settings, out, err in (
        ({"quiet": True}, "the result\nwarning: bad\n", ""),
        ({"as_json": True, "quiet": True}, '{"a": 1}\n', "warning: bad\n"),
        ({}, "rl 0/1  begins\nrl 0/1  done after 0 s\na note\nthe result\nwarning: bad\n", ""),
        ({"as_json": True}, '{"a": 1}\n', "rl 0/1  begins\nrl 0/1  done after 0 s\na note\nwarning: bad\n"),
    ):
        console = RunConsole(clock=Clock(), stamp=str, **settings)
        with console.phase("rl", 1):
            pass
        console.note("a note")
        console.result("the result")
        console.note("warning: bad")
        console.record({"a": 1})
        assert capsys.readouterr() == (out, err)


def test_a_table_has_straight_columns_and_one_line_a_row():
    out = io.StringIO()
    RunConsole(out).table(("name", "n", "text"), [("a\nb", "1", "x" * 300), ("longer", "22", "\x1b[2J")])
    assert out.getvalue().splitlines() == [
        "name    n   text",
        f"a b     1   {'x' * 300}",
        "longer  22  \\x1b[2J",
    ]


def test_a_table_of_wide_characters_has_straight_columns():
    out = io.StringIO()
    RunConsole(out).table(("name", "n"), [("东京", "1"), ("Rome", "22"), ("Zu\u0308rich", "3")])
    assert out.getvalue().splitlines() == ["name    n", "东京    1", "Rome    22", "Zu\u0308rich  3"]
