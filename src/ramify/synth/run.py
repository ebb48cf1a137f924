"""`ramify synth`: Tool-Star's data from questions (arXiv 2505.16410, section 3), top to bottom."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramify.chat.token_texts import copy_tokenizer
from ramify.core.draws import stream
from ramify.core.json_types import part
from ramify.core.messages import Problem
from ramify.core.tree import TreeKey
from ramify.files.durable import RECIPE, replace_file
from ramify.obs.console import RunConsole
from ramify.obs.page import write_page
from ramify.obs.token_counts import PriceConfig
from ramify.rollout.plan import TreeRequest
from ramify.rollout.tool_set import ToolSet
from ramify.runs.configs import LogConfig
from ramify.runs.manifest import (
    RecipeRecord,
    note_session,
    read_manifest,
    refuse_other,
    write_manifest,
)
from ramify.runs.page import REPORT
from ramify.runs.recorder import open_loggers
from ramify.runs.run_folder import SYNTHESIS
from ramify.runs.status import begin_session
from ramify.sampler.recorded import TreeRecorder
from ramify.sampler.sampler import Sampler, SamplingSession, sampling
from ramify.sampler.task import Task
from ramify.synth.configs import HintsConfig, QualityConfig
from ramify.synth.hints import HintLibrary, hint_positions, planned_hint
from ramify.synth.results import Sorter, summary_metrics, synthesis_page, write_results
from ramify.synth.rows import is_right, read_stage, stage_file

DIRECT, TOOLS, FIRST_HINT = 0, 1, 2
"""`TreeKey.attempt` of a question's trees: it names their random streams, and their lines."""


@dataclass(frozen=True, slots=True)
class SynthPlan:
    """The parts and settings of a synthesis.

    Attributes:
        folder: The folder of answers and rows.
        recipe: The recipe, for the folder.
        log: Loggers of the final counts.
        manifest: Everything that the answers depend on.
        task: The questions under the prompt with tools, the tools and the reward.
        direct: The questions under the prompt without tools, in the same order.
        open_sampler: Makes the agent.
        direct_samples: Answers to a question without tools.
        tool_samples: Answers to a question with tools.
        quality: Limits of a row.
        hints: The answers that continue after a hint; None: no hints.
        library: The hints.
        seed: Seed of the run.
        price: Price of a million tokens; None: no cost is given.
        group_size: Answers that must be sampled together; None: each alone.
    """

    folder: Path
    recipe: RecipeRecord
    log: LogConfig
    manifest: Mapping[str, Any]
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
    """Sample answers, classify the questions, write the rows, and return the summary.

    Raises:
        UserError: The folder is of another synthesis, or no question worked.
        RunInterruptedError: Ctrl-C or SIGTERM; the answers so far are saved.
    """
    name = _open_folder(plan, console)
    after = f"finished answers are in {plan.folder}, go on with --resume"
    with sampling(plan.task, plan.open_sampler, after) as session:
        _sample_all(plan, session, console)
    repairs = plan.task.repairs
    if repairs is not None and (used := repairs.usage) is not None:
        console.note(
            f"helper of the repair tools: {used.answers} answers in this session ({used.prompt_tokens} prompt tokens, "
            f"{used.completion_tokens} completion tokens)"
        )
    sorter = Sorter(plan.task.renderer, plan.task.toolbox.specs, plan.quality, plan.seed)
    summary = write_results(plan.folder, plan.task.problems, sorter, plan.price)
    with open_loggers(plan.folder, name, plan.recipe, plan.log, console.note) as loggers:
        loggers.step(0, summary_metrics(summary))
    write_page(plan.folder / REPORT, synthesis_page(plan.folder))
    return summary


