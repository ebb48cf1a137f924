"""The update on packed rows beside plain sums over trajectories, for every combination of an algorithm's parts."""

import itertools
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import plain_advantages
import plain_losses
import plain_sums
import torch
from exactness_world import TEMPERATURE

import own_parts
from ramify.algos.aepo import StopGradientClip
from ramify.algos.corrections import ImportanceCorrection
from ramify.algos.credit import Weighting, credit, denominator, path_credit
from ramify.algos.file_parts import FileLoss
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.algos.kl import EntropyBonus, KlPenalty
from ramify.algos.losses import CispoSurrogate, GppoSurrogate, GspoSurrogate, Objective
from ramify.core.rank import Rank
from ramify.core.records import Reward
from ramify.learner.configs import ScheduleConfig
from ramify.learner.pack import pack
from ramify.learner.parallel import Ranks
from ramify.learner.update import Learner
from random_trees import annotated, credited, training
from watched import STILL, WatchedWorker

FIXED_LENGTH = 10
COEFFICIENTS = {"kl": 0.3, "entropy": 0.2}
OWN_CLIP = FileLoss(path=Path(own_parts.__file__), function="clip", args={"clip_high": 0.28})
LOSSES = {
    "clip": (ClippedSurrogate(0.2, 0.2, None), plain_losses.ppo, (0.2, 0.2)),
    "clip_higher": (ClippedSurrogate(0.2, 0.28, None), plain_losses.ppo, (0.2, 0.28)),
    "dual_clip": (ClippedSurrogate(0.2, 0.28, 2.0), plain_losses.ppo, (0.2, 0.28, 2.0)),
    "gppo": (GppoSurrogate(0.2, 0.28), plain_losses.gppo, (0.2, 0.28)),
    "aepo_clip": (StopGradientClip(0.2, 0.28, None), plain_losses.aepo, (0.2, 0.28)),
    "aepo_clip, dual": (StopGradientClip(0.2, 0.28, 2.0), plain_losses.aepo, (0.2, 0.28, 2.0)),
    "cispo": (CispoSurrogate(clip_low=None, clip_high=0.28), plain_losses.cispo, (None, 0.28)),
    "cispo, lower edge": (CispoSurrogate(clip_low=0.2, clip_high=0.28), plain_losses.cispo, (0.2, 0.28)),
    "file": (OWN_CLIP.build(), plain_losses.ppo, (0.2, 0.28)),
    "gspo": (GspoSurrogate(3e-4, 4e-4), plain_losses.gspo, (3e-4, 4e-4)),
    "gspo, wide": (GspoSurrogate(0.1, 0.1), plain_losses.gspo, (0.1, 0.1)),
}
KL = {"k2": plain_losses.k2, "k3": plain_losses.k3, "k3_ratio": plain_losses.k3_ratio}
CORRECTIONS = {
    None: None,
    "token truncate": ("token", "truncate", 1.2, None),
    "token mask": ("token", "mask", 1.3, 0.7),
    "sequence truncate": ("sequence", "truncate", 1.5, None),
    "sequence mask": ("sequence", "mask", 2.0, 0.4),
}
LAYOUTS = ("whole", "split", "permuted", "one path a row")


@dataclass(frozen=True)
class Case:
    """One combination; `loss`, `kl` and `correction` are names of the tables above."""

    shared: str
    sharing: str
    aggregation: str
    baseline: str
    loss: str
    correction: str | None
    kl: str | None
    entropy: bool

    @property
    def whole_paths(self):
        return self.loss.startswith("gspo")

    @property
    def is_allowed(self):
        """A ratio of whole trajectories takes one advantage, one weight and one correction a trajectory."""
        return not self.whole_paths or (
            self.shared != "split"
            and self.sharing == "soft"
            and self.aggregation == "sequence_mean"
            and self.baseline == "pooled"
            and (self.correction is None or self.correction.startswith("sequence"))
        )

    @property
    def weighting(self):
        length = FIXED_LENGTH if self.aggregation == "fixed_length" else None
        return Weighting(self.shared, self.sharing, self.aggregation, length)

    @property
    def penalties(self):
        """Those that are asked for."""
        kl = () if self.kl is None else (KlPenalty(self.kl, COEFFICIENTS["kl"]),)
        return (*kl, EntropyBonus(COEFFICIENTS["entropy"])) if self.entropy else kl


