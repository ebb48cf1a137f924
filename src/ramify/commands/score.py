"""`ramify score`: score a file of responses, recorded trees with another reward, or check the scores against test vectors."""

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.commands.parser import add_override, add_step, add_tree, recipe_file
from ramify.core.errors import DataError

if TYPE_CHECKING:
    from ramify.eval.result_rows import ResultRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE|RUN",
        help="JSON lines or one JSON array of rows: id, response, gold (a text, a number or a list); also result files of ARPO and "
        "Tool-Star; or the folder of an evaluation",
    )
    parser.add_argument(
        "--task",
        choices=("math", "choose", "qa", "reward"),
        help="how answers are scored (of a run with --compat: that of each benchmark); choose, letters of choices, is math, also in the "
        "released code",
    )
    parser.add_argument(
        "--compat",
        choices=("arpo", "toolstar"),
        help="score as the released code does, including its defects",
    )
    parser.add_argument(
        "--golden", action="store_true", help="the files are test vectors; report which ones hold"
    )
    parser.add_argument("--out", type=Path, metavar="ROWS.jsonl", help="write the scores of each line")
    parser.add_argument(
        "--reward",
        type=recipe_file,
        metavar="RECIPE",
        help="score recorded trees (a run's folder, or a file of trees) again, with the table [reward] of this recipe",
    )
    add_step(parser)
    add_tree(parser, "with --reward: print old and new reward of each trajectory of this tree")
    add_override(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command; it prints one JSON object.

    Raises:
        DataError: A file or a line cannot be scored.
    """
    from ramify.obs.console import RunConsole

    if options.reward is not None:
        if options.golden or options.task or options.compat:
            raise DataError("--reward: it takes no --golden, --task or --compat. Leave them out.")
        result: Mapping[str, Any] = _rescored(options)
    elif options.step is not None or options.tree is not None or options.overrides:
        raise DataError("--step, --tree and -s: expected --reward RECIPE with them")
    elif options.golden:
        if options.task or options.compat or options.out:
            raise DataError("--golden: it takes no --task, --compat or --out; every vector says what it is")
        names = [path.name for path in options.files]
        result = {
            path.name if names.count(path.name) == 1 else f"{path}": _golden(path) for path in options.files
        }
    elif options.task is None:
        if options.compat is None or not all(path.is_dir() for path in options.files):
            raise DataError("--task: expected math, choose, qa or reward")
        if options.out is not None:
            raise DataError(
                "--out: expected --task too, since each benchmark has its own task. Give one, or leave --out out."
            )
        result = _by_benchmark(options.files, options.compat)
    else:
        task = "math" if options.task == "choose" else options.task
        result = _scored(options.files, task, options.compat, options.out)
    RunConsole(as_json=True).record(result)


def _golden(path: Path) -> Mapping[str, Any]:
    """Results for a file of vectors: counts of those that hold in each mode, and ids of those that fail in any mode."""
    from ramify.eval.result_rows import read_objects
    from ramify.rewards.golden_vectors import case_of, judge_vector

    vectors = list(read_objects(path))
    keys = ("id", "task", "scorer", "response", "gold", "expected")
    for where, vector in vectors:
        if missing := [key for key in keys if key not in vector]:
            raise DataError(f"{where}: expected the key {missing[0]!r} of a scoring vector")
    wrong = frozenset(case_of(vector) for _, vector in vectors if vector.get("seed_wrong"))
    verdicts = {str(vector["id"]): judge_vector(vector, wrong) for _, vector in vectors}
    right = [each.right for each in verdicts.values() if each.right is not None]
    preserved = [each.preserved for each in verdicts.values() if each.preserved is not None]
    failures = [
        name
        for name, each in verdicts.items()
        if not each.compat or each.right is False or each.preserved is False
    ]
    return {
        "n": len(verdicts),
        "compat_ok": sum(each.compat for each in verdicts.values()),
        "right_n": len(right),
        "right_ok": sum(right),
        "kept_n": len(preserved),
        "kept_ok": sum(preserved),
        "failures": failures,
    }


def _rescored(options: argparse.Namespace) -> Mapping[str, Any]:
    """Score recorded trees again: the means of old and new rewards, and the trajectories of a chosen tree."""
    from ramify.assemble.rescoring import rescore
    from ramify.commands.output_files import require_output, write_output
    from ramify.obs.console import RunConsole
    from ramify.runs.recorded_trees import trace_files, trace_of

    one_step = options.step is not None or options.tree is not None
    # A file that is named twice counts once.
    files = list(
        {
            file.resolve(): file
            for source in options.files
            for file in ([trace_of(source, options.step)] if one_step else trace_files(source))
        }.values()
    )
    if options.out is not None:
        require_output("--out", options.out, [*files, options.reward])
    rows, notes = rescore(options.reward, options.overrides, files, options.tree)
    for note in notes:
        RunConsole(as_json=True).note(note)
    if options.out is not None:
        write_output("--out", options.out, "".join(f"{json.dumps(row)}\n" for row in rows).encode("ascii"))
    counted = [row for row in rows if row["counts"]]
    count = max(len(counted), 1)
    return {
        "n": len(rows),
        "counted": len(counted),
        "changed": sum(row["new"] != row["old"] for row in rows),
        "old": math.fsum(row["old"] for row in counted) / count,
        "new": math.fsum(row["new"] for row in counted) / count,
        **({} if options.tree is None else {"trajectories": rows}),
    }


def _scored(files: list[Path], task: str, compat: str | None, out: Path | None) -> Mapping[str, Any]:
    """Score files and runs together, and each by itself if there are several."""
    from ramify.commands.output_files import require_output, write_output
    from ramify.eval.result_rows import is_gold
    from ramify.rewards.responses import RowAverages

    if out is not None:
        require_output("--out", out, files)
    without_gold = 0
    together = RowAverages(task, compat)
    by_file = {str(path): RowAverages(task, compat) for path in files}
    written: list[str] = []
    for path in files:
        for row, scores, verdict in _scored_rows(path, task, compat, writes=out is not None):
            together.add(scores, verdict)
            by_file[str(path)].add(scores, verdict)
            if row is None:
                continue
            without_gold += not is_gold(row.gold)
            if out is not None:
                # ASCII, because ids and answers may contain lone surrogates, which UTF-8 cannot encode.
                written.append(json.dumps({"id": row.where if row.id is None else row.id, **scores}) + "\n")
    if out is not None:
        write_output("--out", out, "".join(written).encode("ascii"))
    files_apart = {name: averages.result() for name, averages in by_file.items()}
    return {
        **together.result(),
        **({"no_gold": without_gold} if without_gold else {}),
        **({"files": files_apart} if len(files) > 1 else {}),
    }


def _scored_rows(
    path: Path, task: str, compat: str | None, *, writes: bool
) -> Iterator[tuple["ResultRow | None", Mapping[str, Any], float | None]]:
    """Yield rows with their scores and verdicts; a run's recorded scores have no row."""
    from ramify.eval.result_rows import read_result_rows, read_run_responses, read_run_scores

    if not path.is_dir():
        rows = read_result_rows(path)
    elif compat is not None:
        rows = (row for _, row in read_run_responses(path, task))
    elif task == "reward" or writes:
        raise DataError(f"{path}: is a run, whose scores are recorded. It takes --task math or qa only")
    else:
        yield from ((None, scores, verdict) for scores, verdict in read_run_scores(path, task))
        return
    for row in rows:
        yield row, _scores_of(row, task, compat), row.verdict


def _by_benchmark(runs: list[Path], compat: str) -> Mapping[str, Any]:
    """Score the attempts of evaluations as the released code does, by benchmark, each as its task."""
    from ramify.eval.result_rows import read_run_responses
    from ramify.rewards.responses import RowAverages

    averages: dict[str, RowAverages] = {}
    for run_folder in runs:
        for problem, row in read_run_responses(run_folder):
            task, benchmark = problem.info.get("task"), str(problem.info.get("benchmark"))
            if task not in ("math", "qa"):
                raise DataError(f"--task: expected math or qa, because {row.where} is of no benchmark")
            scores = _scores_of(row, task, compat)
            averages.setdefault(benchmark, RowAverages(task, compat)).add(scores, row.verdict)
    return {name: each.result() for name, each in averages.items()}


def _scores_of(row: "ResultRow", task: str, compat: str | None) -> Mapping[str, Any]:
    from ramify.rewards.responses import row_scores

    try:
        scores = row_scores(row.response, row.gold, task, compat, row.prediction)
        # The released code writes 0 where no judge was asked.
        return {name: value for name, value in scores.items() if name != "llm_equal"}
    except (TypeError, IndexError) as error:
        raise DataError(f"{row.where}: the released code fails on this gold: {error}") from None
