"""The peer of rows 1, 1.dead, 2 and 8: the loss and the logprobs of TRL's GRPOTrainer, and their backward pass.

`compute_loss` and `_get_per_token_logps_and_entropies` are called as the trainer calls them, on batches laid out as
`_generate_and_score_completions` lays them out: prompts padded on the left, completions on the right, to the longest
of the generation batch, which here is one tree (the smallest that TRL allows). Tool tokens are masked out.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from benchmarks.harness.answer import answer_lines
from benchmarks.harness.high_water import peak_above

_SIDE: "TrlSide | None" = None


class TrlSide:
    """A trainer on the shared model folder, and the trees as its generation batches.

    `question`: folder; trees (a file of trajectories); clip_low, clip_high; checkpointing; device (bfloat16 on "cuda").
    """

    def __init__(self, question: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        folder = Path(question["folder"])
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>"
        )
        self.device = question["device"]
        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
        trees = json.loads(Path(question["trees"]).read_text(encoding="utf-8"))
        group = len(trees[0])
        arguments = GRPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=group,
            num_generations=group,
            max_completion_length=2048,
            temperature=1.0,
            beta=0.0,
            epsilon=question["clip_low"],
            epsilon_high=question["clip_high"],
            loss_type="dapo",
            bf16=self.device != "cpu",
            use_cpu=self.device == "cpu",
            gradient_checkpointing=question["checkpointing"],
            report_to="none",
            disable_tqdm=True,
        )
        self.trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "x"}] * group),
            processing_class=tokenizer,
        )
        self.model = self.trainer.model
        self.model.train()
        if question["checkpointing"]:
            self.model.gradient_checkpointing_enable()
        pad = tokenizer.pad_token_id
        self.denominator = sum(sum(map(sum, (t["written"] for t in tree))) for tree in trees)
        self.batches = [
            {key: tensor.to(self.device) for key, tensor in self._batch(tree, pad).items()} for tree in trees
        ]

    def update(self, batch_size: int) -> float:
        """Loss and gradient of all trees; the loss."""
        self.model.zero_grad(set_to_none=True)
        total = 0.0
        for part in self._parts(batch_size):
            loss = self.trainer.compute_loss(self.model, part)
            self.trainer.accelerator.backward(loss)
            total += loss.item()
        return total

    def warm_up(self) -> None:
        """An update on few tokens, for what libraries take at their first use; its gradients are dropped."""
        whole = self.batches
        self.batches = [{k: v[:1, :8] if v.ndim > 1 else v[:1] if v.ndim else v for k, v in whole[0].items()}]
        self.update(1)
        self.batches = whole
        self.model.zero_grad(set_to_none=True)

    def peak_above(self, batch_size: int) -> int:
        """Bytes that memory rises by at most in an update: of the process, or what torch has on a GPU."""
        if self.device == "cpu":
            return peak_above(lambda: self.update(batch_size))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.update(batch_size)
        return torch.cuda.max_memory_allocated() - before

    def logprobs(self, batch_size: int) -> None:
        """Log-probabilities of all completions."""
        with torch.no_grad():
            for batch in self.batches:
                ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
                mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
                self.trainer._get_per_token_logps_and_entropies(
                    self.model, ids, mask, batch["completion_ids"].shape[1], batch_size=batch_size
                )

    def save_gradients(self, file: str) -> None:
        """Those of the last update, by parameter name."""
        save_file({name: p.grad.contiguous() for name, p in self.model.named_parameters()}, file)

    def _parts(self, batch_size: int) -> list[dict[str, torch.Tensor]]:
        parts = []
        for batch in self.batches:
            for start in range(0, len(batch["advantages"]), batch_size):
                rows = slice(start, start + batch_size)
                parts.append({k: v[rows] if v.ndim else v for k, v in batch.items()})
        # What the training loop sets: all parts belong to one optimizer step.
        self.trainer.current_gradient_accumulation_steps = len(parts)
        self.trainer.args.steps_per_generation = len(parts)
        return parts

    def _batch(self, tree: list[dict[str, Any]], pad: int) -> dict[str, torch.Tensor]:
        prompts = _padded([t["prompt"] for t in tree], pad, left=True)
        return {
            "prompt_ids": prompts,
            "prompt_mask": torch.ones_like(prompts),
            "completion_ids": _padded([t["completion"] for t in tree], pad),
            "completion_mask": _padded([[1] * len(t["completion"]) for t in tree], 0),
            "tool_mask": _padded([t["written"] for t in tree], 0),
            "old_per_token_logps": _padded([t["old"] for t in tree], 0.0),
            "advantages": torch.tensor([t["advantage"] for t in tree], dtype=torch.float32),
            "num_items_in_batch": torch.tensor(float(self.denominator)),
        }


def _padded(rows: list[list[Any]], value: Any, left: bool = False) -> torch.Tensor:  # noqa: ANN401
    size = max(map(len, rows))
    fill = [[value] * (size - len(row)) for row in rows]
    return torch.tensor([f + row if left else row + f for row, f in zip(rows, fill, strict=True)])


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Build the trainer when the question names a folder, else do what is asked once."""
    global _SIDE
    if "folder" in question:
        _SIDE = TrlSide(question)
        names = {"trl": trl, "transformers": transformers, "torch": torch}
        return {"versions": {name: module.__version__ for name, module in names.items()}}
    assert _SIDE is not None
    side, size = _SIDE, question["batch"]
    if question["do"] == "peak":
        side.warm_up()
        gradients = sum(p.nbytes for p in side.model.parameters())
        peaks = []
        for _ in range(2):
            side.model.zero_grad(set_to_none=True)
            peaks.append(side.peak_above(size) - gradients)
        return {"first": peaks[0], "second": peaks[1]}
    started, cpu_started = time.perf_counter(), time.process_time()
    reply: dict[str, Any] = {}
    if question["do"] == "update":
        reply["loss"] = side.update(size)
    else:
        side.logprobs(size)
    if side.device != "cpu":
        torch.cuda.synchronize()
    reply["seconds"] = time.perf_counter() - started
    reply["cpu_seconds"] = time.process_time() - cpu_started
    if "gradients" in question:
        side.save_gradients(question["gradients"])
    return reply


if __name__ == "__main__":
    answer_lines(answer)
