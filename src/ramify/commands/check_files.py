"""Checks of a recipe's files by their names, sizes and heads; they are cheap, and run before anything heavy is loaded.

A run, `--dry-run` and `ramify doctor` all begin with them. What the content of files decides is in `check_rows`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ramify.algos.branch_rules import RandomConfig
from ramify.assemble.model import require_positions
from ramify.commands.work import AnyRecipe
from ramify.config.other_runs import read_rate
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_reward import RewardSection
from ramify.config.schema_rollout import RolloutSection
from ramify.config.schema_selfcritic import SelfCriticRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_tools import EnvironmentSection, ToolsSection
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import longest_sequence
from ramify.core.errors import ConfigError, DataError, UserError, in_one_line
from ramify.engines.configs import EngineConfig
from ramify.modeling.configs import ModelConfig
from ramify.modeling.hub import fetch_model, is_fetched
from ramify.modeling.model_config import check_architecture, read_model_config, read_object_file, whole_folder
from ramify.modeling.weight_files import stored_tensors
from ramify.rewards.configs import LengthRewardConfig, OwnPartConfig
from ramify.rollout.configs import OwnHelperConfig, RewriterConfig
from ramify.runs.loggers import require_loggers
from ramify.sampler.configs import RepairConfig
from ramify.tools.configs import DenseSearchConfig, LocalSearchConfig, OwnEnvironmentConfig, OwnToolConfig


def check_example_files(recipe: SftRecipe | DpoRecipe, *, fetch: bool = True, weights: bool = True) -> None:
    """Raise ConfigError unless every file that an SFT or DPO recipe names exists; of the model perhaps the tokenizer alone."""
    _check_all(
        _model_check(recipe.model, require_model if weights else require_tokenizer, fetch),
        lambda: require_file("data.train", recipe.data.train),
        lambda: require_own("tools.own", recipe.tools.own),
        lambda: require_environment(recipe.environment),
        lambda: require_loggers(recipe.log),
    )


def check_train_files(recipe: TrainRecipe, *, fetch: bool = True) -> None:
    """Raise ConfigError unless every file that the recipe names exists."""
    _check_all(
        _model_check(recipe.model, require_model, fetch),
        lambda: _require_served(recipe.engine, recipe.model, hands_over=True),
        lambda: require_loggers(recipe.log),
        *_for_trees(recipe),
    )


def check_rollout_files(recipe: TrainRecipe, *, fetch: bool = True) -> None:
    """Raise ConfigError unless every file needed to grow trees exists; the scripted engine needs no weights."""
    model = require_model if recipe.engine.script_file is None else require_tokenizer
    _check_all(
        _model_check(recipe.model, model, fetch),
        lambda: _require_served(recipe.engine, recipe.model),
        *_for_trees(recipe),
    )


def check_eval_files(recipe: EvalRecipe, *, fetch: bool = True) -> None:
    """Raise ConfigError unless every file that the recipe names exists; only an engine that ramify starts needs weights."""
    _check_all(
        _model_check(recipe.model, _model_of(recipe.engine), fetch),
        lambda: _require_served(recipe.engine, recipe.model),
        lambda: require_dataset("data.test", recipe.data.test),
        lambda: require_tools(recipe.tools, recipe.environment),
        lambda: require_own("sampling.rewriters", recipe.sampling.rewriters),
        lambda: require_repairs(recipe.repair),
        lambda: require_reward(recipe.reward),
        lambda: require_script(recipe.engine),
    )


def check_synth_files(recipe: SynthRecipe, *, fetch: bool = True) -> None:
    """Raise ConfigError unless every file that the recipe names exists; only an engine that ramify starts needs weights."""
    library = None if recipe.hints is None else recipe.hints.library
    _check_all(
        _model_check(recipe.model, _model_of(recipe.engine), fetch),
        lambda: _require_served(recipe.engine, recipe.model),
        lambda: require_file("data.train", recipe.data.train),
        lambda: require_tools(recipe.tools, recipe.environment),
        lambda: require_own("sampling.rewriters", recipe.sampling.rewriters),
        lambda: require_repairs(recipe.repair),
        lambda: require_reward(recipe.reward),
        lambda: require_script(recipe.engine),
        lambda: require_loggers(recipe.log),
        *(() if library is None else (lambda: require_file("hints.library", library),)),
    )


def _model_of(engine: EngineConfig) -> Callable[[Path], None]:
    return require_model if engine.loads_weights else require_tokenizer


def check_positions(recipe: AnyRecipe) -> None:
    """Raise ConfigError unless a model that is loaded here has positions for the longest sequence of any phase.

    A plain `--dry-run` leaves this out, since it is also asked of recipes with a small model in the place of theirs.
    """
    longest = longest_sequence(recipe)
    if isinstance(recipe, SelfCriticRecipe):
        longest = max(longest, recipe.dpo.max_tokens)
    limit = read_model_config(recipe.model.folder).get("max_position_embeddings")
    if isinstance(limit, int):
        require_positions(recipe.model.path, limit, longest)


def _require_served(engine: EngineConfig, model: ModelConfig, *, hands_over: bool = False) -> None:
    """Raise ConfigError unless the engine can have the model."""
    if is_fetched(model.path, weights=False):
        engine.refuse_model(model.folder, hands_over=hands_over)


def require_file(key: str, path: Path) -> None:
    """Raise ConfigError unless `path` is a file that can be read."""
    if not path.is_file():
        other = "got a folder" if path.is_dir() else "got something else" if path.exists() else "found none"
        raise ConfigError(f"{key}: expected a file, {other} at {path}")
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from None


def require_dataset(key: str, dataset: str) -> None:
    """Check that the file or folder of a data set exists; a data set of the hub is not checked.

    Raises:
        ConfigError: It does not exist.
        DataError: A benchmark's name has no place, or no benchmark has that name.
    """
    from ramify.data.benchmark_files import HUB_PREFIX
    from ramify.data.benchmarks import parse_dataset

    named = parse_dataset(dataset)
    place = dataset if named is None else named[1]
    if place.startswith(HUB_PREFIX):
        return
    if not (Path(place).is_file() or (named is not None and Path(place).is_dir())):
        raise ConfigError(f"{key}: expected a file, or the folder of a benchmark, found none at {place}")


def require_excluded(places: Sequence[str]) -> None:
    """Raise ConfigError unless the files and folders of `data.exclude` exist; data sets of the hub are not checked."""
    for place in places:
        if not place.startswith("hf:") and not Path(place).exists():
            raise ConfigError(
                f"data.exclude: expected a file, a folder or hf:org/name, found nothing at {place}"
            )


def require_tokenizer(path: Path) -> None:
    """Raise ConfigError unless `path` is a folder with a tokenizer."""
    if not (path / "tokenizer.json").is_file():
        raise ConfigError(f"model.path: expected a model folder, {path / 'tokenizer.json'} is missing")


def require_model(path: Path) -> None:
    """Raise ConfigError unless `path` is a whole model's or an adapter's folder with weights and a tokenizer.

    Only the headers of the weight files are read.
    """
    try:
        whole = whole_folder(path)
        config = whole / "config.json"
        check_architecture(read_object_file(config), f"{config}")
        require_tokenizer(path)
        for folder in dict.fromkeys((whole, path)):
            stored_tensors(folder)
    except DataError as error:
        raise ConfigError(f"model.path: {error}") from None


def require_environment(section: EnvironmentSection | None) -> None:
    """Raise ConfigError unless the environment's file exists, if there is an environment."""
    if isinstance(section, OwnEnvironmentConfig):
        require_file("environment.path", section.path)


