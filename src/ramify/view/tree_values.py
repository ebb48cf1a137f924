"""One tree as JSON values: nodes, decisions and trajectories, with the reasons of their rewards and all else that was recorded."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ramify.core.errors import DataError
from ramify.core.json_types import FieldError, count, optional, part, text, truth
from ramify.core.messages import Calls, Final, MalformedTurn, ParsedTurn, Problem, Say
from ramify.core.records import Reward
from ramify.core.tree import BranchDecision, Cut, Node, Source, StopReason, Trajectory, Tree
from ramify.eval.results import results_lines
from ramify.files.durable import parse_line
from ramify.obs.token_counts import PriceConfig, TokenCounts, count_tokens
from ramify.obs.trace import TracedTree, lines_of
from ramify.rewards.extract import answer_of, has_closed_box
from ramify.view.folders import is_file, lines_of_attempt
from ramify.view.times import TimedEvent, TreeTimes, span

AttemptKey: TypeAlias = tuple[str, int]

_ENDS: Mapping[StopReason, str] = {
    StopReason.ANSWERED: "The policy ended it with an answer.",
    StopReason.MALFORMED: "The policy ended its turn with neither a call nor an answer that can be read.",
    StopReason.TOKENS: "It was cut: the token limit was reached.",
    StopReason.CALLS: "It was cut: the policy made a call more than the limit.",
    StopReason.DEADLINE: "It was cut: its time was used up.",
    StopReason.ENDED: "The environment ended it.",
    StopReason.FAILED: "It was cut: the environment failed.",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of an evaluation on an attempt beside its tree.

    Attributes:
        is_right: Whether the attempt counts as correct; None if there is no result of it.
        words: A sentence with the judge's verdict and words; "".
    """

    is_right: bool | None
    words: str


def verdict_of(folder: Path, key: AttemptKey) -> Verdict:
    """Return the verdict on an attempt from `results.jsonl` and, if it was judged later, `judge/verdicts.jsonl`."""
    is_right, words = None, ""
    with suppress(DataError, FieldError):
        for record in _records(results_lines(folder).path, key):
            is_right = _READ_RESULT(record)["correct"]
        for record in _records(folder / "judge" / "verdicts.jsonl", key):
            verdict = _READ_VERDICT(record)
            outcome = {True: "right", False: "wrong", None: "no verdict"}[verdict["correct"]]
            words = f"Judge: {outcome}. {verdict['reason'].strip()}".strip()
    return Verdict(is_right, words)


def right_attempts(folder: Path) -> dict[AttemptKey, bool]:
    """Return for each attempt with a result whether it is correct."""
    path = results_lines(folder).path
    right: dict[AttemptKey, bool] = {}
    with suppress(DataError, FieldError):
        for row, line in enumerate(_whole_lines(path), start=1):
            record = _READ_RESULT(parse_line(path, row, line.decode("utf-8", "replace")))
            right[record["problem"], record["attempt"]] = record["correct"]
    return right


def _records(path: Path, key: AttemptKey) -> Iterator[dict[str, Any]]:
    for line in lines_of_attempt(path, *key):
        yield parse_line(path, 0, line.decode("utf-8", "replace"))


def _whole_lines(path: Path) -> Iterator[bytes]:
    if is_file(path):
        yield from (line for line in lines_of(path) if line.endswith(b"\n"))


