"""Checks what the documents name: relative links, files, tests, `ramify` commands with their options, `make` targets; and that their shell blocks can be pasted."""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ramify.cli import COMMANDS
from ramify.commands.parser import UsageError, make_parser, module_of

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
NAMED_FILE = re.compile(r"(?<![\w/.-])(?:src|docs|tests|recipes|scripts|benchmarks)/[\w./-]*")
TEST = re.compile(r"([\w/]*\btest_\w+\.py)?(?:::(test_\w+))?")
"""A file of tests, a test in it, or with nothing before its colons a test in the file that was named last."""
CODE = re.compile(r"`([^`\n]+)`|^    (.+)$", re.MULTILINE)
RAMIFY = re.compile(r"\bramify ([a-z][\w-]*)(.*)")
MAKE = re.compile(r"\bmake ([a-z-]+)\b(?! *=)")
SHELL = re.compile(
    r"^```sh\n(.*?)^```|((?:^    (?:\S*/)?(?:ramify|make|pip|uv|git|python|podman|torchrun|vllm) [^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)
"""A fenced block for the shell, or indented lines that begin with a program."""
GAP = re.compile(r"\S {3,}[^#\s]")
"""A comment that a shell would take for arguments."""
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def mistakes(document: Path, targets: set[str]) -> Iterator[str]:
    """One line for each thing that is named and not there."""
    text = document.read_text(encoding="utf-8")
    for match in LINK.finditer(text):
        target = match[1]
        if "://" not in target and not (document.parent / target).exists():
            yield f"link to {target}"
    for match in NAMED_FILE.finditer(text):
        path = match[0].rstrip(".")
        if "NAME" not in path and not (ROOT / path).exists():  # NAME stands for the name of something new
            yield f"file {path}"
    yield from unknown_tests(text)
    yield from shell_mistakes(text)
    for match in CODE.finditer(text):
        code = match[1] or match[2]
        if (command := RAMIFY.match(code)) is not None:
            yield from unknown_options(command[1], command[2])
        if (target := MAKE.match(code)) is not None and target[1] not in targets:
            yield f"make {target[1]}"


def unknown_tests(text: str) -> Iterator[str]:
    """Yield the tests that a text names and that are not there."""
    file = None
    for path, name in TEST.findall(text):
        if path:
            file = next((each for each in (ROOT / "tests").rglob(Path(path).name) if each.match(path)), None)
        if path and file is None:
            yield f"test {path}"
        elif name and (file is None or f"def {name}(" not in file.read_text(encoding="utf-8")):
            yield f"test {name} in {file and file.relative_to(ROOT)}"


def shell_mistakes(text: str) -> Iterator[str]:
    """One line for each shell block that cannot be pasted as it is."""
    for match in SHELL.finditer(text):
        block = (match[1] or match[2]).replace("\\\n", " ")
        parsed = subprocess.run(["bash", "-n", "-c", block], capture_output=True, text=True, check=False)
        if parsed.returncode:
            yield f"shell block: {' '.join(parsed.stderr.split())}"
            continue
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if GAP.search(line.strip()):
                yield f"shell line (a comment needs #): {line.strip()}"
            elif words and Path(words[0]).name == "ramify":
                try:
                    make_parser(COMMANDS, words[1]).parse_args(words[1:])
                except UsageError as error:
                    yield f"shell line: {error}"


def unknown_options(command: str, arguments: str) -> Iterator[str]:
    """Yield the options in `arguments` that the command does not have."""
    if command not in COMMANDS:
        yield f"command ramify {command}"
        return
    parser = argparse.ArgumentParser()
    module_of(command).add_arguments(parser)
    below = [a.choices.values() for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    known = [o for p in (parser, *chain.from_iterable(below)) for o in OPTION.findall(p.format_help())]
    yield from (
        f"option {option} of ramify {command}" for option in OPTION.findall(arguments) if option not in known
    )


def main() -> int:
    """Print every mistake; 1 when there is one."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    documents = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "AGENTS.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    lines = [f"{d.relative_to(ROOT)}: no such {m}" for d in documents for m in mistakes(d, targets)]
    sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.write(f"{len(documents)} documents, {len(lines)} mistakes\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
