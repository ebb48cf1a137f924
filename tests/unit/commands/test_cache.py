import json
import resource
import shutil
import sqlite3
import subprocess
import sys

import pytest

from ramify.cache.database import read_groups
from ramify.cli import main

LIMIT = 400_000


def _small_disk() -> None:
    """Files may not grow further, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


def on_a_small_disk(arguments):
    call = "import sys; from ramify.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", call, *arguments],
        preexec_fn=_small_disk, capture_output=True, text=True, check=False,
    )  # fmt: skip


def imported(folder, entries):
    """A cache of these entries."""
    source, cache = folder / "references.json", folder / "cache.sqlite"
    source.write_text(json.dumps(entries))
    assert main(["cache", "import", str(source), "--to", str(cache), "--provider", "serper"]) == 0
    return cache


@pytest.mark.integration
def test_an_import_that_cannot_be_written_fails(tmp_path) -> None:
    source, cache = tmp_path / "references.json", tmp_path / "cache.sqlite"
    source.write_text(json.dumps({f"query {i}": f"Page 1: {i} " + "x" * 500 for i in range(2000)}))
    arguments = ["cache", "import", str(source), "--to", str(cache), "--provider", "serper"]
    done = on_a_small_disk(arguments)
    assert done.returncode != 0
    assert "2,000 rows could not be written" in done.stderr
    assert read_groups(cache) == []
    assert main(arguments) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nope"],
            "--provider nope: expected one of local, dense, retriever, brightdata, serper, searxng",
        ),
        (["brightdata"], "--provider brightdata: expected also -s zone=VALUE"),
        (["serper", "-s", "top_k=0"], "-s top_k: expected a number greater than or equal to 1, got 0"),
        (["serper", "-s", "top_k=many"], "-s top_k: expected a valid integer, got 'many'"),
        (["serper", "-s", "zone=serp"], "-s zone: unknown key"),
        (["serper", "-s", "hedge_seconds=90"], "--provider serper: hedge_seconds"),
    ],
)
def test_a_provider_that_is_not_fully_named(tmp_path, capsys, arguments, message) -> None:
    source = tmp_path / "references.json"
    source.write_text("{}")
    fixed = ["cache", "import", str(source), "--to", str(tmp_path / "cache"), "--provider"]
    assert main([*fixed, *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["cache.sqlite", "cache.sqlite-wal", "link", "hard link", "folder/../cache.sqlite"]
)
def test_an_export_never_overwrites_its_cache(tmp_path, capsys, name) -> None:
    cache = imported(tmp_path, {"capital": "Page 1: Paris"})
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(cache)
    (tmp_path / "hard link").hardlink_to(cache)
    before = cache.read_bytes()
    assert main(["cache", "export", str(cache), "--to", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert "would be overwritten, but the command reads it; name another file" in err
    assert err.count("\n") == 1
    assert cache.read_bytes() == before
    assert not (tmp_path / "cache.sqlite-wal").exists()


def test_an_export_that_does_not_fit_leaves_the_older_one(tmp_path) -> None:
    cache = imported(tmp_path, {f"query {i}": "Page 1: " + "x" * 900 for i in range(LIMIT // 900)})
    out = tmp_path / "out.json"
    out.write_text("older")
    done = on_a_small_disk(["cache", "export", str(cache), "--to", str(out)])
    assert (done.returncode, out.read_text()) == (2, "older")
    assert f"--to {out}: cannot be written: File too large" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cache.sqlite",
        "out.json",
        "references.json",
    ]


def test_a_full_device_is_named(tmp_path, capsys) -> None:
    cache = imported(tmp_path, {"capital": "Page 1: Paris"})
    assert main(["cache", "export", str(cache), "--to", "/dev/full"]) == 2
    assert "--to /dev/full: cannot be written: No space left on device" in capsys.readouterr().err


def test_an_export_through_a_link_writes_the_file_that_it_names(tmp_path) -> None:
    cache, link = imported(tmp_path, {"capital": "Page 1: Paris"}), tmp_path / "link.json"
    link.symlink_to(tmp_path / "out.json")
    assert main(["cache", "export", str(cache), "--to", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "out.json").read_text()) == {"capital": "Page 1: Paris"}


@pytest.mark.integration
@pytest.mark.parametrize("name", ["cache.sqlite", "a b%20?#.sqlite"])
def test_a_cache_is_read_where_nothing_can_be_written(tmp_path, with_permissions, name) -> None:
    folder, out = tmp_path / "kept", tmp_path / "out.json"
    folder.mkdir()
    cache = imported(folder, {"capital": "Page 1: Paris"}).rename(folder / name)
    link = tmp_path / "link"
    link.symlink_to(cache)
    folder.chmod(0o555)
    for path in (cache, link):
        shown = with_permissions("cache", "show", path)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.startswith("search serper: 1 answers")
        assert with_permissions("cache", "export", path, "--to", out).returncode == 0
        assert json.loads(out.read_text()) == {"capital": "Page 1: Paris"}
        out.unlink()
    source = folder / "references.json"
    refused = with_permissions("cache", "import", source, "--to", cache, "--provider", "serper")
    folder.chmod(0o755)
    assert refused.returncode == 2
    assert "its folder cannot be written" in refused.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted([name, "references.json"])


def test_answers_in_a_log_that_cannot_be_read_are_not_left_out(tmp_path, with_permissions) -> None:
    """As of a cache that was copied while a run wrote it."""
    cache, folder = imported(tmp_path, {"capital": "Page 1: Paris"}), tmp_path / "copy"
    folder.mkdir()
    writing = sqlite3.connect(cache)
    writing.execute("UPDATE answers SET provider = 'other'")
    writing.commit()
    for file in (cache, cache.with_name("cache.sqlite-wal")):
        shutil.copy(file, folder)
    writing.close()
    folder.chmod(0o555)
    refused = with_permissions("cache", "show", folder / cache.name)
    folder.chmod(0o755)
    assert refused.returncode == 2
    assert "and cache.sqlite-wal if there is one, to a folder that can be" in refused.stderr
    assert with_permissions("cache", "show", folder / cache.name).stdout.startswith("search other: 1 answers")


@pytest.mark.parametrize("content", [b"notes\n", b"notes", b"SQLite format 3\0", b'{"a": 1}\n', b"x" * 5000])
def test_nothing_is_left_beside_a_file_that_is_no_cache(tmp_path, capsys, content) -> None:
    source, foreign = tmp_path / "references.json", tmp_path / "cache"
    source.write_text("{}")
    foreign.write_bytes(content)
    assert main(["cache", "import", str(source), "--to", str(foreign), "--provider", "serper"]) == 2
    assert "is damaged or no cache" in capsys.readouterr().err
    assert foreign.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "references.json"]


@pytest.mark.parametrize("made_at", ["9e999", "-9e999", "'then'", "x'00'"])
def test_what_a_cache_from_somebody_else_says_is_shown_and_acts_on_no_terminal(
    tmp_path, capsys, made_at
) -> None:
    cache = imported(tmp_path, {"a": "Page 1: x"})
    with sqlite3.connect(cache) as other:
        other.execute(f"UPDATE answers SET tool = ?, made_at = {made_at}", ("search \x1b[2J\u202e",))
    other.close()
    capsys.readouterr()
    assert main(["cache", "show", str(cache)]) == 0
    assert capsys.readouterr().out.startswith(r"search \x1b[2J\u202e serper: 1 answers")
