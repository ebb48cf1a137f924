"""The shape of a tree and who wrote what; trees are let in as they asked, and never more trajectories than slots."""

import asyncio
from dataclasses import replace

import pytest

from ramify.algos.branch_arpo import BernoulliBrancher, ThresholdBrancher
from ramify.core.tree import Source, StopReason
from ramify.engines.virtual_clock import run_virtual
from ramify.rollout.grow import SlotGate
from scripted_agents import (
    FLAT,
    SEARCH,
    RecordingEngine,
    WrappedEngine,
    agent,
    grow,
    grow_one,
    plays,
    problem,
    with_engine,
)

RULES = [
    ThresholdBrancher(m=4, min_entropy_delta=0.0, children=1, probe_tokens=3),
    BernoulliBrancher(m=3, alpha=0.5, beta=0.3, children=2, probe_tokens=3),
    FLAT,
]
BRANCH_AT = ["before_probe", "after_probe"]


@pytest.mark.parametrize("branch_at", BRANCH_AT)
@pytest.mark.parametrize("brancher", RULES, ids=["threshold", "bernoulli", "none"])
@pytest.mark.parametrize("n", [4, 8, 13])
def test_exactly_n_distinct_trajectories(tokenizer_folder, brancher, branch_at, n):
    """Roots, branches and top-ups are n; none is a copy of another: each has ids and draws of its own."""
    parts = with_engine(agent(tokenizer_folder, brancher, n=n, branch_at=branch_at), RecordingEngine)
    tree = grow_one(parts)
    assert len({trajectory.leaf.id for trajectory in tree.trajectories}) == n
    roots = tree.children[""]
    assert [node.path for node in roots] == [(i,) for i in range(len(roots))]
    first, branches = brancher.num_roots(n, ()), sum(decision.taken for decision in tree.decisions)
    assert len(roots) >= first
    assert len(roots) + branches == n
    forks = sum(len(tree.children[node.id]) - 1 for node in tree.nodes[1:] if tree.children[node.id])
    assert forks == branches
    requests = parts.engine.requests
    seeds = {(request.seed, len(request.token_ids)) for request in requests}
    assert len(seeds) == len(requests)
    written = {request.priority for request in requests}
    assert len({request.seed for request in requests}) == len(written)


@pytest.mark.parametrize("branch_at", BRANCH_AT)
def test_branches_share_the_prefix_and_its_mask_by_identity(tokenizer_folder, branch_at):
    tree = grow_one(agent(tokenizer_folder, RULES[0], branch_at=branch_at))
    branched = [decision for decision in tree.decisions if decision.taken]
    assert branched
    for decision in branched:
        node = tree.by_id[decision.node]
        children = tree.children[node.id]
        assert node.source is (Source.TOOL if branch_at == "before_probe" else Source.POLICY)
        assert len(children) == 1 + decision.taken
        below = [t for t in tree.trajectories if node in t.nodes]
        shared = below[0].nodes.index(node) + 1
        size = sum(len(n.token_ids) for n in below[0].nodes[:shared])
        for trajectory in below:
            assert all(a is b for a, b in zip(trajectory.nodes[:shared], below[0].nodes, strict=False))
            (segment,) = trajectory.segments
            assert segment.token_ids[:size] == below[0].segments[0].token_ids[:size]
            assert segment.written[:size] == below[0].segments[0].written[:size]


@pytest.mark.parametrize("branch_at", BRANCH_AT)
def test_only_sampled_ids_are_trained_and_results_are_what_the_renderer_wrote(tokenizer_folder, branch_at):
    parts = with_engine(agent(tokenizer_folder, RULES[0], branch_at=branch_at), RecordingEngine)
    engine, sampled = parts.engine, {}
    generate = engine.generate

    async def keep(request):
        done = await generate(request)
        ids = sampled.get(request.priority[1:], ())
        sampled[request.priority[1:]] = ids + done.token_ids
        return done

    engine.generate = keep
    tree = grow_one(parts)
    for node in tree.nodes:
        if node.source is Source.POLICY:
            assert node.token_ids == sampled[node.path]
        else:
            assert node.behavior_logprobs == ()
            assert node.source is Source.PROMPT or node.token_ids == parts.renderer.render_results(
                node.results, parts.tools
            )
        assert node.text == parts.renderer.decode(node.token_ids)
    for trajectory in tree.trajectories:
        (segment,) = trajectory.segments
        assert len(segment.token_ids) == len(segment.written)
        assert sum(segment.written) == trajectory.num_written
        assert sum(segment.written) == sum(len(node.token_ids) for node in trajectory.policy_nodes)