def reasons(trajectory: Trajectory, reward: Reward, answer: str, rule: str, verdict: Verdict) -> list[str]:
    """Return why a trajectory has its reward; `rule` names the reward of the recipe, "" if that is not known."""
    parts = ", ".join(f"{name} {value:g}" for name, value in reward.parts.items())
    lines = [
        f"Reward {reward.value:g}{f' by the rule {rule}' if rule else ''}{f': {parts}' if parts else ''}."
    ]
    if golds := trajectory.problem.answer:
        accepted = " or ".join(f"“{gold}”" for gold in golds[:5])
        more = f" or {len(golds) - 5} others" if len(golds) > 5 else ""
        lines.append(f"The answer read is {f'“{answer}”' if answer else 'none'}; accepted: {accepted}{more}.")
    if reward.parts.get("format") == 0.0:
        lines.extend(_faults(trajectory))
    lines.append(_ENDS[trajectory.stop])
    if not reward.counts:
        lines.append("It does not count: the outcome says nothing about the policy.")
    lines.extend(f"Node {node}: {value:+g} for its turn." for node, value in reward.events.items())
    if verdict.is_right is not None:
        lines.append(f"The evaluation counts it as {'right' if verdict.is_right else 'wrong'}.")
    if verdict.words:
        lines.append(verdict.words)
    elif "judge" in reward.parts:
        lines.append(
            f"Judge: {'right' if reward.parts['judge'] >= 1 else 'wrong'}; its words were not recorded."
        )
    return lines


def _faults(trajectory: Trajectory) -> Iterator[str]:
    """Yield what keeps a trajectory from being well formed."""
    for node in trajectory.nodes:
        if isinstance(node.turn, MalformedTurn):
            yield f"Not well formed: the turn of node {node.id} cannot be read ({node.turn.reason})."
        for call in node.calls:
            if call.malformed is not None:
                yield f"Not well formed: the call {call.name} of node {node.id} cannot be read ({call.malformed})."
    if trajectory.final_answer and not has_closed_box(trajectory.final_answer):
        yield "Not well formed: the answer has no closed \\boxed{...}."


_READ_VERDICT = part(correct=optional(truth), reason=text)
_READ_RESULT = part(problem=text, attempt=count, correct=truth)


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """Facts about a tree beside its trace.

    Attributes:
        times: Its times.
        tokens: The text of each token by node; empty if the run's tokenizer is not there, or is another one.
        rule: The reward of the recipe; "".
        verdict: An evaluation's verdict on its one trajectory.
        price: Price of tokens; None if the recipe has none.
    """

    times: TreeTimes
    tokens: Mapping[str, Sequence[str]]
    rule: str
    verdict: Verdict
    price: PriceConfig | None


def tree_values(traced: TracedTree, facts: TreeFacts) -> dict[str, Any]:
    """Return problem, key, nodes, decisions and trajectories of a tree."""
    tree = traced.tree
    calls_time = facts.times.of_calls(tree)
    mass = _masses(tree)
    return {
        "problem": _problem(tree.problem),
        "key": {"step": tree.key.step, "slot": tree.key.slot, "attempt": tree.key.attempt},
        "start": tree.start,
        "nodes": [
            _node(node, facts)
            | {
                "old_logprobs": traced.old_logprobs.get(node.id, ()),
                "mass": mass[node.id],
                "calls_time": calls_time.get(node.id, []),
            }
            for node in tree.nodes
        ],
        "decisions": [_decision(decision) for decision in tree.decisions],
        "trajectories": [_trajectory(traced, index, facts) for index in range(len(traced.rewards))],
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "id": problem.id,
        "messages": _messages(problem.messages),
        "answer": list(problem.answer),
        "info": problem.info,
    }


def _messages(messages: Sequence[Any]) -> list[dict[str, str]]:
    return [{"role": message.role, "text": message.text} for message in messages]


def _masses(tree: Tree) -> dict[str, float]:
    """Return the share of the trajectories that goes through each node."""
    leaves = dict.fromkeys(tree.by_id, 0)
    for node in reversed(tree.nodes):
        leaves[node.id] += node.stop is not None
        if node.parent is not None:
            leaves[node.parent] += leaves[node.id]
    return {key: count / max(leaves[""], 1) for key, count in leaves.items()}


