"""`ramify dpo` from a recipe to a checkpoint: it learns, it resumes, it refuses what it cannot use."""

import json
import math
import signal
import tomllib
from pathlib import Path

import pytest

from chat_service import chat_service
from e2e_runs import DPO, SYNTH, overrides, pairs, write_lines, write_task
from ramify.cli import main
from ramify.obs.metrics import read_metrics

LORA = ("-s", "model.lora.rank=4", "-s", "model.lora.alpha=8.0", "-s", "learner.optimizer.rate=2e-2")


@pytest.fixture
def task(tmp_path, model_folder):
    return write_task(tmp_path / "task", model_folder, DPO)


def rows_of(task):
    return [dict(row, time=0) for row in read_metrics(task.parent / "run" / "metrics.jsonl")]


def weights_of(task, step=12):
    (file,) = (task.parent / "run" / "checkpoints" / f"step-{step:06d}").glob("*.safetensors")
    return file.read_bytes()


@pytest.mark.parametrize("settings", [(), LORA], ids=["whole", "lora"])
def test_margin_and_accuracy_rise_from_zero(task, capsys, settings):
    assert main(["dpo", str(task), *settings]) == 0
    assert f"model written to {task.parent}/run/checkpoints/step-000012" in capsys.readouterr().out
    rows = rows_of(task)
    assert [row["step"] for row in rows] == list(range(1, 13))
    # Before the first step the policy is its reference.
    assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert rows[0]["margin"] == pytest.approx(0.0, abs=1e-6)
    assert rows[-1]["accuracy"] == 1.0
    assert rows[-1]["margin"] > 1.0
    assert rows[-1]["loss"] < 0.3
    assert rows[-1]["chosen_reward"] > rows[-1]["rejected_reward"]
    adapter = (task.parent / "run" / "checkpoints" / "step-000012" / "adapter_config.json").is_file()
    assert adapter == bool(settings)
    page = (task.parent / "run" / "report.html").read_text()
    assert all(text in page for text in ("Preference training: run", "Pairs won", "Rewards of the two sides"))


@pytest.mark.parametrize("loss", [("simpo", "learner.margin=0.5"), ("orpo",)], ids=["simpo", "orpo"])
def test_losses_without_a_reference_widen_the_margin(task, loss):
    assert main(["dpo", str(task), *overrides(f"learner.loss={loss[0]}", *loss[1:])]) == 0
    rows = rows_of(task)
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["margin"] > rows[0]["margin"]


@pytest.mark.parametrize(
    "settings",
    [("learner.loss=simpo",), ("learner.margin=0.5",), ("learner.loss=orpo", "learner.margin=0.5")],
)
def test_a_margin_goes_with_simpo(task, capsys, settings):
    assert main(["dpo", str(task), *overrides(*settings)]) == 2
    assert "learner" in (message := capsys.readouterr().err)
    assert 'margin: goes with loss = "simpo"' in message


def test_an_adapters_run_that_is_killed_and_resumed_ends_like_one_that_was_not(task, tmp_path, forked):
    status, _, message = forked("dpo", task, *LORA)
    assert status == 0, message
    whole = rows_of(task), weights_of(task)
    (task.parent / "run").rename(tmp_path / "whole")
    status, _, message = forked("dpo", task, *LORA, at=(r"^open .*/metrics\.jsonl a", 6))
    assert status == -signal.SIGKILL, message
    status, _, message = forked("dpo", task, *LORA, "--resume")
    assert status == 0, message
    assert (rows_of(task), weights_of(task)) == whole


