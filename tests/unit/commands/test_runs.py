"""`ramify runs`: folders with what is no run of ours, and logs that lack letters."""

import json
import os
import subprocess
import sys

import pytest

from ramify.cli import main


@pytest.fixture
def run(tmp_path):
    """A run that was claimed and not begun, of a model whose name is not ASCII."""
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text('[model]\npath = "Möbius 模型"\n', encoding="utf-8")
    (folder / "manifest.json").write_text("{}")
    return folder


def test_a_link_to_itself_hides_no_run_beside_it(run, capsys):
    (run.parent / "itself").symlink_to("itself")
    assert main(["runs", str(run.parent), "--json"]) == 0
    assert [row["dir"] for row in json.loads(capsys.readouterr().out)["runs"]] == [str(run)]


def test_a_folder_that_may_not_be_read_is_not_called_empty(run, with_permissions):
    run.parent.chmod(0o300)
    done = with_permissions("runs", run.parent)
    run.parent.chmod(0o700)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{run.parent}: may not be read" in done.stderr


def test_letters_that_a_log_lacks_are_escapes(run):
    """As on standard error, and in every command: a run in training wrote such notes too, and ended with a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "ramify", "runs", str(run.parent)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"M\xf6bius \u6a21\u578b" in done.stdout
