"""The page of a synthesis: what its answers and its questions became."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.json_types import count, mapping, number, part
from ramify.files.durable import read_record
from ramify.obs.page import Card, Page, Section, Table
from ramify.runs.page import origin_sections

_READ_SUMMARY = part(
    questions=count,
    classes=mapping(count),
    rows=mapping(count),
    rl=count,
    hints=mapping(count),
    rejected=mapping(count),
    stages=mapping(part(answers=count, right=number, calls=count, tokens=part(written=count))),
)


def synthesis_page(folder: Path) -> Page:
    """Return the page of a finished synthesis.

    Raises:
        DataError: It is not finished, or its summary cannot be read.
    """
    path = folder / "summary.json"
    if not path.is_file():
        raise DataError(f"{folder}: the synthesis is not finished. Finish it with ramify synth --resume.")
    summary = read_record(path, _READ_SUMMARY)
    cards = (
        Card("Questions", f"{summary['questions']:,}", "in the data", 0),
        Card("Rows for SFT", f"{sum(summary['rows'].values()):,}", "in sft.jsonl", 1),
        Card("Questions for RL", f"{summary['rl']:,}", "in rl.jsonl", 2),
    )
    rejected = Table(
        "Answers that gave no row (rejected.jsonl has them)",
        ("reason", "answers"),
        list(summary["rejected"].items()),
    )
    section = synthesis_section(summary)
    failures = [] if not rejected.rows else [Section("Failures", tables=(rejected,))]
    sections = (section, *failures, *origin_sections(folder, "synth"))
    return Page(f"Synthesis: {folder.absolute().name}", str(folder), cards, sections)


def synthesis_section(summary: Mapping[str, Any]) -> Section:
    """Return the section of a synthesis by the content of its summary.json."""
    classes = [[name, count, summary["rows"].get(name, 0)] for name, count in summary["classes"].items()]
    stages = [
        [stage, total["answers"], round(100 * total["right"], 1), total["calls"], total["tokens"]["written"]]
        for stage, total in summary["stages"].items()
    ]
    hints = [[name, count] for name, count in summary["hints"].items()]
    return Section(
        "Results of the synthesis",
        "Questions by whether the weak start answers them without and with tools; the hard ones go to RL.",
        tables=(
            Table("Answers", ("with", "answers", "percent right", "calls", "tokens written"), stages),
            Table("Questions", ("class", "questions", "rows for SFT"), classes),
            Table("Rows that continue from a hint", ("hint", "rows"), hints),
        ),
    )
