"""Checksums of what a recipe names: they follow the content, and neither names nor what lies beside it."""

import huggingface_hub.constants
import pytest

from ramify.commands.input_checksums import file_checksums, input_checksums
from train_recipes import RECIPE, load

EVAL = '[eval]\ntest = "test.jsonl"\nevery = 5\n'


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "tiny" / "state").mkdir(parents=True)
    names = ("train.jsonl", "test.jsonl", "passages.jsonl", "own.py")
    for name in (*names, "models/tiny/config.json", "models/tiny/model.safetensors"):
        (tmp_path / name).write_text(name)
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE + EVAL)
    return path


def changed(recipe, name, *overrides):
    """The keys whose checksum another content of a file changes."""
    before = input_checksums(load(recipe, *overrides), {})
    (recipe.parent / name).write_text("other")
    now = input_checksums(load(recipe, *overrides), {})
    assert now.keys() == before.keys()
    return [key for key in now if now[key] != before[key]]


def test_a_checksum_follows_the_content_of_what_its_key_names(recipe):
    keys = {"train.jsonl": "data.train", "test.jsonl": "eval.test", "passages.jsonl": "tools.search.corpus"}
    for name, key in keys.items():
        assert changed(recipe, name) == [key]
    for name in ("config.json", "model.safetensors"):
        assert changed(recipe, f"models/tiny/{name}") == ["model.path"]
    # When and where it was trained is no part of a model.
    assert changed(recipe, "models/tiny/state/optimizer.safetensors") == []
    assert changed(recipe, "models/tiny/stages.json") == []


def test_a_key_that_names_several_files_has_one_checksum_of_all(recipe):
    own = "reward.own=[{path='own.py', function='a'}, {path='own.py', function='b'}]"
    assert changed(recipe, "own.py", own) == ["reward.own.path"]
    both = "data.train=['train.jsonl', 'test.jsonl']"
    assert changed(recipe, "test.jsonl", both) == ["data.train", "eval.test"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub's cache, without a network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub" / "datasets--org--name"


def test_a_data_set_of_the_hub_has_that_of_its_files(recipe, hub):
    checksums = []
    for digit, content in (("1", "train.jsonl"), ("2", "train.jsonl"), ("3", "other")):
        files = hub / "snapshots" / (40 * digit)
        for path, text in ((files / "train.jsonl", content), (files / "test.jsonl", f"test {content}")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (hub / "refs").mkdir(exist_ok=True)
        (hub / "refs" / f"v{digit}").write_text(files.name)
        source = f"hf:org/name@v{digit}"
        overrides = (f"data.train={source}", f"data.exclude=['{source}']", f"eval.test=gsm8k={source}")
        checksums.append(input_checksums(load(recipe, *overrides), {}))
    first, same, other = checksums
    assert first == same
    keys = ("data.train", "data.exclude", "eval.test")
    assert all(first[key] != other[key] for key in keys)
    assert first["data.exclude"] == first["eval.test"] != first["data.train"]
    # The same bytes in a folder of one's own.
    assert first["data.train"] == input_checksums(load(recipe), {})["data.train"]


def test_what_is_not_there_has_none(recipe, hub):
    (recipe.parent / "passages.jsonl").unlink()
    overrides = ("data.train=hf:org/name", "model.path=models/none")
    assert set(input_checksums(load(recipe, *overrides), {})) == {"eval.test"}


def test_what_an_agent_acts_with_has_checksums_by_file(recipe):
    """The data that a run trains and evaluates on are no part of it."""
    own = load(recipe, "reward.own=[{path='own.py', function='a'}]")
    before = file_checksums(own)
    assert set(before) == {
        "passages.jsonl",
        "own.py",
        "models/tiny/config.json",
        "models/tiny/model.safetensors",
    }
    (recipe.parent / "own.py").write_text("other")
    assert [name for name, checksum in file_checksums(own).items() if checksum != before[name]] == ["own.py"]
