"""Plans and losses that rank 0 sends to other ranks: all that a recipe can ask for crosses, and means the same there."""

from dataclasses import replace
from pathlib import Path

import pytest

import own_parts
from ramify.algos.losses import Objective
from ramify.algos.sft import NegativeLogLikelihood
from ramify.assemble.algorithm import build_objective
from ramify.assemble.worker import WorkerPlan
from ramify.config.load import load_recipe
from ramify.config.schema_algorithm import LossSection
from ramify.config.schema_train import TrainRecipe
from ramify.learner.configs import OptimizerConfig
from ramify.learner.wire import TOKEN_LOSSES, decode, encode
from ramify.modeling.configs import AdapterConfig, TrainedModelConfig
from ramify.modeling.memory_plan import Layout

RECIPES = [
    path
    for path in sorted((Path(__file__).parents[3] / "recipes").glob("*.toml"))
    if "[algorithm" in path.read_text()
    and "[rollout]" in path.read_text()
    and "[selfcritic]" not in path.read_text()
]
MODEL = TrainedModelConfig(path=Path("models/one"), dtype="bfloat16", device="cpu")
PLAN = WorkerPlan(
    MODEL, Path("/runs/a/step-2"), 300, -3, OptimizerConfig(rate=0.1, betas=(0.9, 0.95)), with_reference=True
)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, optimizer=OptimizerConfig(name="muon", rate=0.02, vector_rate=4e-3, embedding_rate=1e-3), copies=2, layout=Layout("by_layer", True), threads=3),
        replace(PLAN, model=replace(MODEL, lora=AdapterConfig(rank=4, targets=("q_proj", "v_proj")))),
        replace(PLAN, model=replace(MODEL, lora=AdapterConfig()), deterministic=True),
    ],
    ids=["AdamW", "Muon, layers", "LoRA on names", "LoRA"],
)  # fmt: skip
def test_a_plan_is_the_same_on_the_other_rank(plan):
    assert WorkerPlan.read(decode(encode(plan.description()))) == plan


def test_every_loss_that_a_recipe_can_name_crosses():
    recipe = load_recipe(TrainRecipe, RECIPES[0], ()).algorithm
    kinds = {type(loss) for loss in Objective(NegativeLogLikelihood()).token_losses}
    for loss in LossSection.__origin__.__args__:
        numbers = {
            "CispoSurrogate": {"clip_high": 0.2},
            "FileLoss": {"path": own_parts.__file__, "function": "clip", "args": {"clip_low": 0.1}},
        }.get(loss.__name__, {})
        penalties = {"entropy_bonus": 0.01, "kl": None}
        section = recipe.model_copy(update={"loss": loss(**numbers), **penalties})
        losses = build_objective(section).token_losses
        assert decode(encode(losses)) == losses
        kinds |= {type(term) for term in losses}
    assert kinds <= set(TOKEN_LOSSES)
    assert len(kinds) == len(TOKEN_LOSSES) - 1
