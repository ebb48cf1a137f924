"""Checkpoints say under which prompts and tools they were trained, through sft, train, dpo and merge; who asks otherwise is told."""

import json

from e2e_runs import DPO, EVAL, SFT, TRAIN, overrides, write_task
from ramify.cli import main
from ramify.config.other_runs import trained_dialect

WORDS = "You answer in tags, step by step."
TOOLS = ("tools.search.corpus={folder}/passages.jsonl", "tools.python.timeout_seconds=10", "run.threads=1")


def test_prompts_are_recorded_through_all_stages_and_a_difference_is_said(tmp_path, model_folder, capsys):
    def run(command, text, model, *settings):
        folder = tmp_path / command
        recipe = write_task(folder, model, text)
        words = overrides(*(each.format(folder=folder) for each in TOOLS), *settings)
        steps = [] if command == "eval" else ["--max-steps", "1"]
        assert main([command, str(recipe), *words, *steps]) == 0
        return folder / "run", capsys.readouterr().out

    def stages(folder):
        return json.loads((folder / "trained_prompts.json").read_text())["stages"]

    same, other = f"data.instructions={WORDS}", "data.instructions=false"
    sft, shown = run("sft", SFT, model_folder, same, "run.save_every=1", "data.max_tokens=300")
    assert "was trained under" not in shown
    cold = sft / "checkpoints" / "step-000001"
    (stage,) = stages(cold)
    assert (stage["command"], stage["dialect"], stage["tools"]) == ("sft", "tags", ["python", "search"])
    assert [(each["role"], each["text"], each["examples"]) for each in stage["prompts"]] == [
        ("system", WORDS, 6)
    ]

    engine = f'engine={{name="scripted",script="{tmp_path}/eval/script.toml"}}'
    limits = ("sampling.max_tokens=120", "sampling.max_calls=3", "sandbox.min_level=0", "data.limit=2")
    _, shown = run("eval", EVAL, cold, engine, *limits, same)
    assert "was trained under" not in shown
    _, shown = run("eval", EVAL, cold, engine, *limits, other, f"run.dir={tmp_path}/other")
    assert f"2 of 2 prompts have no fixed text, but {cold} was trained under the system message" in shown

    trained, shown = run("train", TRAIN, cold, same, "reward.name=length")
    assert "was trained under" not in shown
    rl = trained / "checkpoints" / "step-000001"
    paired, shown = run("dpo", DPO, rl, other, "model.lora.rank=4", "run.save_every=1")
    assert f"8 of 8 prompts have no fixed text, but {rl} was trained under the system message" in shown
    adapter = paired / "checkpoints" / "step-000001"
    assert main(["merge", "lora", str(adapter), "--out", str(tmp_path / "whole")]) == 0
    assert [each["command"] for each in stages(tmp_path / "whole")] == ["sft", "train", "dpo"]
    assert stages(tmp_path / "whole")[1]["prompts"][0]["sha256"] == stage["prompts"][0]["sha256"]
    # Away from its run, the folder itself says which dialect it was taught.
    assert trained_dialect(tmp_path / "whole") == "tags"


def test_a_data_file_whose_text_is_taken_may_come_later_than_a_dry_run(tmp_path, model_folder, capsys):
    recipe = write_task(tmp_path / "task", model_folder, TRAIN)
    words = overrides(f"data.instructions=from:{tmp_path}/later.jsonl")
    assert main(["train", str(recipe), *words, "--dry-run"]) == 0
    assert (
        f"data.instructions: the run takes its text from {tmp_path}/later.jsonl, which is not here"
        in capsys.readouterr().out
    )
    for rows in (["--dry-run", "--rows"], []):
        assert main(["train", str(recipe), *words, *rows]) == 2
        assert "later.jsonl" in capsys.readouterr().err
