import io

import pytest
import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

import build
from ramify.algos.dpo import DpoLoss
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.losses import GspoSurrogate
from ramify.algos.sft import NegativeLogLikelihood
from ramify.core.errors import MachineError
from ramify.core.rank import Rank
from ramify.learner.configs import OptimizerConfig
from ramify.learner.optimizer import Optimizers
from ramify.learner.parallel import make_mesh
from ramify.learner.sharding import Sharding, shard
from ramify.learner.worker import Worker
from ramify.modeling.load import load_model, save_model
from ramify.modeling.memory_plan import SHARES, Job, Layout, ModelSize, plan_of, row_bytes
from ramify.modeling.numerics import available_bytes
from ramify.obs.console import RunConsole
from ramify.train import row_memory
from ramify.train.row_memory import dry_step, prepare_rows


def notes_of(model, tokens):
    out = io.StringIO()
    prepare_rows(build.learner(model), tokens, 100, RunConsole(out, stamp=str))
    return " ".join(out.getvalue().split())


def recomputes(model):
    return [layer.gradient_checkpointing for layer in model.model.layers]


def test_rows_that_fit_are_computed_once_and_nothing_is_said():
    model = build.tiny_model()
    assert notes_of(model, 1000) == ""
    assert recomputes(model) == [False, False]


def test_rows_that_do_not_fit_are_recomputed_and_it_is_said():
    model = build.tiny_model()
    per_token = row_bytes(model.config, 1_000_000, model.dtype.itemsize).without_recompute / 1_000_000
    tokens = int(2 * available_bytes(model.device) / per_token)
    assert f"rows of up to {tokens} tokens do not fit into memory" in notes_of(model, tokens)
    assert recomputes(model) == [True, True]


def test_what_the_optimizer_will_take_is_no_room_for_rows(monkeypatch):
    model = build.tiny_model()
    with monkeypatch.context() as patched:
        patched.setattr(Optimizers, "missing_bytes", lambda _: available_bytes(model.device))
        assert "do not fit into memory" in notes_of(model, 1000)
    optimizers = Optimizers(model, OptimizerConfig(rate=1e-3))
    assert optimizers.missing_bytes() == optimizers.state_bytes() > 0
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizers.step(1.0)
    assert optimizers.missing_bytes() == 0


@pytest.mark.parametrize("gather", ["once", "by_layer"])
def test_rows_share_the_memory_with_weights_that_are_gathered(monkeypatch, gather):
    """As the plan of the same job says, by which `ramify doctor` goes."""
    model = build.tiny_model()
    size = ModelSize.of({name: p.shape for name, p in model.named_parameters()})
    plan = plan_of(Job(model.config, size, 2, 500, device="cpu"), Layout(gather))
    try:
        shard(model, Sharding(make_mesh(Rank(), "cpu", 1), torch.bfloat16, Layout(gather)))
        # The weights are there already.
        needed = plan.total - plan.parts["weights"] + (1 / SHARES["cpu"] - 1) * plan.row
        for room, recompute in ((1.001 * needed, False), (0.999 * needed, True)):
            monkeypatch.setattr(row_memory, "available_bytes", lambda _, room=room: int(room))
            assert ("do not fit into memory" in notes_of(model, 500)) == recompute
    finally:
        torch.distributed.destroy_process_group()


def test_rows_of_single_trajectories_are_announced(tmp_path):
    config = Qwen3NextConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=128, layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    save_model(Qwen3NextForCausalLM(config), tmp_path)
    assert "each context of a trajectory is computed as a row of its own" in notes_of(
        load_model(tmp_path), 100
    )


@pytest.mark.parametrize(
    "loss", [NegativeLogLikelihood(), DpoLoss(0.1), ClippedSurrogate(0.2, 0.2, None), GspoSurrogate(0.1, 0.1)]
)
def test_a_row_of_the_size_is_computed_and_nothing_is_left(loss, monkeypatch):
    learner, sizes = build.learner(build.tiny_model(), loss), []
    before = {name: p.clone() for name, p in learner.model.named_parameters()}
    gradients = Worker.gradients
    monkeypatch.setattr(
        Worker,
        "gradients",
        lambda worker, work: (sizes.extend(len(row.token_ids) for row in work.rows), gradients(worker, work))[
            1
        ],
    )
    dry_step(learner, 290, 120)
    assert sizes == [290]
    assert learner.step == 0
    assert all(
        torch.equal(before[name], p) and p.grad is None for name, p in learner.model.named_parameters()
    )
    assert learner.optimizers.state_tensors() == {}


def test_a_row_is_tried_beside_the_optimizers_state(monkeypatch):
    """A new run has none, and would run out at its second update."""

    def far_too_large(optimizers):
        return 1 << 60

    dry_step(build.learner(build.tiny_model()), 290, 120)
    monkeypatch.setattr(Optimizers, "missing_bytes", far_too_large)
    with pytest.raises(RuntimeError, match="allocate"):
        dry_step(build.learner(build.tiny_model()), 290, 120)


def test_what_does_not_fit_is_told_in_a_line(monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    learner = build.learner(build.tiny_model(), NegativeLogLikelihood())
    monkeypatch.setattr(Worker, "gradients", too_large)
    with pytest.raises(MachineError, match=r"^a row of 290 tokens does not fit .*token_budget") as caught:
        dry_step(learner, 290, 120)
    assert "\n" not in str(caught.value)
