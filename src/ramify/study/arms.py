"""The runs of an ablation: each arm is the recipe with another branching rule, once for each seed."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ramify.config.load import override_recipe, read_toml, read_value
from ramify.config.schema_rollout import BranchingSection
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError
from ramify.obs.page import flat

FLAT, YOKED, RULE = "flat", "yoked", "rule"
SEED = "{seed}"
"""In a text of the recipe it stands for the seed: a start, or a world, of the seed's own."""

ARM_NAME = re.compile(r"[A-Za-z0-9_]{1,60}")
_OTHER_RUNS = ("of", "rate_from")
"""Keys of a rule that name the folder of another run."""

Table = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRun:
    """One run: its arm and seed, where it goes, and what it changes in the recipe.

    Attributes:
        arm: Name of the arm.
        seed: `run.seed`.
        folder: `run.dir`.
        overrides: Values of `-s`.
        branching: Its rule with every default, the same for all seeds; without the folder of another run.
        recipe: The whole recipe.
        after: Name of the run that must have ended before; "" if there is none.
    """

    arm: str
    seed: int
    folder: Path
    overrides: tuple[str, ...]
    branching: Mapping[str, Any]
    recipe: TrainRecipe
    after: str = ""

    @property
    def name(self) -> str:
        """ARM-SEED."""
        return run_name(self.arm, self.seed)


@dataclass(frozen=True, slots=True)
class Ablation:
    """The runs of an ablation in the order in which they begin.

    Attributes:
        recipe: The recipe.
        settings: Its keys as JSON, without seed and folder, which runs differ in.
        fingerprint: A checksum of them.
        arms: Names of the arms, in the order in which they are shown.
        runs: The runs.
    """

    recipe: TrainRecipe
    settings: Mapping[str, Any]
    fingerprint: str
    arms: tuple[str, ...]
    runs: tuple[PlannedRun, ...]


def run_name(arm: str, seed: int) -> str:
    """Return the name of a run's folder."""
    return f"{arm}-{seed}"


def plan_ablation(
    path: Path,
    overrides: Sequence[str],
    arms: Sequence[str],
    others: Mapping[str, str],
    num_seeds: int,
    out: Path,
) -> Ablation:
    """Check the recipe in every arm, and plan its runs.

    Args:
        path: A recipe of `ramify train`, with `[eval]`.
        overrides: Values of `-s` for all arms.
        arms: Some of `flat`, `yoked` and `rule`.
        others: Further arms: their `rollout.branching` as TOML, by name.
        num_seeds: Seeds from `run.seed` on.
        out: Folder of the ablation.

    Raises:
        ConfigError: The recipe cannot be compared, or an arm of it is wrong.
    """
    table = read_toml(path)
    recipe = override_recipe(TrainRecipe, table, overrides, str(path))
    _refuse(recipe, path, arms, others)
    seeds = range(recipe.run.seed, recipe.run.seed + num_seeds)
    names = [name for name in (RULE, FLAT) if name in arms]
    names += [*others, *([YOKED] if YOKED in arms else [])]
    # With "{seed}" left in its texts an arm has one rule, by which a later session knows it.
    rules = {name: _rule(recipe, table, name, others, out / f"{RULE}-{SEED}", path) for name in names}
    runs = []
    for seed in seeds:
        for name in names:
            own = [*_own_settings(table, seed, out / run_name(name, seed))]
            pair = out / run_name(RULE, seed)
            texts = {other: text.replace(SEED, str(seed)) for other, text in others.items()}
            own += _branching_settings(recipe, name, texts, pair)
            planned = override_recipe(TrainRecipe, deepcopy(table), own, f"{path}, arm {name}")
            rule = planned.model_dump(mode="json")["rollout"]["branching"]
            after = _run_before(rule, {out / run_name(each, seed) for each in names})
            chosen = _last_of_each([*overrides, *own])
            runs.append(PlannedRun(name, seed, planned.run.dir, chosen, rules[name], planned, after))
    _refuse_circles(runs)
    order = [name for name in (FLAT, YOKED, RULE) if name in arms]
    settings = _settings(table)
    return Ablation(recipe, settings, _fingerprint(settings), (*order, *others), tuple(runs))


def _last_of_each(settings: Iterable[str]) -> tuple[str, ...]:
    """Return each key's last value, as KEY=VALUE, where it stood: what counts, and what a reader wants to see."""
    last: dict[str, str] = {}
    for setting in settings:
        key = setting.partition("=")[0].strip()
        last.pop(key, None)
        last[key] = setting
    return tuple(last.values())


def _rule(
    recipe: TrainRecipe, table: Table, name: str, others: Mapping[str, str], pair: Path, path: Path
) -> Table:
    """Return the rule of an arm without the folder of another run."""
    own = [*_branching_settings(recipe, name, others, pair)]
    planned = override_recipe(TrainRecipe, deepcopy(table), own, f"{path}, arm {name}")
    rule = planned.model_dump(mode="json")["rollout"]["branching"]
    return {key: value for key, value in rule.items() if key not in _OTHER_RUNS}


