"""The manifest: differences are named by their key, sessions are added, damage is told in a line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ramify
from ramify.core.errors import ConfigError, DataError
from ramify.core.json_types import part
from ramify.runs.manifest import (
    differences,
    file_sha256,
    note_session,
    read_manifest,
    refuse_other,
    write_manifest,
)

MADE = {"made_from": {"weights": {"model": "a"}, "tools": {}}, "made_with": [{"commit": "1"}]}


@pytest.mark.parametrize(
    ("before", "now", "keys"),
    [
        ({"a": 1, "b": [1, 2]}, {"b": (1, 2), "a": 1}, []),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}, ["a.b.c"]),
        ({"a": 1}, {}, ["a"]),
        ({}, {"a": {"b": 1}}, ["a"]),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, ["a", "b"]),
        ({"a": [1]}, {"a": {"b": 1}}, ["a"]),
    ],
)
def test_the_keys_that_differ_are_found(before, now, keys):
    assert [difference.key for difference in differences(before, now)] == keys


def test_another_origin_is_refused_by_its_key(tmp_path):
    write_manifest(tmp_path, MADE)
    before = read_manifest(tmp_path, made_from=part())["made_from"]
    refuse_other(tmp_path, "a run", before, MADE["made_from"])
    with pytest.raises(ConfigError, match=r'weights\.model = "a", now it is "b"'):
        refuse_other(tmp_path, "a run", before, {"weights": {"model": "b"}, "tools": {}})


def test_only_the_way_to_a_service_and_prices_may_differ(tmp_path):
    def settings(deterministic=False, price=None, slots=4, judged_by="j", summed_by="s", **service):
        engine = {"name": "openai", "slots": slots, **service}
        judge = {"model": judged_by, "url": service.get("url")}
        tools = {"browser": {"summary": {"model": summed_by, "url": service.get("url")}}}
        helper = {"model": "h", "url": service.get("url")}
        return {
            **{"deterministic": deterministic, "price": price, "engine": engine, "reward": {"judge": judge}},
            **{"tools": tools, "repair": {"helper": helper}},
        }

    refuse_other(
        tmp_path, "a run", settings(url="a", http={}), settings(url="b", slots=8, price={"prompt": 1})
    )
    with pytest.raises(ConfigError, match=r'engine\.name = "openai", now it is "vllm"'):
        refuse_other(tmp_path, "a run", settings(url="a"), settings(url="b", name="vllm"))
    with pytest.raises(ConfigError, match=r'engine\.model = "m", now it is "n"'):
        refuse_other(tmp_path, "a run", settings(url="a", model="m"), settings(url="b", model="n"))
    with pytest.raises(ConfigError, match=r'reward\.judge\.model = "m", now it is "n"'):
        refuse_other(tmp_path, "a run", settings(judged_by="m"), settings(judged_by="n"))
    with pytest.raises(ConfigError, match=r'tools\.browser\.summary\.model = "m", now it is "n"'):
        refuse_other(tmp_path, "a run", settings(summed_by="m"), settings(summed_by="n"))
    with pytest.raises(ConfigError, match=r"engine\.slots = 4, now it is 8"):
        refuse_other(tmp_path, "a run", settings(True), settings(True, slots=8))


def test_a_session_is_added_where_it_is_another(tmp_path):
    write_manifest(tmp_path, MADE)
    notes = []
    for commit in ("1", "2", "2", "1"):
        note_session(tmp_path, read_manifest(tmp_path, made_from=part()), {"commit": commit}, notes.append)
    assert [session["commit"] for session in read_manifest(tmp_path, made_from=part())["made_with"]] == [
        "1",
        "2",
        "1",
    ]
    assert len(notes) == 2


@pytest.mark.parametrize(
    "change",
    [{"schema": 1}, {"made_from": []}, {"made_with": []}, {"made_with": {}}, {"made_with": ["1"]}],
)
def test_what_is_no_manifest_is_refused(tmp_path, change):
    write_manifest(tmp_path, MADE)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=r"manifest\.json: (schema|made_from|made_with).*: expected "):
        read_manifest(tmp_path, made_from=part())
    path.write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json: broken JSON"):
        read_manifest(tmp_path, made_from=part())


def test_a_file_is_known_by_its_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a").startswith("ba7816bf")
    with pytest.raises(DataError, match="cannot be read"):
        file_sha256(tmp_path / "b")


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
