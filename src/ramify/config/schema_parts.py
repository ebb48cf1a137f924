"""What the schemas of recipes share: their base class, the tables of several commands, and checks between tables.

A table that belongs to a part is that part's own Config (`tools/configs.py`, `rewards/configs.py`). A required field has no default;
an unknown key is refused. Paths are relative to the working directory.
"""

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from ramify.core.config import Level, Name, ServiceUrl, Variable
from ramify.engines.configs import EngineConfig
from ramify.learner.configs import OptimizerConfig
from ramify.modeling.configs import ModelConfig
from ramify.rewards.configs import (
    AnswerRewardConfig,
    CompatRewardConfig,
    EnvironmentRewardConfig,
    HierarchicalRewardConfig,
    LengthRewardConfig,
    PartsRewardConfig,
)
from ramify.rollout.configs import LimitsConfig, RewriterConfig
from ramify.runs.configs import RunConfig
from ramify.sampler.configs import RepairConfig
from ramify.tools.configs import (
    BrightDataSearchConfig,
    BrowserConfig,
    CacheConfig,
    DenseSearchConfig,
    LocalSearchConfig,
    McpConfig,
    OpenEnvConfig,
    OwnEnvironmentConfig,
    OwnToolConfig,
    PythonConfig,
    RetrieverSearchConfig,
    SearxngSearchConfig,
    SerperSearchConfig,
)


class Section(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=False, allow_inf_nan=False, defer_build=True
    )


def refuse_all(*checks: Callable[[], None]) -> None:
    """Run all checks of a recipe, to report all its mistakes at once.

    Raises:
        ValueError: Some check failed; one line for each.
    """
    mistakes = []
    for check in checks:
        try:
            check()
        except ValueError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ValueError("\n".join(mistakes))


def _named_apart(rewriters: tuple[RewriterConfig, ...]) -> tuple[RewriterConfig, ...]:
    names = [rewriter.name or rewriter.function for rewriter in rewriters]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two are called {twice[0]!r}; give one another name")
    return rewriters


Rewriters = Annotated[tuple[RewriterConfig, ...], AfterValidator(_named_apart)]
"""Functions of the user's own that have a trajectory go on from elsewhere, asked in this order."""


def _form_key(key: str, default: str) -> Discriminator:
    """Return what reads the form of a table from a key that the table may leave out."""
    return Discriminator(
        lambda value: value.get(key, default) if isinstance(value, dict) else getattr(value, key, default)
    )


SearchSection = Annotated[
    Annotated[LocalSearchConfig, Tag("local")]
    | Annotated[DenseSearchConfig, Tag("dense")]
    | Annotated[RetrieverSearchConfig, Tag("retriever")]
    | Annotated[BrightDataSearchConfig, Tag("brightdata")]
    | Annotated[SerperSearchConfig, Tag("serper")]
    | Annotated[SearxngSearchConfig, Tag("searxng")],
    _form_key("provider", "local"),
]


class ToolsSection(Section):
    """The tools that the policy can call; an absent table is an absent tool.

    SFT and DPO show them in prompts as RL does, and call none. `search_of` has searches of single benchmarks by their name: their
    problems search there instead, and read no pages. Limits of calls and replies are those of `search`.
    """

    search: SearchSection | None = None
    search_of: dict[Name, SearchSection] | None = None
    browser: BrowserConfig | None = None
    python: PythonConfig | None = None
    own: tuple[OwnToolConfig, ...] = ()
    cache: CacheConfig | None = None

    @model_validator(mode="after")
    def _acting(self) -> "ToolsSection":
        if self.browser is not None and (
            self.search is None or self.search.provider in ("local", "dense", "retriever")
        ):
            raise ValueError(
                "browser: reads the pages that a web search finds; expected such a [tools.search]"
            )
        if self.search_of and self.search is None:
            raise ValueError("search_of: takes the place of [tools.search], which is missing")
        for name, section in (self.search_of or {}).items():
            for key in ("max_calls", "limit_reply", "repeat_reply", "hedge_seconds"):
                if section.is_changed(key):
                    raise ValueError(f"search_of.{name}.{key}: that of [tools.search] holds. Remove it.")
        if self.cache is not None and self.search is None:
            raise ValueError("cache: there is no search whose answers could be cached. Remove it.")
        idle = [("hedge_seconds", "cache"), ("hedge_seconds", "browser")]
        idle += [("snippet_chars", "browser"), ("page_labels", "browser")]
        for key, other in idle:
            if self.search is not None and getattr(self, other) is not None and self.search.is_changed(key):
                raise ValueError(f"search.{key}: has no effect with {other}. Remove it.")
        return self


EnvironmentSection = Annotated[
    Annotated[OwnEnvironmentConfig, Tag("own")]
    | Annotated[McpConfig, Tag("mcp")]
    | Annotated[OpenEnvConfig, Tag("openenv")],
    _form_key("type", "own"),
]
"""What the agent acts in, in place of a set of tools."""


Environments = Annotated[dict[Name, EnvironmentSection], Field(max_length=100)]
"""Several environments by name: each problem names its own in the column `environment`."""


