"""The measured side of row 8.doctor: a fresh process that trains a random model of a published shape for two steps."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from benchmarks.harness.answer import answer_lines
from benchmarks.harness.high_water import peak_above
from benchmarks.harness.threads import NUM_THREADS
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.losses import Objective
from ramify.core.messages import Problem
from ramify.core.records import TrainingTree, behavior_annotations
from ramify.core.tree import Node, Source, StopReason, Tree, TreeKey, make_tree
from ramify.learner import parallel
from ramify.learner.configs import OptimizerConfig, ScheduleConfig
from ramify.learner.forward import PassSettings
from ramify.learner.update import Learner
from ramify.learner.worker import Reference
from ramify.modeling.attention import ATTENTION_NAME
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.lora import add_lora
from ramify.modeling.numerics import map_large_tensors
from ramify.modeling.recompute import recompute_activations, set_checkpointing

_SHORT = 64
_ADVANTAGES = (1.0, -1.0)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Make the model and train it; says how far this process's resident memory rises at most, in bytes.

    `config`: the model's configuration; `tokens`: of the largest row; `rank`: of an adapter, or 0; `reference`,
    `recompute`: whether there is one, whether layers are computed again.
    """
    torch.set_num_threads(NUM_THREADS)
    map_large_tensors()
    return {"peak": peak_above(lambda: _train(**question))}


def _train(config: dict[str, Any], tokens: int, rank: int, reference: bool, recompute: bool) -> None:
    model = _model(config)
    if rank:
        add_lora(model, AdapterConfig(rank=rank, alpha=2.0 * rank), seed=0)
    learner = _learner(model, tokens, _reference(config) if reference else None)
    set_checkpointing(model, recompute)
    # A step with a short row brings the optimizer's state. In the next one gradients are there when the long row comes.
    learner.update([_learned(_SHORT)])
    long = _learned(tokens)
    if reference:
        shares = learner.pack_and_deal([Objective(ClippedSurrogate(0.2, 0.2, None)).credit(long)])
        learner.forward(shares, PassSettings(1.0, 1024, with_entropy=False), of_reference=True)
    report = learner.update([_learned(_SHORT), long])
    if report.outcome != "stepped":
        raise RuntimeError(f"the step was {report.outcome}")


def _learner(model: PreTrainedModel, tokens: int, reference: Reference | None) -> Learner:
    return Learner(
        parallel.single_process(model, OptimizerConfig(rate=1e-6), reference),
        schedule=ScheduleConfig(),
        total_steps=10,
        objective=Objective(ClippedSurrogate(0.2, 0.2, None)),
        temperature=1.0,
        max_grad_norm=1.0,
        token_budget=tokens,
    )


def _model(config: dict[str, Any]) -> PreTrainedModel:
    """A model with random weights that computes as a loaded one does."""
    torch.manual_seed(0)
    sizes = {name: value for name, value in config.items() if name != "model_type"}
    model_config = CONFIG_MAPPING[config["model_type"]](**sizes)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        model_config, dtype=torch.float32, attn_implementation=ATTENTION_NAME
    )
    recompute_activations(model)
    model.train()
    return model


def _reference(config: dict[str, Any]) -> Reference:
    frozen = _model(config).requires_grad_(False)
    return lambda: nullcontext(frozen)


def _learned(tokens: int) -> TrainingTree:
    tree = _tree(tokens)
    pairs = zip(tree.trajectories, _ADVANTAGES, strict=True)
    return TrainingTree(
        tree, behavior_annotations(tree), tuple(np.full(leaf.num_written, value) for leaf, value in pairs)
    )


def _tree(tokens: int) -> Tree:
    """A prompt, a turn and two branches behind it, of a quarter of the tokens each."""
    ids = tuple(range(tokens // 4))
    written = (-1.0,) * len(ids)
    nodes = [Node("", (), None, Source.PROMPT, ids, ""), Node("0", (0,), "", Source.POLICY, ids, "", written)]
    for number in range(len(_ADVANTAGES)):
        path = (0, number)
        nodes.append(Node(f"0.{number}", path, "0", Source.POLICY, ids, "", written, stop=StopReason.TOKENS))
    return make_tree(Problem("p", (), ()), TreeKey(0, tokens), nodes)


if __name__ == "__main__":
    answer_lines(answer)
