"""Workers whose gradients can be looked at, on tiny models that every rank can make for itself."""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from precision import in_precision
from ramify.learner.configs import OptimizerConfig
from ramify.learner.parallel import make_mesh
from ramify.learner.sharding import Sharding, shard, whole
from ramify.learner.worker import Worker
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model, save_model
from ramify.modeling.lora import adapters_off, add_lora
from ramify.modeling.memory_plan import Layout

ADAMW = OptimizerConfig(rate=1e-3, weight_decay=0.0)
STILL = OptimizerConfig(rate=1e-12, weight_decay=0.0)
"""With a warm-up of 2**31 steps no float64 weight moves."""
MUON = OptimizerConfig(name="muon", rate=0.006, vector_rate=4e-3, embedding_rate=1e-3)


class WatchedWorker(Worker):
    """Keeps the whole gradients of its last step, before clipping."""

    def step(self, factor, max_norm):
        self.whole_gradients = {
            name: whole(p.grad).double().numpy().copy()
            for name, p in self.model.named_parameters()
            if p.grad is not None
        }
        super().step(factor, max_norm)

    def gradients_of_step(self):
        return self.whole_gradients

    def weights(self):
        return {name: whole(p.detach()).double().numpy().copy() for name, p in self.model.named_parameters()}


@dataclass(frozen=True)
class WorkerPlan:
    """Makes a rank's worker from a model's folder; `dtype` is what it computes in."""

    folder: str
    dtype: torch.dtype = torch.float32
    gather: str = "once"
    offload: bool = False
    recompute: bool = False
    copies: int = 1
    lora: bool = False
    optimizer: object = ADAMW
    reference: str | None = None

    def description(self):
        """As `learner.parallel.Plan` wants it; a type of torch goes by its name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "dtype": str(self.dtype).removeprefix("torch.")}

    @classmethod
    def read(cls, description):
        return cls(**{**description, "dtype": getattr(torch, description["dtype"])})

    def __call__(self, rank):
        wide = torch.promote_types(self.dtype, torch.float32)
        model = self._model(self.folder, wide)
        if self.lora:
            add_lora(model, AdapterConfig(rank=2, alpha=4.0), seed=0)
            model.to(wide)
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if ".lora_B." in name:
                        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
                    elif not parameter.requires_grad:
                        parameter.data = parameter.data.to(self.dtype)
        mesh = None
        if rank.size > 1 or (self.dtype != wide and not self.lora):
            mesh = make_mesh(rank, "cpu", min(self.copies, rank.size))
            shard(model, Sharding(mesh, self.dtype, Layout(self.gather, self.offload)))
        worker = WatchedWorker(model, self.optimizer, self._reference(model, mesh))
        if self.recompute:
            worker.recompute()
        return worker

    def _model(self, folder, dtype):
        return in_precision(load_model(folder), dtype)

    def _reference(self, model, mesh):
        if self.reference is None:
            return None
        if self.lora:

            @contextmanager
            def base():
                with adapters_off(model):
                    yield model

            return base
        frozen = self._model(self.reference, self.dtype).requires_grad_(False)
        if mesh is not None:
            shard(frozen, Sharding(mesh, self.dtype, Layout(self.gather, self.offload)))
        return lambda: nullcontext(frozen)


SIZES = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "initializer_range": 0.3,
}  # fmt: skip


def write_tiny(folder, seed, *, tied=True):
    """A random model with biases that are not zero."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=tied))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.3)
        save_model(model, folder)
