"""JSON schemas of a tool's arguments, from servers, data rows and users' classes, in a form that all later code relies on.

`plain_schema` accepts any value and never raises. Its result can be written as JSON, is bounded in size and depth, and is
self-contained: each `$ref` points to a subschema of the same document. At the top, `properties` maps names to objects and
`required` is a list of names, where they are there. Below, a subschema is an object or a boolean, and `anyOf` and `enum` are
lists that are not empty. What breaks these rules is left out, so that it allows any value; a schema that keeps them is
returned as it is, because it stands in prompts.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from ramify.core.json_text import MAX_DEPTH, cut_to

_Item = TypeVar("_Item")

MAX_CHARS: Final = 200_000
"""Of one schema as JSON; no tool of a real server comes near."""
_FRAME: Final = 4
"""Characters around a value or a key: quotes or brackets, and what separates it from the next one."""
MAX_TEXT: Final = 20_000
"""Of a description, or of another text in a schema: as much as a tool result has by default."""
_MARK: Final = 50
"""Room for the mark at the end of a text that was cut."""
_MAX_BITS: Final = 1024
"""Of an integer. Python refuses to write one of more than 4,300 digits."""

_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTS: Final = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
_SINGLE: Final = frozenset(
    {
        "items", "additionalProperties", "additionalItems", "unevaluatedItems", "unevaluatedProperties", "contains",
        "propertyNames", "not", "if", "then", "else",
    }
)  # fmt: skip
"""Keywords whose value maps names to subschemas, lists them, or is one; everything else is data."""

_INDEX: Final = re.compile("0|[1-9][0-9]{0,8}")


def plain_schema(schema: object) -> dict[str, Any]:
    """Return the schema of a tool's arguments in the form that the module describes."""
    root = _without_root_ref(schema if isinstance(schema, Mapping) else {})
    copier = _Copier(root)
    plain = copier.schema(root, 0)
    if copier.has_cut:
        # The target of a reference may have been cut off.
        plain = _Copier(plain).schema(plain, 0)
    if "properties" in plain:
        properties: dict[str, Any] = plain["properties"]
        plain["properties"] = {
            name: part if isinstance(part, dict) else {} for name, part in properties.items()
        }
    required = plain.get("required")
    if isinstance(required, list):
        plain["required"] = [name for name in required if isinstance(name, str)]
    else:
        plain.pop("required", None)
    return plain


def resolve(root: object, ref: object) -> tuple[object, bool] | None:
    """Return the target of a `$ref` and True if it is a subschema; None if it is not in this document."""
    if not isinstance(ref, str) or (ref != "#" and not ref.startswith("#/")):
        return None
    target, kind = root, "schema"
    for token in ref.split("/", MAX_DEPTH)[1:]:
        name = unquote(token).replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            target = target[name]
        elif isinstance(target, list) and _INDEX.fullmatch(name) and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
        kind = _kind_below(kind, name)
        if kind == "schema" and isinstance(target, list):
            kind = "subschemas"
    return target, kind == "schema"


def _kind_below(kind: str, name: str) -> str:
    if kind == "subschemas":
        return "schema"
    if kind == "data" or name not in _MAPS | _LISTS | _SINGLE:
        return "data"
    return "schema" if name in _SINGLE else "subschemas"