def require_tools(section: ToolsSection, environment: EnvironmentSection | None) -> None:
    """Raise ConfigError unless there is an environment or at least one tool, and their files exist."""
    if environment is not None:
        require_environment(environment)
        return
    if section.search is None and section.python is None and not section.own:
        raise ConfigError(
            "tools: expected [tools.search], [tools.python] or [[tools.own]], found no tool and no [environment]"
        )
    if isinstance(section.search, LocalSearchConfig | DenseSearchConfig):
        require_file("tools.search.corpus", section.search.corpus)
    require_own("tools.own", section.own)
    if section.cache is not None and section.cache.mode == "replay_or_fail":
        require_file("tools.cache.path", section.cache.path)


def require_reward(section: RewardSection) -> None:
    """Raise ConfigError unless the files of the user's own parts of the reward are there."""
    if not isinstance(section, LengthRewardConfig):
        require_own("reward.own", section.own)


def require_own(key: str, sections: Sequence[OwnToolConfig | RewriterConfig | OwnPartConfig]) -> None:
    """Raise ConfigError unless the file of each tool, rewriter or reward of the user's own is there."""
    for own in sections:
        require_file(f"{key}.path", own.path)


def require_repairs(section: RepairConfig | None) -> None:
    """Raise ConfigError unless the file of the user's own helper, and a cassette to replay, are there."""
    if section is None:
        return
    if isinstance(section.helper, OwnHelperConfig):
        require_file("repair.helper.path", section.helper.path)
    if section.cache is not None and section.cache.mode == "replay_or_fail":
        require_file("repair.cache.path", section.cache.path)


def require_script(engine: EngineConfig) -> None:
    """Raise ConfigError unless the script exists that an engine plays."""
    if engine.script_file is not None:
        require_file("engine.script", engine.script_file)


def require_rate(section: RolloutSection) -> None:
    """Raise ConfigError or DataError unless the run that `rate_from` names has a rate."""
    rule = section.branching
    if isinstance(rule, RandomConfig) and rule.rate_from is not None:
        read_rate(rule.rate_from)


def _for_trees(recipe: TrainRecipe) -> tuple[Callable[[], None], ...]:
    data, dev = recipe.data.train, recipe.eval
    return (
        *(() if data is None else (lambda: require_file("data.train", data),)),
        *(() if dev is None else (lambda: require_dataset("eval.test", dev.test),)),
        lambda: require_excluded(recipe.data.exclude),
        lambda: require_tools(recipe.tools, recipe.any_environment),
        *(partial(require_environment, section) for section in recipe.environments.values()),
        lambda: require_script(recipe.engine),
        lambda: require_rate(recipe.rollout),
        lambda: require_own("rollout.rewriters", recipe.rollout.rewriters),
        lambda: require_repairs(recipe.repair),
        lambda: require_reward(recipe.reward),
    )


def _model_check(section: ModelConfig, require: Callable[[Path], None], fetch: bool) -> Callable[[], None]:
    """Check the model's folder; a hub model is downloaded first, or without `fetch` skipped if it is not here yet."""

    def check() -> None:
        weights = require is require_model
        try:
            if fetch:
                fetch_model(section.path, weights=weights)
            elif not is_fetched(section.path, weights=weights):
                return
        except UserError as error:
            raise ConfigError(f"model.path: {error}") from None
        require(section.folder)

    return check


def _check_all(*checks: Callable[[], None]) -> None:
    """Run all checks, to report everything that is missing at once.

    Raises:
        ConfigError: Something is missing.
    """
    told = []
    for check in checks:
        try:
            check()
        except UserError as error:
            told.append(str(error))
    if told:
        raise ConfigError(in_one_line(told))
