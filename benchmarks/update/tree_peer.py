"""The peer of rows 1t, 1t.tau2 and 8t: TRL's packing of trees (`TreeRow`), its loss, and the backward pass.

The trainer is TRL's `AsyncGRPOTrainer`, which packs trees; samples go through its own batcher and collator into its
own `compute_loss`. TRL computes attention over packed trees with a FlashAttention 3 kernel that has no CPU version. On
a CPU one of `benchmarks.update.tree_attention` takes its place, and the head sees trained tokens only, as TRL's does on
a GPU (on a CPU TRL's would see all tokens). On a GPU nothing is replaced.
"""

import json
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
import transformers
import trl
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AttentionInterface, PreTrainedTokenizerFast
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer
from trl.experimental.async_grpo.async_grpo_trainer import DataCollatorForRollout, TokenBudgetBatcher
from trl.experimental.async_grpo.packing import TREE_ATTENTION

from benchmarks.harness.answer import answer_lines
from benchmarks.harness.high_water import peak_above
from benchmarks.update.tree_attention import ATTENTIONS

_Row: TypeAlias = tuple[dict[str, torch.Tensor], Any]
"""A batch as TRL's collator makes it, and the plan of its attention on a CPU."""
_SIDE: "TreeSide | None" = None


class TreeSide:
    """A trainer on the shared model folder, and the trees as its samples.

    `question`: folder; trees (a file of trajectories); clip_low, clip_high; checkpointing; device (bfloat16 on "cuda").
    """

    def __init__(self, question: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.device = question["device"]
        self.trainer = _trainer(question)
        self.model = self.trainer.model
        self.model.train()
        if question["checkpointing"]:
            self.model.gradient_checkpointing_enable()
        trees = json.loads(Path(question["trees"]).read_text(encoding="utf-8"))
        self.samples = [_sample(t, group) for group, tree in enumerate(trees) for t in tree]
        self.denominator = float(sum(sample["completion_mask"].sum() for sample in self.samples))
        if self.device == "cpu":
            AttentionInterface.register(TREE_ATTENTION, self._attention)
            self.model.base_model.register_forward_hook(self._keep_labelled)

    def open_rows(self, attention: str, tokens: int) -> None:
        """Pack all samples into rows of at most this many tokens."""
        self.rows = self._packed(self.samples, attention, tokens)

    def update(self) -> float:
        """Loss and gradient of all rows; the loss."""
        self.model.zero_grad(set_to_none=True)
        call = self._compact if self.device == "cpu" else self.model
        total = 0.0
        for batch, plan in self.rows:
            self.plan = plan
            loss = self.trainer.compute_loss(call, batch)
            self.trainer.accelerator.backward(loss)
            total += loss.item()
        return total

    def warm_up(self, attention: str) -> None:
        """An update on few tokens, for what libraries take at their first use; its gradients are dropped."""
        whole = self.rows
        short = {k: v[-8:] if isinstance(v, torch.Tensor) else v for k, v in self.samples[0].items()}
        self.rows = self._packed([short], attention, 8)
        self.update()
        self.rows = whole
        self.model.zero_grad(set_to_none=True)

    def peak_above(self) -> int:
        """Bytes that memory rises by at most in an update: of the process, or what torch has on a GPU."""
        if self.device == "cpu":
            return peak_above(self.update)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.update()
        return torch.cuda.max_memory_allocated() - before

    def save_gradients(self, file: str) -> None:
        """Those of the last update, by parameter name."""
        save_file({name: p.grad.contiguous() for name, p in self.model.named_parameters()}, file)

    def _packed(self, samples: list[dict[str, Any]], attention: str, tokens: int) -> list[_Row]:
        collate = DataCollatorForRollout(pad_token_id=0, token_budget=tokens)
        # The batcher reads an endless queue and gives a row away when a sample does not fit: the last one never fits.
        no_room = {**samples[0], "input_ids": torch.full((tokens,), -1), "group_id": -1}
        packed = []
        for rows in TokenBudgetBatcher([*samples, no_room], 1, tokens, defaultdict(list)):
            batch = collate([rows])
            # One denominator for the whole step; TRL itself divides by that of the row and by the number of rows.
            batch["global_n_tokens"] = torch.tensor([self.denominator])
            plan = _plan(batch, attention) if self.device == "cpu" else None
            packed.append(({key: tensor.to(self.device) for key, tensor in batch.items()}, plan))
        return packed

    def _attention(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        scaling: float,
        **options: Any,  # noqa: ANN401
    ) -> tuple[torch.Tensor, None]:
        del module, attention_mask, options
        return self.plan(query, key, value, scaling), None

    def _compact(self, *, shift_labels: torch.Tensor, **arguments: Any) -> Any:  # noqa: ANN401
        """The model, with the head on labelled tokens; what it says of the others is zero."""
        (self.labelled,) = torch.nonzero(shift_labels[0] != -100, as_tuple=True)
        output = self.model(shift_labels=shift_labels[:, self.labelled], **arguments)
        for name in ("log_probs", "entropy"):
            whole = torch.zeros(shift_labels.shape).index_copy(1, self.labelled, output[name])
            output[name] = whole
        return output

    def _keep_labelled(self, module: torch.nn.Module, arguments: Any, output: Any) -> Any:  # noqa: ANN401
        del module, arguments
        output.last_hidden_state = output.last_hidden_state[:, self.labelled]
        return output


def _trainer(question: dict[str, Any]) -> AsyncGRPOTrainer:
    """The trainer without the server that writes its rollouts, which an update does not need."""
    async_grpo_trainer.VLLMClient = lambda *_: None
    folder = Path(question["folder"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    on_cpu = question["device"] == "cpu"
    if on_cpu:
        async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
    arguments = AsyncGRPOConfig(
        output_dir=str(folder / "trl"),
        max_steps=1,
        temperature=1.0,
        epsilon=question["clip_low"],
        epsilon_high=question["clip_high"],
        dtype="float32" if on_cpu else "bfloat16",
        bf16=not on_cpu,
        use_cpu=on_cpu,
        gradient_checkpointing=question["checkpointing"],
        report_to="none",
        disable_tqdm=True,
    )
    trainer = AsyncGRPOTrainer(
        model=str(folder),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "x"}]),
        processing_class=tokenizer,
        rollout_worker=SimpleNamespace(rollout_buffer=None),
        weight_transfer=SimpleNamespace(),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def _sample(trajectory: dict[str, Any], group: int) -> dict[str, Any]:
    before = len(trajectory["prompt"])
    return {
        "input_ids": torch.tensor(trajectory["prompt"] + trajectory["completion"]),
        "completion_mask": torch.tensor([0] * before + trajectory["written"]),
        "old_log_probs": torch.tensor([0.0] * before + trajectory["old"]),
        "advantage": trajectory["advantage"],
        "group_id": group,
        "metrics": {},
    }


def _plan(batch: dict[str, torch.Tensor], attention: str) -> Any:  # noqa: ANN401
    cu_q, cu_k = (batch[f"tree_cu_seqlens_{side}"][0].tolist() for side in "qk")
    return ATTENTIONS[attention].of(cu_q, cu_k, batch["tree_kv_index"][0])


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Build the trainer when the question names a folder, else do what is asked once."""
    global _SIDE
    if "folder" in question:
        _SIDE = TreeSide(question)
        names = {"trl": trl, "transformers": transformers, "torch": torch}
        return {"versions": {name: module.__version__ for name, module in names.items()}}
    assert _SIDE is not None
    side = _SIDE
    if question["do"] == "pack":
        side.open_rows(question["attention"], question["tokens"])
        return {"computed": [int(batch["input_ids"].shape[1]) for batch, _ in side.rows]}
    if question["do"] == "peak":
        side.warm_up(question["attention"])
        gradients = sum(p.nbytes for p in side.model.parameters())
        peaks = []
        for _ in range(2):
            side.model.zero_grad(set_to_none=True)
            peaks.append(side.peak_above() - gradients)
        return {"first": peaks[0], "second": peaks[1]}
    started, cpu_started = time.perf_counter(), time.process_time()
    reply: dict[str, Any] = {"loss": side.update()}
    if side.device != "cpu":
        torch.cuda.synchronize()
    reply["seconds"] = time.perf_counter() - started
    reply["cpu_seconds"] = time.process_time() - cpu_started
    if "gradients" in question:
        side.save_gradients(question["gradients"])
    return reply


if __name__ == "__main__":
    answer_lines(answer)
