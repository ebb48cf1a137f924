"""The quick start in miniature: all of its phases run and the report is whole."""

import io
import json
import re

import pytest

from e2e_runs import different
from file_limits import file_size_limit
from ramify.cli import main
from ramify.config import shipped_recipes
from ramify.config.load import load_recipe
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import SftRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import MachineError
from ramify.obs.console import RunConsole
from ramify.quickstart.evaluations import evaluate
from ramify.quickstart.example import eval_recipe
from ramify.quickstart.world import make_example


def test_the_report_holds_every_figure(smoke_quickstart):
    report = json.loads((smoke_quickstart / "report.json").read_text())
    assert report["seed"] == 1
    assert set(report["seconds"]) == {"data", "sft", "rl", "eval"}
    for stages in (report["pass_at_1"], *report["by_kind"].values()):
        assert set(stages) == {"base", "sft", "rl"}
        for scores in stages.values():
            low, high = scores["ci95"]
            assert 0 <= low <= scores["value"] <= high <= 1
            assert scores["n"] > 0
    assert report["pass_at_1"]["rl"]["n"] == sum(stages["rl"]["n"] for stages in report["by_kind"].values())
    for name in ("greedy", "train_entities", "tool_calls_per_answer"):
        assert set(report[name]) == {"sft", "rl"}
    assert set(report["branches"]) == {"planned", "taken", "rate", "p_std", "by_entropy"}
    for kind in ("sft", "rl"):
        metrics = (smoke_quickstart / kind / "metrics.jsonl").read_text().splitlines()
        assert report["steps"][kind] == len(metrics) > 0
        assert report["config"][kind]["run"]["seed"] == 1
    assert 100e6 < report["peak_memory_bytes"] < 4e9
    assert {"python", "ramify", "torch", "transformers"} <= set(report["versions"])
    assert report["sandbox_level"] in range(5)


def test_the_page_stands_alone(smoke_quickstart):
    page = (smoke_quickstart / "report.html").read_text()
    report = json.loads((smoke_quickstart / "report.json").read_text())
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?\s*(?!["']?#)\w""", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert "<script" not in page
    assert page.count("<svg") >= 4
    for kind in report["by_kind"]:
        assert kind in page


@pytest.mark.parametrize(
    ("schema", "name", "filled"),
    [
        (SftRecipe, "quickstart_sft", {"learner.optimizer.warmup_steps"}),
        (TrainRecipe, "quickstart_rl", {"learner.optimizer.warmup_steps", "preflight.enabled", "tools.search.corpus"}),
        (EvalRecipe, "quickstart_eval", {"sampling.temperature", "tools.search.corpus"}),
    ],
)  # fmt: skip
def test_the_recipes_that_ship_are_those_that_ran(smoke_quickstart, schema, name, filled):
    """But for folders, the seed, and what a smoke run and a greedy evaluation change."""
    kind = name.removeprefix("quickstart_")
    folder = smoke_quickstart / (kind if kind != "eval" else "eval/rl-greedy")
    ran, ships = (
        load_recipe(schema, file, ()).model_dump(mode="json")
        for file in (folder / "recipe.toml", shipped_recipes() / f"{name}.toml")
    )
    data = "data.test" if kind == "eval" else "data.train"
    assert different(ships, ran) <= {"model.path", data, "run.dir", "run.seed", *filled}


def test_an_evaluation_that_cannot_be_made_ends_the_quick_start_with_its_reason(smoke_quickstart):
    gone = {
        stage: eval_recipe(
            make_example(1, smoke=True),
            smoke_quickstart / "eval" / f"{stage}-again",
            1,
            model,
            smoke_quickstart / "world" / "test.jsonl",
            smoke_quickstart / "world" / "passages.jsonl",
            1.0,
        )
        for stage, model in (("base", smoke_quickstart / "base"), ("rl", smoke_quickstart / "gone"))
    }
    with pytest.raises(MachineError, match=f"^evaluation: .*{smoke_quickstart / 'gone'}"):
        evaluate(gone, RunConsole(io.StringIO()))


def test_every_model_of_the_quick_start_opens(smoke_quickstart):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for stage in ("sft", "rl"):
        (folder,) = (smoke_quickstart / stage / "checkpoints").iterdir()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.get_input_embeddings().num_embeddings == len(tokenizer)


def test_a_first_phase_that_fails_leaves_a_folder_that_can_be_used_again(tmp_path, capsys):
    out = tmp_path / "out"
    with file_size_limit(1 << 20):
        assert main(["quickstart", "--smoke", "--out", str(out)]) == 1
    message = capsys.readouterr().err
    assert "base: the model cannot be written there" in message
    assert "Traceback" not in message
    assert list(out.iterdir()) == []


def test_only_the_cold_start_is_the_same_cold_start(smoke_quickstart, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["quickstart", "--smoke", "--seed", "1", "--only", "sft", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["base", "sft", "world"]
    for name in ("sft/checkpoints/step-000030/model.safetensors", "world/test.jsonl"):
        assert (out / name).read_bytes() == (smoke_quickstart / name).read_bytes()
    assert main(["quickstart", "--tool-star", "--only", "sft", "--out", str(tmp_path / "other")]) == 2
    assert "--only: has no effect with --tool-star" in capsys.readouterr().err
