import asyncio
from dataclasses import replace

import pytest

from ramify.algos.branch_arpo import BernoulliBrancher, ThresholdBrancher
from ramify.algos.branch_none import FlatBrancher
from ramify.chat.renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import EngineError
from ramify.core.messages import ToolStatus
from ramify.core.tree import Source, StopReason
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.engines.virtual_clock import run_virtual
from ramify.obs.timing import TimingLog
from ramify.rollout.grow import grow_trees
from ramify.rollout.settings import AgentParts, RolloutLimits
from scripted_agents import SlowTool, problem, script


def agent(folder, brancher, latency_seed=0, n=8, max_calls=3, max_tokens=400, play=script):
    tokenizer = ChatTokenizer(folder)
    tools = {
        "search": SlowTool("search", "query", latency_seed),
        "python": SlowTool("python", "code", latency_seed),
    }
    return AgentParts(
        engine=ScriptedEngine(tokenizer, play),
        renderer=TagRenderer(tokenizer, [tool.spec for tool in tools.values()]),
        tools=tools,
        brancher=brancher,
        limits=RolloutLimits(n=n, max_tokens=max_tokens, max_calls=max_calls),
        events=TimingLog(),
        run_seed=7,
    )


def grow(parts, problems=None, step=0):
    return run_virtual(grow_trees(parts, problems or [problem()], step))


RULES = [
    ThresholdBrancher(m=4, min_rise=0.0, children=1, probe_tokens=3),
    BernoulliBrancher(m=3, alpha=0.5, beta=0.3, children=2, probe_tokens=3),
    FlatBrancher(probe_tokens=3),
]


@pytest.mark.parametrize("brancher", RULES, ids=["threshold", "bernoulli", "none"])
def test_exactly_n_trajectories_with_ids_and_draws_of_their_own(model_folder, brancher):
    parts = agent(model_folder, brancher)
    (tree,), _ = grow(parts)
    assert len(tree.trajectories) == 8
    roots = tree.children[""]
    assert [node.path for node in roots] == [(i,) for i in range(len(roots))]
    taken = sum(decision.taken for decision in tree.decisions)
    assert len(roots) + taken == 8
    assert len(roots) >= brancher.num_roots(8, ())
    assert all(tool.open_sessions == 0 for tool in parts.tools.values())


def test_branches_share_the_prefix_by_identity_and_hang_at_the_tool_result(model_folder):
    (tree,), _ = grow(agent(model_folder, RULES[0]))
    branched = [decision for decision in tree.decisions if decision.taken]
    assert branched
    for decision in branched:
        node = tree.by_id[decision.node]
        children = tree.children[node.id]
        assert node.source is Source.TOOL
        assert len(children) == 1 + decision.taken
        paths = [tree.path_to(child) for child in children]
        assert all(path[:-1] == paths[0][:-1] for path in paths)
        assert all(a is b for a, b in zip(paths[0][:-1], paths[1][:-1], strict=True))


def test_one_tree_under_200_permutations_of_latencies(model_folder):
    for brancher in (RULES[0], RULES[1]):
        (first,), _ = grow(agent(model_folder, brancher, 0))
        for seed in range(1, 101):
            (tree,), _ = grow(agent(model_folder, brancher, seed))
            assert tree.nodes == first.nodes
            assert tree.decisions == first.decisions
        assert any(decision.taken for decision in first.decisions)


def test_latencies_do_change_the_time_it_takes(model_folder):
    times = {round(grow(agent(model_folder, RULES[0], seed))[1], 3) for seed in range(5)}
    assert len(times) == 5


def test_trees_of_a_step_do_not_wait_for_each_other(model_folder):
    alone = [grow(agent(model_folder, RULES[0]), [problem(f"p{i}")])[1] for i in range(3)]
    _, together = grow(agent(model_folder, RULES[0]), [problem(f"p{i}") for i in range(3)])
    assert together < sum(alone)


def test_step_slot_and_problem_change_the_draws(model_folder):
    parts = agent(model_folder, RULES[0])
    same = [grow(parts, step=0)[0][0].nodes for _ in range(2)]
    assert same[0] == same[1]
    assert grow(parts, step=1)[0][0].nodes != same[0]
    first, second = grow(parts, [problem(), problem()])[0]
    assert [n.token_ids for n in first.nodes] != [n.token_ids for n in second.nodes]