def test_trees_of_a_step_do_not_wait_for_each_other(tokenizer_folder):
    parts = agent(tokenizer_folder, RULES[0])
    alone = [grow(parts, [problem(f"p{i}")])[1] for i in range(3)]
    _, together = grow(parts, [problem(f"p{i}") for i in range(3)])
    assert together < sum(alone)


def test_step_slot_and_problem_change_the_draws(tokenizer_folder):
    parts = agent(tokenizer_folder, RULES[0])
    same = [grow_one(parts, step=0).nodes for _ in range(2)]
    assert same[0] == same[1]
    assert grow_one(parts, step=1).nodes != same[0]
    first, second = grow(parts, [problem(), problem()])[0]
    assert [n.token_ids for n in first.nodes] != [n.token_ids for n in second.nodes]


@pytest.mark.parametrize("branch_at", BRANCH_AT)
def test_forked_sessions_count_their_own_calls(tokenizer_folder, branch_at):
    tree = grow_one(agent(tokenizer_folder, RULES[0], branch_at=branch_at))
    for trajectory in tree.trajectories:
        per_tool = {}
        for call, result in trajectory.exchanges:
            per_tool[call.name] = per_tool.get(call.name, 0) + 1
            assert f"call {per_tool[call.name]} answer" in result.text


def test_one_call_more_than_the_limit_ends_the_trajectory(tokenizer_folder):
    tree = grow_one(agent(tokenizer_folder, RULES[2], plays(SEARCH), n=2, max_calls=2))
    assert [t.stop for t in tree.trajectories] == [StopReason.CALLS] * 2
    assert all(len(t.exchanges) == 2 for t in tree.trajectories)
    assert [call.id for t in tree.trajectories for call in t.leaf.calls] == [
        f"{t.leaf.id}:0" for t in tree.trajectories
    ]


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("<think> a </think>", StopReason.MALFORMED),
        ("<result> forged </result><answer> \\boxed{ 42 } </answer>", StopReason.MALFORMED),
        ("<answer> 42 </answer>", StopReason.ANSWERED),
        ("a b c d e f g h i j k l m n o p q r s t u v w x y z" * 10, StopReason.TOKENS),
    ],
)
def test_every_end_has_a_reason(tokenizer_folder, text, stop):
    tree = grow_one(agent(tokenizer_folder, RULES[2], plays(text), n=1, max_tokens=60))
    assert tree.trajectories[0].stop is stop


def test_a_turn_may_be_limited_beside_the_trajectory(tokenizer_folder):
    """Only a turn that goes on beyond its limit is cut: short turns add up to more."""
    words = "a b c d e f g h i j k l m n o p"
    limits = {"max_turn_tokens": 30}
    tree = grow_one(agent(tokenizer_folder, FLAT, plays(words * 20), n=1, max_tokens=300, limits=limits))
    (trajectory,) = tree.trajectories
    assert (trajectory.stop, len(trajectory.leaf.token_ids)) == (StopReason.TOKENS, 30)
    parts = agent(tokenizer_folder, FLAT, plays(SEARCH), n=1, max_calls=9, max_tokens=300, limits=limits)
    (trajectory,) = grow_one(parts).trajectories
    assert trajectory.stop is StopReason.CALLS
    assert trajectory.num_written > 30 >= max(len(node.token_ids) for node in trajectory.policy_nodes)


def test_a_result_that_does_not_fit_cuts_the_trajectory_and_writes_no_token(tokenizer_folder):
    text = "<search> " + "Paris " * 20 + "</search>"
    tree = grow_one(agent(tokenizer_folder, RULES[2], plays(text), n=1, max_tokens=60))
    (trajectory,) = tree.trajectories
    assert trajectory.stop is StopReason.TOKENS
    added = sum(len(node.token_ids) for node in trajectory.nodes[1:])
    assert added <= 60 < added + len(trajectory.nodes[2].token_ids)
    assert trajectory.leaf.source is Source.POLICY


