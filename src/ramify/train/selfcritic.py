"""The self-critic loop of Tool-Star (arXiv 2505.16410, section 3.4): RL, then DPO on pairs of the policy's own answers, in turn.

RUN/recipe.toml  manifest.json  cycle-01/{rl, trees.jsonl, pairs.jsonl, dpo, model, done.json}  cycle-02/...

Each phase is a run of its own in its folder, and goes on from where it was interrupted. A cycle is done once it has done.json.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.assemble.model import build_model
from ramify.chat.tokenizer import ChatTokenizer
from ramify.config.load import check_recipe
from ramify.config.schema_examples import DpoRecipe
from ramify.config.schema_selfcritic import SelfCriticRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.schema_vllm import VllmEngineSection
from ramify.config.sizes import refuse_large_steps
from ramify.core.draws import stream
from ramify.core.errors import Interrupted
from ramify.core.json_types import Reader, count, mapping, record, text
from ramify.core.records import ScoredTree
from ramify.data.order import DataCursor, ProblemOrder
from ramify.files.durable import read_record, replace_file
from ramify.learner.parallel import Ranks
from ramify.modeling.lora_merge import write_merged
from ramify.modeling.memory_plan import GATHERED_ONCE, Layout
from ramify.modeling.model_config import is_adapter_folder
from ramify.modeling.numerics import set_numerics
from ramify.modeling.run_models import cycle_model
from ramify.obs.console import RunConsole
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import each_tree
from ramify.rollout.plan import planned_step
from ramify.runtime.agent_loop import StopOnSignal, agent_loop
from ramify.sampler.groups import group_size
from ramify.sampler.recorded import TreeRecorder
from ramify.sampler.sampler import build_sampler, build_task
from ramify.synth.pairs import PairRule, choose_pairs, pair_rows, write_pairs
from ramify.train.dpo import run_dpo
from ramify.train.manifest import task_manifest
from ramify.train.rl import run_rl
from ramify.train.run_folder import claim_run_folder

DONE = "done.json"

_READ_PAIRS: Reader[dict[str, Any]] = record(dict, pairs=count, questions=mapping(count), line=text)


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
        Interrupted: Ctrl-C or SIGTERM; the state was saved.
        TrainingError: Training cannot go on; the message says why.
    """
    with claim_run_folder(recipe.run.dir, recipe, resume) as folder:
        manifest = _manifest(recipe, console)
        folder.take_up(recipe, manifest, console.note)
        folder.begin(recipe, manifest)
        model = recipe.model.folder
        for number in range(1, recipe.selfcritic.cycles + 1):
            cycle = Cycle(recipe, number, folder.root / f"cycle-{number:02d}", model)
            if not (cycle.folder / DONE).exists():
                console.note(f"cycle {number} of {recipe.selfcritic.cycles}, from {model}")
                cycle.run(console, ranks, layout)
            model = cycle.model
        return model


