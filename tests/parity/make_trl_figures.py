"""Make tests/parity/trl_figures.json: what TRL's own trainers compute on the inputs of parity_inputs.py.

Run by `make parity` with the interpreter of the peers' environment, from the root of the repository. Nothing of
ramify is imported. The trainers are TRL's, made by their constructors; only sampling is replaced by the fixed
completions, and weights are set where a run would have moved them.
"""

import json
import math
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import numpy
import tokenizers
import torch
import transformers
import trl
from parity_inputs import (
    DPO_BETAS,
    DPO_PAIRS,
    EOS,
    GRPO_CASES,
    MAX_COMPLETION,
    PAD,
    REFERENCE,
    RLOO,
    SAMPLED,
    SIZES,
    TRAINED,
    Answer,
    GrpoCase,
    groups,
    one_turn,
    projections,
    sampling_shifts,
    set_weights,
)

OUT = Path(__file__).parent / "trl_figures.json"
Figures = dict[str, Any]


def new_model() -> Any:
    config = transformers.Qwen3Config(**SIZES, attn_implementation="sdpa")
    return transformers.Qwen3ForCausalLM(config).double()


def tokenizer() -> Any:
    vocabulary = {f"t{index}": index for index in range(SIZES["vocab_size"])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="t2"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=f"t{PAD}", eos_token=f"t{EOS}", unk_token="t2"
    )


def words(token_ids: tuple[int, ...] | list[int]) -> str:
    return " ".join(f"t{token}" for token in token_ids)


@contextmanager
def saved_model() -> Iterator[Any]:
    """A model with the sampled weights that knows its folder, from which trainers make the reference model."""
    with tempfile.TemporaryDirectory() as folder:
        model = new_model()
        set_weights(model, SAMPLED)
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        yield transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="sdpa"
        )


def arguments(kind: Any, **changes: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return kind(
            output_dir=folder,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            save_strategy="no",
            **changes,
        )


def figures(model: Any, loss: torch.Tensor) -> Figures:
    """Value and gradient of a loss."""
    model.zero_grad()
    loss.backward()
    gradients = {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
    norms = {name: float(gradient.double().norm()) for name, gradient in sorted(gradients.items())}
    return {
        "loss": float(loss),
        "grad_norm": math.sqrt(sum(norm**2 for norm in norms.values())),
        "grad_norms": norms,
        "projections": projections(gradients),
    }


def answers() -> list[tuple[tuple[int, ...], Answer]]:
    return [(group.prompt, answer) for group in groups() for answer in group.answers]


def grpo(case: GrpoCase) -> Figures:
    """One case: TRL's advantages, old and reference logprobs at the sampled weights, its loss at the trained ones."""
    rows = answers()
    corrects = case.trl.get("vllm_importance_sampling_correction", False)
    with saved_model() as model:
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [answer.reward for _, answer in rows],
            args=arguments(
                trl.GRPOConfig,
                per_device_train_batch_size=len(rows),
                num_generations=len(rows) // len(groups()),
                max_completion_length=MAX_COMPLETION,
                temperature=case.temperature,
                # With more than one pass over a batch TRL computes the logprobs that ratios are taken to.
                num_iterations=2,
                **{"beta": 0.0, "vllm_importance_sampling_correction": False, **case.trl},
            ),
            train_dataset=datasets.Dataset.from_dict({"prompt": [words(group.prompt) for group in groups()]}),
            processing_class=tokenizer(),
        )
        # vLLM itself is not needed for what its logprobs are used for.
        trainer.use_vllm = corrects
        sampled = sampled_logprobs(trainer.model, case.temperature) if corrects else None
        trainer._generate = generated(sampled)
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        if trainer.ref_model is not None:
            set_weights(trainer.ref_model, REFERENCE)
        inputs = trainer._generate_and_score_completions([{"prompt": words(prompt)} for prompt, _ in rows])
        set_weights(trainer.model, TRAINED)
        result = figures(trainer.model, trainer._compute_loss(trainer.model, inputs))
    result["advantages"] = inputs["advantages"].tolist()
    return result


def rloo() -> Figures:
    """The gradient on policy, of completions that are all the policy's own."""
    flat = [one_turn(group) for group in groups()]
    rows = [(group.prompt, answer) for group in flat for answer in group.answers]
    with saved_model() as model:
        trainer = trl.RLOOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [answer.reward for _, answer in rows],
            args=arguments(
                trl.RLOOConfig,
                per_device_train_batch_size=len(rows),
                num_generations=len(rows) // len(flat),
                max_completion_length=MAX_COMPLETION,
                **RLOO.trl,
            ),
            train_dataset=datasets.Dataset.from_dict({"prompt": [words(group.prompt) for group in flat]}),
            processing_class=tokenizer(),
        )
        trainer._generate = lambda _: (
            [list(prompt) for prompt, _ in rows],
            [answer.token_ids for _, answer in rows],
            [words(answer.token_ids) for _, answer in rows],
        )
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        set_weights(trainer.ref_model, REFERENCE)
        inputs = trainer._generate_and_score_completions([{"prompt": words(prompt)} for prompt, _ in rows])
        result = figures(trainer.model, trainer._compute_loss(trainer.model, inputs))
    result["advantages"] = inputs["advantages"].tolist()
    return result


