"""`ramify quickstart --tool-star` in miniature: all of its stages run and the report is whole."""

import json

import pytest

from e2e_runs import different
from ramify.cli import main
from ramify.config import shipped_recipes
from ramify.config.load import load_recipe
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import SelfCriticRecipe
from ramify.quickstart.tool_star_report import STAGES


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("tool_star") / "out"
    assert main(["quickstart", "--tool-star", "--smoke", "--seed", "1", "--out", str(out)]) == 0
    return out


def test_the_report_has_every_stage_and_every_repair_tool(out):
    report = json.loads((out / "report.json").read_text())
    assert report["seed"] == 1
    assert set(report["seconds"]) == {"data", "weak start", "synthesis", "sft", "rl and dpo", "evaluation"}
    for what in ("sampled", "greedy"):
        assert list(report["pass_at_1"][what]) == list(STAGES)
        assert list(report["added"][what]) == list(STAGES)[1:]
        for scores in report["pass_at_1"][what].values():
            low, high = scores["pass_at_1"]["ci95"]
            assert 0 <= low <= scores["pass_at_1"]["value"] <= high <= 1
            assert scores["pass_at_1"]["n"] == sum(kind["n"] for kind in scores["by_kind"].values()) == 20
    tried = {(entry["stage"], entry["what"], entry["repairs"]) for entry in report["repairs"]}
    kits = ("debugger", "backtracer", "refiner", "all three")
    assert tried == {(s, w, k) for s in ("weak", "dpo") for w in ("sampled", "greedy") for k in kits}
    assert report["synthesis"]["questions"] == 20
    assert report["cycle"]["pairs"]["questions"]


def test_the_page_says_what_each_part_added(out):
    page = (out / "report.html").read_text()
    assert "<script" not in page
    assert "<svg" in page
    for text in (*STAGES.values(), "Gain of each repair tool", "Results of the synthesis", "backtracer"):
        assert text in page


def test_every_stage_has_a_page_at_its_end_and_on_request(out):
    pages = {
        "": "Gain of each stage", "synth": "Rows for SFT", "selfcritic": "RL: mean reward",
        "selfcritic/cycle-01/rl": "Reinforcement learning", "eval/dpo-sampled": "Problems",
    }  # fmt: skip
    for name, text in pages.items():
        path = out / name / "report.html"
        assert text in path.read_text(), name
        path.unlink()
        assert main(["report", str(out / name), "--figures"]) == 0
        assert text in path.read_text(), name


@pytest.mark.parametrize(
    ("schema", "kind", "folder", "filled"),
    [
        (SftRecipe, "sft", "weak", {"data.train", "learner.optimizer.warmup_steps"}),
        (SynthRecipe, "synth", "synth", {"data.train", "data.limit", "hints.library", "sampling.max_tokens"}),
        (
            SelfCriticRecipe,
            "selfcritic",
            "selfcritic",
            {
                *("data.train", "rollout.max_tokens", "preflight.enabled", "learner.optimizer.warmup_steps"),
                *("selfcritic.steps", "selfcritic.problems", "dpo.optimizer.warmup_steps"),
            },
        ),
        (EvalRecipe, "eval", "eval/dpo-sampled-all-three", {"data.test", "sampling.max_tokens", "repair.helper.path"}),
    ],
)  # fmt: skip
def test_the_recipes_that_ship_are_those_that_ran(out, schema, kind, folder, filled):
    """But for folders, the seed, and what a smoke run changes."""
    ran, ships = (
        load_recipe(schema, file, ()).model_dump(mode="json")
        for file in (out / folder / "recipe.toml", shipped_recipes() / f"quickstart_toolstar_{kind}.toml")
    )
    always = {"model.path", "run.dir", "run.seed", "tools.search.corpus"}
    assert different(ships, ran) <= {*always, *filled}


def test_rl_asks_the_hard_questions_and_those_that_the_synthesis_did_not_ask(out):
    hard = (out / "synth" / "rl.jsonl").read_text().splitlines()
    others = (out / "world" / "train.jsonl").read_text().splitlines()[20:]
    assert (out / "rl.jsonl").read_text().splitlines() == hard + others
    assert hard
    assert len(others) == 10
