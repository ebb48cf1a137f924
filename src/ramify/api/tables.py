"""Objects as tables of a recipe: `Rollout`, `Learner` and `Limits`, and whatever stands where a recipe has a name.

A `Rollout` or `Learner` holds the keys that it was called with, and no others: the rest are those of the recipe below, as with
`-s` on the command line. So there is one set of defaults, that of the schemas and of the recipes that ship.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal, Never, TypeAlias

from pydantic import BaseModel

from ramify.config import shipped_recipes
from ramify.config.load import check_recipe, read_toml
from ramify.config.mistakes import counterpart
from ramify.config.schema_algorithm import AlgorithmSection
from ramify.config.schema_examples import DpoLearnerSection
from ramify.config.schema_parts import SandboxSection, ToolsSection
from ramify.config.schema_rollout import RolloutSection
from ramify.config.schema_train import LearnerSection
from ramify.core.config import Config
from ramify.core.errors import ConfigError
from ramify.files.user_code import name_function
from ramify.learner.configs import OptimizerConfig
from ramify.rollout.configs import LimitsConfig
from ramify.tools.configs import BrowserConfig, CacheConfig, PythonConfig, SearchConfig

Table: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[..., Any]


class AsRecipe(Enum):
    """The default of each key: what the recipe below says."""

    AS_RECIPE = "as the recipe"

    def __repr__(self) -> str:
        return "AS_RECIPE"


AS_RECIPE = AsRecipe.AS_RECIPE

_ONE_GPU = "arpo_qwen2.5_0.5b_24gb"
"""The recipe below every `Trainer`: ARPO on one machine."""
_PAPERS = "_reasoning_7b"
"""The end of the names of the recipes that each show one algorithm."""


def _fields(config: type[Config]) -> frozenset[str]:
    return frozenset(field.name for field in fields(config))


def _meant(key: str, keys: frozenset[str]) -> str:
    """Return the keys that an unknown one may mean, with what differs if it is another trainer's; "" if there is none."""
    row = counterpart([key], keys)
    names = [name.rpartition(".")[2] for name in row.ours] if row is not None else []
    note = row.note if row is not None else ""
    if not names or not keys.issuperset(names):
        names, note = get_close_matches(key, keys, 1), ""
    return f"did you mean {' and '.join(names)}? {note}".strip() if names else ""


class Settings:
    """Keys of a recipe's table, as they were passed; a key that is None removes that of the recipe below."""

    keys: ClassVar[frozenset[str]]

    def __init__(self, keys: Mapping[str, Any], unknown: Mapping[str, Any]) -> None:
        """Keep the keys that were passed; their values are checked with the whole recipe.

        Raises:
            ConfigError: There is no such key.
        """
        name = type(self).__name__
        for key in unknown:
            meant = _meant(key, self.keys)
            raise ConfigError(
                f"{name}.{key}: unknown key"
                + (f", {meant}" if meant else f". {name} has {', '.join(sorted(self.keys))}")
            )
        self.table: Table = {
            key: as_table(value) for key, value in keys.items() if key in self.keys and value is not AS_RECIPE
        }

    def __repr__(self) -> str:
        return short(
            f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.table.items())})"
        )

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Settings) and self.table == other.table

    __hash__ = None  # type: ignore[assignment]


class Rollout(Settings):
    """The trees of a step: keys of `[rollout]`, such as n, m, problems_per_step, max_tokens, max_calls, branching.

    `branching` is a name, an object of `ramify.branching`, or a function of a candidate that returns a probability.
    """

    keys = _fields(RolloutSection)

    def __init__(
        self,
        *,
        n: int | AsRecipe = AS_RECIPE,
        m: int | AsRecipe | None = AS_RECIPE,
        problems_per_step: int | AsRecipe = AS_RECIPE,
        branching: Any = AS_RECIPE,  # noqa: ANN401 - a name, an object or a function
        branch_at: Literal["before_probe", "after_probe"] | AsRecipe = AS_RECIPE,
        dynamic_sampling: Mapping[str, Any] | AsRecipe | None = AS_RECIPE,
        rewriters: Sequence[Any] | AsRecipe = AS_RECIPE,
        max_tokens: int | AsRecipe = AS_RECIPE,
        max_calls: int | AsRecipe = AS_RECIPE,
        temperature: float | AsRecipe = AS_RECIPE,
        max_result_chars: int | AsRecipe = AS_RECIPE,
        trajectory_seconds: float | AsRecipe | None = AS_RECIPE,
        step_seconds: float | AsRecipe | None = AS_RECIPE,
        **unknown: Never,
    ) -> None:
        """Keep the keys."""
        branching = function_table(branching)
        super().__init__(locals(), unknown)


