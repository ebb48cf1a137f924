"""`ramify completion`: every command, option and choice can be completed, and what the shells get."""

import argparse
import os
import shutil
import subprocess
import sys

import pytest

from ramify.cli import COMMANDS, main
from ramify.commands.completion import FILES, candidates
from ramify.commands.parser import make_parser
from ramify.config import shipped_recipes

RECIPES = sorted(path.stem for path in shipped_recipes().glob("*.toml"))


def after(*words):
    return list(candidates(COMMANDS, words))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_completed_and_asks_for_its_value(command):
    assert command in after(command[:2])
    top = make_parser(COMMANDS, command)
    below = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction)).choices[command]
    for action in below._actions:
        for option in action.option_strings:
            assert option in after(command, option[:-1])
            if action.choices:
                assert after(command, option, "") == list(map(str, action.choices))


def test_a_recipe_is_a_shipped_name_or_a_file():
    assert after("train", "") == [*RECIPES, FILES]
    assert after("train", "arpo_") == [*(name for name in RECIPES if name.startswith("arpo_")), FILES]
    assert after("doctor", "--json", "quick") == [
        *(name for name in RECIPES if name.startswith("quick")),
        FILES,
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["merge", ""], ["verl", "lora", "verify"]),
        (["merge", "lora", "x", "--dty"], ["--dtype"]),
        (["merge", "lora", "x", "--dtype", "f"], ["float32", "float16"]),
        (["merge", "lora", "x", "--dtype", "float32", ""], [FILES]),
        (["score", "rows.jsonl", "--compat", ""], ["arpo", "toolstar"]),
        (["train", "-s", "run.dir="], []),
        (["eval", "--compare", "a", ""], [*RECIPES, FILES]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["no-such-command", ""], list(COMMANDS)),
    ],
)
def test_what_follows(words, expected):
    assert after(*words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_two_dashes_begin_an_option(shell, capsys):
    assert main(["completion", shell, "--", "view", "--"]) == 0
    assert capsys.readouterr().out.split() == [word for word in after("view", "--") if word.startswith("--")]
    assert "--redact" in after("view", "--")


SHELLS = {
    "bash": "source <(ramify completion bash); COMP_WORDS=(ramify {words}); COMP_CWORD={last}; _ramify; "
    'printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": "ramify completion fish | source; complete -C 'ramify {words}'",
    "zsh": "autoload -Uz compinit; compinit -u; source <(ramify completion zsh); whence -w _ramify",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_takes_the_script(shell, tmp_path, monkeypatch):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "bin" / "ramify"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ramify "$@"\n')
    program.chmod(0o755)
    (tmp_path / "arpo_mine.toml").touch()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    def completed(words):
        line = SHELLS[shell].format(words=words, last=len(words.split()))
        done = subprocess.run([shell, "-c", line], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert done.returncode == 0, done.stderr
        return sorted(word.split("\t")[0] for word in done.stdout.split())

    if shell == "zsh":
        assert completed("train") == ["_ramify:", "function"]
        return
    assert completed("train arpo_") == sorted(
        [*(name for name in RECIPES if name.startswith("arpo_")), "arpo_mine.toml"]
    )
    assert completed("merge lora --dtype bf") == ["bfloat16"]


def test_a_script_and_an_unknown_shell(capsys):
    assert main(["completion", "bash"]) == 0
    assert "complete -o filenames -F _ramify ramify" in capsys.readouterr().out
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err


def test_a_reader_that_is_gone_is_no_failure():
    reader, writer = os.pipe()
    os.close(reader)
    for unbuffered in ("", "1"):
        done = subprocess.run(
            [sys.executable, "-m", "ramify", "completion", "bash"],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
    os.close(writer)
