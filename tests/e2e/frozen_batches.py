"""Everything that a change of structure must leave as it is, to the last bit: what runs write, and gradients of every loss.

    RAMIFY_FROZEN=FILE.json pytest tests/e2e/test_frozen_batches.py

On one commit this writes the file, on the next one it compares. Bits differ between machines and numbers of threads, so
records are not kept in the repository. What runs write is read from their files by name (`of_tree`), so that a record
outlives a new schema of the trace.
"""

import hashlib
import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from torch.optim.optimizer import register_optimizer_step_pre_hook

from e2e_runs import DPO, overrides, read_lines, write_task
from model_folders import write_model
from ramify.algos.losses import Objective
from ramify.assemble.algorithm import build_learning, build_objective
from ramify.assemble.model import build_model
from ramify.cli import main
from ramify.config.load import load_recipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.records import ScoredTree
from ramify.learner.parallel import single_process
from ramify.learner.update import Learner
from ramify.modeling.numerics import set_numerics
from ramify.obs.trace import read_trees
from random_trees import random_tree, sampled, some_rewards

RECIPES = Path(__file__).parents[2] / "recipes"
LOSSES = (
    "aepo_paper", "aepo", "arpo_hard", "arpo", "arpo_unbiased", "cispo", "dapo", "dr_grpo", "gppo", "grpo",
    "grpo_tis", "gspo", "node_value", "reinforce_pp", "rloo", "tree_grpo",
)  # fmt: skip
STEPS = 10
NODE = (
    "id", "parent", "source", "token_ids", "behavior_logprobs", "entropy", "text", "results",
    "policy_version", "stop",
)  # fmt: skip
REWARD = ("value", "parts", "events")
METRICS = ("reward/mean", "update/loss", "update/grad_norm", "update/entropy", "update/tokens")


def record(folder):
    """All of it, as a table of digests and numbers, made in an empty folder."""
    return {**quickstart(folder), **preferences(folder), **losses(folder)}


def quickstart(folder):
    """A short cold start, and ten steps of ARPO from it, with the very recipes of the quick start."""
    out = folder / "quickstart"
    done("quickstart", "--smoke", "--out", out)
    cold, rl = folder / "sft", folder / "rl"
    done(
        "sft", RECIPES / "quickstart_sft.toml", "--max-steps", 150, *overrides({
            "model.path": out / "base", "data.train": out / "world" / "demonstrations.jsonl", "run.dir": cold,
            "data.epochs": 20, "learner.optimizer.warmup_steps": 5,
        })
    )  # fmt: skip
    start = cold / "checkpoints" / "step-000150"
    done(
        "train", RECIPES / "quickstart_rl.toml", "--max-steps", STEPS, *overrides({
            "model.path": start, "data.train": out / "world" / "train.jsonl", "run.dir": rl,
            "data.epochs": 20, "tools.search.corpus": out / "world" / "passages.jsonl", "run.deterministic": "true",
            "run.save_every": 1, "run.keep_last": STEPS, "rollout.problems_per_step": 4, "engine.slots": 64,
            "learner.problems_per_minibatch": 2, "preflight.enabled": "false",
        })
    )  # fmt: skip
    rows = read_lines(rl / "metrics.jsonl")
    trees = [read_trees(rl / "trees" / f"{step:06d}.jsonl") for step in range(1, STEPS + 1)]
    assert sum(len(node.results) for of_step in trees for each in of_step for node in each.tree.nodes) > 20
    assert sum(len(each.tree.decisions) for of_step in trees for each in of_step) > 20
    return {
        "sft/weights": weights(start),
        **{f"rl/{step}/trees": digest([of_tree(t) for t in of_step]) for step, of_step in enumerate(trees, 1)},
        **{f"rl/{row['step']}/{name}": row.get(name) for row in rows for name in METRICS},
        **{f"rl/{step}/weights": weights(rl / "checkpoints" / f"step-{step:06d}") for step in range(1, STEPS + 1)},
    }  # fmt: skip


