"""What both sides of the comparison with TRL start from: weights, token sequences, rewards, and the cases.

Read by the tests here and, in the peers' environment, by the script that makes the figures; numpy and torch only.
"""

import hashlib
import math
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "tie_word_embeddings": True,
    "attention_bias": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
PAD, EOS = 0, 1
MAX_COMPLETION = 40
"""TRL's max_completion_length, which Dr. GRPO divides by."""

SAMPLED, TRAINED, REFERENCE = 0, 1, 2
"""Weights that the rollout was sampled from, that the loss is taken at, and of the reference model."""

NUM_PROJECTIONS = 4
"""Each gradient is compared by its norm, the norm of each parameter's part, and its products with unit vectors."""


def set_weights(model: torch.nn.Module, which: int) -> str:
    """Give every parameter its seeded values, in place; returns their checksum.

    The trained weights lie near the sampled ones, so that ratios fall on both sides of the clip edges.
    """
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = _values(name, tuple(parameter.shape), which).astype(np.float32)
            digest.update(name.encode() + values.tobytes())
            parameter.copy_(torch.from_numpy(values))
    return digest.hexdigest()


def _values(name: str, shape: tuple[int, ...], which: int) -> np.ndarray:
    key = zlib.crc32(name.encode())
    base = np.random.default_rng([SAMPLED, key]).normal(size=shape)
    moved = np.random.default_rng([which, key]).normal(size=shape) if which else 0.0
    amount = 0.08 if which == TRAINED else 0.05
    drawn = (base + amount * moved) / math.sqrt(1 + amount**2)
    if len(shape) == 1:
        return 1 + 0.1 * drawn
    return drawn * (0.35 if "embed" in name else 0.15)


def projections(gradients: dict[str, torch.Tensor]) -> list[float]:
    """Products of a whole gradient with seeded unit vectors."""
    products = []
    for index in range(NUM_PROJECTIONS):
        total = squares = 0.0
        for name, gradient in sorted(gradients.items()):
            direction = np.random.default_rng([100 + index, zlib.crc32(name.encode())]).normal(
                size=tuple(gradient.shape)
            )
            total += float((direction * gradient.double().numpy()).sum())
            squares += float((direction**2).sum())
        products.append(total / math.sqrt(squares))
    return products


@dataclass(frozen=True)
class Answer:
    """One completion: turns of the policy and results of tools, in turn; the last turn ends in EOS unless it was cut."""

    parts: tuple[tuple[int, ...], ...]
    reward: float

    @property
    def token_ids(self) -> list[int]:
        return [token for part in self.parts for token in part]

    @property
    def written(self) -> list[int]:
        """1 where the policy wrote the token, 0 on tool results."""
        return [1 - index % 2 for index, part in enumerate(self.parts) for _ in part]

    @property
    def is_cut(self) -> bool:
        return self.parts[-1][-1] != EOS


@dataclass(frozen=True)
class Group:
    """A prompt and its completions."""

    prompt: tuple[int, ...]
    answers: tuple[Answer, ...]


REWARDS = ((1.0, 0.0, 0.25, 0.5), (0.0, 0.0, 1.0, -1.0))
NUM_TURNS = ((1, 2, 1, 2), (2, 1, 1, 3))
CUT = ((), (3,))
"""Numbers of the answers that end without EOS, for each group."""


def groups() -> tuple[Group, ...]:
    rng = np.random.default_rng(7)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.integers(2, SIZES["vocab_size"], rng.integers(low, high)).tolist())

    drawn = []
    for rewards, turns, cut in zip(REWARDS, NUM_TURNS, CUT, strict=True):
        prompt = tokens(3, 8)
        answers = []
        for number, (reward, count) in enumerate(zip(rewards, turns, strict=True)):
            parts = [tokens(2, 7) for _ in range(2 * count - 1)]
            if number not in cut:
                parts[-1] = (*parts[-1], EOS)
            answers.append(Answer(tuple(parts), reward))
        drawn.append(Group(prompt, tuple(answers)))
    return tuple(drawn)


def one_turn(group: Group) -> Group:
    """The same tokens, all of them the policy's: RLOOTrainer masks no tool results."""
    return Group(group.prompt, tuple(Answer((tuple(a.token_ids),), a.reward) for a in group.answers))


def sampling_shifts() -> list[list[float]]:
    """Draw how far the rollout engine's logprobs lie above those of the sampled weights, for each token of each answer."""
    rng = np.random.default_rng(11)
    return [
        rng.normal(0.0, 0.12, len(answer.token_ids)).tolist()
        for group in groups()
        for answer in group.answers
    ]


