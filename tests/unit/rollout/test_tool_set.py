"""The limit of calls to one tool on a trajectory."""

from dataclasses import replace

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.core.messages import ToolCall, ToolStatus
from ramify.engines.virtual_clock import run_virtual
from ramify.rollout.tool_set import ToolSet
from scripted_agents import SlowTool, agent, grow_one, problem, with_latencies

RULE = ThresholdBrancher(m=2, min_entropy_delta=-100.0, children=1, probe_tokens=3)


def call(session, name, number):
    return session.call(ToolCall(f"{number}", name, {"query": "a", "code": "a"}))


def test_further_calls_are_answered_without_running_the_tool_and_a_fork_counts_what_was_made():
    async def main():
        tools = {"search": SlowTool("search", "query"), "python": SlowTool("python", "code")}
        session = await ToolSet(tools, {"python": 2}).open(problem(), 0)
        results = [await call(session, "python", 0)]
        fork = await session.fork(1)
        results += [await call(session, "python", n) for n in (1, 2)]
        results += [await call(fork, "python", n) for n in (3, 4)]
        results.append(await call(session, "search", 5))
        await session.close()
        await fork.close()
        return tools, results

    (tools, results), _ = run_virtual(main())
    ok, over = ToolStatus.OK, ToolStatus.OVER_LIMIT
    assert [result.status for result in results] == [ok, ok, over, ok, over, ok]
    assert "limit of 2 calls to python" in results[2].text
    assert sum(tools["python"].issued.values()) == 3


def test_a_call_that_is_made_again_counts_once():
    async def main():
        session = await ToolSet({"python": SlowTool("python", "code")}, {"python": 2}).open(problem(), 0)
        fork = await session.fork(1)
        results = [await call(session, "python", n) for n in (0, 0, 1, 1, 2, 1)]
        await session.close()
        await fork.close()
        return [result.status for result in results]

    ok, over = ToolStatus.OK, ToolStatus.OVER_LIMIT
    assert run_virtual(main())[0] == [ok, ok, ok, ok, over, ok]


def test_in_a_tree_no_trajectory_runs_a_tool_more_often(tokenizer_folder):
    parts = agent(tokenizer_folder, RULE, max_calls=6)
    limited = ToolSet(parts.environment.members, {"search": 1, "python": 1})
    parts = replace(parts, environment=limited)
    tree = grow_one(parts)
    over = 0
    for trajectory in tree.trajectories:
        ran = [
            made.name for made, result in trajectory.exchanges if result.status is not ToolStatus.OVER_LIMIT
        ]
        assert len(ran) == len(set(ran))
        over += len(trajectory.exchanges) - len(ran)
    assert over > 0
    assert all(grow_one(with_latencies(parts, seed)) == tree for seed in range(1, 5))
