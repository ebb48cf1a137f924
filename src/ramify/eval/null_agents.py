"""Agents that know nothing: an empty one, a random caller and an echo. What they score is what an evaluation gives away.

After the do-nothing agents of the Agentic Benchmark Checklist (arXiv 2507.02825), which some benchmarks pay well.
"""

import json
import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramify.algos.branch_rules import FlatBrancher
from ramify.chat.conversation import AssistantCall, in_opened_thought
from ramify.chat.renderers import DialectRenderer
from ramify.core.errors import RowError
from ramify.core.messages import Final, Problem, ToolSpec
from ramify.engines.scripted import Script, ScriptedEngine, ScriptedTurn
from ramify.eval.run import evaluate
from ramify.eval.statistics import Interval
from ramify.obs.console import Phase
from ramify.obs.metrics import TimingLog
from ramify.rollout.configs import RolloutLimits
from ramify.rollout.settings import AgentParts
from ramify.sampler.sampler import Sampler, Scoring
from ramify.sampler.task import Task

_CALLS = 2
"""Calls of the random caller before it answers."""
_GUESSES = ("yes", "no", *"ABCDE", *map(str, range(11)))
_WORDS = 50
_MUCH = 0.05


@dataclass(frozen=True, slots=True)
class _Question:
    """A problem's text, and the tools that its prompt shows."""

    text: str
    tools: Sequence[ToolSpec]


def null_samplers(task: Task, limits: RolloutLimits, seed: int) -> Mapping[str, Sampler]:
    """Return samplers of single attempts by agents that know nothing, by the agents' names.

    They read the prompts, use the tools and get the reward of the task, as the policy does.

    Args:
        task: The task, which they share.
        limits: Limits of an attempt.
        seed: Seed of the run.
    """
    questions = _Questions.of(task)
    scripts: Mapping[str, Script] = {
        "empty": lambda _context, _seed: ScriptedTurn("", ends=True),
        "random": lambda context, seed: _act_at_random(task.renderer, questions, context, seed),
        "echo": lambda context, _seed: _answer(
            task.renderer, questions.at(context), questions.at(context).text
        ),
    }
    samplers = {}
    for name, script in scripts.items():
        timing = TimingLog()
        agent = AgentParts(
            engine=ScriptedEngine(task.renderer.tokenizer, script, task.context_tokens),
            renderer=task.renderer,
            environment=task.toolbox.environment,
            brancher=FlatBrancher(probe_tokens=0),
            limits=limits,
            events=timing,
            run_seed=seed,
            environments=task.toolbox.environments,
        )
        samplers[name] = Sampler(task, agent, timing, Scoring(task.reward.fn, timing))
    return samplers


async def null_scores(
    task: Task, limits: RolloutLimits, seed: int, phase: Phase, *, decides: str = "correct"
) -> dict[str, Interval]:
    """Return the share of problems that each agent that knows nothing gets right, in one attempt at each.

    Args:
        task: See `null_samplers`.
        limits: Limits of an attempt.
        seed: Seed of the run.
        phase: Shows the progress.
        decides: Part of the reward that says whether an attempt is right.

    Raises:
        DataError: No problem worked.
    """
    scores = {}
    for name, sampler in null_samplers(task, limits, seed).items():
        evaluation, _ = await evaluate(sampler, task.problems, 1, phase, decides=decides)
        sampler.scoring.require_success()
        scores[name] = evaluation.pass_at(1)
    return scores


def null_line(scores: Mapping[str, Interval]) -> str:
    """Return a line for the console: what the agents score, and a warning where that is much."""
    shares = ", ".join(f"{name} {interval.value:.3f}" for name, interval in scores.items())
    best = max(interval.value for interval in scores.values())
    warning = "" if best < _MUCH else f". Warning: {best:.0%} of the problems are won by knowing nothing"
    return f"agents that know nothing: {shares}{warning}"


@dataclass(frozen=True, slots=True)
class _Questions:
    """Problems by the texts of their prompts."""

    prompts: Sequence[str]
    """Sorted."""
    questions: Mapping[str, _Question]

    @classmethod
    def of(cls, task: Task) -> "_Questions":
        toolbox = task.toolbox
        by_prompt = {}
        for problem in task.problems:
            named = toolbox.environments.get(str(problem.info.get("environment")), toolbox.environment)
            tools = tuple(named.tools.values())
            prompt = task.renderer.decode(task.renderer.render_prompt(problem, tools))
            by_prompt[prompt] = _Question(_last_words(problem), tools)
        return cls(sorted(by_prompt), by_prompt)

    def at(self, context: str) -> _Question:
        """Return the question whose prompt a context begins with."""
        # Of the prompts that begin a text, the longest is the last one that does not sort behind it.
        for prompt in reversed(self.prompts[: bisect(self.prompts, context)]):
            if context.startswith(prompt):
                return self.questions[prompt]
        return _Question("", ())


def _last_words(problem: Problem) -> str:
    return next((m.text for m in reversed(problem.messages) if m.role == "user"), "")


def _act_at_random(renderer: DialectRenderer, questions: _Questions, context: str, seed: int) -> ScriptedTurn:
    draws, question = random.Random(seed), questions.at(context)
    if question.tools and context.count(renderer.result_end) < _CALLS:
        spec = draws.choice(question.tools)
        words = question.text.split()[:_WORDS] or ["nothing"]
        arguments = json.dumps(_arguments(spec.parameters, words, draws), ensure_ascii=False)
        try:
            call = renderer.call_text(AssistantCall("", spec.name, arguments), question.tools)
        except RowError:
            pass  # the dialect cannot write this call
        else:
            return ScriptedTurn(_in_turn(renderer, call), ends=renderer.ends_each_turn)
    return _answer(renderer, question, draws.choice(_GUESSES))


def _arguments(schema: Mapping[str, Any], words: Sequence[str], draws: random.Random) -> dict[str, Any]:
    """Draw the required arguments of a JSON schema."""
    properties = schema.get("properties", {})
    return {
        name: _draw(name, properties.get(name, {}), words, draws)
        for name in schema.get("required", properties)
    }


def _draw(name: str, schema: Mapping[str, Any], words: Sequence[str], draws: random.Random) -> Any:  # noqa: ANN401 - any JSON value
    if schema.get("enum"):
        return draws.choice(schema["enum"])
    match schema.get("type"):
        case "integer" | "number":
            return draws.randrange(100)
        case "boolean":
            return draws.random() < 0.5
        case "array":
            return [_draw(name, schema.get("items", {}), words, draws)]
        case "object":
            return _arguments(schema, words, draws)
    if name == "code":
        return f"print({draws.randrange(100)})"
    return " ".join(draws.choices(words, k=3))


def _answer(renderer: DialectRenderer, question: _Question, text: str) -> ScriptedTurn:
    boxed = f"\\boxed{{{renderer.quoted(text, question.tools)}}}"
    tagged = f"<think> </think><answer> {boxed} </answer>"
    parsed = renderer.parse(tagged, question.tools)
    answer = tagged if isinstance(parsed, Final) and parsed.answer.strip() == boxed else boxed
    return ScriptedTurn(_in_turn(renderer, answer), ends=True)


def _in_turn(renderer: DialectRenderer, text: str) -> str:
    opening = renderer.thought_opening
    return in_opened_thought(text, opening) if opening else text