@dataclass(frozen=True)
class GrpoCase:
    """One configuration of TRL's GRPOTrainer and the algorithm section of a recipe that equals it.

    Attributes:
        trl: Arguments of GRPOConfig.
        ours: Keys of the `algorithm` table.
        temperature: Of both.
        counts_kept_only: TRL divides by the tokens of the trajectories that carry loss, ramify by those of all.
    """

    trl: dict[str, Any]
    ours: dict[str, Any]
    temperature: float = 1.0
    counts_kept_only: bool = False


_CLIP = {"name": "clip", "clip_low": 0.2, "clip_high": 0.2}
_GSPO = {"name": "gspo", "clip_low": 0.01, "clip_high": 0.02}
_STD, _MEAN = {"name": "group"}, {"name": "group", "scale": "none"}
_PLAIN_KL = {"beta": 0.3, "use_bias_correction_kl": False}
"""TRL's default is the correction, which is k3_ratio."""
_SEQUENCES = {"importance_sampling_level": "sequence", "epsilon": 0.01, "epsilon_high": 0.02}


def _case(loss_type: str, aggregation: str, ours: dict[str, Any] | None = None, **trl: Any) -> GrpoCase:
    """A case with TRL's own arguments `trl`; ours are a group's standard deviation and the plain clip unless `ours` differ."""
    known = {"estimator": _STD, "loss": _CLIP, "aggregation": aggregation}
    return GrpoCase({"loss_type": loss_type, **trl}, known | (ours or {}))


def _corrected(mode: str, cap: float, floor: float | None = None) -> GrpoCase:
    level, kind = mode.split("_")
    section = {"level": level, "kind": kind, "cap": cap} | ({} if floor is None else {"floor": floor})
    bounds = {"clip_max": cap, "clip_min": floor, "mode": mode}
    trl = {
        f"vllm_importance_sampling_{name}": value for name, value in {"correction": True, **bounds}.items()
    }
    return _case("dapo", "token_mean", {"correction": section}, **trl)


def _kl(estimator: str) -> dict[str, Any]:
    return {"kl": {"place": "loss", "estimator": estimator, "coefficient": 0.3}}


GRPO_CASES = {
    "grpo": _case("grpo", "sequence_mean"),
    "grpo_kl": _case("grpo", "sequence_mean", _kl("k3"), **_PLAIN_KL),
    "bnpo": _case("bnpo", "token_mean"),
    "dapo": _case("dapo", "token_mean", {"loss": {**_CLIP, "clip_high": 0.5}}, epsilon_high=0.5),
    "dapo_kl": _case("dapo", "token_mean", _kl("k3"), **_PLAIN_KL),
    "dapo_kl_ratio": _case("dapo", "token_mean", _kl("k3_ratio"), beta=0.3, use_bias_correction_kl=True),
    "dapo_dual_clip": _case("dapo", "token_mean", {"loss": {**_CLIP, "dual_clip": 1.3}}, delta=1.3),
    "dapo_entropy_bonus": _case("dapo", "token_mean", {"entropy_bonus": 0.05}, entropy_coef=0.05),
    "dapo_temperature": replace(_case("dapo", "token_mean"), temperature=0.7),
    "dr_grpo": _case(
        *("dr_grpo", "fixed_length", {"estimator": _MEAN, "fixed_length": MAX_COMPLETION}),
        scale_rewards="none",
    ),
    "cispo": _case("cispo", "token_mean", {"loss": {"name": "cispo", "clip_high": 0.2}}, epsilon_high=1.2),
    "gspo": _case("grpo", "sequence_mean", {"loss": _GSPO}, **_SEQUENCES),
    "gspo_kl": _case("grpo", "sequence_mean", {"loss": _GSPO, **_kl("k3")}, **_SEQUENCES, **_PLAIN_KL),
    "grpo_truncated": _case("grpo", "sequence_mean", {"truncated": "mask"}, mask_truncated_completions=True),
    "bnpo_truncated": replace(
        _case("bnpo", "token_mean", {"truncated": "mask"}, mask_truncated_completions=True),
        counts_kept_only=True,
    ),
    "token_truncate": _corrected("token_truncate", 1.1),
    "token_mask": _corrected("token_mask", 1.15, 0.9),
    "sequence_truncate": _corrected("sequence_truncate", 1.1),
    "sequence_mask": _corrected("sequence_mask", 1.3, 0.8),
}
RLOO = GrpoCase(
    trl={"beta": 0.05},
    ours={
        "estimator": {"name": "group", "scale": "none", "baseline": "leave_subtree_out"},
        "loss": _CLIP,
        # TRL's ratio is the product over a completion: on policy its gradient is that of a plain sum over tokens.
        "aggregation": "fixed_length",
        "fixed_length": 1,
        "kl": {"place": "reward", "estimator": "k1", "coefficient": 0.05},
    },
)
DPO_BETAS = (0.1, 0.5)
DPO_PAIRS = ((0, 0, 1), (0, 3, 2), (1, 2, 3))
"""(group, chosen answer, rejected answer)."""
