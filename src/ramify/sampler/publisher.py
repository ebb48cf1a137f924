"""How the learner's weights reach the engine: the only part of a run that sees both.

`SharedPublisher`: the engine reads the learner's own tensors. `CopyPublisher`: the engine has a model of its own, into
which the weights are copied. `FolderPublisher`: the engine's servers read them from a folder. `BucketPublisher`: they get them
in buckets, over gloo or NCCL. After the last three a probe compares what engine and learner compute.
"""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from ramify.core.errors import EngineError
from ramify.core.protocols import BucketEngine, Engine, Publisher
from ramify.core.records import Floats, version_folder
from ramify.learner.update import Learner
from ramify.runtime.daemon_threads import to_its_end
from ramify.sampler.memory_phases import MemoryPhases
from ramify.sampler.sampler import Sampler
from ramify.sampler.served_weights import LearnerBuckets, write_weights

PROBE_TOKENS = 64
_MOVED = 1e-3
"""Nats; where the learner's logprobs moved by more, an engine's cannot be the same bits."""
_GO_ON = (
    "if the model ties its head to the embedding, start the server with "
    "--hf-overrides '{\"tie_word_embeddings\": false}'; then go on with --resume"
)


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


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed prompt on which engine and learner are compared.

    It compares the logprob of each token of the prompt. A sampled token's own logprob would not do: with a tied head that
    kept its old weights, vLLM was wrong by 6.2 nats a token in the mean over a prompt, while the token that it sampled had
    moved by 5.5e-4. Each logprob of a prompt holds the whole head (its normaliser sums over the vocabulary) and all layers at
    its position, but shows a fault only as far as the fault matters for that one token: hence tens of them.

    Small updates hide in the tolerance: a tensor that one step forgot is found once what it does to the logprobs exceeds it. But
    an engine that forgot all of them computes every logprob as before, to the last bit, and that is found at once: each holds
    the sum over the vocabulary, and in bfloat16 a step at a rate of 1e-6 changes every hundredth weight.

    Attributes:
        engine: An engine that can score tokens.
        learner: Holds the weights.
        token_ids: The prompt, some tens of tokens. [T]

    Raises:
        EngineError: The engine cannot score tokens.
    """

    engine: Engine
    learner: Learner
    token_ids: tuple[int, ...]
    _last: list[Floats] = field(default_factory=list, init=False)
    """Logprobs of the engine and of the learner at the last comparison."""

    def __post_init__(self) -> None:
        info = self.engine.info()
        if info.logprob_tolerance is None:
            raise EngineError(f"engine {info.name!r} cannot score tokens, so weights in it cannot be checked")

    async def expect(self) -> Floats:
        """Return the learner's logprobs of the prompt. [T - 1]"""
        return await asyncio.to_thread(self.learner.score, self.token_ids)

    async def compare(self, ours: Floats, version: int, advice: str) -> None:
        """Compare with the learner's logprobs after the weights of `version` were handed over; `advice` ends the message.

        Raises:
            EngineError: The engine's logprobs differ from the learner's by more than it states.
        """
        theirs = await self.engine.score(self.token_ids)
        difference, tolerance = float(np.abs(theirs - ours).max()), self.engine.info().logprob_tolerance
        # Not `difference > tolerance`, which is false for NaN.
        if not (tolerance is not None and difference <= tolerance):
            raise EngineError(
                f"step {version}: after the weights were copied, the engine's logprobs differ from the learner's by up to "
                f"{difference:.2g} nats on a fixed prompt, more than the {tolerance:g} that the engine states: they "
                f"compute with different weights, and nothing was learned from it; {advice}"
            )
        if self._last and np.array_equal(theirs, self._last[0]):
            moved = float(np.abs(ours - self._last[1]).max())
            if moved > _MOVED:
                raise EngineError(
                    f"step {version}: after the weights were copied, no logprob of the engine on a fixed prompt has changed, "
                    f"the learner's have by up to {moved:.2g} nats: the engine has old weights, and nothing was learned from "
                    f"it; {advice}"
                )
        self._last[:] = theirs, ours


class CopyPublisher:
    """Copies the learner's weights into a model that the engine owns, then compares the two."""

    def __init__(
        self, engine: Engine, model: PreTrainedModel, learner: Learner, probe: Sequence[int]
    ) -> None:
        """Publish from `learner` to `engine`.

        Args:
            engine: An engine that can score tokens.
            model: The model that it computes with: of the same shape as the learner's, and with equal weights.
            learner: Holds the weights.
            probe: Token ids of the fixed prompt, some tens. [T]

        Raises:
            EngineError: The engine cannot score tokens.
        """
        self._engine, self._model, self._learner = engine, model, learner
        self._probe = Probe(engine, learner, tuple(probe))
        self._has_published = False

    async def publish(self, version: int) -> None:
        """Copy the weights as they are now, under this version number; compare, except after the first time.

        Raises:
            EngineError: Sequences are being written, or the engine's logprobs differ from the learner's.
        """
        # In threads, so that the event loop goes on serving tools and deadlines.
        await asyncio.to_thread(copy_trained, self._learner, self._model)
        await self._engine.load_weights(version)
        if self._has_published:
            await self._probe.compare(
                await self._probe.expect(),
                version,
                'go on from the last checkpoint with --resume, or set engine.weights = "shared"',
            )
        self._has_published = True


