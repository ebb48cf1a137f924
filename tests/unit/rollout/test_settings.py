"""Parts that do not fit together, and what a step waits for, in words."""

import asyncio
from dataclasses import replace

import pytest

from model_folders import write_tokenizer
from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.core.errors import ConfigError
from ramify.engines.virtual_clock import run_virtual
from ramify.rollout.grow import grow_trees
from ramify.rollout.settings import WaitBoard
from scripted_agents import WrappedEngine, agent, problem, tokenizer_of

RULE = ThresholdBrancher(m=3, min_entropy_delta=0.0, children=1, probe_tokens=3)


def test_an_engine_with_another_tokenizer_is_refused_when_the_parts_are_put_together(
    tokenizer_folder, tmp_path
):
    write_tokenizer(tmp_path / "other", vocab_size=500)
    parts = agent(tokenizer_folder, RULE)
    info = replace(parts.engine.info(), tokenizer=tokenizer_of(tmp_path / "other").fingerprint)
    engine = WrappedEngine(parts.engine)
    engine.info = lambda: info
    with pytest.raises(ConfigError, match="engine 'scripted' uses the ids of another tokenizer"):
        replace(parts, engine=engine)


def test_an_engine_without_exact_entropies_cannot_give_those_of_all_tokens(tokenizer_folder):
    with pytest.raises(
        ConfigError, match=r"^engine 'scripted' gives entropies as brackets.* to \"annotate\"$"
    ):
        agent(tokenizer_folder, RULE, exact_entropy=False, all_entropies=True)


def test_the_board_counts_and_tells_the_age_of_the_oldest():
    board = WaitBoard()

    async def wait(what, seconds):
        with board.on(what):
            await asyncio.sleep(seconds)

    async def main():
        async with asyncio.TaskGroup() as group:
            for what, seconds in (("search", 9), ("search", 4), ("engine", 5)):
                group.create_task(wait(what, seconds))
            lines = []
            for pause in (0.5, 3, 1, 1, 4):
                await asyncio.sleep(pause)
                lines.append(board.describe(asyncio.get_running_loop().time()))
        return lines

    assert run_virtual(main())[0] == [
        "engine 1, search 2",
        "engine 1 (4 s), search 2 (4 s)",
        "engine 1 (4 s), search 1 (4 s)",
        "search 1 (6 s)",
        "",
    ]


def test_a_wait_that_fails_is_over():
    board = WaitBoard()

    async def main():
        async def fail():
            with board.on("search"):
                assert board.describe(0.0) == "search 1"
                raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await fail()
        return board.describe(5.0)

    assert run_virtual(main())[0] == ""


def test_what_is_waited_for_is_shown_while_trees_grow(tokenizer_folder):
    parts = agent(tokenizer_folder, RULE)
    shown = []

    async def main():
        async with parts.waits.shown(shown.append, every_seconds=1.0):
            await grow_trees(parts, [problem()], 0)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    _, seconds = run_virtual(main())
    assert len(shown) == int(seconds)
    assert shown[0].startswith("engine 3")
    assert any("search 1" in line for line in shown)
    assert any("python" in line and line.endswith("s)") for line in shown)