def preferences(folder):
    """A run of DPO on pairs that share their first turn, or nothing."""
    recipe = write_task(folder / "dpo", write_model(folder / "model"), DPO)
    done("dpo", recipe)
    checkpoints = sorted((recipe.parent / "run" / "checkpoints").iterdir())
    return {f"dpo/{path.name}": weights(path) for path in checkpoints if path.is_dir()}


def losses(folder):
    """Advantages, loss and gradients of each recipe's algorithm, on random trees with rewritten contexts and split turns."""
    model = write_model(folder / "tiny")
    return {
        f"loss/{name}/{key}": value
        for name in LOSSES
        for key, value in of_loss(RECIPES / f"{name}_reasoning_7b.toml", model).items()
    }


def of_loss(path, model):
    """One optimizer step on four trees."""
    set_numerics(1, True)
    small = ["model.dtype=float32", "model.device=cpu", f"model.path={model}", "engine={name='local'}"]
    if "entropy_advantage" in path.read_text():
        small.append("algorithm.entropy_advantage.source=behavior")
    recipe = load_recipe(
        TrainRecipe, path, [*small, "learner.problems_per_minibatch=4", "rollout.problems_per_step=4"]
    )
    # The logprobs of random trees are not the model's.
    recipe = recipe.model_copy(
        update={
            "algorithm": recipe.algorithm.model_copy(update={"max_mismatch": 1e9, "max_mismatch_kl": 1e9})
        }
    )
    optimizer = recipe.learner.optimizer
    objective: Objective = build_objective(recipe.algorithm)
    frozen = build_model(recipe.model, 200).requires_grad_(False)
    learner = Learner(
single_process(build_model(recipe.model, 200), optimizer, lambda: nullcontext(frozen)), schedule=optimizer, total_steps=10, objective=objective, temperature=1.0, max_grad_norm=1e9, token_budget=10_000)  # fmt: skip
    learning = build_learning(recipe, learner, 1)
    rng = np.random.default_rng(7)
    typical = -np.log(learner.model.config.vocab_size)
    trees = [sampled(rng, random_tree(rng, split_turns=True, contexts="fresh"), typical) for _ in range(4)]
    rewards = [some_rewards(rng, tree) for tree in trees]
    learned = learning.credit([ScoredTree(*pair) for pair in zip(trees, rewards, strict=True)])
    applied = []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: applied.extend(gradients(optimizer)))
    (report,) = learning.update(learned)
    hook.remove()
    assert report.outcome == "stepped"
    return {
        "advantages": digest([array.tolist() for tree in learned for array in tree.advantages]),
        "loss": report.loss,
        "norm": report.grad_norm,
        "gradients": digest(applied),
    }  # fmt: skip


def gradients(optimizer):
    """Digests of all gradients that an optimizer is about to use."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [hashlib.sha256(parameter.grad.numpy().tobytes()).hexdigest() for parameter in parameters]


def of_tree(traced):
    """Return the values of a tree that every schema of the trace has; `results` by what the model was shown."""
    tree = asdict(traced.tree)
    nodes = [{key: node[key] for key in NODE} for node in tree["nodes"]]
    # Earlier commits call a decision's entropy delta its rise, and record neither draws nor ambiguous results.
    for result in (result for node in nodes for result in node["results"]):
        assert not result.pop("ambiguous")
    decisions = [
        {"rise" if k == "entropy_delta" else k: v for k, v in d.items() if k != "draw"}
        for d in tree["decisions"]
    ]
    rewards = [
        {key: value for key, value in asdict(reward).items() if key in REWARD} for reward in traced.rewards
    ]
    whole = {"key": tree["key"], "problem": tree["problem"], "advantages": traced.advantages}
    return {**whole, "nodes": nodes, "decisions": decisions, "rewards": rewards}


def weights(checkpoint):
    """Digest of the tensors of a checkpoint, by name."""
    sums = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        sums |= {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in load_file(path).items()}
    assert sums
    return digest(sums)


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def done(*arguments):
    status = main([str(argument) for argument in arguments])
    if status:
        raise RuntimeError(f"{arguments}: exit status {status}")