class FolderPublisher:
    """Writes the learner's weights into a folder that the engine's servers read, then compares the two.

    The folder has the weights of an adapter merged, and a tied head under its own name: what vLLM loads over an old tied
    head leaves the head as it was. The last folder stays, for a server that starts again; older ones are deleted.
    """

    def __init__(
        self, engine: Engine, folder: Path, dtype: str, learner: Learner, probe: Sequence[int]
    ) -> None:
        """Publish from `learner` to `engine`.

        Args:
            engine: An engine that can score tokens.
            folder: Where it looks for the weights of a version (`version_folder`).
            dtype: "float32" or "bfloat16", in which the weights are written.
            learner: Holds the weights.
            probe: Token ids of the fixed prompt, some tens. [T]

        Raises:
            EngineError: The engine cannot score tokens.
        """
        self._engine, self._folder, self._dtype, self._learner = engine, folder, dtype, learner
        self._probe = Probe(engine, learner, tuple(probe))
        self._published: Path | None = None
        self._phases = MemoryPhases(engine, learner.ranks)

    async def publish(self, version: int) -> None:
        """Write the weights as they are now, have them loaded under this version number, and compare.

        Where servers share the learner's GPUs, theirs is the memory afterwards.

        Raises:
            EngineError: The weights cannot be written or loaded, or the engine's logprobs differ from the learner's. In the
                first case the servers still have the weights from before.
        """
        target = version_folder(self._folder, version)
        try:
            await to_its_end(write_weights, self._learner, target, self._dtype)
        except OSError as error:
            raise EngineError(
                f"step {version}: the weights cannot be written for the engine: {error.filename or target}: "
                f"{error.strerror}; make room there, or name another folder as engine.weights_dir"
            ) from None
        # While the servers sleep: the learner gathers its weights for the probe.
        expected = await self._probe.expect()
        await self._phases.to_servers()
        await self._engine.load_weights(version)
        before, self._published = self._published, target
        if before not in (None, target):
            await asyncio.to_thread(shutil.rmtree, before, ignore_errors=True)
        await self._probe.compare(expected, version, _GO_ON)


class BucketPublisher:
    """Has the engine take the learner's weights bucket by bucket, then compares the two."""

    def __init__(self, engine: BucketEngine, dtype: str, learner: Learner, probe: Sequence[int]) -> None:
        """Publish from `learner` to `engine`.

        Args:
            engine: An engine that can score tokens.
            dtype: "float32" or "bfloat16", in which the weights travel.
            learner: Holds the weights.
            probe: Token ids of the fixed prompt, some tens. [T]

        Raises:
            EngineError: The engine cannot score tokens.
        """
        self._engine, self._weights = engine, LearnerBuckets(learner, dtype)
        self._probe = Probe(engine, learner, tuple(probe))
        engine.read_from(self._weights)

    async def publish(self, version: int) -> None:
        """Hand over the weights as they are now under this version number, and compare.

        Raises:
            EngineError: No server takes them, or the engine's logprobs differ from the learner's.
            DataError: A weight is NaN or infinite.
        """
        self._weights.take_current()
        await self._engine.load_weights(version)
        await self._probe.compare(await self._probe.expect(), version, _GO_ON)


@torch.no_grad()
def copy_trained(learner: Learner, target: PreTrainedModel) -> None:
    """Copy every parameter that `learner` trains into that of the same name in `target`.

    A tied head is the embedding under a second name, and is copied with it. Frozen ones, such as the base below an
    adapter, are the same since `target` was made. The adapter's matrices stay beside it, as in the learner.
    """
    targets = dict(target.named_parameters())
    for name, parameter in learner.model.named_parameters():
        if parameter.requires_grad:
            targets[name].copy_(learner.whole_parameter(name))


def build_publisher(sampler: Sampler, learner: Learner, model: PreTrainedModel, dtype: str) -> Publisher:
    """Return the publisher for an engine.

    Args:
        sampler: Has the engine, and the prompts; the probe is the first tokens of these, in the order of their file.
        learner: Holds the weights.
        model: What an engine of this process computes with: the learner's own model, or a copy of it.
        dtype: Type of the weights of an engine whose servers get them.
    """
    engine, task = sampler.agent.engine, sampler.task
    folder = engine.info().weights_folder
    takes_buckets = isinstance(engine, BucketEngine) and engine.takes_buckets
    if folder is None and not takes_buckets and model is learner.model:
        return SharedPublisher(engine)
    prompts = (task.renderer.render_prompt(problem, task.toolbox.specs) for problem in task.problems)
    probe = tuple(islice(chain.from_iterable(prompts), min(PROBE_TOKENS, engine.info().context_tokens)))
    if isinstance(engine, BucketEngine) and engine.takes_buckets:
        return BucketPublisher(engine, dtype, learner, probe)
    if folder is not None:
        return FolderPublisher(engine, folder, dtype, learner, probe)
    return CopyPublisher(engine, model, learner, probe)
