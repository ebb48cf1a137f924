"""`ramify card`: JSON whatever the run was made from."""

import json

from ramify.cli import main


def test_a_card_is_json_whatever_its_texts_hold(tmp_path, capsys):
    """The console escapes what does not print, and some of its escapes are not those of JSON."""
    name = "模型 \x7f\x9b \u202e \U000e0001"
    text = name.replace("\x7f", r"\u007f")  # the one of these that TOML wants as an escape
    (tmp_path / "recipe.toml").write_text(f'[model]\npath = "{text}"\n', encoding="utf-8")
    record = {"schema": 2, "name": "n", "made_from": {"model": name}, "made_with": [{"commit": "c"}]}
    (tmp_path / "manifest.json").write_text(json.dumps(record))
    assert main(["card", str(tmp_path)]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["made_from"] == {"model": name}
    assert card["recipe"]["model"]["path"] == name