def _without_root_ref(root: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Replace a `$ref` at the top by its target, since the names of the arguments are looked up at the top."""
    for _ in range(MAX_DEPTH):
        if "$ref" not in root:
            break
        resolved = resolve(root, root["$ref"])
        target = resolved[0] if resolved is not None and isinstance(resolved[0], Mapping) else {}
        others = {key: value for key, value in root.items() if key != "$ref"}
        root = {**target, **others} if target is not root else others
    return {key: value for key, value in root.items() if key != "$ref"}


class _Copier:
    """Copies one document within its limits."""

    def __init__(self, root: object) -> None:
        self.has_cut = False
        self._root = root
        self._left = MAX_CHARS
        self._inlined: list[str] = []

    def schema(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        """Copy an object that is a subschema."""
        plain: dict[str, Any] = {}
        if not self._may_add(depth):
            return plain
        for key, inner in self._affordable(value.items()):
            if self._pay_for(key):
                plain.update(self._keyword(key, inner, depth + 1))
        return plain

    def _keyword(self, key: str, value: object, depth: int) -> dict[str, Any]:
        """Copy one keyword; {} if its value is of a wrong type."""
        if key == "$ref":
            return self._reference(value, depth)
        if key in _MAPS:
            return {key: self._map(value, depth)} if isinstance(value, Mapping) else {}
        if isinstance(value, list | tuple) and key in _LISTS | _SINGLE:
            return {key: self._list(value, depth)} if value or key in _SINGLE else {}
        if key in _LISTS:
            return {}
        if key in _SINGLE:
            return {key: self._subschema(value, depth)} if isinstance(value, Mapping | bool) else {}
        return {key: self._data(value, depth)} if _is_typed(key, value) else {}

    def _reference(self, ref: object, depth: int) -> dict[str, Any]:
        """Keep a reference to a subschema; one to another part of the document is replaced by that part."""
        resolved = resolve(self._root, ref)
        if resolved is None or not isinstance(ref, str) or not isinstance(resolved[0], Mapping | bool):
            return {}
        if resolved[1] and self._pay_for(ref):
            return {"$ref": ref}
        if isinstance(resolved[0], bool) or ref in self._inlined:
            return {}
        self._inlined.append(ref)
        plain = self.schema(resolved[0], depth)
        self._inlined.pop()
        return plain

    def _subschema(self, value: object, depth: int) -> dict[str, Any] | bool:
        if isinstance(value, bool):
            return value
        return self.schema(value if isinstance(value, Mapping) else {}, depth)

    def _map(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        pairs = self._affordable(value.items()) if self._may_add(depth) else ()
        return {name: self._subschema(inner, depth + 1) for name, inner in pairs if self._pay_for(name)}

    def _list(self, value: Sequence[Any], depth: int) -> list[Any]:
        items = self._affordable(value) if self._may_add(depth) else ()
        # Never empty: nobody may take "one of these" for "none of these".
        return [self._subschema(inner, depth + 1) for inner in items] or [True] * bool(value)

    def _data(self, value: object, depth: int) -> Any:  # noqa: ANN401 - any JSON value
        """Copy a value that is no schema; what is no JSON becomes null."""
        if isinstance(value, str):
            text = value if len(value) <= MAX_TEXT else cut_to(MAX_TEXT - _MARK, value)
            self._left -= _FRAME + len(text)
            return text if self._left > 0 else ""
        if isinstance(value, Mapping):
            pairs = self._affordable(value.items()) if self._may_add(depth) else ()
            return {key: self._data(inner, depth + 1) for key, inner in pairs if self._pay_for(key)}
        if isinstance(value, list | tuple):
            items = self._affordable(value) if self._may_add(depth) else ()
            return [self._data(inner, depth + 1) for inner in items]
        is_number = isinstance(value, int) and value.bit_length() <= _MAX_BITS
        number = value if is_number or (isinstance(value, float) and math.isfinite(value)) else None
        self._left -= _FRAME + len(repr(number))
        return number

    def _affordable(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield items until the limit is reached."""
        for item in items:
            if self._left <= 0:
                self.has_cut = True
                return
            yield item

    def _may_add(self, depth: int) -> bool:
        """Pay for a list or an object; False if it is too deep, or the limit is reached."""
        self._left -= _FRAME
        is_within = self._left > 0 and depth < MAX_DEPTH
        self.has_cut = self.has_cut or not is_within
        return is_within

    def _pay_for(self, key: object) -> bool:
        """Pay for a key; False if it is no text, or longer than what is left."""
        if not isinstance(key, str) or len(key) >= self._left:
            self._left -= _FRAME
            self.has_cut = True
            return False
        self._left -= _FRAME + len(key)
        return True


def _is_typed(key: str, value: object) -> bool:
    """Return False if code that reads schemas would trip over the value of this keyword."""
    if key == "enum":
        return isinstance(value, list) and bool(value)
    if key == "type":
        names = value if isinstance(value, list) and value else [value]
        return all(isinstance(name, str) for name in names)
    return key not in ("description", "title") or isinstance(value, str)