def all_cases():
    """The cross product."""
    axes = (
        ("repeat", "split", "mass"),
        ("soft", "hard"),
        ("token_mean", "sequence_mean", "fixed_length"),
        ("pooled", "leave_subtree_out"),
        tuple(LOSSES),
        tuple(CORRECTIONS),
        (None, *KL),
        (False, True),
    )
    return [case for values in itertools.product(*axes) if (case := Case(*values)).is_allowed]


@dataclass(frozen=True, eq=False)
class Step:
    """One optimizer step: the loss, what it would be if no term cancelled another, clip fraction times what it is a
    mean over, and the gradient of all parameters."""

    value: float
    magnitude: float
    clipped: float
    gradient: torch.Tensor

    def error(self, other):
        """The largest of the relative differences of value, clip fraction and gradient; infinite where one is no number."""
        differences = (
            abs(self.value - other.value) / self.magnitude,
            abs(self.clipped - other.clipped) / max(self.clipped, 1.0),
            (self.gradient - other.gradient).norm().item() / self.gradient.norm().item(),
        )
        return max(differences) if all(map(math.isfinite, differences)) else math.inf


class Plain:
    """Sums over trajectories, one after the other."""

    def __init__(self, world):
        self.world = world
        self._terms = cache(self._all_terms)
        self._rho = cache(self._all_rho)

    def __call__(self, case):
        _, surrogate, settings = LOSSES[case.loss]
        value = magnitude = total = clipped = 0.0
        gradient = torch.zeros(self.world.trips[-1][-1].grad_logprobs.shape[1], dtype=torch.float64)
        clips = {}
        terms = self._terms(case.shared, case.sharing, case.aggregation, case.baseline)
        for t, trips in enumerate(self.world.trips):
            for j, trip in enumerate(trips):
                advantages, weights, counted = terms[t][j]
                total += counted
                if not trip.places:
                    continue
                rho = self._rho(case.correction)[t][j]
                logprobs = trip.logprobs.clone().requires_grad_()
                entropies = trip.entropies.clone().requires_grad_()
                if case.whole_paths:
                    leaf_weight = weights[0] * len(weights) * rho[0]
                    term, hit = surrogate(logprobs, trip.old, advantages[0], *settings)
                    parts = [-leaf_weight * term]
                    clipped += float(hit & (leaf_weight * advantages[0] != 0))
                else:
                    term, hit = surrogate(logprobs, trip.old, advantages, *settings)
                    parts = [-weights * rho * term]
                    strength = weights * rho * advantages.abs()
                    for token, h, s in zip(trip.places, hit.tolist(), strength.tolist(), strict=True):
                        clips.setdefault((t, *token), []).append((h, s))
                if case.kl is not None:
                    parts.append(COEFFICIENTS["kl"] * weights * KL[case.kl](logprobs, trip.old, trip.ref))
                if case.entropy:
                    parts.append(-COEFFICIENTS["entropy"] * weights * entropies)
                loss = sum(part.sum() for part in parts)
                by_logprob, by_entropy = torch.autograd.grad(
                    loss, (logprobs, entropies), materialize_grads=True
                )
                gradient += by_logprob @ trip.grad_logprobs + by_entropy @ trip.grad_entropies
                value += loss.item()
                magnitude += sum(part.detach().abs().sum().item() for part in parts)
        for hits in clips.values():
            strength = sum(s for _, s in hits)
            if strength > 0:
                clipped += len(hits) * sum(s for h, s in hits if h) / strength
        return Step(value / total, magnitude / total, clipped, gradient / total)

    def _all_terms(self, shared, sharing, aggregation, baseline):
        """A, w [T] and the share of the denominator of each trajectory. [P][G]"""
        terms = []
        for tree, rewards, trips in zip(self.world.trees, self.world.rewards, self.world.trips, strict=True):
            own = plain_advantages.group_relative(tree, rewards, shared, "std", baseline)
            offsets = [{token: at for at, token in enumerate(trip.places)} for trip in trips]
            rows = []
            for j, trip in enumerate(trips):
                values, weights = [], []
                for token in trip.places:
                    at = {i: offsets[i][token] for i in plain_sums.leaves_below(tree, token[0])}
                    values.append(_shared_advantage(tree, own, j, at, shared, sharing))
                    weights.append(plain_sums.loss_weight(tree, j, token[0], shared))
                leaf = plain_sums.mass(tree, j) if shared == "mass" else 1.0
                counted = {
                    "token_mean": sum(weights),
                    "sequence_mean": leaf,
                    "fixed_length": leaf * FIXED_LENGTH,
                }[aggregation]
                if aggregation == "sequence_mean":
                    weights = [weight / len(weights) for weight in weights]
                rows.append((_vector(values), _vector(weights), counted))
            terms.append(rows)
        return terms

    def _all_rho(self, name):
        """Corrections of each trajectory. [P][G][T]"""
        if name is None:
            return [[torch.ones_like(trip.old) for trip in trips] for trips in self.world.trips]
        return [
            [_vector(rho) for rho in plain_advantages.importance_weights(tree, notes, *CORRECTIONS[name])]
            for tree, notes in zip(self.world.trees, self.world.notes, strict=True)
        ]


