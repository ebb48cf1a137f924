"""Checks names and docstrings: no bare participle as a class, no empty word as a name, no docstring that begins with a question."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOTS = ("src", "tests", "benchmarks", "scripts")
ALLOWED = ROOT / "scripts" / "allowed_words.txt"
"""Mistakes that a file of before the rule may still have: its path, their number."""

EMPTY_NAMES = frozenset(
    ("found", "told", "asked", "said", "heard", "given", "made", "kept", "seen", "some", "one", "place")
)
OLD_TERMS = {
    "grant": "branch budget",
    "grants": "branch budget",
    "settlement": "allocator",
    "moments": "batch statistics",
    "slope": "gradient",
    "slopes": "gradients",
    "stretch": "prefill chunk",
    "seat": "allocate",
    "park": "release",
    "lessons": "supervised task",
    "rest": "sleep, or the noun of what is left",
}
"""Words of the house's past, and the field's words for them."""
QUESTIONS = ("What", "Whether", "How", "Where", "Which", "Of")
_PARTICIPLE = re.compile(
    "_*([A-Z][a-z]+ed|Grown|Said|Heard|Made|Given|Kept|Seen|Found|Told|Known|Drawn|Written|Begun|Left|Held|Sent|Shown)"
)


def mistakes(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and message of each mistake in a file."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ClassDef) and _PARTICIPLE.fullmatch(node.name):
            yield node.lineno, f"class {node.name}: a bare participle. Name the thing"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "").partition(" ")[0]
            if first in QUESTIONS:
                yield node.lineno, f"docstring of {node.name}: begins with {first}. Begin with a verb"
        for name in _bound(node):
            word, line = name.strip("_"), getattr(node, "lineno", 0)
            if word in EMPTY_NAMES:
                yield line, f"name {name}: says nothing. Name the thing"
            elif word in OLD_TERMS:
                yield line, f"name {name}: the field says {OLD_TERMS[word]}"


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name)
        ):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.MatchAs(name=str(name)):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
            yield name


def main() -> int:
    """Compare the mistakes of each file with the allow list, which may only shrink; returns the exit code."""
    allowed = {name: int(count) for name, count in map(str.split, ALLOWED.read_text().splitlines())}
    counts: dict[str, int] = {}
    wrong = []
    for folder in ROOTS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            lines = [f"{name}:{line}: {message}" for line, message in sorted(mistakes(path))]
            if lines:
                counts[name] = min(len(lines), allowed.get(name, 0))
            if len(lines) > allowed.get(name, 0):
                wrong += lines
    if wrong:
        sys.stdout.write("\n".join([*wrong, ""]))
    elif "--shrink" in sys.argv:
        ALLOWED.write_text("".join(f"{name} {count}\n" for name, count in counts.items() if count))
    elif counts != allowed:
        sys.stdout.write(
            f"{ALLOWED.name} allows more than there is. Run python scripts/check_words.py --shrink\n"
        )
        return 1
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
