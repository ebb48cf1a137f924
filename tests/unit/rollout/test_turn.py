"""One turn: what an engine may not do, and what the rule makes of entropies that are brackets."""

import asyncio
import math
from dataclasses import dataclass, replace

import pytest

from ramify.algos.branch_arpo import BernoulliBrancher, ThresholdBrancher
from ramify.core.errors import EngineError
from ramify.core.records import Finish
from ramify.core.tree import Entropy, Source, StopReason
from scripted_agents import WrappedEngine, agent, grow, grow_one, plays, script, with_engine

RULE = ThresholdBrancher(m=2, min_entropy_delta=0.0, children=1, probe_tokens=3)


TOO_MANY = {
    "token_ids": (7,) * 401,
    "logprobs": (0.0,) * 401,
    "finish": Finish.STOP,
    "version_runs": ((0, 401),),
}
NOTHING = {"token_ids": (), "logprobs": (), "entropies": (), "version_runs": ()}


def entropies(lower, upper):
    """Every entropy of an answer as this bracket."""
    return lambda done: {"entropies": (Entropy(lower, upper),) * len(done.entropies)}


def with_two_versions(request, done):
    return replace(done, version_runs=((0, 1), (1, len(done.token_ids) - 1)))


def with_another_version_after_the_probe(request, done):
    return replace(done, version_runs=((min(request.stop_context, 1), len(done.token_ids)),))


class Spoiling(WrappedEngine):
    def __init__(self, inner, spoil):
        super().__init__(inner)
        self.spoil = spoil

    async def generate(self, request):
        return self.spoil(request, await self.inner.generate(request))


NOT_FINITE = "a logprob that is not a finite number: .* lower learner.optimizer.rate"
NO_NATS = "an entropy that is not a finite number of nats, lower end first"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (lambda done: {"logprobs": done.logprobs[:-1]}, "returned 16 logprobs for 17 tokens"),
        (lambda done: {"logprobs": (math.nan, *done.logprobs[1:])}, NOT_FINITE),
        (lambda done: {"logprobs": (*done.logprobs[:-1], -math.inf)}, NOT_FINITE),
        (lambda done: TOO_MANY, "401 tokens for a request of 1 to 400"),
        (lambda done: NOTHING, "0 tokens for a request of 1 to 400"),
        (lambda done: {"entropies": ()}, "0 entropies where 17 were asked for"),
        (entropies(math.nan, math.nan), NO_NATS),
        (entropies(-0.1, 0.1), NO_NATS),
        (entropies(0.2, 0.1), NO_NATS),
        (lambda done: {"finish": Finish.LENGTH}, "17 of 400 tokens as finished by length"),
        (
            lambda done: {"version_runs": ((0, len(done.token_ids) + 1),)},
            "policy versions of 18 tokens for 17 tokens",
        ),
    ],
)
def test_an_engine_that_breaks_its_contract_is_named(tokenizer_folder, changes, message):
    def spoil(request, done):
        return replace(done, **changes(done))

    play = plays("<think> find Paris and 12 plus 30 </think><search> Paris </search>")
    parts = with_engine(agent(tokenizer_folder, RULE, play, n=4), Spoiling, spoil)
    with pytest.raises(EngineError, match=f"^engine 'scripted' .*{message}$"):
        grow(parts)
    assert parts.live.value == 0


@pytest.mark.parametrize("spoil", [with_two_versions, with_another_version_after_the_probe])
@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
def test_new_weights_within_a_turn_make_a_node_for_each_version(tokenizer_folder, spoil, branch_at):
    parts = agent(tokenizer_folder, RULE, branch_at=branch_at)
    tree = grow_one(with_engine(parts, Spoiling, spoil))
    assert len(tree.trajectories) == parts.limits.n
    assert {trajectory.stop for trajectory in tree.trajectories} == {StopReason.ANSWERED}
    policy = [node for node in tree.nodes if node.source is Source.POLICY]
    cut = [n for n in policy if any(child.source is Source.POLICY for child in tree.children[n.id])]
    assert len(cut) > 3
    for node in cut:
        assert (node.turn, node.stop) == (None, None)
        assert {child.policy_version for child in tree.children[node.id]} == {1 - node.policy_version}
        assert {child.entropy for child in tree.children[node.id]} == {None}
    for trajectory in tree.trajectories:
        ids = [token for node in trajectory.nodes for token in node.token_ids]
        assert "".join(node.text for node in trajectory.nodes) == parts.renderer.decode(ids)
        assert sum(node.turn is not None for node in trajectory.nodes) == len(trajectory.exchanges) + 1


class Quitting(WrappedEngine):
    """Cancels what it is asked for by itself."""

    async def generate(self, request):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)


def test_an_engine_that_gives_up_by_itself_does_not_lose_a_trajectory_silently(tokenizer_folder):
    parts = with_engine(agent(tokenizer_folder, RULE, n=4), Quitting)
    with pytest.raises(RuntimeError, match="engine 'scripted' cancelled its own call"):
        grow(parts)
    assert parts.live.value == 0


