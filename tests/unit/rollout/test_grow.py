"""The shape of a tree and who wrote what; slots are full while a trajectory waits for one, and never more than full."""

import asyncio
from dataclasses import replace

import pytest

from ramify.algos.branch_arpo import BernoulliBrancher, ThresholdBrancher
from ramify.core.tree import Source, StopReason
from ramify.engines.virtual_clock import run_virtual
from ramify.rollout.slot_gate import SlotGate, Start
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


def test_a_result_that_leaves_no_room_for_a_token_is_not_added(tokenizer_folder):
    """Then the trajectory ends with its call, at every limit around the length of the result."""
    whole = grow_one(agent(tokenizer_folder, FLAT, plays(SEARCH), n=1, max_calls=1)).trajectories[0]
    call, result = (len(node.token_ids) for node in whole.nodes[1:3])
    ends = []
    for most in range(call + result - 2, call + result + 3):
        (trajectory,) = grow_one(
            agent(tokenizer_folder, FLAT, plays(SEARCH), n=1, max_calls=1, max_tokens=most)
        ).trajectories
        assert all(node.token_ids for node in trajectory.nodes)
        ends.append(len(trajectory.nodes))
    assert ends == [2, 2, 2, 4, 4]


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


BRANCH, ROOT, TOP_UP = Start


def play_gate(slots, trees):
    """[(name, [(start, second of asking, seconds with the slot)])] in their order -> [(second, name, start)] of slots taken."""
    gate, taken, held, most = SlotGate(slots), [], 0, 0

    async def trajectory(name, take, start, at, seconds):
        nonlocal held, most
        await asyncio.sleep(at)
        async with take(start):
            taken.append((asyncio.get_running_loop().time(), name, start))
            held += 1
            most = max(most, held)
            await asyncio.sleep(seconds)
            held -= 1

    async def tree(order, name, trajectories):
        roots = sum(start is ROOT for start, *_ in trajectories)
        async with gate.tree(order, roots) as take, asyncio.TaskGroup() as group:
            for each in trajectories:
                group.create_task(trajectory(name, take, *each))

    async def main():
        async with asyncio.TaskGroup() as group:
            for order, (name, trajectories) in enumerate(trees):
                group.create_task(tree(order, name, trajectories))
        await asyncio.sleep(0)
        assert gate._free == slots

    run_virtual(main())
    assert slots is None or most <= slots
    return taken


def test_a_slot_that_is_free_is_taken_at_once():
    """Two trees of two at four slots, and a third one that begins beside their last trajectories."""
    pair, single = [(ROOT, 0, 3), (ROOT, 0, 9)], [(ROOT, 0, 1)]
    taken = play_gate(4, [("a", pair), ("b", pair), ("c", pair), ("d", single)])
    assert [(at, name) for at, name, _ in taken] == [
        *((0, name) for name in "aabb"),
        *((3, name) for name in "cc"),
        (6, "d"),
    ]


def test_branches_come_before_roots_roots_before_top_ups_and_earlier_trees_before_later_ones():
    many = [(ROOT, 0, 5), (TOP_UP, 1, 5), (ROOT, 2, 5), (BRANCH, 3, 5)]
    taken = play_gate(1, [("a", many), ("b", many)])
    assert [(name, start) for _, name, start in taken] == [
        ("a", ROOT),
        ("a", BRANCH),
        ("a", ROOT),
        ("b", ROOT),
        ("b", BRANCH),
        ("b", ROOT),
        ("a", TOP_UP),
        ("b", TOP_UP),
    ]


def test_without_slots_all_are_let_in():
    trees = [(name, [(ROOT, 0, 5)] * 9) for name in "ab"]
    assert {at for at, *_ in play_gate(None, trees)} == {0}


def test_a_tree_that_fails_or_stops_waiting_gives_its_slots_back():
    async def main():
        gate = SlotGate(1)

        async def fail():
            async with gate.tree(0, 1) as take, take(ROOT):
                await asyncio.sleep(1)
                raise ValueError("broken")

        async def wait(order):
            async with gate.tree(order, 1):
                pass

        failing, waiting, last = (asyncio.create_task(work) for work in (fail(), wait(1), wait(2)))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.gather(failing, waiting, last, return_exceptions=True)
        assert isinstance(failing.exception(), ValueError)
        assert waiting.cancelled()
        assert last.exception() is None
        return gate._free

    assert run_virtual(main())[0] == 1


def test_one_that_is_cancelled_in_the_moment_of_its_slot_gives_it_back():
    async def main():
        gate = SlotGate(1)
        async with gate.tree(0, 1) as take:
            async with take(ROOT):
                waiting = asyncio.create_task(take(ROOT).__aenter__())
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(waiting.cancel)
            await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        return gate._free

    assert run_virtual(main())[0] == 1


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


@pytest.mark.parametrize("slots", [1, 3, 12, 20])
def test_slots_are_full_and_never_more_and_trees_are_the_same(tokenizer_folder, slots):
    problems = [problem(f"p{i}") for i in range(5)]
    free, _ = grow(agent(tokenizer_folder, RULES[0]), problems)
    parts = with_engine(agent(tokenizer_folder, RULES[0], slots=slots), Counting)
    trees, _ = grow(parts, problems)
    assert trees == free
    assert parts.engine.most == slots