def _shared_advantage(tree, own, j, at, shared, sharing):
    """A_{j,t} (soft), or the mean over the trajectories that share the token (hard); `at`: its place in each."""
    if sharing == "soft":
        return own[j][at[j]]
    omega = {i: plain_sums.mass(tree, i) if shared == "mass" else 1.0 for i in at}
    return sum(omega[i] * own[i][k] for i, k in at.items()) / sum(omega.values())


def _vector(values):
    return torch.tensor(values, dtype=torch.float64)


class PackedUpdate:
    """The learner's own update on rows, on `ranks` that hold the world's model; None: on one process."""

    def __init__(self, world, ranks=None):
        self.world = world
        self.ranks = ranks or Ranks(Rank())
        if ranks is None:
            self.ranks.hold(WatchedWorker(world.ours, STILL))
        self._credits = cache(self._all_credits)
        self._rows = cache(self._all_rows)

    def __call__(self, case, layout):
        rows = self._rows(case.weighting, case.baseline, case.correction, layout, bool(case.penalties))
        learner = Learner(
            self.ranks,
            schedule=ScheduleConfig(warmup_steps=2**31 - 1),
            total_steps=1,
            objective=Objective(LOSSES[case.loss][0], case.penalties),
            temperature=TEMPERATURE,
            max_grad_norm=math.inf,
            chunk_tokens=1024 if layout == "whole" else 7,
            token_budget=10_000,
        )
        total = denominator(self.world.trees, case.weighting)
        report = learner.update_rows(rows, total, self._paths(case))
        gradients = self.ranks.all("gradients_of_step")[0]
        caught = torch.cat(
            [torch.from_numpy(gradients[name]).flatten() for name, _ in self.world.ours.named_parameters()]
        )
        if case.whole_paths:
            counted = sum(len(tree.trajectories) for tree in self.world.trees)
        else:
            counted = sum(float(row.num_paths.sum()) for row in rows)
        return Step(report.loss, 0.0, report.metrics["clip_fraction"] * counted, caught)

    def _all_credits(self, weighting, baseline, correction):
        """Advantages, corrections and credit of each tree."""
        rule = None
        if correction is not None:
            rule = ImportanceCorrection(*CORRECTIONS[correction])
        estimator = GroupRelative(weighting.shared, scale="std", baseline=baseline)
        result = []
        for tree, notes, values in zip(self.world.trees, self.world.notes, self.world.rewards, strict=True):
            rewards = [Reward(float(value), {}) for value in values]
            advantages = estimator.advantages(annotated(tree, rewards, notes), ())
            rho = None if rule is None else rule.weights(annotated(tree, None, notes))
            result.append((advantages, rho, credit(training(tree, advantages, rho), weighting)))
        return result

    def _all_rows(self, weighting, baseline, correction, layout, keep_dead):
        rows = pack(
            credited(
                self.world.trees,
                [part for *_, part in self._credits(weighting, baseline, correction)],
                self.world.notes,
            ),
            10_000 if layout == "whole" else 40,
            keep_dead=keep_dead,
            share_prefixes=layout != "one path a row",
        )
        if layout == "permuted":
            order = np.random.default_rng(len(rows)).permutation(len(rows))
            rows = tuple(rows[i] for i in order)
        return rows

    def _paths(self, case):
        if not case.whole_paths:
            return None
        parts = self._credits(case.weighting, case.baseline, case.correction)
        trees = [
            training(tree, advantages, rho)
            for tree, (advantages, rho, _) in zip(self.world.trees, parts, strict=True)
        ]
        return path_credit(trees, case.weighting)


def _gradient(model):
    return torch.cat([p.grad.double().flatten() for p in model.parameters()])
