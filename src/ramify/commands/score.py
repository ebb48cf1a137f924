"""`ramify score`: score a file of responses, or check the scores against test vectors from the papers' code."""

import argparse
import codecs
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.json_text import parse_json

_RESPONSES = ("response", "output", "completion")
_GOLDS = ("gold", "golds", "answer")
_OTHER_FILES = {
    b"PAR1": "a parquet file",
    b"\x1f\x8b": "a gzip file; unpack it",
    b"(\xb5/\xfd": "a zstd file; unpack it",
    b"PK\x03\x04": "a zip file; unpack it",
    codecs.BOM_UTF16_LE: "UTF-16 text",
    codecs.BOM_UTF16_BE: "UTF-16 text",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE.jsonl",
        help="one object a line: id, response, gold (a text, a number or a list)",
    )
    parser.add_argument("--task", choices=("math", "qa", "reward"), help="how answers are scored")
    parser.add_argument(
        "--compat",
        choices=("arpo", "toolstar"),
        help="score as the released code does, including its defects",
    )
    parser.add_argument(
        "--golden", action="store_true", help="the files are test vectors; report which ones hold"
    )
    parser.add_argument("--out", type=Path, metavar="ROWS.jsonl", help="write the scores of each line")


def run(options: argparse.Namespace) -> None:
    """Run the command; it prints one JSON object.

    Raises:
        DataError: A file or a line cannot be scored.
    """
    if options.golden:
        if options.task or options.compat or options.out:
            raise DataError("--golden: it takes no --task, --compat or --out; every vector says what it is")
        result: Mapping[str, Any] = {path.name: _golden(path) for path in options.files}
    elif options.task is None:
        raise DataError("--task: expected math, qa or reward")
    else:
        result = _scored(options.files, options.task, options.compat, options.out)
    sys.stdout.write(json.dumps(result) + "\n")


def _golden(path: Path) -> Mapping[str, Any]:
    """Results for a file of vectors: counts of those that hold in each mode, and ids of those that fail in any mode."""
    from ramify.rewards.golden_vectors import case_of, judge_vector

    vectors = list(_rows(path))
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


def _scored(files: list[Path], task: str, compat: str | None, out: Path | None) -> Mapping[str, Any]:
    from ramify.commands.output_files import require_output, write_output
    from ramify.rewards.responses import averages, row_scores

    if out is not None:
        require_output("--out", out, files)
    without_gold = 0
    rows: list[Mapping[str, Any]] = []
    for path in files:
        for where, row in _rows(path):
            response, gold = (_field(where, row, names) for names in (_RESPONSES, _GOLDS))
            if not isinstance(response, str):
                raise DataError(f"{where}: expected a text as its response, got {type(response).__name__}")
            try:
                scores = row_scores(response, gold, task, compat)
            except (TypeError, IndexError) as error:
                raise DataError(f"{where}: the released code fails on this gold: {error}") from None
            rows.append({"id": row.get("id", where), **scores})
            without_gold += not _is_gold(gold)
    if out is not None:
        # ASCII, because ids and answers may contain lone surrogates, which UTF-8 cannot encode.
        write_output("--out", out, "".join(json.dumps(row) + "\n" for row in rows).encode("ascii"))
    return {**averages(rows), **({"no_gold": without_gold} if without_gold else {})}


def _is_gold(gold: object) -> bool:
    """Return True if an answer can match this gold. Others score 0 always, so their count reveals a broken file."""
    if isinstance(gold, list):
        return any(map(_is_gold, gold))
    return bool(gold.strip()) if isinstance(gold, str) else type(gold) in (int, float)


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a JSONL file, each with its place for messages."""
    text = _text(path)
    if not text.strip():
        raise DataError(f"{path}: the file is empty; expected a JSONL file, one object a line")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = parse_json(line, unique_keys=True)
        except ValueError as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object, got {type(row).__name__}")
        yield where, row


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a JSONL file: {error.strerror}") from None
    for head, kind in _OTHER_FILES.items():
        if content.startswith(head):
            raise DataError(f"{path}: expected a JSONL file (UTF-8, one object a line), found {kind}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected a JSONL file (UTF-8, one object a line): byte {error.start} is not UTF-8"
        ) from None


def _field(where: str, row: Mapping[str, Any], names: tuple[str, ...]) -> object:
    name = next((name for name in names if name in row), None)
    if name is None:
        raise DataError(f"{where}: expected one of the keys {', '.join(names)}")
    return row[name]
