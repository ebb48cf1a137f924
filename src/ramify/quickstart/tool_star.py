"""Tool-Star in the tiny world, top to bottom: a weak start, synthesis, SFT, GRPO, self-critic DPO, repair tools.

OUT/world  base  logs  weak  synth  sft  selfcritic  eval  hints.toml  helper.py  report.json  report.html
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ramify.assemble.examples import run_sft
from ramify.assemble.selfcritic import run_selfcritic
from ramify.assemble.synthesis import run_synth
from ramify.config.load import Recipe
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import SelfCriticRecipe
from ramify.core.json_types import part
from ramify.core.rank import Rank
from ramify.files.durable import read_record
from ramify.learner.parallel import Ranks
from ramify.modeling.load import writing_model
from ramify.obs.console import RunConsole
from ramify.quickstart import world_helper
from ramify.quickstart.demonstrator import Flaws, write_demonstrations, write_logs
from ramify.quickstart.evaluations import evaluate, peak_memory_bytes
from ramify.quickstart.example import (
    Clock,
    Settings,
    emptied_on_error,
    filled_recipe,
    python_tool,
    search_tool,
)
from ramify.quickstart.tool_star_report import (
    STAGES,
    WHATS,
    EvaluationKey,
    tool_star_report,
    write_tool_star_report,
)
from ramify.quickstart.world import FULL, SMOKE, write_base
from ramify.quickstart.world_files import WorldFiles, WorldSettings, build_world
from ramify.runs.checkpoint_files import latest_checkpoint
from ramify.sampler.configs import RepairConfig
from ramify.sandbox.levels import detect_level

FLAWS = Flaws(wrong_tool=0.0, mental_after_search=1.0, slip=0.5)
"""A demonstrator that uses one tool at most: it guesses sums of numbers that it searched for, and half of its programs fail."""

EXAMPLE = "quickstart_toolstar"
"""Prefix of the recipes' names."""

REPAIRS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "debugger": ("debugger",),
    "backtracer": ("backtracer",),
    "refiner": ("refiner",),
    "all three": ("debugger", "backtracer", "refiner"),
}
"""Repair tools by their names in the report."""