def _refuse(recipe: TrainRecipe, path: Path, arms: Sequence[str], others: Mapping[str, str]) -> None:
    if recipe.eval is None:
        raise ConfigError(
            f"{path}: without [eval] there is no success on held-out problems to compare. Set eval.test to a file of problems "
            "and eval.every to a number of steps."
        )
    if recipe.eval.patience is not None:
        raise ConfigError(
            f"{path}: eval.patience: arms that end early cannot be compared. Remove it, or pass -s eval.patience="
        )
    if (RULE in arms or YOKED in arms) and not recipe.rollout.branching.branches:
        raise ConfigError(
            f'{path}: rollout.branching: "{recipe.rollout.branching.name}" never branches, so there is nothing to compare '
            "with flat sampling. Choose a rule."
        )
    if YOKED in arms and RULE not in arms:
        raise ConfigError("--arms: yoked takes its numbers of branches from the runs of rule. Add rule.")
    if usual := [name for name in others if name.lower() in (FLAT, YOKED, RULE)]:
        raise ConfigError(f"--arm {usual[0]}: the name of a usual arm. Choose another name.")


def _run_before(rule: Mapping[str, Any], folders: Collection[Path]) -> str:
    """Return the name of the run of this seed whose folder a rule names; "" if it names none, or another one."""
    named = {Path(rule[key]).absolute() for key in _OTHER_RUNS if rule.get(key)}
    return next((folder.name for folder in folders if folder.absolute() in named), "")


def _refuse_circles(runs: Sequence[PlannedRun]) -> None:
    """Raise ConfigError if runs wait for each other."""
    after = {run.name: run.after for run in runs}
    for run in runs:
        name, waits = run.after, 0
        while name and waits <= len(after):
            name, waits = after[name], waits + 1
        if name:
            raise ConfigError(
                f"--arm {run.arm}: its rule waits for {run.after}, which waits for it. Name the folder of another run."
            )


def _own_settings(table: Table, seed: int, folder: Path) -> Iterator[str]:
    """Yield the settings of a run besides its rule."""
    for key, value in flat(table):
        if (own := _of_seed(value, seed)) != value:
            yield f"{key}={_toml(own)}"
    yield f"run.dir={_toml(str(folder))}"
    yield f"run.seed={seed}"
    yield "eval.at_start=true"
    if "threads" not in table["run"]:
        yield "run.threads=1"


def _branching_settings(
    recipe: TrainRecipe, name: str, others: Mapping[str, str], pair: Path
) -> Iterator[str]:
    """Yield the settings of the rule of an arm, and of what depends on it."""
    rollout, rule = recipe.rollout, recipe.rollout.branching
    if name == RULE:
        return
    if name == FLAT:
        yield "rollout.branching={ name = 'none' }"
        yield "rollout.m="
        yield "rollout.branch_at="
        yield from _without_effect(recipe)
        return
    if name == YOKED:
        children = getattr(rule, "children", 1)
        probe = f"probe_tokens = {rule.probe_tokens}, children = {children}"
        yield f"rollout.branching={{ name = 'yoked', of = {_toml(str(pair))}, {probe} }}"
        if not rule.needs_m:
            # What a tree of the pair had beyond its branches starts from the prompt too.
            yield f"rollout.m={_fewest_roots(rollout.n)}"
        return
    yield f"rollout.branching={others[name]}"
    if _computes_m(others[name]):
        yield "rollout.m="
    elif not rule.needs_m:
        yield f"rollout.m={_fewest_roots(rollout.n)}"


def _fewest_roots(n: int) -> int:
    """Return as few roots as a rule that computes their number may choose, for an arm beside it that needs a number."""
    return max(1, n // 4)


def _without_effect(recipe: TrainRecipe) -> Iterator[str]:
    """Yield the settings of credit over shared prefixes, which a run without branches refuses."""
    if recipe.algorithm.shared != "repeat":
        yield "algorithm.shared="
    if recipe.algorithm.advantage != "soft":
        yield "algorithm.advantage="


def _computes_m(text: str) -> bool:
    """Return True if a rule finds the number of roots itself; False if the text cannot be read, which the recipe's check reports."""
    try:
        rule = TypeAdapter(BranchingSection).validate_python(read_value(text.strip()))
    except ValidationError:
        return False
    return not (rule.branches and rule.needs_m)


def _settings(table: Table) -> Table:
    """Return a recipe as JSON without its folder and its seed."""
    run = {key: value for key, value in table["run"].items() if key not in ("dir", "seed")}
    settings: Table = json.loads(json.dumps({**table, "run": run}, sort_keys=True, default=str))
    return settings


def _fingerprint(settings: Table) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _of_seed(value: Any, seed: int) -> Any:  # noqa: ANN401 - of a recipe
    """Return a value with the seed for `SEED` in its texts."""
    if isinstance(value, str):
        return value.replace(SEED, str(seed))
    if isinstance(value, list):
        return [_of_seed(each, seed) for each in value]
    if isinstance(value, dict):
        return {key: _of_seed(each, seed) for key, each in value.items()}
    return value


def _toml(value: Any) -> str:  # noqa: ANN401 - of a recipe
    """Return a value as TOML has it in one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(each)}' for key, each in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