def _manifest(recipe: SelfCriticRecipe, console: RunConsole) -> dict[str, Any]:
    """What all cycles are made from; the tools and the reward are opened for it, and closed again."""
    task = build_task(recipe, console)
    with agent_loop() as loop:
        try:
            # Now, and not when the first cycle's folder is there.
            refuse_large_steps(
                "rollout.problems_per_step", recipe.rollout.problems_per_step, len(task.problems)
            )
            return task_manifest(recipe, task, task.renderer.tokenizer.fingerprint)
        finally:
            loop.run(task.close())


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle: its number from 1, its folder, and the model that it begins with."""

    recipe: SelfCriticRecipe
    number: int
    folder: Path
    start: Path

    def run(self, console: RunConsole, ranks: Ranks, layout: Layout) -> None:
        """Run the phases that are not done, and write done.json."""
        rl = self.rl_recipe()
        policy = run_rl(rl, console, ranks, layout=layout, resume=rl.run.dir.exists())
        pairs = self.folder / "pairs.jsonl"
        told = self.folder / "pairs.json"
        if not told.exists():
            counts = self.make_pairs(policy, pairs, console)
            replace_file(told, (json.dumps(counts, indent=2) + "\n").encode())
        counts = read_record(told, _READ_PAIRS)
        console.note(f"cycle {self.number}: {counts['line']}")
        done: dict[str, Any] = {"cycle": self.number, "rl": _reward(rl.run.dir), "pairs": counts}
        model = policy
        if counts["pairs"]:
            dpo = self.dpo_recipe(policy, pairs, counts["pairs"])
            model = run_dpo(dpo, console, ranks, layout=layout, resume=dpo.run.dir.exists())
            done["dpo"] = _preferences(dpo.run.dir)
            if is_adapter_folder(model) and self.recipe.dpo.lora is not None:
                model = write_merged(model, self.folder / "model")
        else:
            console.note(f"cycle {self.number}: no pair, so there is no DPO in it")
        done["model"] = str(model.relative_to(self.folder))
        replace_file(self.folder / DONE, (json.dumps(done, indent=2) + "\n").encode())

    @property
    def model(self) -> Path:
        """The model of a cycle that is done."""
        return cycle_model(self.folder / DONE)

    def rl_recipe(self) -> TrainRecipe:
        """The recipe of the cycle's RL."""
        return self._train_recipe(self.start, "rl", {"steps": self.recipe.selfcritic.steps})

    def _train_recipe(self, model: Path, name: str, run: Mapping[str, Any]) -> TrainRecipe:
        table = self.recipe.model_dump(mode="json", exclude={"selfcritic", "dpo"})
        table["model"] = self._model(model, self.recipe.model.lora is not None)
        table["run"] |= {"dir": str(self.folder / name), "seed": self._seed(name), **run}
        return check_recipe(TrainRecipe, _given(table), f"cycle {self.number}, {name}")

    def dpo_recipe(self, policy: Path, pairs: Path, count: int) -> DpoRecipe:
        """The recipe of the cycle's DPO; with fewer pairs than a step takes, a step takes them all."""
        recipe, dpo = self.recipe, self.recipe.dpo
        learner = dpo.model_dump(mode="json", exclude={"epochs", "max_tokens", "lora"})
        table = {
            "model": self._model(policy, False) | {"lora": dpo.model_dump(mode="json")["lora"]},
            "data": {"train": str(pairs), "epochs": dpo.epochs, "max_tokens": dpo.max_tokens},
            "run": recipe.run.model_dump(mode="json")
            | {"dir": str(self.folder / "dpo"), "seed": self._seed("dpo")},
            "learner": learner | {"batch_size": min(dpo.batch_size, count)},
            "tools": recipe.tools.model_dump(mode="json"),
            "environment": recipe.model_dump(mode="json")["environment"],
        }
        return check_recipe(DpoRecipe, _given(table), f"cycle {self.number}, dpo")

    def make_pairs(self, policy: Path, path: Path, console: RunConsole) -> dict[str, Any]:
        """Grow trees with the policy as it is now, and write the pairs that they hold."""
        sampling = self.folder / "sampling"
        # vLLM's servers start with whole models only.
        served = isinstance(self.recipe.engine, VllmEngineSection) and is_adapter_folder(policy)
        model = write_merged(policy, sampling / "model") if served else policy
        trees = self.folder / "trees.jsonl"
        self._sample(self._train_recipe(model, sampling.name, {}), trees, console)
        shutil.rmtree(sampling / "model", ignore_errors=True)
        rule = PairRule(self.recipe.selfcritic.pairs_per_question, self.recipe.dpo.max_tokens)
        decode = ChatTokenizer(policy).decode
        chosen = choose_pairs(_named(trees), rule, decode)
        write_pairs(path, pair_rows(_named(trees), chosen, decode))
        return {
            "pairs": chosen.count,
            "questions": dict(sorted(chosen.questions.items())),
            "line": chosen.line(),
        }

    def _sample(self, recipe: TrainRecipe, path: Path, console: RunConsole) -> None:
        set_numerics(recipe.run.threads, recipe.run.deterministic)
        task = build_task(recipe, console)
        sampler = build_sampler(recipe, task, lambda: build_model(recipe.model, task.context_tokens), console)
        order = ProblemOrder(len(task.problems), recipe.run.seed)
        count = min(self.recipe.selfcritic.problems, len(task.problems))
        indices, _ = order.take(DataCursor(), count)
        planned = planned_step([task.problems[index] for index in indices], 0)
        whole = group_size(recipe.run, recipe.engine, leaves=1)
        with agent_loop() as loop, StopOnSignal(loop) as stop:
            loop.settle()
            try:
                TreeRecorder(console, stop, whole).grow("sampling", path, sampler, planned, count)
            except Interrupted as stopped:
                after = f"the trees that have ended are in {path}, go on with --resume"
                raise Interrupted(stopped.number, after) from None
            finally:
                loop.run(sampler.close())

    def _model(self, path: Path, trains_adapter: bool) -> dict[str, Any]:
        """The table of a model; an adapter that is there already is trained further as it is."""
        table = self.recipe.model.model_dump(mode="json")
        lora = table["lora"] if trains_adapter and not is_adapter_folder(path) else None
        return table | {"path": str(path), "lora": lora}

    def _seed(self, phase: str) -> int:
        return stream(self.recipe.run.seed, "cycle", self.number, phase)


def _named(trees: Path) -> Iterator[tuple[str, ScoredTree]]:
    return ((trees.name, traced) for traced in each_tree(trees))


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table without the keys that are not set, as in a TOML file."""
    return {
        key: _given(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


def _reward(run: Path) -> dict[str, float | None]:
    """Mean reward in the first and in the last step of a run."""
    rows = read_metrics(run / "metrics.jsonl")
    return {"first": rows[0].get("reward/mean"), "last": rows[-1].get("reward/mean")} if rows else {}


def _preferences(run: Path) -> dict[str, float | None]:
    """Loss, and share of pairs whose chosen side the policy prefers more than its start did, in the last step of a run."""
    rows = read_metrics(run / "metrics.jsonl")
    names = ("loss", "accuracy", "margin")
    return {"steps": float(len(rows)), **{name: rows[-1].get(name) for name in names}} if rows else {}