def generated(sampled: list[list[float]] | None) -> Callable[..., Any]:
    """Return a stand-in for sampling that gives the fixed completions."""

    def generate(prompts: list[Any]) -> tuple[Any, ...]:
        rows = answers()
        assert len(prompts) == len(rows)
        return (
            [list(prompt) for prompt, _ in rows], [answer.token_ids for _, answer in rows],
            [answer.written for _, answer in rows], [words(answer.token_ids) for _, answer in rows], sampled,
            {}, None, None,
        )  # fmt: skip

    return generate


def sampled_logprobs(model: Any, temperature: float) -> list[list[float]]:
    """Logprobs of a made-up rollout engine: those of the model plus the shifts."""
    logprobs = []
    for (prompt, answer), shifts in zip(answers(), sampling_shifts(), strict=True):
        ids = torch.tensor([[*prompt, *answer.token_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, :-1] / temperature
        own = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
        logprobs.append([float(a) + b for a, b in zip(own, shifts, strict=True)])
    return logprobs


def batch(rows: list[tuple[tuple[int, ...], Answer]]) -> dict[str, torch.Tensor]:
    """Rows padded on the right, with a mask of what the policy wrote."""
    longest = max(len(prompt) + len(answer.token_ids) for prompt, answer in rows)

    def padded(values: list[int], fill: int) -> list[int]:
        return values + [fill] * (longest - len(values))

    return {
        "input_ids": torch.tensor([padded([*p, *a.token_ids], PAD) for p, a in rows]),
        "attention_mask": torch.tensor([padded([1] * (len(p) + len(a.token_ids)), 0) for p, a in rows]),
        "completion_mask": torch.tensor([padded([0] * len(p) + a.written, 0) for p, a in rows]),
    }


def sft() -> Figures:
    """The mean over the written tokens of all completions, tool results masked."""
    inputs = batch(answers())
    mask = inputs.pop("completion_mask")
    inputs["labels"] = inputs["input_ids"].masked_fill(mask == 0, -100)
    with saved_model() as model:
        trainer = trl.SFTTrainer(
            model=model,
            args=arguments(trl.SFTConfig, per_device_train_batch_size=len(answers())),
            train_dataset=datasets.Dataset.from_dict({"text": [words(prompt) for prompt, _ in answers()]}),
            processing_class=tokenizer(),
        )
        trainer.model.train()
        set_weights(trainer.model, TRAINED)
        loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=mask.sum())
        return figures(trainer.model, loss)


def dpo(beta: float) -> Figures:
    """The mean over the pairs, tool results masked."""
    pairs = [(groups()[g], groups()[g].answers[c], groups()[g].answers[r]) for g, c, r in DPO_PAIRS]
    rows = [(group.prompt, chosen) for group, chosen, _ in pairs]
    rows += [(group.prompt, rejected) for group, _, rejected in pairs]
    with saved_model() as model:
        trainer = trl.DPOTrainer(
            model=model,
            args=arguments(trl.DPOConfig, beta=beta, per_device_train_batch_size=len(pairs)),
            train_dataset=datasets.Dataset.from_dict(
                {
                    "prompt": [words(group.prompt) for group, _, _ in pairs],
                    "chosen": [words(chosen.token_ids) for _, chosen, _ in pairs],
                    "rejected": [words(rejected.token_ids) for _, _, rejected in pairs],
                }
            ),
            processing_class=tokenizer(),
        )
        trainer.model.train()
        set_weights(trainer.ref_model, REFERENCE)
        set_weights(trainer.model, TRAINED)
        loss = trainer._compute_loss(trainer.model, batch(rows), return_outputs=False)
        result = figures(trainer.model, loss)
        logged = trainer._metrics["train"]
        result["metrics"] = {
            name: logged[f"rewards/{name}"][-1] for name in ("accuracies", "margins", "chosen", "rejected")
        }
        return result


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(), "trl": trl.__version__, "transformers": transformers.__version__,
        "torch": torch.__version__, "numpy": numpy.__version__,
    }  # fmt: skip


def main() -> None:
    """Write the figures."""
    torch.set_num_threads(1)
    model = new_model()
    result = {
        "command": "make parity",
        "versions": versions(),
        "weights": {str(which): set_weights(model, which) for which in (SAMPLED, TRAINED, REFERENCE)},
        "sampled_logprobs": None,
        "sft": sft(),
        "dpo": {str(beta): dpo(beta) for beta in DPO_BETAS},
        "rloo": rloo(),
        "grpo": {name: grpo(case) for name, case in GRPO_CASES.items()},
    }
    set_weights(model, SAMPLED)
    result["sampled_logprobs"] = sampled_logprobs(model, 1.0)
    OUT.write_text(json.dumps(rounded(result), indent=1) + "\n")
    sys.stdout.write(f"wrote {OUT}\n")


def rounded(value: Any) -> Any:
    """Ten digits are more than is compared."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