class Learner(Settings):
    """The optimizer and its batches: keys of `[learner]` and `[learner.optimizer]`.

    Such as rate, problems_per_minibatch and token_budget; batch_size for examples, and loss, beta and margin for pairs.
    """

    keys = frozenset(
        {*LearnerSection.model_fields, *DpoLearnerSection.model_fields, *_fields(OptimizerConfig)}
        - {"optimizer"}
    )

    def __init__(
        self,
        *,
        rate: float | AsRecipe = AS_RECIPE,
        problems_per_minibatch: int | AsRecipe = AS_RECIPE,
        batch_size: int | AsRecipe = AS_RECIPE,
        beta: float | AsRecipe = AS_RECIPE,
        loss: Literal["dpo", "simpo", "orpo"] | AsRecipe = AS_RECIPE,
        margin: float | AsRecipe | None = AS_RECIPE,
        token_budget: int | AsRecipe = AS_RECIPE,
        copies: int | AsRecipe = AS_RECIPE,
        name: Literal["adamw", "muon"] | AsRecipe = AS_RECIPE,
        warmup_steps: int | AsRecipe = AS_RECIPE,
        warmup_ratio: float | AsRecipe | None = AS_RECIPE,
        decay: Literal["linear", "cosine"] | AsRecipe = AS_RECIPE,
        decay_from: float | AsRecipe = AS_RECIPE,
        final_rate: float | AsRecipe = AS_RECIPE,
        vector_rate: float | AsRecipe | None = AS_RECIPE,
        embedding_rate: float | AsRecipe | None = AS_RECIPE,
        betas: tuple[float, float] | AsRecipe = AS_RECIPE,
        weight_decay: float | AsRecipe = AS_RECIPE,
        max_grad_norm: float | AsRecipe = AS_RECIPE,
        **unknown: Never,
    ) -> None:
        """Keep the keys."""
        super().__init__(locals(), unknown)

    @property
    def optimizer(self) -> Table:
        """The keys of `[learner.optimizer]`."""
        return {key: value for key, value in self.table.items() if key in _fields(OptimizerConfig)}

    @property
    def others(self) -> Table:
        """The keys of `[learner]` itself."""
        return {key: value for key, value in self.table.items() if key not in _fields(OptimizerConfig)}


class Limits(Settings):
    """Limits of a trajectory: max_prompt_tokens, max_tokens, max_calls, temperature, and the others of `[rollout]`."""

    keys = _fields(LimitsConfig) | {"max_prompt_tokens"}

    def __init__(
        self,
        *,
        max_prompt_tokens: int | AsRecipe = AS_RECIPE,
        max_tokens: int | AsRecipe = AS_RECIPE,
        max_calls: int | AsRecipe = AS_RECIPE,
        temperature: float | AsRecipe = AS_RECIPE,
        max_result_chars: int | AsRecipe = AS_RECIPE,
        trajectory_seconds: float | AsRecipe | None = AS_RECIPE,
        step_seconds: float | AsRecipe | None = AS_RECIPE,
        **unknown: Never,
    ) -> None:
        """Keep the keys."""
        super().__init__(locals(), unknown)


