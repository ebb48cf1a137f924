"""`ramify view`: where a page is written, and folders of others beside one's own."""

import os

import pytest

from ramify.cli import main
from viewed_runs import one_path, write_evaluation


@pytest.fixture
def run(tmp_path):
    return write_evaluation(tmp_path / "runs" / "mine", [one_path("p0", 0, "41", 1.0)])


@pytest.mark.parametrize("option", ["--out", "--otlp"])
def test_a_pipe_is_not_replaced_and_a_link_stays_one(run, tmp_path, capsys, option):
    """As root, `--out /dev/null` made a file of the device."""
    os.mkfifo(tmp_path / "pipe")
    assert main(["view", str(run), option, str(tmp_path / "pipe")]) == 2
    assert "is a pipe or a device" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to("page")
    assert main(["view", str(run), option, str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page").stat().st_size > 0


def test_a_folder_that_may_not_be_read_is_no_obstacle(run, tmp_path, with_permissions):
    other = run.parent / "theirs"
    other.mkdir(mode=0)
    done = with_permissions("view", run.parent, "--otlp", tmp_path / "spans.jsonl")
    other.chmod(0o700)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 traces" in done.stdout
