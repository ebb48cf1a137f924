"""A task: the problems, the tools or environment, and the reward. It is built without a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ramify.core.closing import Closable, close_all
from ramify.core.messages import Problem, ToolSpec
from ramify.core.protocols import Cache, ChatModel, ContextRewriter, Environment, Json, RewardFn
from ramify.core.records import TokenUsage
from ramify.sampler.configs import RepairConfig

if TYPE_CHECKING:
    from ramify.chat.renderers import DialectRenderer
    from ramify.rewards.judge import Judge


@dataclass(frozen=True, slots=True)
class ShownTools:
    """The tools of a recipe as its prompts show them, in their order; `notes` and `identities` as in `Toolbox`.

    `opens` is that of its environment, `environments` holds the tools of each of several by name, and `max_observations` is the
    most that any of them has.
    """

    specs: tuple[ToolSpec, ...]
    notes: tuple[str, ...]
    identities: Mapping[str, Json]
    opens: bool = False
    max_observations: int = 0
    environments: Mapping[str, tuple[ToolSpec, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What an agent acts in, the resources that it uses, and notes about the user's own files.

    `environment` is the only one, or the first of several `environments` by name. `identities` holds for each tool what its answers depend on besides the recipe: corpus, file, level of the sandbox.
    """

    environment: Environment
    resources: tuple[Closable, ...] = ()
    notes: tuple[str, ...] = ()
    identities: Mapping[str, Json] = field(default_factory=dict)
    environments: Mapping[str, Environment] = field(default_factory=dict)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs that prompts show, in their order."""
        return tuple(self.environment.tools.values())

    @property
    def shown(self) -> ShownTools:
        """Its tools as prompts show them."""
        every = (self.environment, *self.environments.values())
        return ShownTools(
            self.specs,
            self.notes,
            self.identities,
            self.environment.opens,
            max(each.max_observations for each in every),
            {name: tuple(each.tools.values()) for name, each in self.environments.items()},
        )

    async def close(self) -> None:
        """Close the resources in reverse order."""
        await close_all(reversed(self.resources))


@dataclass(frozen=True, slots=True)
class BuiltReward:
    """A reward with its judge.

    Attributes:
        fn: The reward function.
        judge: The judge whose verdicts are a part of the reward, if any.
        notes: Notes for the user about their own files.
        identities: What the reward depends on besides the recipe: the judge's prompt, checksums of the user's files.
        resources: What `close` closes.
    """

    fn: RewardFn
    judge: "Judge | None" = None
    notes: tuple[str, ...] = ()
    identities: Mapping[str, Json] = field(default_factory=dict)
    resources: tuple[Closable, ...] = ()

    async def close(self) -> None:
        """Close connections and files."""
        await close_all(reversed(self.resources))


@dataclass(slots=True)
class RepairKit:
    """What the repair tools of a recipe use.

    Attributes:
        config: Their settings.
        model: The helper; None: nobody is asked, or the policy itself, which is put here once the agent is built.
        cache: Of its answers.
        sha256: Of the file of the user's own helper, if it is one.
    """

    config: RepairConfig
    model: ChatModel | None
    cache: Cache | None
    sha256: str | None = None

    @property
    def usage(self) -> TokenUsage | None:
        """Tokens that the helper's answers took so far; None if nobody is asked."""
        if not self.config.asks:
            return None
        return TokenUsage() if self.model is None else self.model.usage

    async def close(self) -> None:
        """Free connections and files."""
        await close_all(each for each in (self.model, self.cache) if each is not None)


@dataclass(frozen=True, slots=True)
class Task:
    """The problems, the tools and the reward of a recipe; needs no model.

    Attributes:
        problems: Those whose prompt fits.
        toolbox: What the agent acts in.
        renderer: Of the model's dialect.
        context_tokens: Length of the longest context.
        reward: The reward as built.
        notes: Notes about the problems, such as what was dropped.
        rewriters: What may have a trajectory go on from elsewhere.
        rewriter_files: SHA-256 of the file of each rewriter, by its name.
        repairs: What the repair tools use; None: there are none.
    """

    problems: Sequence[Problem]
    toolbox: Toolbox
    renderer: "DialectRenderer"
    context_tokens: int
    reward: BuiltReward
    notes: tuple[str, ...] = ()
    rewriters: tuple[ContextRewriter, ...] = ()
    rewriter_files: Mapping[str, str] = field(default_factory=dict)
    repairs: RepairKit | None = None

    async def close(self) -> None:
        """Stop the tools, the judge and the helper."""
        await close_all(each for each in (self.toolbox, self.reward, self.repairs) if each is not None)