def bracketed(width):
    """The script with every entropy a bracket of this width, its middle as before."""

    def play(context, seed):
        turn = script(context, seed)
        return replace(
            turn, entropies=tuple((max(0.0, e - width / 2), e + width / 2) for e in turn.entropies)
        )

    return play


def test_decisions_that_the_brackets_leave_open_are_recorded(tokenizer_folder):
    rules = [RULE, BernoulliBrancher(m=2, alpha=0.5, beta=0.5, children=1, probe_tokens=3)]
    for rule in rules:
        exact = grow_one(agent(tokenizer_folder, rule))
        assert exact.decisions
        assert not any(decision.undecided for decision in exact.decisions)
        open_ones = []
        for width in (0.02, 4.0):
            parts = agent(tokenizer_folder, rule, bracketed(width), exact_entropy=False)
            assert not parts.engine.info().exact_entropy
            tree = grow_one(parts)
            open_ones.append(sum(decision.undecided for decision in tree.decisions) / len(tree.decisions))
            turns = {node.id: node.entropy for node in tree.nodes if node.entropy is not None}
            assert all(0 <= e.lower < e.upper for e in turns.values())
        assert open_ones[0] <= 0.2
        assert open_ones[1] >= 0.8


@dataclass(frozen=True)
class BranchesWhereEntropyFell:
    """The opposite of a threshold rule."""

    rule: ThresholdBrancher = RULE

    def __getattr__(self, name):
        return getattr(self.rule, name)

    def propose(self, candidate, history):
        proposal = self.rule.propose(candidate, history)
        return replace(proposal, children=self.max_children - proposal.children)


@pytest.mark.parametrize("rule", [RULE, BranchesWhereEntropyFell()], ids=["rose", "fell"])
def test_a_decision_is_open_just_when_the_ends_of_the_rise_disagree(tokenizer_folder, rule):
    tree = grow_one(agent(tokenizer_folder, rule, bracketed(0.3), exact_entropy=False))
    outcomes = set()
    for decision in tree.decisions:
        result = tree.by_id[decision.node]
        after = tree.children[result.id][0].entropy
        root = tree.by_id[decision.node.split(".")[0]].entropy
        assert decision.entropy_delta == after.lower - root.lower
        least, greatest = after.lower - root.upper, after.upper - root.lower
        assert decision.undecided == (least <= 0 < greatest)
        outcomes.add(decision.undecided)
    assert outcomes == {True, False}


def without_token_entropies(tree):
    return replace(tree, nodes=tuple(replace(node, token_entropies=()) for node in tree.nodes))


def ramp(context, seed):
    """The script with another entropy for each token."""
    turn = script(context, seed)
    return replace(turn, entropies=tuple(turn.entropies[0] + 0.01 * i for i in range(40)))


@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
def test_exact_entropies_of_all_tokens_are_kept_and_change_no_tree(tokenizer_folder, branch_at):
    plain = grow_one(agent(tokenizer_folder, RULE, ramp, branch_at=branch_at, exact_entropy=False))
    tree = grow_one(agent(tokenizer_folder, RULE, ramp, branch_at=branch_at))
    assert any(decision.taken for decision in tree.decisions)
    assert without_token_entropies(tree) == plain
    for node in tree.nodes:
        assert len(node.token_entropies) == (len(node.token_ids) if node.source is Source.POLICY else 0)
        if node.entropy is not None:
            first = node.token_entropies[:3]
            assert node.entropy == Entropy.mean(tuple(Entropy(e, e) for e in first))
            # A probe and its continuation, or one request: the script rises by the same step all along.
            assert node.token_entropies == pytest.approx(
                [first[0] + 0.01 * i for i in range(len(node.token_ids))]
            )


def test_an_engine_that_says_exact_and_returns_brackets_is_refused(tokenizer_folder):
    parts = agent(tokenizer_folder, RULE, bracketed(0.1), all_entropies=True)
    with pytest.raises(EngineError, match=r'returned entropies as brackets.* to "annotate"$'):
        grow(parts)


@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
def test_nodes_say_where_their_call_begins_and_decisions_what_was_drawn(tokenizer_folder, branch_at):
    # So long a probe that a call begins in the tokens that branches share.
    rule = BernoulliBrancher(m=2, alpha=0.5, beta=0.3, children=1, probe_tokens=9)
    parts = agent(tokenizer_folder, rule, branch_at=branch_at)
    tree = grow_one(parts)
    starts = []
    for node in tree.nodes:
        if node.call_from is None:
            assert not node.calls
            continue
        if node.calls[0].malformed:
            # The script gives a branch the end of another turn, whose tag closes nothing.
            continue
        before = tree.by_id[node.parent]
        shared = before.token_ids if before.source is Source.POLICY else ()
        ids, start = shared + node.token_ids, node.call_from + len(shared)
        decode = parts.renderer.decode
        assert "</think>" in decode(ids[:start])
        assert decode(ids[start:]).strip().startswith(f"<{node.calls[0].name}>")
        starts.append(node.call_from)
    assert starts
    assert (min(starts) < 0) == (branch_at == "after_probe")
    assert {decision.planned > 0 for decision in tree.decisions} == {True, False}
    assert all((each.planned > 0) == (each.draw < each.probability) for each in tree.decisions)
