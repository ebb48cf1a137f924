import io

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import build
from ramify.learner.configs import OptimizerConfig
from ramify.learner.optimizer import Optimizers
from ramify.modeling.load import load_model, save_model
from ramify.modeling.memory import available_bytes
from ramify.modeling.memory_plan import row_bytes
from ramify.modeling.tiny import make_tiny_qwen3
from ramify.obs.console import RunConsole
from ramify.train.row_memory import prepare_rows

SIZES = {"vocab_size": 50, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8}


def said(model, tokens):
    out = io.StringIO()
    prepare_rows(build.learner(model), tokens, 100, RunConsole(out, stamp=str))
    return " ".join(out.getvalue().split())


def recomputes(model):
    return [layer.gradient_checkpointing for layer in model.model.layers]


def test_rows_that_fit_are_computed_once_and_nothing_is_said():
    model = make_tiny_qwen3(
        **SIZES, intermediate=48, rope_theta=100.0, context=128, eos_id=1, pad_id=0, seed=0
    )
    assert said(model, 1000) == ""
    assert recomputes(model) == [False, False]


def test_rows_that_do_not_fit_are_recomputed_and_it_is_said():
    model = make_tiny_qwen3(
        **SIZES, intermediate=48, rope_theta=100.0, context=128, eos_id=1, pad_id=0, seed=0
    )
    per_token = row_bytes(model.config, 1_000_000, model.dtype.itemsize).without_recompute / 1_000_000
    tokens = int(2 * available_bytes(model.device) / per_token)
    assert f"rows of up to {tokens} tokens do not fit into memory" in said(model, tokens)
    assert recomputes(model) == [True, True]


def test_what_the_optimizer_will_take_is_no_room_for_rows(monkeypatch):
    model = make_tiny_qwen3(
        **SIZES, intermediate=48, rope_theta=100.0, context=128, eos_id=1, pad_id=0, seed=0
    )
    with monkeypatch.context() as patched:
        patched.setattr(Optimizers, "missing_bytes", lambda _: available_bytes(model.device))
        assert "do not fit into memory" in said(model, 1000)
    optimizers = Optimizers(model, OptimizerConfig(rate=1e-3))
    assert optimizers.missing_bytes() == optimizers.state_bytes() > 0
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizers.step(1.0)
    assert optimizers.missing_bytes() == 0


def test_rows_of_single_trajectories_are_announced(tmp_path):
    config = Qwen2Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=0,
    )
    save_model(Qwen2ForCausalLM(config), tmp_path)
    assert "each context of a trajectory is computed as a row of its own" in said(load_model(tmp_path), 100)