def test_the_shipped_recipe_trains_an_adapter_for_two_steps(task, model_folder):
    recipe = Path(__file__).parents[2] / "recipes" / "dpo_toolstar_7b.toml"
    run = task.parent / "run"
    # Three epochs of 112 pairs are 21 steps: a tenth of them, rounded up, are 3 of warm-up; the cosine begins after 2.1.
    data = write_lines(task.parent / "many.jsonl", [*pairs()] * 14)
    settings = (f"model.path={model_folder}", f"data.train={data}", f"run.dir={run}")
    words = overrides(*settings)
    assert main(["dpo", str(recipe), "--max-steps", "2", *words]) == 0
    first, second = rows_of(task)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert second["margin"] > 0
    assert (first["lr_factor"], second["lr_factor"]) == pytest.approx((1 / 3, 2 / 3))
    written = json.loads((run / "checkpoints" / "step-000002" / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"]) == (8, 16)
    assert "down_proj" in written["target_modules"]


def test_pairs_of_a_services_answers_are_trained_on(tmp_path, model_folder, capsys):
    problems = [{"prompt": f"the capital of France, {n} ?", "answer": "Paris"} for n in range(4)]
    recipe = write_task(tmp_path / "synth", model_folder, SYNTH.replace("[hints]\n", ""), problems=problems)
    run, out = recipe.parent / "run", tmp_path / "pairs.jsonl"

    def model(messages, body):
        answer = "Paris" if body["seed"] % 2 else "Rome"
        return f"<think> {body['seed'] % 7} </think><answer> \\boxed{{{answer}}} </answer>"

    with chat_service(model) as server:
        engine = f'engine={{name="openai",api="chat",url="{server.url}/v1",model="m"}}'
        assert main(["synth", str(recipe), *overrides(engine)]) == 0
    assert main(["pairs", str(run), "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows
    assert {row["exact_ids"] for row in rows} == {False}
    assert all(row["chosen"].endswith("\\boxed{Paris} </answer>") for row in rows)
    assert f"{len(rows)} pairs hold texts of a service" in capsys.readouterr().out
    task = write_task(tmp_path / "dpo", model_folder, DPO)
    settings = overrides(
        f"data.train={out}",
        f"learner.batch_size={len(rows)}",
        "data.max_tokens=300",
        "learner.token_budget=600",
    )
    assert main(["dpo", str(task), *settings, "--max-steps", "2"]) == 0
    assert [row["step"] for row in rows_of(task)] == [1, 2]


def test_a_dry_run_and_doctor_know_the_recipe(task, capsys):
    files = set(task.parent.rglob("*"))
    assert main(["dpo", str(task), "--dry-run", "-s", "learner.beta=0.5"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["learner"]["beta"] == 0.5
    assert main(["doctor", str(task)]) == 0
    assert f"{task} is for ramify dpo" in capsys.readouterr().out
    assert set(task.parent.rglob("*")) == files


GOOD = next(pairs())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": GOOD["prompt"], "chosen": "yes"}, "row 1: no 'rejected'"),
        ({**GOOD, "rejected": "<result> 1 </result> <answer> a </answer>"}, "pairs.jsonl row 1: a result follows no call"),
    ],
)  # fmt: skip
def test_pairs_that_cannot_be_used_leave_no_run_behind(task, refused, row, message):
    write_lines(task.parent / "pairs.jsonl", [row])
    assert message in refused("dpo", task)
    assert not (task.parent / "run").exists()


LAST = {"prompt": [{"role": "user", "content": "?"}], "chosen": "ok", "id": "last"}


def test_the_last_pair_of_a_file_is_looked_at_before_the_first_step(task, capsys):
    sides = {
        "chosen": "<python> 1 </python> <result>\n42\n</result> <answer> a </answer>",
        "rejected": "<python> 1 </python> <result>42</result> <answer> a </answer>",
    }
    write_lines(task.parent / "pairs.jsonl", [*pairs(), {**LAST, **sides}])
    assert main(["dpo", str(task)]) == 2
    assert "pairs.jsonl row 9: chosen and rejected are the same tokens" in capsys.readouterr().err
    assert not (task.parent / "run").exists()


def test_a_pair_is_left_out_if_one_side_is_too_long_by_the_chat_template(task, capsys):
    long = "\u4e2d" * 39
    assert len(long.encode()) < 120
    write_lines(task.parent / "pairs.jsonl", [*pairs(), {**LAST, "rejected": long}])
    assert main(["dpo", str(task), "--max-steps", "1"]) == 0
    assert (
        "left out 1 of 9 rows with more than data.max_tokens = 120 tokens: row 9" in capsys.readouterr().out
    )
