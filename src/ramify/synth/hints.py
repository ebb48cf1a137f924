"""Hints: an answer is cut in the middle of a turn, a text is inserted, and the policy continues from it with its tools.

Hint-based sampling of Tool-Star (arXiv 2505.16410, section 3.1), after START (arXiv 2503.04625). A hint follows a word of doubt
("verification"), or the last words before the first answer ("reflection"). The text after that position is dropped from the
context.
"""

import hashlib
import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ramify.core.errors import DataError
from ramify.core.messages import Final, Problem, ToolSpec
from ramify.core.protocols import Renderer
from ramify.core.tree import Context, Cut, Node, Source, Trajectory, TreeKey, node_id
from ramify.rollout.plan import TreeRequest
from ramify.rollout.rewriting import continue_after, last_turn

Kind: TypeAlias = Literal["verification", "reflection"]

PREFIX = "hint "
"""Prefix of a hint's name in `Node.rewriter`."""


class Hint(BaseModel):
    """A text that makes the policy think again; `tool` is the tool that it mentions, or ""."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(min_length=1)
    kind: Kind
    text: str = Field(min_length=1)
    tool: str = ""


class _Library(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    markers: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    hints: tuple[Hint, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class HintLibrary:
    """Hints, the words of doubt that precede those for verification, and the SHA-256 of their file."""

    hints: tuple[Hint, ...]
    markers: tuple[str, ...]
    sha256: str

    def for_tools(self, tools: Collection[str]) -> "HintLibrary":
        """Return the library with only the hints for these tools or for none.

        Raises:
            DataError: There is none.
        """
        hints = tuple(hint for hint in self.hints if not hint.tool or hint.tool in tools)
        if not hints:
            raise DataError(
                f"hints.library: none of its {len(self.hints)} hints is for a tool of the recipe ({', '.join(tools)}). Add one"
            )
        return replace(self, hints=hints)


def load_hints(path: Path | None) -> HintLibrary:
    """Read a library; without a path, the shipped one.

    Raises:
        DataError: The file cannot be read or is no library; one line that names the file and the key.
    """
    source = f"{path}" if path is not None else "hints_en.toml"
    try:
        content = (files("ramify.synth") / "hints_en.toml" if path is None else path).read_bytes()
        library = _Library.model_validate(tomllib.loads(content.decode("utf-8")))
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise DataError(f"{source}: {key}: {first['msg']}; expected markers and [[hints]]") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}: expected TOML: {error}") from None
    names = [hint.name for hint in library.hints]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{source}: two hints are named {twice!r}. Rename one")
    if not library.markers and any(hint.kind == "verification" for hint in library.hints):
        raise DataError(f"{source}: markers: expected words of doubt for the hints for verification")
    return HintLibrary(library.hints, library.markers, hashlib.sha256(content).hexdigest())


@dataclass(frozen=True, slots=True)
class HintPosition:
    """A position for a hint: after so many characters of the turn that ends with node number `index` of a trajectory."""

    hint: Hint
    index: int
    chars: int


def hint_positions(
    library: HintLibrary, renderer: Renderer, answer: Trajectory, tools: Sequence[ToolSpec]
) -> tuple[HintPosition, ...]:
    """Return all positions in an answer, by hint and from the first on; `tools` are those of the agent that continues."""
    markers = "|".join(re.escape(marker) for marker in library.markers)
    doubt = re.compile(rf"(?<!\w)(?:{markers})(?!\w)", re.IGNORECASE)
    positions: list[HintPosition] = []
    turns = [
        (index, last_turn(renderer.decode, answer.contexts[index])[0])
        for index, node in enumerate(answer.nodes)
        if node.source is Source.POLICY and node.turn is not None
    ]
    for hint in library.hints:
        for index, text in turns:
            outline = renderer.outline(text, tools)
            if hint.kind == "verification":
                spans = outline.thoughts or ((0, outline.words),)
                ends = [match.end() for start, end in spans for match in doubt.finditer(text, start, end)]
                positions.extend(HintPosition(hint, index, end) for end in ends)
            elif isinstance(answer.nodes[index].turn, Final):
                positions.append(HintPosition(hint, index, outline.words_end))
    return tuple(positions)


def planned_hint(
    renderer: Renderer,
    problem: Problem,
    answer: Trajectory,
    position: HintPosition,
    key: TreeKey,
    tools: Sequence[ToolSpec],
) -> TreeRequest:
    """Return the request for a tree that continues from a hint: the answer's turns up to its position, and the hint.

    Args:
        renderer: The renderer of the agent that continues.
        problem: The prompt for that agent; the answer may have been given to another one.
        answer: An answer to the same question.
        position: The position of the hint in the answer.
        key: Key of the tree.
        tools: The tools of the agent.
    """
    prompt = renderer.render_prompt(problem, tools)
    first = Node("", (), None, Source.PROMPT, prompt, renderer.decode(prompt))
    last = replace(answer.nodes[position.index], stop=None, results=(), messages=())
    context = answer.contexts[position.index]
    _, size = last_turn(renderer.decode, context)
    go_on = continue_after(renderer.decode, context, size, position.chars, position.hint.text)
    path = (*last.path, 0)
    ids = renderer.insert(go_on.text, tools)
    cut: Context = go_on.cut
    if go_on.cut == Cut("", len(answer.nodes[0].token_ids)):
        cut = Cut("", len(prompt))
    elif go_on.cut == Cut(last.id, len(last.token_ids)):
        cut = "parent"
    hint = Node(
        id=node_id(path),
        path=path,
        parent=last.id,
        source=Source.TOOL,
        token_ids=ids,
        text=renderer.decode(ids),
        context=cut,
        rewriter=f"{PREFIX}{position.hint.name}",
    )
    return TreeRequest(problem, key, (first, *answer.nodes[1 : position.index], last, hint))


def read_hint(rewriter: str) -> str | None:
    """Return the name of the hint that inserted a node; None if no hint did."""
    return rewriter.removeprefix(PREFIX) if rewriter.startswith(PREFIX) else None


def as_table(library: HintLibrary) -> dict[str, Any]:
    """Return the entry for a manifest."""
    return {"sha256": library.sha256, "hints": [hint.name for hint in library.hints]}
