"""A float32 run on a CPU computes in float32: bfloat16 products are slow there, and differ from one CPU to the next."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from e2e_runs import overrides, write_task
from ramify.cli import main
from ramify.config import shipped_recipes

SMALL = {
    "sft": {"data.train": "demonstrations.jsonl", "learner.batch_size": 3, "learner.optimizer.warmup_steps": 1},
    "train": {
        "data.train": "problems.jsonl", "data.max_prompt_tokens": 200, "preflight.enabled": "false",
        "reward": '{name = "length"}', "rollout.problems_per_step": 2, "rollout.n": 4, "rollout.m": 2,
        "rollout.max_tokens": 48, "rollout.max_calls": 1, "tools.search.corpus": "passages.jsonl",
        "learner.problems_per_minibatch": 2, "learner.optimizer.warmup_steps": 1,
    },
}  # fmt: skip


class Products(TorchDispatchMode):
    """Collects the types of what is multiplied."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__.endswith(("mm", "mv", "attention", "linear", "matmul")):
            self.dtypes |= {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(("command", "recipe"), [("sft", "quickstart_sft"), ("train", "quickstart_rl")])
def test_a_float32_step_multiplies_float32_matrices_alone(command, recipe, tmp_path, caller, monkeypatch):
    write_task(tmp_path, caller)
    monkeypatch.chdir(tmp_path)
    settings = {"model.path": caller, "run.dir": tmp_path / "run", **SMALL[command]}
    words = overrides(settings)
    with Products() as products:
        assert main([command, str(shipped_recipes() / f"{recipe}.toml"), "--max-steps", "1", *words]) == 0
    assert products.dtypes == {torch.float32}