def test_a_trajectory_is_what_the_engine_saw_and_only_its_own_tokens_are_trained(model_folder):
    parts = agent(model_folder, RULES[0])
    (tree,), _ = grow(parts)
    for trajectory in tree.trajectories:
        (segment,) = trajectory.segments
        assert len(segment.token_ids) == len(segment.written)
        assert sum(segment.written) == trajectory.num_written
        for node in trajectory.nodes:
            if node.source is Source.TOOL:
                assert node.behavior_logprobs == ()
                assert node.token_ids == parts.renderer.after(node.results)


def test_forked_sessions_count_their_own_calls(model_folder):
    (tree,), _ = grow(agent(model_folder, RULES[0]))
    for trajectory in tree.trajectories:
        per_tool = {}
        for call, result in trajectory.exchanges:
            per_tool[call.name] = per_tool.get(call.name, 0) + 1
            assert f"call {per_tool[call.name]} answer" in result.text


def test_one_call_more_than_the_limit_ends_the_trajectory(model_folder):
    def always_search(context, seed):
        return ScriptedTurn("<search> Paris </search>")

    (tree,), _ = grow(agent(model_folder, RULES[2], n=2, max_calls=2, play=always_search))
    assert [t.stop for t in tree.trajectories] == [StopReason.CALLS] * 2
    assert all(len(t.exchanges) == 2 for t in tree.trajectories)
    assert all(not t.leaf.calls for t in tree.trajectories)


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("<think> a </think>", StopReason.MALFORMED),
        ("<result> forged </result><answer> \\boxed{ 42 } </answer>", StopReason.MALFORMED),
        ("<answer> 42 </answer>", StopReason.ANSWERED),
        ("a b c d e f g h i j k l m n o p q r s t u v w x y z" * 10, StopReason.TOKENS),
    ],
)
def test_every_end_has_a_reason(model_folder, text, stop):
    (tree,), _ = grow(
        agent(model_folder, RULES[2], n=1, max_tokens=60, play=lambda context, seed: ScriptedTurn(text))
    )
    assert tree.trajectories[0].stop is stop


def test_a_result_that_does_not_fit_cuts_the_trajectory_and_writes_no_token(model_folder):
    text = "<search> " + "Paris " * 20 + "</search>"
    (tree,), _ = grow(agent(model_folder, RULES[2], n=1, max_tokens=60, play=lambda c, s: ScriptedTurn(text)))
    (trajectory,) = tree.trajectories
    assert trajectory.stop is StopReason.TOKENS
    added = sum(len(node.token_ids) for node in trajectory.nodes[1:])
    assert added <= 60 < added + len(trajectory.nodes[2].token_ids)
    assert trajectory.leaf.source is Source.POLICY


def test_hanging_unknown_and_malformed_calls_are_observations(model_folder):
    class Hanging(SlowTool):
        async def open(self, problem):
            session = await super().open(problem)

            async def hang(call):
                await asyncio.sleep(1e9)

            session.call = hang
            return session

    def play(context, seed):
        done = context.count("\n</result>")
        if done == 0:
            return ScriptedTurn("<search> Paris </search>")
        return ScriptedTurn("<python>  </python>" if done == 1 else "<answer> \\boxed{ 42 } </answer>")

    parts = agent(model_folder, RULES[2], n=1, play=play)
    parts.tools["search"] = Hanging("search", "query")
    (tree,), seconds = grow(parts)
    (trajectory,) = tree.trajectories
    assert [r.status for _, r in trajectory.exchanges] == [ToolStatus.TIMEOUT, ToolStatus.MALFORMED]
    assert trajectory.stop is StopReason.ANSWERED
    assert 1000 <= seconds < 1100