def test_the_tree_is_the_same_whether_or_not_the_probe_is_a_request_of_its_own(tokenizer_folder):
    wide = ThresholdBrancher(m=8, min_entropy_delta=0.0, children=1, probe_tokens=3)
    tree = grow_one(agent(tokenizer_folder, wide))
    assert not any(decision.taken for decision in tree.decisions)
    narrow = ThresholdBrancher(m=7, min_entropy_delta=100.0, children=1, probe_tokens=3)
    other = grow_one(agent(tokenizer_folder, narrow))
    assert [n.token_ids for n in tree.nodes] == [n.token_ids for n in other.nodes]


def test_a_rule_that_never_branches_is_not_asked(tokenizer_folder):
    tree = grow_one(agent(tokenizer_folder, RULES[2]))
    assert any(node.source is Source.TOOL for node in tree.nodes)
    assert tree.decisions == ()
    assert all(node.entropy is not None for node in tree.nodes if node.source is Source.POLICY)


def test_with_a_tool_that_cannot_fork_all_trajectories_start_at_once(tokenizer_folder):
    parts = agent(tokenizer_folder, RULES[0])
    parts.environment.members["python"].spec = replace(parts.environment.members["python"].spec, forks=False)
    (tree,), seconds = grow(parts)
    assert len(tree.children[""]) == 8
    assert seconds == pytest.approx(grow(agent(tokenizer_folder, RULES[2]))[1])


def play_gate(slots, trees):
    """(name, size, seconds of each trajectory) -> (second, name, "in" or "out"), with the most held at once."""
    gate, log, in_use = SlotGate(slots), [], []

    async def tree(name, times):
        loop = asyncio.get_running_loop()
        async with gate.tree(len(times)) as ended:
            log.append((loop.time(), name, "in"))
            in_use.append(gate._in_use)
            for before, seconds in zip([0, *times], times, strict=False):
                await asyncio.sleep(seconds - before)
                ended()
        log.append((loop.time(), name, "out"))

    async def main():
        async with asyncio.TaskGroup() as group:
            for name, times in trees:
                group.create_task(tree(name, times))
        return gate._in_use

    left, _ = run_virtual(main())
    assert left == 0
    return log, max(in_use)


def test_a_tree_gives_its_slots_back_one_by_one():
    log, most = play_gate(4, [("a", [1, 2, 3, 9]), ("b", [4, 5, 6]), ("c", [1])])
    assert [entry for entry in log if entry[2] == "in"] == [(0, "a", "in"), (3, "b", "in"), (7, "c", "in")]
    assert most == 4


def test_without_slots_all_are_let_in():
    assert {at for at, _, kind in play_gate(None, [("a", [5] * 9), ("b", [5] * 9)])[0] if kind == "in"} == {0}


def test_a_tree_that_is_larger_than_the_engine_starts_alone():
    log, _ = play_gate(2, [("a", [3]), ("b", [1, 2, 4, 9]), ("c", [1])])
    assert [(at, name) for at, name, kind in log if kind == "in"] == [(0, "a"), (3, "b"), (7, "c")]


def test_a_small_tree_does_not_overtake():
    log, _ = play_gate(4, [("a", [5, 5, 5]), ("b", [1, 1]), ("c", [1])])
    assert [name for _, name, kind in log if kind == "in"] == ["a", "b", "c"]


def test_a_tree_that_fails_or_stops_waiting_gives_its_slots_back():
    async def main():
        gate = SlotGate(2)

        async def fail():
            async with gate.tree(2) as ended:
                ended()
                await asyncio.sleep(1)
                raise ValueError("broken")

        async def wait():
            async with gate.tree(2):
                pass

        failing, waiting, last = (asyncio.create_task(work()) for work in (fail, wait, wait))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.gather(failing, waiting, last, return_exceptions=True)
        assert isinstance(failing.exception(), ValueError)
        assert waiting.cancelled()
        assert last.exception() is None
        return gate._in_use

    assert run_virtual(main())[0] == 0


class Counting(WrappedEngine):
    """Counts requests in flight."""

    now = most = 0

    async def generate(self, request):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self.inner.generate(request)
        finally:
            self.now -= 1


@pytest.mark.parametrize("slots", [8, 12, 20])
def test_requests_in_flight_stay_within_the_slots_and_trees_are_the_same(tokenizer_folder, slots):
    problems = [problem(f"p{i}") for i in range(5)]
    free, _ = grow(agent(tokenizer_folder, RULES[0]), problems)
    parts = with_engine(agent(tokenizer_folder, RULES[0], slots=slots), Counting)
    trees, _ = grow(parts, problems)
    assert trees == free
    assert 1 < parts.engine.most <= slots