def _node(node: Node, facts: TreeFacts) -> dict[str, Any]:
    entropy, context = node.entropy, node.context
    is_policy = node.source is Source.POLICY
    return {
        "id": node.id,
        "parent": node.parent,
        "source": node.source,
        "text": node.text,
        "ids": node.token_ids,
        "tokens": facts.tokens.get(node.id),
        "logprobs": node.behavior_logprobs,
        "entropies": node.token_entropies,
        "entropy": None
        if entropy is None
        else {"lower": entropy.lower, "upper": entropy.upper, "count": entropy.count},
        "turn": _turn(node.turn),
        "results": [
            {"status": result.status, "text": result.text, "info": result.info, "reward": result.reward}
            for result in node.results
        ],
        "messages": _messages(node.messages),
        "reward": node.reward,
        "version": node.policy_version,
        "stop": node.stop,
        "context": {"node": context.node, "tokens": context.tokens} if isinstance(context, Cut) else context,
        "rewriter": node.rewriter,
        "exact_ids": node.exact_ids,
        "time": facts.times.of_turn(node.id) if is_policy else None,
    }


def _turn(turn: ParsedTurn | None) -> dict[str, Any] | None:
    """Return a turn; fields that its kind has not are empty."""
    record: dict[str, Any] = {"kind": "", "calls": [], "answer": None, "text": None, "reason": None}
    match turn:
        case None:
            return None
        case Calls(calls):
            return record | {
                "kind": "calls",
                "calls": [
                    {
                        "id": call.id,
                        "name": call.name,
                        "arguments": call.arguments,
                        "malformed": call.malformed,
                    }
                    for call in calls
                ],
            }
        case Final(answer):
            return record | {"kind": "final", "answer": answer}
        case Say(text):
            return record | {"kind": "say", "text": text}
        case MalformedTurn(reason, answer):
            return record | {"kind": "malformed", "reason": reason, "answer": answer}


def _decision(decision: BranchDecision) -> dict[str, Any]:
    outcome = "granted" if decision.taken else "no budget" if decision.planned else "refused"
    return {
        "node": decision.node,
        "depth": decision.depth,
        "entropy_delta": decision.entropy_delta,
        "probability": decision.probability,
        "draw": decision.draw,
        "planned": decision.planned,
        "taken": decision.taken,
        "entropy_acted": decision.entropy_acted,
        "undecided": decision.undecided,
        "budget_left": decision.budget_left,
        "outcome": outcome,
    }


def _trajectory(traced: TracedTree, index: int, facts: TreeFacts) -> dict[str, Any]:
    trajectory, reward = traced.tree.trajectories[index], traced.rewards[index]
    answer = answer_of(trajectory)
    tokens = count_tokens(trajectory, traced.tree.inherited_ids)
    is_right = reward.value > 0 if reward.counts else None
    return {
        "leaf": trajectory.leaf.id,
        "reward": reward.value,
        "parts": reward.parts,
        "events": reward.events,
        "counts": reward.counts,
        "stop": trajectory.stop,
        "answer": answer,
        "right": is_right if facts.verdict.is_right is None else facts.verdict.is_right,
        "why": reasons(trajectory, reward, answer, facts.rule, facts.verdict),
        "advantage": None if traced.advantages is None else traced.advantages[index],
        "loss": reward.counts if traced.mask is None else traced.mask[index],
        "tokens": {
            "prompt": tokens.prompt,
            "written": tokens.written,
            "results": tokens.results,
            "sent": tokens.sent,
        },
        "cost": None if facts.price is None else _cost(facts.price, tokens),
        "seconds": _seconds(trajectory, facts.times),
    }


def _cost(price: PriceConfig, tokens: TokenCounts) -> float:
    return (price.input * tokens.sent + price.output * tokens.written) / 1e6


def _seconds(trajectory: Trajectory, times: TreeTimes) -> float | None:
    ids = {node.id for node in trajectory.nodes}
    events: list[TimedEvent] = [event for event in times.events if event.node in ids]
    return span(events)
