"""`ramify synth`: Tool-Star's data from questions (arXiv 2505.16410, section 3), top to bottom."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.core.json_types import part
from ramify.core.messages import Problem
from ramify.files.durable import RECIPE, replace_file
from ramify.obs.console import RunConsole
from ramify.obs.token_counts import PriceConfig
from ramify.runs import manifest
from ramify.runs.configs import LogConfig
from ramify.runs.manifest import MANIFEST, note_session, read_manifest, refuse_other, write_manifest
from ramify.runs.recipe import RecipeRecord
from ramify.runs.recorder import open_loggers
from ramify.sampler.identity import without_reach
from ramify.sampler.recorded import TreeRecorder
from ramify.sampler.sampler import Sampler
from ramify.sampler.session import SamplingSession, sampling
from ramify.sampler.task import Task
from ramify.synth.configs import HintsConfig, QualityConfig
from ramify.synth.folder import SYNTHESIS, read_stage, stage_file
from ramify.synth.hints import HintLibrary
from ramify.synth.results import Sorter, summary_metrics, write_results
from ramify.synth.rows import is_right
from ramify.synth.sampling import DIRECT, TOOLS, planned_answers, planned_hints, with_samples, without_tools


@dataclass(frozen=True, slots=True)
class SynthPlan:
    """All that a synthesis is made from.

    Attributes:
        folder: Where answers and rows go.
        recipe: The recipe, for the folder.
        log: Who logs the counts at the end.
        made_from: What the answers depend on.
        device: Name of the device that computes.
        task: The questions under the prompt with tools, the tools and the reward.
        direct: The questions under the prompt without tools, in the same order.
        open_sampler: Makes the agent.
        direct_samples: Answers to a question without tools.
        tool_samples: Answers to a question with tools.
        quality: What a row needs.
        hints: Which answers go on after a hint; None: none do.
        library: The hints.
        seed: Seed of the run.
        price: Price of a million tokens; None: no cost is given.
        group_size: Answers that must be made together; None: each can be made alone.
    """

    folder: Path
    recipe: RecipeRecord
    log: LogConfig
    made_from: Mapping[str, Any]
    device: str
    task: Task
    direct: Sequence[Problem]
    open_sampler: Callable[[], Sampler]
    direct_samples: int
    tool_samples: int
    quality: QualityConfig
    hints: HintsConfig | None
    library: HintLibrary | None
    seed: int
    price: PriceConfig | None = None
    group_size: int | None = None


def synthesize(plan: SynthPlan, console: RunConsole) -> dict[str, Any]:
    """Sample answers, sort the questions, write the rows into the plan's folder; returns the summary.

    Raises:
        UserError: The folder is of another synthesis, or no question worked.
        RunInterruptedError: Ctrl-C or SIGTERM; the answers so far are saved.
    """
    name = _take_up(plan, console)
    after = f"the answers that have ended are in {plan.folder}, go on with --resume"
    with sampling(plan.task, plan.open_sampler, after) as session:
        _sample_all(plan, session, console)
    repairs = plan.task.repairs
    if repairs is not None and (used := repairs.usage) is not None:
        console.note(
            f"the helper of the repair tools answered {used.answers} times in this session: {used.prompt_tokens} tokens "
            f"read, {used.completion_tokens} written"
        )
    sorter = Sorter(plan.task.renderer, plan.task.toolbox.specs, plan.quality, plan.seed)
    summary = write_results(plan.folder, plan.task.problems, sorter, plan.price)
    with open_loggers(plan.folder, name, plan.recipe, plan.log, console.note) as loggers:
        loggers.step(0, summary_metrics(summary))
    return summary


def _take_up(plan: SynthPlan, console: RunConsole) -> str:
    """Check that a folder goes on with what it was made from, or make it one of this synthesis; returns its random name.

    Raises:
        ConfigError: Model, data, tools, reward, hints or settings differ.
    """
    folder = plan.folder
    made_with = manifest.made_with(plan.device)
    if SYNTHESIS.has_begun(folder) and (folder / MANIFEST).exists():
        before = read_manifest(folder, made_from=part())
        refuse_other(folder, "a synthesis", without_reach(before["made_from"]), without_reach(plan.made_from))
        note_session(folder, before, made_with, console.note)
        # Folders that older versions began have no name.
        name = str(before.get("name", folder.name))
    else:
        name = os.urandom(8).hex()
        write_manifest(folder, {"name": name, "made_from": dict(plan.made_from), "made_with": [made_with]})
    replace_file(folder / RECIPE, plan.recipe.text.encode())
    return name


def _sample_all(plan: SynthPlan, session: SamplingSession[Sampler], console: RunConsole) -> None:
    folder, sampler = plan.folder, session.sampler
    recorder = TreeRecorder(console, session.stop, plan.group_size)
    count = len(plan.direct)
    plain = without_tools(sampler, plan.direct_samples)
    recorder.grow("direct", stage_file(folder, "direct"), plain, planned_answers(plan.direct, DIRECT), count)
    with_tools = with_samples(sampler, plan.tool_samples)
    planned = planned_answers(plan.task.problems, TOOLS)
    recorder.grow("tools", stage_file(folder, "tools"), with_tools, planned, count)
    if plan.hints is None or plan.library is None:
        return
    asked = _unanswered(folder, plan.quality.right_at)
    alone = with_samples(sampler, 1)
    hinted = planned_hints(folder, plan.hints, plan.library, alone, plan.task.problems, asked)
    samples = plan.direct_samples if plan.hints.after == "direct" else plan.tool_samples
    most = len(asked) * min(plan.hints.per_question, samples)
    recorder.grow("hints", stage_file(folder, "hints"), alone, hinted, most)


def _unanswered(folder: Path, right_at: float) -> frozenset[str]:
    """Return the questions that are not answered without tools: hints for the others would be for nothing."""
    direct = (
        (traced.tree.problem.id, [is_right(reward) for reward in traced.rewards if reward.counts])
        for traced in read_stage(folder, "direct")
    )
    return frozenset(
        question for question, right in direct if not right or sum(right) / len(right) < right_at
    )
