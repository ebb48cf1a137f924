"""Builds self-critic runs from recipes and runs them: a recipe of RL and one of DPO for each cycle."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.assemble.examples import run_dpo
from ramify.assemble.model import build_model
from ramify.assemble.task import build_sampler, build_task, group_size
from ramify.assemble.training import manifest_of, run_rl
from ramify.config.load import check_recipe
from ramify.config.other_runs import record_of
from ramify.config.schema_examples import DpoRecipe
from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe
from ramify.config.sizes import refuse_large_steps
from ramify.core.draws import stream
from ramify.learner.parallel import Ranks
from ramify.modeling.lora_merge import write_merged
from ramify.modeling.memory_plan import GATHERED_ONCE, Layout
from ramify.modeling.model_config import is_adapter_folder
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.runs.page import write_run_page
from ramify.runs.run_folder import claim_run_folder
from ramify.runs.status import begin_session
from ramify.runtime.agent_loop import agent_loop
from ramify.sampler.recorded import TreeRecorder
from ramify.sampler.sampler import closed_on_error, sampling
from ramify.synth.pairs import PairRule
from ramify.train.rollout import first_step
from ramify.train.selfcritic import DPO, RL, SAMPLING, Cycle, SelfCritic, selfcritic_page


def run_selfcritic(
    recipe: SelfCriticRecipe,
    console: RunConsole,
    ranks: Ranks,
    *,
    layout: Layout = GATHERED_ONCE,
    resume: bool = False,
) -> Path:
    """Run all cycles on `ranks`; returns the folder of the last model.

    Raises:
        UserError: The recipe, the data, the machine or the run folder is wrong.
        RunInterruptedError: Ctrl-C or SIGTERM; the state was saved.
        TrainingError: Training cannot go on; the message says why.
    """
    record = record_of(recipe)
    with claim_run_folder(recipe.run.dir, record, resume) as folder:
        manifest = _manifest(recipe, console)
        folder.check_manifest(record, manifest, console.note)
        folder.begin(record, manifest)
        begin_session(folder.root, recipe.selfcritic.cycles)
        loop = SelfCritic(
            folder.root,
            recipe.selfcritic.cycles,
            PairRule(recipe.selfcritic.pairs_per_question, recipe.dpo.max_tokens),
            merges=recipe.dpo.lora is not None,
        )
        model = loop.run(recipe.model.folder, RecipePhases(recipe, console, ranks, layout), console)
        write_run_page(folder.root, console.note, selfcritic_page)
        return model


def _manifest(recipe: SelfCriticRecipe, console: RunConsole) -> dict[str, Any]:
    """Return what all cycles are made from; the tools and the reward are opened for it, and closed again."""
    task = build_task(recipe, console)
    with agent_loop() as loop:
        try:
            # Now, and not when the first cycle's folder is there.
            refuse_large_steps(
                "rollout.problems_per_step", recipe.rollout.problems_per_step, len(task.problems)
            )
            return manifest_of(recipe, task, task.renderer.tokenizer.fingerprint)
        finally:
            loop.run(task.close())


@dataclass(frozen=True, slots=True)
class RecipePhases:
    """The phases of the cycles of a recipe."""

    recipe: SelfCriticRecipe
    console: RunConsole
    ranks: Ranks
    layout: Layout

    def train(self, cycle: Cycle) -> Path:
        """Train the cycle's start by RL; returns the last checkpoint."""
        recipe = self.rl_recipe(cycle)
        return run_rl(recipe, self.console, self.ranks, layout=self.layout, resume=recipe.run.dir.exists())

    def sample(self, cycle: Cycle, policy: Path, path: Path) -> None:
        """Grow trees with the policy as it is now, and record them in a file."""
        folder = cycle.folder / SAMPLING
        # vLLM's servers start with whole models only.
        merges = self.recipe.engine.starts_servers and is_adapter_folder(policy)
        model = write_merged(policy, folder / "model") if merges else policy
        recipe = self._train_recipe(cycle, model, SAMPLING, {})
        set_numerics(recipe.run.threads, recipe.run.deterministic)
        task = build_task(recipe, self.console)
        # Servers start beside the learner of the cycle's RL, which computes nothing until they are gone.
        with closed_on_error(task):
            planned = first_step(task.problems, recipe.run.seed, self.recipe.selfcritic.problems)
            self.ranks.all("release_memory")
            sampler = build_sampler(
                recipe, task, lambda: build_model(recipe.model, task.context_tokens), self.console
            )
        after = f"the trees that have ended are in {path}, go on with --resume"
        with sampling(task, lambda: sampler, after) as session:
            recorder = TreeRecorder(self.console, session.stop, group_size(recipe.run, recipe.engine))
            recorder.grow("sampling", path, sampler, planned, len(planned))
        shutil.rmtree(folder / "model", ignore_errors=True)

    def prefer(self, cycle: Cycle, policy: Path, pairs: Path, count: int) -> Path:
        """Train the policy by DPO on a file of `count` pairs; returns the last checkpoint."""
        recipe = self.dpo_recipe(cycle, policy, pairs, count)
        return run_dpo(recipe, self.console, self.ranks, layout=self.layout, resume=recipe.run.dir.exists())

    def rl_recipe(self, cycle: Cycle) -> TrainRecipe:
        """Return the recipe of a cycle's RL."""
        return self._train_recipe(cycle, cycle.start, RL, {"steps": self.recipe.selfcritic.steps})

    def dpo_recipe(self, cycle: Cycle, policy: Path, pairs: Path, count: int) -> DpoRecipe:
        """Return the recipe of a cycle's DPO; with fewer pairs than a step takes, a step takes them all."""
        dpo, whole = self.recipe.dpo, self._table
        learner = dpo.model_dump(mode="json", exclude={"epochs", "max_tokens", "lora"})
        table = {
            "model": self._model(policy, trains_adapter=False) | {"lora": whole["dpo"]["lora"]},
            "data": {"train": str(pairs), "epochs": dpo.epochs, "max_tokens": dpo.max_tokens},
            "run": whole["run"] | {"dir": str(cycle.folder / DPO), "seed": self._seed(cycle, DPO)},
            "log": whole["log"],
            "learner": learner | {"batch_size": min(dpo.batch_size, count)},
            "tools": whole["tools"],
            "environment": whole["environment"],
        }
        return check_recipe(DpoRecipe, _without_unset(table), f"cycle {cycle.number}, {DPO}")

    def _train_recipe(self, cycle: Cycle, model: Path, name: str, run: Mapping[str, Any]) -> TrainRecipe:
        table = self.recipe.model_dump(mode="json", exclude={"selfcritic", "dpo"})
        table["model"] = self._model(model, trains_adapter=self.recipe.model.lora is not None)
        table["run"] |= {"dir": str(cycle.folder / name), "seed": self._seed(cycle, name), **run}
        return check_recipe(TrainRecipe, _without_unset(table), f"cycle {cycle.number}, {name}")

    def _model(self, path: Path, *, trains_adapter: bool) -> dict[str, Any]:
        """Return the table of a model; an adapter that is there already is trained further as it is."""
        table: dict[str, Any] = self._table["model"]
        lora = table["lora"] if trains_adapter and not is_adapter_folder(path) else None
        return table | {"path": str(path), "lora": lora}

    @property
    def _table(self) -> dict[str, Any]:
        """The recipe as a table."""
        table: dict[str, Any] = self.recipe.model_dump(mode="json")
        return table

    def _seed(self, cycle: Cycle, phase: str) -> int:
        return stream(self.recipe.run.seed, "cycle", cycle.number, phase)


def _without_unset(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without the keys that are not set, as in a TOML file."""
    return {
        key: _without_unset(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }
