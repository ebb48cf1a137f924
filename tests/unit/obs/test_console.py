"""What the console shows on a terminal and in a log."""

import io
import subprocess
import sys

import pytest

from ramify.obs.console import PLAIN_INTERVAL_SECONDS, RunConsole


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_log_gets_a_line_every_few_seconds_and_one_at_the_end():
    out, clock = io.StringIO(), Clock()
    with RunConsole(out, clock).phase("rl", 100) as phase:
        for step in range(1, 101):
            clock.now += PLAIN_INTERVAL_SECONDS / 40
            phase.advance(reward=step / 100, waiting="3 tool calls, 12 sequences")
    lines = out.getvalue().splitlines()
    assert lines == [
        "rl 40/100  5 s  reward 0.4, waiting for 3 tool calls, 12 sequences",
        "rl 80/100  10 s  reward 0.8, waiting for 3 tool calls, 12 sequences",
        "rl 100/100  12 s  done  reward 1",
    ]


def test_a_wait_without_progress_is_shown():
    out, clock = io.StringIO(), Clock()
    with RunConsole(out, clock).phase("rollout", 2) as phase:
        phase.advance(loss=0.123456)
        clock.now += PLAIN_INTERVAL_SECONDS
        phase.advance(0, waiting="1 tool call")
    assert out.getvalue().splitlines()[0] == "rollout 1/2  5 s  loss 0.1235, waiting for 1 tool call"


def test_failed_phase_says_where_it_stopped():
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt), RunConsole(out, Clock()).phase("sft", 10) as phase:  # noqa: PT012
        phase.advance(4)
        raise KeyboardInterrupt
    assert out.getvalue().splitlines() == ["sft 4/10  0 s  stopped"]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_what_others_say_acts_on_no_terminal(stream):
    out, clock = stream(), Clock()
    console = RunConsole(out, clock)
    console.note("service said \x1b[2J\ud800\u202e\nsecond line")
    with console.phase("eval \x1b]0;x\x07", 1) as phase:
        phase.advance(waiting="\x1b[5m tool", answer="\x9b1m")
        clock.now += PLAIN_INTERVAL_SECONDS
        phase.advance(0)
    said = out.getvalue()
    said.encode()
    assert "service said \\x1b[2J\\ud800\\u202e\nsecond line\n" in said
    assert not any(sequence in said for sequence in ("\x1b[2J", "\x1b[5m", "\x1b]0", "\x9b", "\u202e"))


def test_note_is_written_as_it_is():
    out = io.StringIO()
    long = "[bold]see[/bold] :smile: " + "x" * 300
    RunConsole(out).note(long)
    assert out.getvalue() == long + "\n"


def test_terminal_shows_a_bar_with_values_and_keeps_notes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    out = Terminal()
    console = RunConsole(out)
    with console.phase("rl [red]", 5) as phase:
        phase.advance(2, reward="[b]0.5", waiting="3 tool calls")
        console.note("checkpoint written")
        phase.advance(3)
    shown = out.getvalue()
    assert "\x1b[" in shown
    for expected in ("rl [red]", "5/5", "reward [b]0.5", "checkpoint written"):
        assert expected in shown


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
