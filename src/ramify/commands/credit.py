"""`ramify credit RUN|TRACE`: the credit of each token of recorded trees, under the run's algorithm or another one."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.commands.parser import add_override, add_step, add_tree, open_console, recipe_file
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from ramify.assemble.recorded_credit import RecordedAlgorithm, StepCredit, TreeCredit
    from ramify.obs.trace import TracedTree


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("source", type=Path, metavar="RUN|TRACE", help="a run folder, or a file of trees")
    add_step(parser)
    add_tree(parser, "show each trajectory and node of this tree")
    parser.add_argument(
        "--algorithm",
        type=recipe_file,
        metavar="NAME|RECIPE",
        help="the algorithm of this recipe, a file or the name of a shipped one (that of the run)",
    )
    add_override(parser)
    parser.add_argument("--json", action="store_true", help="print all numbers as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: There is no such step or tree, or the algorithm cannot be computed from a trace.
    """
    from ramify.assemble.recorded_credit import max_tokens_of, named_algorithm, own_algorithm
    from ramify.obs.trace import read_trees
    from ramify.runs.recorded_trees import trace_of

    path = trace_of(options.source, options.step)
    trees = read_trees(path)
    if options.tree is not None and options.tree >= len(trees):
        raise ConfigError(f"--tree {options.tree}: {path} has trees 0 to {len(trees) - 1}")
    own = own_algorithm(path)
    if options.algorithm is not None:
        chosen = named_algorithm(options.algorithm, options.overrides, max_tokens_of(path))
    else:
        other = own_algorithm(path, options.overrides)
        if other is None:
            raise ConfigError(f"--algorithm: expected a recipe, since {path} lies in no training run")
        chosen = other
    result = chosen.credit(trees)
    console = open_console(options)
    before: StepCredit | None = None
    if own is not None and (reason := own.obstacle(trees)):
        console.note(f"no comparison with the algorithm of the run: {reason}")
    elif own is not None:
        before = result if own.section == chosen.section else own.credit(trees)
    numbers = range(len(trees)) if options.tree is None else (options.tree,)
    if options.json:
        record = _record(path, chosen, result, before)
        record["trees"] = [_tree_record(number, trees, result, before) for number in numbers]
        console.record(record)
        return
    compared = "" if before is None or before is result else "; in brackets the change from that of the run"
    console.result(f"{path}: algorithm {chosen.name}{compared}")
    if options.tree is None:
        lines = _tree_lines(trees, result, before)
    else:
        old = None if before is None else before.trees[options.tree]
        lines = _node_lines(trees[options.tree], result.trees[options.tree], old)
    console.result("\n".join(lines))


def _record(
    path: Path, chosen: "RecordedAlgorithm", result: "StepCredit", before: "StepCredit | None"
) -> dict[str, Any]:
    return {
        "trace": f"{path}",
        "algorithm": {"name": chosen.name, **chosen.section.model_dump(mode="json", exclude_none=True)},
        "denominator": result.denominator,
        "own_denominator": None if before is None else before.denominator,
    }


def _tree_record(
    number: int, trees: "Sequence[TracedTree]", result: "StepCredit", before: "StepCredit | None"
) -> dict[str, Any]:
    traced, of_tree = trees[number], result.trees[number]
    old = None if before is None else before.trees[number]
    recorded = traced.advantages or (None,) * len(traced.rewards)
    return {
        "tree": number,
        "problem": traced.tree.problem.id,
        "trajectories": [
            {
                "leaf": trajectory.leaf.id,
                "reward": reward.value,
                "counts": reward.counts,
                "advantage": _mean(of_tree, trajectory.leaf.id),
                "own_advantage": _mean(old, trajectory.leaf.id),
                "recorded_advantage": advantage,
            }
            for trajectory, reward, advantage in zip(
                traced.tree.trajectories, traced.rewards, recorded, strict=True
            )
        ],
        "nodes": None if of_tree is None else of_tree.record(),
        "own_nodes": None if old is None else old.record(),
    }