def _open_folder(plan: SynthPlan, console: RunConsole) -> str:
    """Resume the folder if it was made from the same parts, or start it; return its random name.

    Raises:
        ConfigError: Model, data, tools, reward, hints or settings differ.
        DataError: The manifest is damaged.
    """
    folder = plan.folder
    if SYNTHESIS.has_begun(folder):
        before = read_manifest(folder, made_from=part())
        refuse_other(folder, "a synthesis", before["made_from"], plan.manifest["made_from"])
        note_session(folder, before, plan.manifest["made_with"][-1], console.note)
        # Folders that older versions began have no name.
        name = str(before.get("name", folder.name))
    else:
        name = os.urandom(8).hex()
        write_manifest(folder, {"name": name, **plan.manifest})
    replace_file(folder / RECIPE, plan.recipe.text.encode())
    copy_tokenizer(plan.task.renderer.tokenizer, folder)
    begin_session(folder, None)
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
    unanswered = _unanswered(folder, plan.quality.right_at)
    alone = with_samples(sampler, 1)
    hinted = planned_hints(folder, plan.hints, plan.library, alone, plan.task.problems, unanswered)
    samples = plan.direct_samples if plan.hints.after == "direct" else plan.tool_samples
    most = len(unanswered) * min(plan.hints.per_question, samples)
    recorder.grow("hints", stage_file(folder, "hints"), alone, hinted, most)


def _unanswered(folder: Path, right_at: float) -> frozenset[str]:
    """Return the questions that are not answered without tools: only these get hints."""
    direct = (
        (traced.tree.problem.id, [is_right(reward) for reward in traced.rewards if reward.counts])
        for traced in read_stage(folder, "direct")
    )
    return frozenset(
        question for question, right in direct if not right or sum(right) / len(right) < right_at
    )


def without_tools(sampler: Sampler, samples: int) -> Sampler:
    """Return the same agent without tools. A call ends its answer, or is not parsed as a call."""
    limits = replace(sampler.agent.limits, n=samples, max_calls=0)
    agent = replace(sampler.agent, environment=ToolSet({}), limits=limits, rewriters=())
    return replace(sampler, agent=agent)


def with_samples(sampler: Sampler, samples: int) -> Sampler:
    """Return the same agent with `samples` answers to a question."""
    limits = replace(sampler.agent.limits, n=samples)
    return replace(sampler, agent=replace(sampler.agent, limits=limits))


def planned_answers(problems: Sequence[Problem], attempt: int) -> Iterator[TreeRequest]:
    """Yield one tree request for each question."""
    return (TreeRequest(problem, TreeKey(0, slot, attempt)) for slot, problem in enumerate(problems))


def planned_hints(
    folder: Path,
    section: HintsConfig,
    library: HintLibrary,
    sampler: Sampler,
    problems: Sequence[Problem],
    unanswered: frozenset[str],
) -> Iterator[TreeRequest]:
    """Yield requests for trees that continue, after hints, from recorded answers to the questions `unanswered`, wrong ones first.

    An answer without a position for a hint is skipped; any other is continued once, from a position that is drawn.

    Args:
        folder: Holds the recorded answers.
        section: The stage of the answers, and their number for a question.
        library: The hints.
        sampler: The agent that continues, with its tools.
        problems: The questions under its prompt.
        unanswered: Ids of the questions that get hints.
    """
    agent = sampler.agent
    renderer, tools = agent.renderer, agent.tools
    of_id = {problem.id: (slot, problem) for slot, problem in enumerate(problems)}
    for traced in read_stage(folder, section.after):
        if traced.tree.problem.id not in unanswered:
            continue
        slot, problem = of_id[traced.tree.problem.id]
        if section.after == "tools":
            # An environment may have added words of its own to the question.
            problem = traced.tree.problem
        pairs = zip(traced.tree.trajectories, traced.rewards, strict=True)
        attempt = FIRST_HINT
        for answer, _ in sorted(pairs, key=lambda pair: is_right(pair[1])):
            positions = hint_positions(library, renderer, answer, tools)
            if not positions or attempt == FIRST_HINT + section.per_question:
                continue
            draw = stream(agent.run_seed, "hint", problem.id, answer.leaf.path)
            position = positions[draw % len(positions)]
            yield planned_hint(renderer, problem, answer, position, TreeKey(0, slot, attempt), tools)
            attempt += 1
