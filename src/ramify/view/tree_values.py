"""One tree as JSON values: nodes, decisions and trajectories, with all that was recorded about them elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramify.core.messages import Calls, Final, MalformedTurn, ParsedTurn, Problem, Say
from ramify.core.tree import BranchDecision, Cut, Node, Source, Trajectory, Tree
from ramify.obs.token_counts import PriceConfig, TokenCounts, count_tokens
from ramify.obs.trace import TracedTree
from ramify.rewards.extract import answer_of
from ramify.view.times import TimedEvent, TreeTimes, span
from ramify.view.verdicts import Verdict, reasons


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