class SandboxSection(Section):
    """Place of the model's programs: this machine at `min_level` or higher (docs/sandbox.md), or at a service.

    `level` is the level that the service's operator promises; ramify cannot check it.
    """

    min_level: Level = 2
    url: ServiceUrl | None = None
    level: Level | None = None
    key_variable: Variable | None = None

    @model_validator(mode="after")
    def _acting(self) -> "SandboxSection":
        for key in ("level", "key_variable"):
            if self.url is None and getattr(self, key) is not None:
                raise ValueError(f"{key}: has no effect without url. Remove it.")
        if self.url is not None and (self.level or 0) < self.min_level:
            raise ValueError(
                f"level: expected what the service promises, at least min_level = {self.min_level}"
            )
        return self


RewardSection = Annotated[
    HierarchicalRewardConfig
    | AnswerRewardConfig
    | CompatRewardConfig
    | EnvironmentRewardConfig
    | PartsRewardConfig
    | LengthRewardConfig,
    Field(discriminator="name"),
]


def refuse_clocks(run: RunConfig, limits: LimitsConfig, name: str) -> None:
    """Refuse deadlines in a deterministic run, because what they cut off differs from run to run (ValueError)."""
    for key in ("trajectory_seconds", "step_seconds"):
        if run.deterministic and getattr(limits, key) is not None:
            raise ValueError(
                f"{name}.{key}: expected no deadline with run.deterministic; use max_calls and max_tokens"
            )


def refuse_unrepeatable(run: RunConfig, repeats: bool) -> None:
    """Refuse a deterministic run of an engine that does not answer the same way twice (ValueError)."""
    if run.deterministic and not repeats:
        raise ValueError("run.deterministic: expected false, a service does not answer the same way twice")


def refuse_idle_rates(optimizer: OptimizerConfig, trains_adapter: bool) -> None:
    """Refuse learning rates for parameters that an adapter does not have (ValueError)."""
    for key in ("vector_rate", "embedding_rate"):
        if trains_adapter and getattr(optimizer, key) is not None:
            raise ValueError(
                f"learner.optimizer.{key}: an adapter has matrices only. Remove it or model.lora."
            )


def refuse_learner_keys(engine: EngineConfig) -> None:
    """Refuse keys of an engine that act with a learner only (ValueError)."""
    if keys := engine.learner_keys:
        raise ValueError(f"engine.{keys[0]}: has no effect here, where nothing is trained. Remove it.")


def refuse_two_kinds(environment: EnvironmentSection | None, environments: Environments) -> None:
    """Refuse [environments.NAME] beside [environment] (ValueError)."""
    if environment is not None and environments:
        raise ValueError("environments: there is an [environment] too. Give it a name among them.")


def refuse_tools_beside(tools: ToolsSection, environment: EnvironmentSection | None) -> None:
    """Refuse tools beside an environment, which has tools of its own (ValueError)."""
    if environment is not None and tools != ToolsSection():
        raise ValueError("tools: the [environment] has tools of its own; leave [tools] out")


def refuse_idle_sandbox(tools: ToolsSection, sandbox: SandboxSection) -> None:
    """Refuse settings of the sandbox without the Python tool, the only one that uses it; and packages for a service (ValueError)."""
    has_tools = tools.search is not None or bool(tools.own)
    if has_tools and tools.python is None and sandbox != SandboxSection():
        raise ValueError("sandbox: only [tools.python] uses it, and the recipe has no such tool. Remove it.")
    for key in ("packages", "environment"):
        if sandbox.url is not None and getattr(tools.python, key, None) is not None:
            raise ValueError(
                f"tools.python.{key}: has no effect with sandbox.url. Install the packages at the service."
            )


class RewardTable(Section):
    """The table `[reward]` of a recipe, by itself."""

    reward: RewardSection


def refuse_compat_reward(model: ModelConfig, reward: RewardSection) -> None:
    """Refuse the reward of the papers' code for a dialect that it cannot read (ValueError)."""
    if reward.reads_tags_only and model.dialect != "tags":
        raise ValueError(
            f'reward.name: "{reward.name}" reads tags only, expected another reward with model.dialect = "{model.dialect}"'
        )


def refuse_absent_environment(reward: RewardSection, environment: EnvironmentSection | None) -> None:
    """Refuse a reward that an environment pays where there is none (ValueError)."""
    if isinstance(reward, EnvironmentRewardConfig) and environment is None:
        raise ValueError('reward.name: "environment" takes an [environment], which is missing')


def refuse_idle_bonus(reward: RewardSection, tools: ToolsSection) -> None:
    """Refuse a bonus for using search and Python where a tool of the two is missing (ValueError)."""
    has_both = tools.search is not None and tools.python is not None
    if not has_both and getattr(reward, "bonus", None) and reward.is_changed("bonus"):
        raise ValueError(
            "reward.bonus: has no effect without both [tools.search] and [tools.python]. Remove it."
        )


def refuse_idle_repairs(
    repair: RepairConfig | None, tools: ToolsSection, rewriters: tuple[str, ...], *, has_environment: bool
) -> None:
    """Refuse a debugger without programs, and a rewriter of the user's own with the name of a repair tool (ValueError)."""
    if repair is None:
        return
    if repair.debugger is not None and tools.python is None and not has_environment:
        raise ValueError(
            "repair.debugger: corrects programs of [tools.python], which the recipe does not have"
        )
    for name in ("backtracer", "refiner"):
        if getattr(repair, name) is not None and name in rewriters:
            raise ValueError(f"rewriters: {name!r} is the name of a repair tool; give yours another name")
