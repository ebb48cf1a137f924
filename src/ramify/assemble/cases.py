"""Cases: a recorded trajectory as a test, which plays the policy's turns again with the tools and the reward of today.

A case is a folder that `ramify rollout` can run: case.jsonl has the problem and what is expected, script.toml the turns,
recipe.toml the tools and the reward of the recorded run.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

import tomli_w

from ramify.assemble.training import run_rollout
from ramify.chat.renderers import renderer_for
from ramify.chat.tokenizer import ChatTokenizer
from ramify.config.load import check_recipe, load_recipe, read_toml
from ramify.config.schema_rollout import RolloutSection
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import DataError
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source, StopReason, Trajectory
from ramify.data.problems import load_problems
from ramify.files.durable import RECIPE, dump_line, parse_line
from ramify.obs.console import RunConsole
from ramify.runs.recorded_trees import require_tokenizer, tree_at
from ramify.runs.run_folder import RunFolder

ROW, SCRIPT, EXPECTED = "case.jsonl", "script.toml", "expected"
"""Files of a case, and the column of the first that has what is expected."""
_SHARED_TABLES = ("model", "tools", "sandbox", "reward")


def expected_of(trajectory: Trajectory, reward: Reward) -> dict[str, Any]:
    """Return what a case compares: the prompt, the calls with their results, the end, the answer and the reward."""
    return {
        "prompt": trajectory.nodes[0].text,
        "calls": [
            {
                "name": call.name,
                "arguments": dict(call.arguments),
                "status": str(result.status),
                "text": result.text,
            }
            for call, result in trajectory.exchanges
        ],
        "stop": str(trajectory.stop),
        "answer": trajectory.final_answer,
        "reward": reward.value,
    }


def write_case(scored: ScoredTree, index: int, recipe: Path, folder: Path, final: Path) -> None:
    """Write a trajectory of a tree into `folder`, which will lie at `final`; `recipe` is that of its run.

    Raises:
        UserError: The trajectory cannot be played again, or the recipe cannot be read.
    """
    trajectory, problem = scored.tree.trajectories[index], scored.tree.problem
    table = _recipe(read_toml(recipe), final)
    parsed = check_recipe(TrainRecipe, table, f"{recipe}")
    tokenizer = ChatTokenizer(parsed.model.folder)
    require_tokenizer(f"{recipe}: problem {problem.id!r}", trajectory.nodes[0], tokenizer.decode)
    result_end = renderer_for(parsed.model.dialect, tokenizer).result_end
    script = {"turns": _turns(trajectory, result_end)}
    messages = [{"role": message.role, "content": message.text} for message in problem.messages]
    row = {
        **problem.info,
        "id": problem.id,
        "prompt": messages,
        "answer": list(problem.answer),
        EXPECTED: expected_of(trajectory, scored.rewards[index]),
    }
    (folder / ROW).write_text(f"{dump_line(row)}\n", encoding="utf-8")
    for name, content in ((SCRIPT, script), (RECIPE, table)):
        (folder / name).write_text(tomli_w.dumps(content), encoding="utf-8", errors="replace")
    (read,) = load_problems(folder / ROW).problems
    info = {key: value for key, value in read.info.items() if key != EXPECTED}
    if (read.messages, read.answer, info) != (problem.messages, problem.answer, dict(problem.info)):
        raise DataError(f"problem {problem.id!r}: a row of data cannot hold it as it is. Choose another one")


def _recipe(recorded: Mapping[str, Any], final: Path) -> dict[str, Any]:
    """Return the recipe of a case: the tools, limits and reward of the recorded run, and one trajectory that a script writes."""
    for name in ("environment", "environments"):
        if recorded.get(name):
            raise DataError(f"[{name}]: a case plays tools only. Choose a run with [tools]")

    def table(name: str) -> Mapping[str, Any]:
        value = recorded.get(name)
        return value if isinstance(value, dict) else {}

    limits = table("rollout") or table("sampling")
    own = {field.name for field in fields(RolloutSection)} - {
        "m",
        "dynamic_sampling",
        "branch_at",
        "rewriters",
    }
    shape = {
        key: value for key, value in table("algorithm").items() if key in ("truncated", "overlong_margin")
    }
    return {
        **{name: recorded[name] for name in _SHARED_TABLES if name in recorded},
        "data": {
            "train": f"{final / ROW}",
            "max_prompt_tokens": table("data").get("max_prompt_tokens"),
            "instructions": False,
        },
        "run": {"dir": f"{final / 'replay'}", "seed": table("run").get("seed", 0)},
        "rollout": {
            **{key: value for key, value in limits.items() if key in own},
            "temperature": 1.0,
            "problems_per_step": 1,
            "n": 1,
            "branching": {"name": "none"},
        },
        "engine": {"name": "scripted", "script": f"{final / SCRIPT}"},
        "algorithm": {"estimator": {"name": "reinforce_pp"}, "loss": {"name": "clip"}, **shape},
        "learner": {"problems_per_minibatch": 1, "optimizer": {"rate": 1e-6}},
    }


def _turns(trajectory: Trajectory, result_end: str) -> list[dict[str, Any]]:
    """Return the turns of a script that writes a trajectory again.

    Raises:
        DataError: Its turns do not follow from results of tools alone, or the clock or a failure ended it.
    """
    leaf = f"leaf {trajectory.leaf.id!r}"
    if trajectory.stop in (StopReason.DEADLINE, StopReason.FAILED):
        raise DataError(
            f"{leaf}: the clock or a failure ended it, which no script repeats. Choose another leaf"
        )
    if any(node.rewriter or node.context != "parent" or node.messages for node in trajectory.nodes):
        raise DataError(
            f"{leaf}: a rewriter or an environment spoke on its path, and a script counts results of tools. Choose another leaf"
        )
    by_results: dict[int, dict[str, Any]] = {}
    before = ""
    for source, run in groupby(trajectory.nodes[1:], lambda node: node.source):
        nodes = list(run)
        ids = [token for node in nodes for token in node.token_ids]
        text = "".join(node.text for node in nodes)
        if source is Source.POLICY and ids:
            after = before.count(result_end)
            if after in by_results:
                raise DataError(
                    f"{leaf}: two of its turns follow the same number of results. Choose another leaf"
                )
            by_results[after] = {"text": text, "ids": ids}
        before += text
    if not by_results:
        raise DataError(f"{leaf}: the policy wrote nothing. Choose another leaf")
    # A turn may get several results; the script has no gap all the same.
    turns = []
    for after in range(max(by_results) + 1):
        turns.append({"after": after, **by_results[min(key for key in by_results if key >= after)]})
    return turns


def replay_case(folder: Path, console: RunConsole) -> list[str]:
    """Play the turns of a case again, wherever its folder lies now; returns a line for each difference.

    Raises:
        UserError: A file of the case, the tools or the machine is wrong.
    """
    try:
        line = (folder / ROW).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{folder}: no case. Expected a folder with {ROW}, {SCRIPT} and {RECIPE}") from None
    expected = parse_line(folder / ROW, 1, line).get(EXPECTED)
    if not isinstance(expected, dict):
        raise DataError(f"{folder / ROW} row 1: expected the column {EXPECTED!r}. Make the case again")
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "replay"
        settings = (f"data.train={folder / ROW}", f"engine.script={folder / SCRIPT}", f"run.dir={run}")
        run_rollout(load_recipe(TrainRecipe, folder / RECIPE, settings), console)
        traced = tree_at(RunFolder(run).trees(1), 0)
    return differences(expected, expected_of(traced.tree.trajectories[0], traced.rewards[0]))


def differences(expected: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each field that differs, the calls one by one."""
    lines = []
    calls, calls_now = expected.get("calls", []), now["calls"]
    if len(calls) != len(calls_now):
        lines.append(f"calls: expected {len(calls)}, got {len(calls_now)}")
    for number, (call, call_now) in enumerate(zip(calls, calls_now, strict=False)):
        lines += [
            f"call {number} {key}: expected {call.get(key)!r}, got {call_now[key]!r}"
            for key in call_now
            if call.get(key) != call_now[key]
        ]
    lines += [
        f"{key}: expected {expected.get(key)!r}, got {now[key]!r}"
        for key in now
        if key != "calls" and expected.get(key) != now[key]
    ]
    return lines
