from pathlib import Path

import pytest

from ramify.commands.parser import recipe_file
from ramify.config import shipped_recipes


@pytest.mark.parametrize(
    "text", ["arpo_reasoning_7b", "arpo_reasoning_7b.toml", "recipes/arpo_reasoning_7b.toml"]
)
def test_a_recipe_that_ships_goes_by_its_name(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    path = recipe_file(text)
    assert path == shipped_recipes() / "arpo_reasoning_7b.toml"
    assert path.is_file()


def test_a_file_of_ones_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("arpo_reasoning_7b.toml").write_text("")
    assert recipe_file("arpo_reasoning_7b.toml") == Path("arpo_reasoning_7b.toml")


@pytest.mark.parametrize("text", ["nowhere.toml", "mine/arpo_reasoning_7b.toml", "", "."])
def test_any_other_name_is_a_path(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    assert recipe_file(text) == Path(text)