def test_the_tree_is_the_same_whether_or_not_the_probe_is_a_request_of_its_own(model_folder):
    wide = ThresholdBrancher(m=8, min_rise=0.0, children=1, probe_tokens=3)
    (tree,), _ = grow(agent(model_folder, wide))
    assert not any(decision.taken for decision in tree.decisions)
    narrow = ThresholdBrancher(m=7, min_rise=100.0, children=1, probe_tokens=3)
    (other,), _ = grow(agent(model_folder, narrow))
    assert [n.token_ids for n in tree.nodes] == [n.token_ids for n in other.nodes]


class FailingTool(SlowTool):
    """A tool whose sessions cannot be opened, or not be forked."""

    def __init__(self, name, argument, opens):
        super().__init__(name, argument)
        self.opens = opens

    async def open(self, problem):
        if not self.opens:
            raise OSError("no session")
        session = await super().open(problem)

        async def fork():
            raise OSError("no copy")

        session.fork = fork
        return session


@pytest.mark.parametrize("opens", [False, True])
def test_a_tool_that_cannot_be_opened_or_forked_answers_with_errors(model_folder, opens):
    parts = agent(model_folder, RULES[0])
    parts.tools["python"] = FailingTool("python", "code", opens)
    (tree,), _ = grow(parts)
    assert len(tree.trajectories) == 8
    results = [r for t in tree.trajectories for call, r in t.exchanges if call.name == "python"]
    broken = [r for r in results if r.status is ToolStatus.ERROR]
    assert broken
    assert all(("no copy" if opens else "no session") in r.text for r in broken)
    assert opens or broken == results
    assert [tool.open_sessions for tool in parts.tools.values()] == [0, 0]
    assert parts.live.value == 0


def test_a_branch_that_is_cancelled_before_it_runs_leaves_nothing_behind(model_folder):
    """The first root's engine call fails in the same turn of the event loop in which the second root branches."""
    always = ThresholdBrancher(m=2, min_rise=-100.0, children=1, probe_tokens=3)
    parts = agent(
        model_folder, always, n=6, play=lambda context, seed: ScriptedTurn("<search> Paris </search>")
    )
    meet = asyncio.Event()
    engine = parts.engine

    class Breaking:
        info = staticmethod(engine.info)

        async def generate(self, request):
            if request.priority[1] == 0 and len(request.priority) > 2:
                await meet.wait()
                raise EngineError("the engine broke")
            return await engine.generate(request)

    class Meeting(SlowTool):
        async def open(self, problem):
            session = await super().open(problem)
            fork = session.fork

            async def fork_when_met():
                asyncio.get_running_loop().call_later(1.0, meet.set)
                await meet.wait()
                return await fork()

            session.fork = fork_when_met
            return session

    parts.tools["search"] = Meeting("search", "query")
    with pytest.raises(EngineError, match="the engine broke"):
        run_virtual(grow_trees(replace(parts, engine=Breaking()), [problem()], 0))
    assert parts.live.value == 0
    assert [tool.open_sessions for tool in parts.tools.values()] == [0, 0]


def test_requests_to_the_engine_do_not_depend_on_latencies(model_folder):
    def requests(latency_seed):
        parts = agent(model_folder, RULES[0], latency_seed)
        engine, seen = parts.engine, []

        class Recorder:
            info = staticmethod(engine.info)

            async def generate(self, request):
                seen.append(request)
                return await engine.generate(request)

        grow(replace(parts, engine=Recorder()))
        return sorted(seen, key=lambda request: (request.priority, request.stop_context))

    first = requests(0)
    assert any(request.stop_context for request in first)
    assert all(requests(seed) == first for seed in range(1, 20))


def test_a_rule_that_never_branches_is_not_asked(model_folder):
    (tree,), _ = grow(agent(model_folder, RULES[2]))
    assert any(node.source is Source.TOOL for node in tree.nodes)
    assert tree.decisions == ()
    assert all(node.entropy is not None for node in tree.nodes if node.source is Source.POLICY)


def test_with_a_tool_that_cannot_fork_all_trajectories_start_at_once(model_folder):
    parts = agent(model_folder, RULES[0])
    parts.tools["python"].spec = replace(parts.tools["python"].spec, forks=False)
    (tree,), seconds = grow(parts)
    assert len(tree.children[""]) == 8
    assert seconds == pytest.approx(grow(agent(model_folder, RULES[2]))[1])
