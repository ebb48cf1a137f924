"""The manifest: differences are named by their key, sessions are added, damage is told in a line."""

import json

import pytest

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
    with pytest.raises(
        ConfigError, match=r'holds a run with weights\.model = "a", now it is "b"\. Choose a new'
    ):
        refuse_other(tmp_path, "a run", before, {"weights": {"model": "b"}, "tools": {}})


def test_only_the_way_to_a_service_and_prices_may_differ(tmp_path):
    def settings(deterministic=False, price=None, slots=4, judged_by="j", **service):
        engine = {"name": "openai", "slots": slots, **service}
        judge = {"model": judged_by, "url": service.get("url")}
        return {"deterministic": deterministic, "price": price, "engine": engine, "reward": {"judge": judge}}

    refuse_other(
        tmp_path, "a run", settings(url="a", http={}), settings(url="b", slots=8, price={"prompt": 1})
    )
    with pytest.raises(
        ConfigError, match=r'holds a run with engine\.name = "openai", now it is "vllm"\. Choose'
    ):
        refuse_other(tmp_path, "a run", settings(url="a"), settings(url="b", name="vllm"))
    with pytest.raises(ConfigError, match=r'engine\.model = "m", now it is "n"\. Choose'):
        refuse_other(tmp_path, "a run", settings(url="a", model="m"), settings(url="b", model="n"))
    with pytest.raises(ConfigError, match=r'reward\.judge\.model = "m", now it is "n"\. Choose'):
        refuse_other(tmp_path, "a run", settings(judged_by="m"), settings(judged_by="n"))
    with pytest.raises(ConfigError, match=r"holds a run with engine\.slots = 4, now it is 8\. Choose"):
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
