"""`evaluate` and `compare`: attempts at problems as `ramify eval` makes them, and two of them side by side."""

import os
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from ramify.api.agent import Agent
from ramify.api.data import Problems, problems
from ramify.api.policy import Policy
from ramify.api.scoring import reward_section
from ramify.api.session import in_thread, run
from ramify.api.tables import Limits, require, short
from ramify.api.trees import Tree, Trees, as_trees
from ramify.api.views import Table, frame, html_table
from ramify.config.schema_parts import RewardSection
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Problem
from ramify.eval.compare import Comparison, compare_evaluations
from ramify.eval.evaluation import Evaluation
from ramify.eval.statistics import Difference, Interval, paired_difference
from ramify.runs.manifest import problems_sha256

_CORRECT, _JUDGE = "correct", "judge"


@dataclass(frozen=True, slots=True, repr=False)
class Results:
    """The attempts of an evaluation.

    Attributes:
        evaluation: The record of all attempts.
        trees: The attempts themselves, one tree with one trajectory each, problem by problem.
        problems: The problems, as they were passed.
    """

    evaluation: Evaluation
    trees: Trees
    problems: tuple[Problem, ...]

    def pass_at(self, k: int = 1) -> Interval:
        """Return the estimate that one of k attempts is right, with its 95 % interval."""
        return self.evaluation.pass_at(k)

    @property
    def score(self) -> float:
        """The share of attempts that are right."""
        return self.pass_at(1).value

    @property
    def attempts(self) -> Table:
        """A row for each attempt."""
        return Table(
            [
                {
                    "problem": each.problem,
                    "attempt": each.attempt,
                    "right": each.correct,
                    "reward": each.reward,
                    "answer": each.answer,
                    "stop": str(each.stop),
                    "calls": len(each.calls),
                    "tokens": each.tokens.written,
                }
                for each in self.evaluation.attempts
            ]
        )

    def per_problem(self) -> dict[str, float]:
        """Return the share of right attempts at each problem."""
        return {each.id: each.num_correct / len(each.attempts) for each in self.evaluation.results}

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas need not be installed
        """Return a pandas frame with a row for each attempt."""
        return frame(self.attempts)

    def __len__(self) -> int:
        return len(self.evaluation.attempts)

    def __repr__(self) -> str:
        estimate = self.pass_at(1)
        return (
            f"Results(pass@1 {estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}], "
            f"{len(self.evaluation.results)} problems, {len(self)} attempts)"
        )

    def _repr_html_(self) -> str:
        table = self.attempts
        return f"<p>{short(repr(self))}</p>" + html_table(table.columns, table)


def evaluate(
    agent: Agent | Policy | str | Path,
    data: Any,  # noqa: ANN401 - a place, rows or problems
    *,
    attempts: int = 1,
    reward: Any = "answer",  # noqa: ANN401 - whatever stands for a reward
    tools: Any = (),  # noqa: ANN401 - one tool or several
    limits: Limits | None = None,
) -> Results:
    """Make independent attempts at problems and score them, in this process; `ramify eval` writes a folder, with any engine.

    Args:
        agent: An agent; or a policy or a model's folder, to which `tools` and `limits` are added.
        data: Problems, a file, a folder, "hf:org/name", or rows.
        attempts: At each problem.
        reward: Its part `correct` says what is right, or without one the first function of one's own, or the judge; at least 1
            is right.
        tools: As for `Agent`.
        limits: As for `Agent`; the agent's own where it is one.

    Raises:
        UserError: The data, a tool or the reward cannot be used, two problems have one id, or no problem worked; a warning says
            which ones failed.
    """
    require(attempts, int, "evaluate: attempts: expected a number from 1")
    if attempts < 1:
        raise ConfigError(f"evaluate: attempts: expected a number from 1, got {attempts}")
    if isinstance(agent, Agent):
        if tools or limits is not None:
            raise ConfigError("evaluate: the agent has tools and limits already. Remove tools and limits")
        return _evaluate(agent, data, attempts, reward)
    policy = agent if isinstance(agent, Policy) else Policy(agent)
    with Agent(policy, tools=tools, limits=limits) as opened:
        return _evaluate(opened, data, attempts, reward)


async def evaluate_async(agent: Agent | Policy | str | Path, data: Any, **keywords: Any) -> Results:  # noqa: ANN401
    """As `evaluate`, in a thread."""
    results: Results = await in_thread(evaluate, agent, data, **keywords)
    return results


