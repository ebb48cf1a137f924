"""The commit in a manifest: asked of the checkout that holds the code, without a lock on it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ramify

CODE = "from ramify.runs.manifest import made_with; print(made_with('none')['commit'])"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_read_and_the_checkouts_index_is_left_alone(tmp_path):
    source = Path(ramify.__file__).parent
    shutil.copytree(source, tmp_path / "ramify", ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (("init", "-q"), ("add", "ramify"), ("commit", "-qm", "all")):
        subprocess.run([*git, *words], check=True)
    # With another time git reads the file again, and would note in the index that it is the same.
    os.utime(tmp_path / "ramify" / "__init__.py", (1, 1))
    index = (tmp_path / ".git" / "index").read_bytes()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert done.stdout == head
    assert (tmp_path / ".git" / "index").read_bytes() == index