_EVALUATIONS = tuple(
    EvaluationKey(stage, what, repairs)
    for stage in STAGES
    for repairs in (REPAIRS if stage in ("weak", "dpo") else ("",))
    for what in WHATS
)
_HINTS, _HELPER, _RL = "hints.toml", "helper.py", "rl.jsonl"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of data, and the changes to recipes that a miniature needs.

    Attributes:
        world: Sizes of the world's splits.
        logs: Logs that the base model reads.
        demonstrations: Demonstrations of the weak start.
        questions: Questions of the training split that are asked in the synthesis; RL gets the others as they are.
        changes: Settings of recipes, by the last word of their names.
    """

    world: WorldSettings
    logs: int
    demonstrations: int
    questions: int
    changes: Mapping[str, Settings]


_FULL = Sizes(replace(FULL, num_train=1_000), 12_800, 1_000, 750, {})
_SHORT: Settings = {"learner.optimizer.warmup_steps": 1}
_SMOKE = Sizes(
    SMOKE,
    320,
    64,
    20,
    {
        "sft": _SHORT,
        "synth": {"sampling.max_tokens": 60},
        "selfcritic": {
            **_SHORT,
            "dpo.optimizer.warmup_steps": 1,
            "selfcritic.steps": 1,
            "selfcritic.problems": 10,
            "rollout.max_tokens": 60,
            "preflight.enabled": False,
        },
        "eval": {"sampling.max_tokens": 60},
    },
)


def run_tool_star(out: Path, seed: int, console: RunConsole, *, smoke: bool) -> dict[str, Any]:
    """Run all stages and return the report; everything is written to `out`, report.json and report.html last.

    Raises:
        UserError: The machine cannot run it.
        RunInterruptedError: Ctrl-C.
    """
    run = _Run(out, seed, console, _SMOKE if smoke else _FULL)
    clock = Clock()
    with clock.phase("data"), emptied_on_error(out):
        world = run.make_data()
    models = {}
    with clock.phase("weak start"):
        console.note(
            "weak start: an untrained model reads logs of tools at work, then demonstrations with one tool"
        )
        models["base"] = run.supervised("logs", out / "base", out / "world" / "logs.jsonl")
        models["weak"] = run.supervised("weak", models["base"], out / "world" / "demonstrations.jsonl")
    with clock.phase("synthesis"):
        console.note("synthesis: the weak start answers without tools, with them, and after hints")
        synthesis = run.synthesise(models["weak"], world)
    with clock.phase("sft"):
        console.note(f"SFT on the {sum(synthesis['rows'].values())} rows of the synthesis")
        models["sft"] = run.supervised("sft", models["weak"], out / "synth" / "sft.jsonl")
    with clock.phase("rl and dpo"):
        critic = run.selfcritic_recipe(models["sft"], world)
        models["dpo"] = run_selfcritic(critic, console, Ranks(Rank()))
        cycle = critic.run.dir / "cycle-01"
        trained = latest_checkpoint(cycle / "rl")
        assert trained is not None
        models["rl"] = trained
    with clock.phase("evaluation"):
        console.note("evaluation of every stage, and of the repair tools")
        recipes = {key.title: run.eval_recipe(key, models[key.stage], world) for key in _EVALUATIONS}
        results, memory = evaluate(recipes, console)
    facts = {
        "seed": seed,
        "options": "--tool-star --smoke" if smoke else "--tool-star",
        "seconds": clock.seconds,
        "synthesis": {name: value for name, value in synthesis.items() if name != "files"},
        "cycle": read_record(cycle / "done.json", part()),
        "peak_memory_bytes": peak_memory_bytes() + memory,
        "config": {"selfcritic": critic.model_dump(mode="json")},
        "sandbox_level": detect_level(),
    }
    report = tool_star_report({key: results[key.title] for key in _EVALUATIONS}, facts)
    write_tool_star_report(report, out)
    return report


@dataclass(frozen=True, slots=True)
class _Run:
    out: Path
    seed: int
    console: RunConsole
    sizes: Sizes

    def make_data(self) -> WorldFiles:
        """Write the world, the untrained model, logs, demonstrations, hints and the helper."""
        out, settings = self.out, self.sizes.world
        with self.console.phase("data", 4) as phase:
            world = build_world(out / "world", settings, self.seed)
            phase.advance(passages=world.num_passages)
            with writing_model(out / "base"):
                write_base(out / "base", self.seed)
            phase.advance()
            with search_tool("quickstart", world.passages) as search:
                logs = write_logs(out / "world" / "logs.jsonl", settings, self.seed, self.sizes.logs, search)
                phase.advance(logs=logs)
                with python_tool("quickstart") as run:
                    summary = write_demonstrations(
                        out / "world" / "demonstrations.jsonl",
                        settings,
                        self.seed,
                        self.sizes.demonstrations,
                        search,
                        FLAWS,
                        run,
                    )
            phase.advance(demonstrations=summary.count, correct=f"{summary.correct:.0%}")
            hints = files("ramify.quickstart") / "world_hints.toml"
            (out / _HINTS).write_bytes(hints.read_bytes())
            shutil.copyfile(world_helper.__file__, out / _HELPER)
        return world

    def supervised(self, name: str, model: Path, rows: Path) -> Path:
        """Train a model on rows by SFT, in the folder `name`; without rows, return the model itself."""
        if not rows.read_bytes().strip():
            self.console.note(f"{rows} is empty: skipped {name}")
            return model
        filled = {"model.path": model, "data.train": rows}
        # Logs are read as the other quick start's demonstrations are.
        example = "quickstart" if name == "logs" else EXAMPLE
        return run_sft(self._recipe(SftRecipe, example, "sft", name, filled), self.console, Ranks(Rank()))

    def synthesise(self, model: Path, world: WorldFiles) -> dict[str, Any]:
        """Make rows for SFT and questions for RL from the training split; return the summary."""
        filled = {
            "model.path": model,
            "data.train": world.train,
            "data.limit": self.sizes.questions,
            "hints.library": self.out / _HINTS,
            "tools.search.corpus": world.passages,
        }
        recipe = self._recipe(SynthRecipe, EXAMPLE, "synth", "synth", filled)
        summary = run_synth(recipe, self.console)
        others = world.train.read_bytes().splitlines(keepends=True)[self.sizes.questions :]
        (self.out / _RL).write_bytes((recipe.run.dir / "rl.jsonl").read_bytes() + b"".join(others))
        return summary

    def selfcritic_recipe(self, model: Path, world: WorldFiles) -> SelfCriticRecipe:
        """Return the recipe of one cycle of RL and DPO."""
        filled = {
            "model.path": model,
            "data.train": self.out / _RL,
            "tools.search.corpus": world.passages,
        }
        return self._recipe(SelfCriticRecipe, EXAMPLE, "selfcritic", "selfcritic", filled)

    def eval_recipe(self, key: EvaluationKey, model: Path, world: WorldFiles) -> EvalRecipe:
        """Return the recipe of an evaluation on the test split: held-out names."""
        filled = {
            "model.path": model,
            "data.test": world.test,
            "tools.search.corpus": world.passages,
            "sampling.temperature": 1.0 if key.what == "sampled" else 0.0,
            "repair.helper.path": self.out / _HELPER,
        }
        whole = self._recipe(EvalRecipe, EXAMPLE, "eval", f"eval/{key.title.replace(' ', '-')}", filled)
        return whole.model_copy(update={"repair": _only(whole.repair, REPAIRS[key.repairs])})

    def _recipe(self, schema: type[Recipe], example: str, kind: str, folder: str, filled: Settings) -> Recipe:
        whole = {
            **filled,
            "run.dir": self.out / folder,
            "run.seed": self.seed,
            **self.sizes.changes.get(kind, {}),
        }
        return filled_recipe(schema, f"{example}_{kind}.toml", whole)


def _only(section: RepairConfig | None, tools: tuple[str, ...]) -> RepairConfig | None:
    """Return the table with these repair tools only."""
    if section is None or not tools:
        return None
    names = {*tools, *(["helper"] if {"debugger", "refiner"} & set(tools) else [])}
    return RepairConfig(**{name: getattr(section, name) for name in names})