def _mean(credit: "TreeCredit | None", leaf: str) -> float | None:
    """Return the mean advantage of a trajectory; None if it has none."""
    own = None if credit is None else credit.advantages.get(leaf)
    return None if own is None else float(own.mean()) if len(own) else 0.0


def _tree_lines(
    trees: "Sequence[TracedTree]", result: "StepCredit", before: "StepCredit | None"
) -> list[str]:
    """Return a table with a line a tree: its share of the step's credit, and the tokens whose credit changes its sign."""
    lines = [f"{'tree':>4}  {'problem':24}  {'reward':>8}  {'tokens':>6}  {'share':>15}  other sign"]
    for number, (traced, new) in enumerate(zip(trees, result.trees, strict=True)):
        old = None if before is None else before.trees[number]
        counted = [reward.value for reward in traced.rewards if reward.counts]
        reward = f"{sum(counted) / len(counted):.4g}" if counted else "none"
        row = f"{number:>4}  {traced.tree.problem.id[:24]:24}  {reward:>8}  "
        if new is None:
            lines.append(row + "not trained on")
            continue
        size = sum(len(node.weight) for node in new.nodes.values())
        share = _changed(_share(new, result), None if before is None else _share(old, before), ".2%")
        flips = "" if old is None else f"{_num_flips(new, old)}"
        lines.append(f"{row}{size:>6}  {share:>15}  {flips:>10}")
    return lines


def _share(credit: "TreeCredit | None", step: "StepCredit") -> float:
    """Return a tree's share of the sum of |S+| and |S-| over the step."""
    whole = sum(_size(each) for each in step.trees if each is not None)
    return 0.0 if credit is None or not whole else _size(credit) / whole


def _size(credit: "TreeCredit") -> float:
    return float(sum((node.s_plus - node.s_minus).sum() for node in credit.nodes.values()))


def _num_flips(new: "TreeCredit", old: "TreeCredit") -> int:
    import numpy as np

    pairs = [(node, old.nodes[name]) for name, node in new.nodes.items() if name in old.nodes]
    return sum(int((np.sign(a.s_plus + a.s_minus) != np.sign(b.s_plus + b.s_minus)).sum()) for a, b in pairs)


def _node_lines(traced: "TracedTree", new: "TreeCredit | None", old: "TreeCredit | None") -> list[str]:
    """Return a table for each trajectory with a line a node: the trajectory's advantage there, and means of S+, S- and W."""
    if new is None:
        return ["the step did not train on this tree"]
    from ramify.algos.ops import by_node

    lines = []
    for trajectory, reward in zip(traced.tree.trajectories, traced.rewards, strict=True):
        leaf = trajectory.leaf.id
        lines.append(f"trajectory {leaf}  reward {reward.value:.4g}  {trajectory.stop.value}")
        if leaf not in new.advantages:
            lines.append("  does not count")
            continue
        lines.append(
            f"  {'node':16}  {'tokens':>6}  {'paths':>5}  {'advantage':>17}  {'S+':>17}  {'S-':>17}  {'W':>17}"
        )
        then = (
            None
            if old is None
            else {node.id: array for node, array in by_node(trajectory, old.advantages[leaf])}
        )
        for node, advantage in by_node(trajectory, new.advantages[leaf]):
            if not len(advantage):
                continue
            credit, was = new.nodes[node.id], None if old is None else old.nodes[node.id]
            columns = [_cell(advantage, None if then is None else then[node.id])]
            columns += [
                _cell(getattr(credit, name), None if was is None else getattr(was, name))
                for name in ("s_plus", "s_minus", "weight")
            ]
            cells = "  ".join(f"{cell:>17}" for cell in columns)
            lines.append(f"  {node.id:16}  {len(advantage):>6}  {credit.num_paths[0]:>5.0f}  {cells}")
    return lines


def _cell(new: "np.ndarray", old: "np.ndarray | None") -> str:
    return _changed(float(new.mean()), None if old is None else float(old.mean()), ".4g")


def _changed(new: float, old: float | None, form: str) -> str:
    """Return a number, and in brackets its change if there is one."""
    if old is None or format(new, form) == format(old, form):
        return format(new, form)
    return f"{new:{form}} ({new - old:+{form}})"
