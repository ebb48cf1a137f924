"""`ramify report RUN`: one page about any run, and its figures as files."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.core.errors import DataError

if TYPE_CHECKING:
    from ramify.obs.page import Page

_MOST_NAMED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "folder",
        type=Path,
        metavar="RUN",
        help="the folder of a run of any command, finished or not, or of an ablation",
    )
    parser.add_argument(
        "--figures",
        action="store_true",
        help="also write the charts to RUN/figures, as SVG and (with the extra `figures`) as PNG",
    )


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        DataError: The folder is of no run, has no result yet, or a file in it cannot be read.
    """
    from ramify.obs.console import RunConsole
    from ramify.obs.page import write_page
    from ramify.runs.page import FIGURES, REPORT

    folder: Path = options.folder
    console = RunConsole()
    page = _page(folder)
    path = folder / ("ablate.html" if _is_ablation(folder) else REPORT)
    write_page(path, page)
    console.result(f"page: {path}")
    if options.figures:
        from ramify.obs.page import write_figures

        paths = write_figures(page, folder / FIGURES)
        console.result(f"figures: {len(paths)} files in {folder / FIGURES}")
        if paths and not any(path.suffix == ".png" for path in paths):
            console.note("there are no PNG files without the extra: pip install 'ramify-rl[figures]'")


def _page(folder: Path) -> "Page":
    """Return the page of a run, by the files that only its kind has."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder. Name the folder of a run.")
    if _is_ablation(folder):
        from ramify.study.page import page_of_ablation

        return page_of_ablation(folder)
    if (folder / "report.json").is_file():
        return _quickstart_page(folder)
    if any(folder.glob("cycle-*")):
        from ramify.train.selfcritic import selfcritic_page

        return selfcritic_page(folder)
    if (folder / "results.jsonl").is_file():
        from ramify.eval.page import page_of_run

        return page_of_run(folder)
    if (folder / "questions.jsonl").is_file() or (folder / "trees" / "direct.jsonl").is_file():
        from ramify.synth.results import synthesis_page

        return synthesis_page(folder)
    from ramify.files.durable import RECIPE
    from ramify.runs.page import run_page

    if not (folder / RECIPE).is_file() and not (folder / "trees").is_dir():
        inside = sorted(str(path.parent) for path in folder.glob(f"*/{RECIPE}"))
        advice = (
            f"Name one of the runs in it: {', '.join(inside[:_MOST_NAMED])}."
            if inside
            else "Name the folder of a run."
        )
        raise DataError(f"{folder}: no run. {advice}")
    return run_page(folder)


def _is_ablation(folder: Path) -> bool:
    """Return True for an ablation, finished or not; its results.jsonl has the name of an evaluation's."""
    return any((folder / name).is_file() for name in ("ablate.json", "starts.jsonl"))


def _quickstart_page(folder: Path) -> "Page":
    from ramify.quickstart.report import quickstart_page, read_report

    if (folder / "selfcritic").is_dir():
        from ramify.quickstart.tool_star_report import read_tool_star_report, tool_star_page

        return tool_star_page(read_tool_star_report(folder / "report.json"), folder)
    return quickstart_page(read_report(folder / "report.json"), folder)