def _evaluate(agent: Agent, data: Any, attempts: int, reward: Any) -> Results:  # noqa: ANN401
    from ramify.assemble.reward import build_reward
    from ramify.eval.run import evaluate as attempt_all
    from ramify.obs.console import RunConsole

    section = reward_section(reward, "evaluate")
    decides = _deciding_part(section)
    listed: tuple[Problem, ...] = tuple(problems(data) if _is_data(data) else data)
    counts = Counter(problem.id for problem in listed)
    if shared := [name for name, count in counts.items() if count > 1]:
        raise DataError(
            f"evaluate: {counts[shared[0]]} problems have the id {shared[0]!r}. Give each row an id, or read all rows with one "
            "ramify.problems"
        )
    built = build_reward(section)
    sampler = agent.attempter(listed, built)

    async def attempt() -> tuple[Evaluation, Any]:
        with (
            Path(os.devnull).open("w") as nowhere,
            RunConsole(nowhere).phase("evaluation", len(listed)) as phase,
        ):
            try:
                await agent.publish()
                return await attempt_all(sampler, sampler.task.problems, attempts, phase, decides=decides)
            finally:
                agent.end_aside()
                await built.close()

    evaluation, scored = run(attempt())
    sampler.scoring.require_success()
    for note in sampler.timing.failure_notes():
        warnings.warn(f"evaluate: {note}", RuntimeWarning, stacklevel=3)
    if missing := sum(decides not in each.parts for each in evaluation.attempts):
        note = f"{missing} of {len(evaluation.attempts)} attempts have no {decides!r} and count as wrong"
        warnings.warn(f"evaluate: {note}", RuntimeWarning, stacklevel=3)
    temperature = sampler.agent.limits.temperature
    trees = Trees(
        Tree(each.tree, each.rewards, spell=agent.spell, temperature=temperature) for each in scored
    )
    return Results(evaluation, trees, listed)


def _deciding_part(reward: RewardSection) -> str:
    """Return the part of a reward that says what is right.

    Raises:
        ConfigError: None does.
    """
    if reward.tells_right:
        return _CORRECT
    own = getattr(reward, "own", ())
    if not own and reward.judge is None:
        raise ConfigError(
            f'evaluate: reward: expected one that tells right from wrong, "{reward.name}" does not. Choose "answer", or a function '
            "that returns 1 for a right attempt"
        )
    name: str = own[0].name or own[0].function if own else _JUDGE
    return name


def _is_data(data: Any) -> bool:  # noqa: ANN401 - a place, rows or problems
    return not isinstance(data, Problems) and not (
        isinstance(data, list | tuple) and bool(data) and all(isinstance(each, Problem) for each in data)
    )


@overload
def compare(first: Results, second: Results) -> Difference: ...


@overload
def compare(first: str | Path, second: str | Path) -> Comparison: ...


@overload
def compare(first: Trees | Tree, second: Trees | Tree) -> Table: ...


def compare(first: Any, second: Any) -> Difference | Comparison | Table:
    """Compare two evaluations problem by problem, or two trees.

    Args:
        first: Results, the folder of a finished `ramify eval`, or trees.
        second: The same kind, of the same problems.

    Returns:
        Of results the difference (second minus first) with its interval and p-value; of folders a comparison; of trees a table.

    Raises:
        DataError: They are of different problems.
        ConfigError: They are of different kinds.
    """
    if isinstance(first, Results) and isinstance(second, Results):
        if problems_sha256(first.problems) != problems_sha256(second.problems):
            raise DataError(
                "compare: the results are of different problems (ids, texts or golds differ). Compare evaluations of the same ones"
            )
        left, right = first.per_problem(), second.per_problem()
        if left.keys() != right.keys():
            failed = sorted(left.keys() ^ right.keys())
            raise DataError(
                f"compare: {len(failed)} problems failed in one of the evaluations, such as {failed[0]!r}. Evaluate again without them"
            )
        return paired_difference(list(left.values()), [right[problem] for problem in left], seed=0)
    if isinstance(first, str | Path) and isinstance(second, str | Path):
        return compare_evaluations(Path(first), Path(second), _CORRECT)
    if isinstance(first, Tree | Trees) and isinstance(second, Tree | Trees):
        return Table([_summary(name, each) for name, each in (("first", first), ("second", second))])
    raise ConfigError(
        f"compare: expected two results, two folders or two trees, got {type(first).__name__} and {type(second).__name__}"
    )


def _summary(name: str, trees: Trees | Tree | Iterable[Tree]) -> dict[str, Any]:
    listed = as_trees(trees, "compare")
    if not listed:
        raise DataError("compare: there is no tree. Compare trees with trajectories")
    leaves = [each for tree in listed for each in tree.trajectories]
    return {
        "name": name,
        "trees": len(listed),
        "trajectories": len(leaves),
        "mean": listed.mean,
        "best": max((each.reward for each in leaves if each.reward is not None), default=None),
        "answered": sum(each.stop == "answered" for each in leaves) / len(leaves),
        "calls": sum(each.calls for each in leaves) / len(leaves),
        "tokens": sum(each.core.num_written for each in leaves) / len(leaves),
    }
