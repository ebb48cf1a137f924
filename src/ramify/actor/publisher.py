"""How the learner's weights reach the engine: the only part of a run that sees both.

`SharedPublisher`: the engine reads the learner's own tensors. `CopyPublisher`: the engine has a model of its own, into
which the weights are copied; then a probe compares what the two compute.
"""

import asyncio
from collections.abc import Sequence
from itertools import chain, islice

import numpy as np
import torch
from transformers import PreTrainedModel

from ramify.actor.actor import Actor
from ramify.core.errors import EngineError
from ramify.core.protocols import Engine, Publisher
from ramify.learner.update import Learner

PROBE_TOKENS = 64


class SharedPublisher:
    """One process: the engine reads the learner's own tensors, so only what it computed from older ones is dropped."""

    def __init__(self, engine: Engine) -> None:
        """Publish to `engine`."""
        self._engine = engine

    async def publish(self, version: int) -> None:
        """Have the engine use the weights as they are now, under this version number.

        Raises:
            EngineError: Sequences are being written.
        """
        await self._engine.load_weights(version)


class CopyPublisher:
    """Copies the learner's weights into a model that the engine owns, then compares the two on a fixed prompt.

    The probe compares the logprob of each token of the prompt. A sampled token's own logprob would not do: with a tied
    head that kept its old weights, vLLM was wrong by 6.2 nats a token in the mean over a prompt, while the token that it
    sampled had moved by 5.5e-4. Each logprob of a prompt holds the whole head (its normaliser sums over the vocabulary)
    and all layers at its position, but shows a fault only as far as the fault matters for that one token: hence tens of them.

    Small updates hide in the tolerance: weights that one step forgot are found once what they do to the logprobs exceeds it.
    """

    def __init__(
        self,
        engine: Engine,
        model: PreTrainedModel,
        learner: Learner,
        probe: Sequence[int],
        temperature: float,
    ) -> None:
        """Publish from `learner` to `engine`.

        Args:
            engine: An engine that can score tokens.
            model: The model that it computes with: of the same shape as the learner's, and with equal weights.
            learner: Holds the weights.
            probe: Token ids of the fixed prompt, some tens. [T]
            temperature: Temperature of the sampling distribution.

        Raises:
            EngineError: The engine cannot score tokens.
        """
        tolerance = engine.info().logprob_tolerance
        if tolerance is None:
            raise EngineError(
                f"engine {engine.info().name!r} cannot score tokens, so a copy of weights cannot be checked"
            )
        self._engine, self._model, self._learner = engine, model, learner
        self._probe, self._temperature, self._tolerance = tuple(probe), temperature, tolerance
        self._has_published = False

    async def publish(self, version: int) -> None:
        """Copy the weights as they are now, under this version number; compare, except after the first time.

        Raises:
            EngineError: Sequences are being written, or the engine's logprobs differ from the learner's.
        """
        # In threads, so that the event loop goes on serving tools and deadlines.
        await asyncio.to_thread(copy_trained, self._learner.model, self._model)
        await self._engine.load_weights(version)
        if self._has_published:
            await self._compare(version)
        self._has_published = True

    async def _compare(self, version: int) -> None:
        theirs = await self._engine.score(self._probe, self._temperature)
        ours = await asyncio.to_thread(self._learner.score, self._probe)
        difference = float(np.abs(theirs - ours).max())
        # Not `difference > tolerance`, which is false for NaN.
        if not difference <= self._tolerance:
            raise EngineError(
                f"step {version}: after the weights were copied, the engine's logprobs differ from the learner's by up to "
                f"{difference:.2g} nats on a fixed prompt, more than the {self._tolerance:g} that the engine states: they "
                "compute with different weights, and nothing was learned from it; go on from the last checkpoint with "
                '--resume, or set engine.weights = "shared"'
            )


@torch.no_grad()
def copy_trained(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Copy every trained parameter of `source` into that of the same name in `target`.

    A tied head is the embedding under a second name, and is copied with it. Frozen ones, such as the base below an
    adapter, are the same since `target` was made. The adapter's matrices stay beside it, as in `source`.
    """
    targets = dict(target.named_parameters())
    for name, parameter in source.named_parameters():
        if parameter.requires_grad:
            targets[name].copy_(parameter)


def build_publisher(actor: Actor, learner: Learner, model: PreTrainedModel, temperature: float) -> Publisher:
    """The publisher for an engine that computes with `model`: the learner's own, or a copy of it.

    The probe is the first tokens of the prompts of the task, in the order of its file.
    """
    engine, task = actor.agent.engine, actor.task
    if model is learner.model:
        return SharedPublisher(engine)
    prompts = (task.renderer.start(problem) for problem in task.problems)
    probe = islice(chain.from_iterable(prompts), min(PROBE_TOKENS, engine.info().context_tokens))
    return CopyPublisher(engine, model, learner, tuple(probe), temperature)
