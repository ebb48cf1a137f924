"""Functions of the user's own as parts of an algorithm: a branching rule, an estimator, a token loss.

A recipe names the file and the function: `{name = "file", path, function, args}`. What the function returns is checked each
time, and an error names its file and line.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ramify.algos.branch_rules import BranchingConfig, FixedRoots, RuleSetup, toss
from ramify.algos.estimators import EstimatorConfig, PerGroup
from ramify.algos.losses import LossConfig, LossInputs, LossOutput, bounded_exp
from ramify.algos.ops import Shared, spread, values
from ramify.core.config import InputFile, Name
from ramify.core.errors import ConfigError
from ramify.core.protocols import Brancher, Estimator
from ramify.core.records import AnnotatedTree, BatchSums, BranchCandidate, Floats, Proposal
from ramify.core.tree import BranchDecision, node_id
from ramify.files.user_code import (
    LoadedFunction,
    UserFunction,
    in_process,
    load_function,
    load_user_function,
    one_line,
)

if TYPE_CHECKING:
    import torch

_TRIED = 64
"""Ratios that a loss is tried on, from 1/e to e."""


class FromFile:
    """Settings that name a function in a file."""

    __slots__ = ()
    parameters: ClassVar[tuple[str, ...]]
    """What the function gets by position."""
    path: Path
    function: str
    args: dict[str, Any]

    def load(self) -> UserFunction:
        """Run the file and return the function.

        Raises:
            ConfigError: The file cannot be run or has no such function, or the function has other parameters.
        """
        return load_user_function(self.path, self.function, self.parameters, self.args)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRule(BranchingConfig, FromFile):
    """Branch with the probability clip(p, 0, 1), p what a user-defined function returns: `f(candidate, **args)`.

    `candidate` is a `core.records.BranchCandidate`, with `entropy_delta` in nats per token.
    """

    parameters = ("candidate",)

    name: Literal["file"] = "file"
    path: InputFile
    function: Name
    args: dict[str, Any] = field(default_factory=dict)

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        return FunctionBrancher(self.load(), setup.m, self.children, self.probe_tokens)


@dataclass(frozen=True, slots=True)
class FunctionBrancher(FixedRoots):
    """Branch if the candidate's own draw is below the probability that `probability_of` returns.

    Raises:
        ConfigError: From `propose`: the function raised, or returned no finite number.
    """

    looks_at_entropy: ClassVar[bool] = True

    probability_of: UserFunction
    m: int
    children: int
    probe_tokens: int

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the candidate's own draw: draw < P."""
        del history
        level = replace(candidate, turns=(*candidate.turns[:-1], candidate.turns[0]))
        probability, at_no_delta = (self._probability(each) for each in (candidate, level))
        return toss(self.children, probability, at_no_delta, candidate.draw)

    def _probability(self, candidate: BranchCandidate) -> float:
        about = f"tree {candidate.slot} of the step, node {node_id(candidate.path)!r}: "
        returned = self.probability_of.call(candidate, about=about)
        try:
            probability = float(returned) if isinstance(returned, Real) else math.nan
        except OverflowError:
            probability = math.inf
        if not math.isfinite(probability):
            problem = f"it returned {_shown(returned)}"
            raise self.probability_of.refused(problem, "Return a finite number, a probability", about)
        # As the named rules do: alpha + beta x delta leaves [0, 1] at large deltas.
        return min(max(probability, 0.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEstimator(EstimatorConfig, FromFile):
    """The advantages that a user-defined function returns: `f(rewards, tree, **args)`, one number for each trajectory.

    `rewards` is an array with the reward of each of `tree.trajectories`; `tree` is a `core.tree.Tree`.
    """

    per_trajectory = True
    parameters = ("rewards", "tree")

    name: Literal["file"] = "file"
    path: InputFile
    function: Name
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def needs_group(self) -> bool:
        """False: the function may compare a reward with something else than the tree's others."""
        return False

    def estimator(self, shared: Shared) -> Estimator:
        """Return the estimator for rewards that hold all penalties."""
        del shared
        return FunctionAdvantage(self.load())


@dataclass(frozen=True, slots=True)
class FunctionAdvantage(PerGroup):
    """The advantages that `advantages_of` returns, the same at all tokens of a trajectory.

    Raises:
        ConfigError: From `advantages`: the function raised, or did not return one finite number for each trajectory.
    """

    advantages_of: UserFunction

    def advantages(self, tree: AnnotatedTree, statistics: Sequence[BatchSums]) -> tuple[Floats, ...]:
        """Return the advantage of each trajectory, at all its tokens. [G][T]"""
        del statistics
        key, rewards = tree.tree.key, values(tree.rewards)
        about = f"problem {tree.tree.problem.id!r}, tree {key.slot} of step {key.step}: "
        returned = self.advantages_of.call(rewards, tree.tree, about=about)
        problem = not_numbers(returned, len(tree.rewards))
        if problem:
            remedy = f"Return {len(tree.rewards)} finite numbers, one for each trajectory"
            raise self.advantages_of.refused(problem, remedy, about)
        return spread(tree.tree, np.asarray(returned, dtype=np.float64))


def not_numbers(returned: object, count: int) -> str:
    """Return what is wrong with an array of `count` finite numbers; "": nothing."""
    try:
        array = np.asarray(returned)
    # Whatever an object does that is to be an array.
    except Exception as error:  # noqa: BLE001
        return f"it returned {_shown(returned)}, which makes no array: {one_line(error)[:200].rstrip('.')}"
    if array.shape != (count,):
        size = f"an array of shape {list(array.shape)}" if array.ndim else _shown(returned)
        return f"it returned {size} for {count} trajectories"
    if array.dtype.kind not in "iuf":
        return f"it returned values of type {array.dtype}"
    wrong = np.flatnonzero(~np.isfinite(array))
    return f"it returned {array[wrong[0]]} for trajectory {wrong[0]}" if len(wrong) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLoss(LossConfig, FromFile):
    """A token loss by a user-defined function of torch: L = -(S+ f(r, +1) + S- f(r, -1)), `f(ratio, sign, **args)`."""

    parameters = ("ratio", "sign")

    name: Literal["file"] = "file"
    path: InputFile
    function: Name
    args: dict[str, Any] = field(default_factory=dict)

    def build(self) -> "FunctionLoss":
        """Return the loss, after trying it on a few ratios.

        Raises:
            ConfigError: The function cannot be loaded, or does not act on each token for itself.
        """
        sha256 = self.load().loaded.sha256
        loss = FunctionLoss(path=self.path, function=self.function, args=self.args, sha256=sha256)
        loss.require_tokenwise()
        return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionLoss(LossConfig):
    """L = -(S+ f(r, +1) + S- f(r, -1)), r = pi / old, with f the function of a file whose SHA-256 is known.

    Each rank loads the file by itself.

    Raises:
        ConfigError: From a call: the function raised, or did not return a finite and differentiable number for each token, or
            the file is not the one with `sha256`.
    """

    path: InputFile
    function: Name
    args: dict[str, Any]
    sha256: str

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss, summed over the tokens of a row.

        `clip_fraction` is the share of a token's credit whose gradient differs from that of the ratio.
        """
        (plus, plus_is_clipped), (minus, minus_is_clipped) = self._values(inputs.ratio)
        loss = -(inputs.s_plus * plus + inputs.s_minus * minus).sum()
        return LossOutput(loss, {"clip_fraction": inputs.clip_fraction(plus_is_clipped, minus_is_clipped)})

    def require_tokenwise(self) -> None:
        """Try the function on a few ratios, on the same in another order, and on one of them alone.

        Raises:
            ConfigError: As from a call; or the value of a token depends on other tokens, its position, or chance.
        """
        import torch

        log_ratio = torch.linspace(-1.0, 1.0, _TRIED)
        whole, reverse, alone = (
            torch.stack([value for value, _ in self._values(bounded_exp(part.clone().requires_grad_()))])
            for part in (log_ratio, log_ratio.flip(0), log_ratio[-1:])
        )
        # Kernels may differ in the last bits where a vector ends.
        if not (torch.allclose(whole.flip(1), reverse) and torch.allclose(whole[:, -1:], alone)):
            raise self._own.refused(
                "the value of a token depends on the other tokens, its position, or chance",
                "Compute each token's value from its own ratio, as batches are cut in many ways",
            )

    def _values(self, ratio: "torch.Tensor") -> "list[tuple[torch.Tensor, torch.Tensor]]":
        """Return f(ratio, +1) and f(ratio, -1), each with the tokens at which its slope is not 1. [W] each"""
        # A function that writes into its ratio must not reach the graph.
        values = [self._checked(self._own.call(ratio.clone(), sign), ratio, sign) for sign in (1, -1)]
        if not any(value.requires_grad for value, _ in values):
            raise self._own.refused(
                "no gradient reaches the ratio, so nothing can be learned", "Compute with ratio"
            )
        return values

    def _checked(
        self, value: object, ratio: "torch.Tensor", sign: int
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        import torch

        if not isinstance(value, torch.Tensor):
            raise self._own.refused(f"with sign {sign} it returned {_shown(value)}", "Return a tensor")
        if (value.shape, value.dtype, value.device) != (ratio.shape, ratio.dtype, ratio.device):
            kinds = (f"{list(v.shape)}, {v.dtype}, {v.device}" for v in (value, ratio))
            problem = f"with sign {sign} it returned a tensor {' for ratios '.join(kinds)}"
            raise self._own.refused(problem, "Return a number for each token, of the ratio's type")
        gradient = torch.zeros_like(ratio)
        if value.requires_grad:
            try:
                (gradient,) = torch.autograd.grad(
                    value.sum(), ratio, retain_graph=True, materialize_grads=True
                )
            except RuntimeError as error:
                problem = f"with sign {sign} its gradient raised {one_line(error)[:300]}"
                raise self._own.refused(problem, "Change no tensor in place") from error
        # Ratios that are no numbers come from the model; the learner counts and skips such a step.
        if (~(value.isfinite() & gradient.isfinite()) & ratio.isfinite()).any():
            raise self._own.refused(
                f"with sign {sign} a value or its gradient is not finite",
                "Return finite numbers for all ratios from e^-20 to e^20",
            )
        return value, (gradient - 1).abs() > _SLOPE_ERROR

    @property
    def _own(self) -> UserFunction:
        loaded = in_process(self.path, self.function) or _pinned(self.path, self.function, self.sha256)
        return UserFunction(loaded, self.function.partition(":")[0], self.args)


_SLOPE_ERROR = 1e-4
"""Above the rounding errors of a slope in float32."""


@lru_cache(maxsize=16)
def _pinned(path: Path, function: str, sha256: str) -> LoadedFunction:
    """Load a function once in a process.

    Raises:
        ConfigError: The file cannot be used, or its content has another SHA-256.
    """
    loaded = load_function(path, function)
    if loaded.sha256 != sha256:
        raise ConfigError(
            f"{path}: the file differs from that of rank 0, or changed after the start. Put it back and use --resume."
        )
    return loaded


def _shown(value: object) -> str:
    """Return a number as it is, the type of anything else."""
    return f"{value}" if isinstance(value, Real) else f"a value of type {type(value).__name__}"