def as_table(value: Any) -> Any:  # noqa: ANN401 - any value of a recipe
    """Return a value as TOML has it: an object becomes its table, a function the table that names it."""
    if isinstance(value, Settings):
        return dict(value.table)
    if isinstance(value, Config):
        return {key: as_table(each) for key, each in value.values().items() if each is not None}
    if isinstance(value, BaseModel):
        return {key: as_table(getattr(value, key)) for key in value.model_fields_set}
    if isinstance(value, Mapping):
        return {str(key): as_table(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_table(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Return a table with the keys of another above it; None removes a key."""
    return {key: value for key, value in {**below, **above}.items() if value is not None}


def function_table(part: Any, **keys: Any) -> Any:  # noqa: ANN401 - a name, an object or a function
    """Return a part of an algorithm as its table: `{name = "file", path, function}` for a function."""
    if not is_function(part):
        return as_table(part)
    path, name = name_function(part)
    return {"name": "file", "path": str(path), "function": name, **keys}


def is_function(part: object) -> bool:
    """Return True for a function or a class of the user's own, which a recipe names by its file.

    Raises:
        ConfigError: It is one of ramify's, which makes the object that was meant.
    """
    if not callable(part) or isinstance(part, Settings | Config | BaseModel):
        return False
    is_wrapped = hasattr(part, "__wrapped__")  # which gives it the name and the module of another function
    if f"{getattr(part, '__module__', '')}.".startswith("ramify.") and not is_wrapped:
        name = getattr(part, "__name__", type(part).__name__)
        raise ConfigError(
            f"expected an object or a function of your own, got {name} of ramify. Did you forget its parentheses, as in "
            "rf.tools.Python()?"
        )
    return True


def own_table(function: Function, **keys: Any) -> Table:  # noqa: ANN401
    """Return the table of a tool, a part of the reward or a rewriter of the user's own."""
    path, name = name_function(function)
    # Names of tools and parts are what a model or a report reads.
    plain = getattr(function, "__name__", type(function).__name__)
    named = {} if plain == name or not plain.isidentifier() else {"name": plain}
    return {"path": str(path), "function": name, **named, **keys}


def tool_tables(tools: Any) -> Table:  # noqa: ANN401 - a tool or several
    """Return `[tools]`, and `[sandbox]` where it is set, of functions, classes and objects of `ramify.tools`.

    Raises:
        ConfigError: One is no tool.
    """
    listed: Sequence[Any] = tools if isinstance(tools, list | tuple) else [tools]
    section: Table = {}
    recipe: Table = {"tools": section}
    kinds = {PythonConfig: "python", SearchConfig: "search", BrowserConfig: "browser", CacheConfig: "cache"}
    for tool in listed:
        if isinstance(tool, ToolsSection):
            section.update(as_table(tool))
        elif isinstance(tool, SandboxSection):
            recipe["sandbox"] = as_table(tool)
        elif key := next((key for kind, key in kinds.items() if isinstance(tool, kind)), None):
            section[key] = as_table(tool)
        elif is_function(tool) or isinstance(tool, Config):
            section.setdefault("own", []).append(
                as_table(tool) if isinstance(tool, Config) else own_table(tool)
            )
        else:
            raise ConfigError(
                f"tools: expected a function, a class or an object of ramify.tools, got {type(tool).__name__}"
            )
    return recipe


def environment_table(environment: Any) -> Table | None:  # noqa: ANN401 - a class or an object of ramify.tools
    """Return `[environment]`: of a class, or of an object of `ramify.tools`."""
    if environment is None or not is_function(environment):
        return None if environment is None else as_table(environment)
    path, name = name_function(environment)
    return {"type": "own", "path": str(path), "function": name}


def reward_table(reward: Any) -> Table:  # noqa: ANN401 - whatever stands for a reward
    """Return `[reward]` of a name, an object of `ramify.rewards`, functions, pairs (function, weight), or a list of these.

    Raises:
        ConfigError: Two of them are whole rewards, or one is none.
    """
    listed: Sequence[Any] = reward if isinstance(reward, list) else [reward]
    base: Table | None = None
    own: list[Table] = []
    for each in listed:
        part, weight = each if isinstance(each, tuple) and len(each) == 2 else (each, 1.0)
        if is_function(part):
            own.append(own_table(part, weight=as_table(weight)))
        elif isinstance(each, tuple) and isinstance(part, str | Config | Mapping):
            raise ConfigError(
                "reward: a name or an object has no weight. Give weights to the functions beside it"
            )
        elif isinstance(part, str | Config | Mapping) and base is None:
            base = {"name": part} if isinstance(part, str) else as_table(part)
        else:
            kind = "two whole rewards" if base is not None else type(part).__name__
            raise ConfigError(f"reward: expected one name or object, and functions beside it, got {kind}")
    table = {"name": "parts"} if base is None else dict(base)
    return {**table, "own": [*table.get("own", ()), *own]} if own else table


def paper_recipe(name: str) -> Table:
    """Return the shipped recipe that shows an algorithm: "arpo", "aepo", "grpo" and so on.

    Raises:
        ConfigError: There is none of this name.
    """
    names = {path.stem.removesuffix(_PAPERS): path for path in shipped_recipes().glob(f"*{_PAPERS}.toml")}
    if name not in names:
        raise ConfigError(f"algorithm: expected one of {', '.join(sorted(names))}, got {name!r:.60}")
    return read_toml(names[name])


def base_recipe() -> Table:
    """Return the shipped recipe that a `Trainer` begins with."""
    return read_toml(shipped_recipes() / f"{_ONE_GPU}.toml")


def algorithm_table(algorithm: Any) -> Table:  # noqa: ANN401 - a name, an object or a table
    """Return `[algorithm]` of a name or of an object of `ramify.algorithms`."""
    if isinstance(algorithm, str):
        return dict(paper_recipe(algorithm)["algorithm"])
    table = as_table(algorithm)
    require(
        table, dict, "algorithm: expected a name, an object of ramify.algorithms such as ARPO(), or a table"
    )
    for key in ("estimator", "loss"):
        if key in table:
            table[key] = function_table(table[key])
    return dict(table)


def algorithm_section(algorithm: Any) -> AlgorithmSection:  # noqa: ANN401 - a name, an object or a table
    """Return the checked algorithm.

    Raises:
        ConfigError: It is none.
    """
    if isinstance(algorithm, AlgorithmSection):
        return algorithm
    return check_recipe(AlgorithmSection, algorithm_table(algorithm), "algorithm")


def require(value: object, kind: Any, what: str) -> None:  # noqa: ANN401 - what isinstance takes
    """Refuse an argument of another type; `what` begins the message and says what is expected.

    Raises:
        ConfigError: It is no `kind`.
    """
    # True is an int of Python, and no number of anything here.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{what}, got {value!r:.60}")


def short(text: str, most: int = 190) -> str:
    """Return a text that a `repr` may be: one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 2]}..."
