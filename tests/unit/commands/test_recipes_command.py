"""`ramify recipes`: every shipped recipe is listed with what it needs, and can be printed."""

import json
import tomllib

from ramify.cli import main
from ramify.config import shipped_recipes


def test_every_recipe_is_listed_with_its_own_facts(capsys):
    assert main(["recipes", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    files = {path.stem: path.read_text(encoding="utf-8") for path in shipped_recipes().glob("*.toml")}
    assert rows.keys() == files.keys()
    for name, row in rows.items():
        assert row["command"] in ("train", "sft", "dpo", "selfcritic", "synth", "eval")
        assert row["model"] == tomllib.loads(files[name])["model"]["path"]
        assert row["paper"] is None or f"arXiv {row['paper'].split()[-1]}" in files[name]
    assert rows["arpo_reasoning_7b_8gpus"] == {
        "name": "arpo_reasoning_7b_8gpus",
        "command": "train",
        "paper": "ARPO 2507.19849",
        "hardware": "8 x 80 GB",
        "model": "models/Qwen2.5-7B-Instruct",
        "data": "data/train_10k.parquet",
    }
    assert rows["arpo_qwen2.5_0.5b_24gb"]["hardware"] == "1 x 24 GB"
    assert rows["quickstart_rl"]["hardware"] == "CPU"
    assert rows["eval_deepsearch"]["hardware"] == rows["eval_all"]["hardware"] == "CPU and services"
    assert rows["dr_grpo_reasoning_7b"]["paper"] == "Dr. GRPO 2503.20783"
    assert main(["recipes"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(files)


def test_a_recipe_is_printed_as_it_is_and_an_unknown_name_lists_those_near_it(capsys):
    assert main(["recipes", "gspo_reasoning_7b.toml"]) == 0
    text = (shipped_recipes() / "gspo_reasoning_7b.toml").read_text(encoding="utf-8")
    assert capsys.readouterr().out == text
    assert main(["recipes", "quickstart"]) == 2
    assert "Near it: quickstart_eval, quickstart_rl, quickstart_sft" in capsys.readouterr().err
    assert main(["recipes", "arpo_raesoning_7b"]) == 2
    assert "Near it: arpo_reasoning_7b" in capsys.readouterr().err
