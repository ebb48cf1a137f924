"""JSON schemas of tools: ordinary odd ones, and any at random, with references, circles, booleans and nonsense."""

from hypothesis import strategies as st

TEXT = {"type": "string"}


def arguments(properties, **more):
    return {"type": "object", "properties": properties, **more}


ODD = {
    # name: the schema, and its arguments in the message about a malformed call
    "zod: a property": (
        arguments({"a": TEXT, "b": {"$ref": "#/properties/a"}}),
        "a (string, optional), b (string",
    ),
    "draft 7": (
        arguments({"a": {"$ref": "#/definitions/X"}}, definitions={"X": {"enum": ["u", 1]}}),
        'a ("u" or 1, optional)',
    ),
    "OpenAPI": (
        arguments({"a": {"$ref": "#/components/schemas/X"}}, components={"schemas": {"X": TEXT}}),
        "a (string, optional)",
    ),
    "OpenAPI, elsewhere": (arguments({"a": {"$ref": "#/components/schemas/X"}}), "a (any value, optional)"),
    "zod: named": (
        {"$ref": "#/definitions/X", "definitions": {"X": arguments({"a": TEXT}, required=["a"])}},
        "a (string)",
    ),
    "the whole": (arguments({"a": {"$ref": "#"}}), "a (object, optional)"),
    "escaped": (
        arguments({"x/y~": TEXT, "b": {"$ref": "#/properties/x~1y~0"}}),
        "x/y~ (string, optional), b (string",
    ),
    "encoded": (arguments({"x y": TEXT, "b": {"$ref": "#/properties/x%20y"}}), "b (string, optional)"),
    "in a list": (
        arguments({"a": {"anyOf": [TEXT, {"$ref": "#/properties/a/anyOf/0"}]}}),
        "a (string, optional)",
    ),
    "remote": (arguments({"a": {"$ref": "https://example.com/x.json"}}), "a (any value, optional)"),
    "a file": (arguments({"a": {"$ref": "x.json#/X"}}), "a (any value, optional)"),
    "an anchor": (arguments({"a": {"$ref": "#a", "type": "string"}}), "a (string, optional)"),
    "no target": (arguments({"a": {"$ref": "#/$defs/X"}}), "a (any value, optional)"),
    "no text": (arguments({"a": {"$ref": 5}}), "a (any value, optional)"),
    "itself": (arguments({"a": {"$ref": "#/properties/a"}}), "a (any value, optional)"),
    "one of itself": (
        arguments({"a": {"$ref": "#/$defs/X"}}, **{"$defs": {"X": {"anyOf": [TEXT, {"$ref": "#/$defs/X"}]}}}),
        "a (string or any value, optional)",
    ),
    "a circle": (
        arguments(
            {"a": {"$ref": "#/$defs/X"}},
            **{"$defs": {"X": {"$ref": "#/$defs/Y"}, "Y": {"$ref": "#/$defs/X"}}},
        ),
        "a (any value, optional)",
    ),
    "a circle elsewhere": (
        arguments(
            {"a": {"$ref": "#/x/X"}}, x={"X": {"type": "object", "properties": {"b": {"$ref": "#/x/X"}}}}
        ),
        "a (object, optional)",
    ),
    "schemars: true": (arguments({"a": True}, required=["a"]), "a (any value)"),
    "false": (arguments({"a": False}), "a (any value, optional)"),
    "one of true": (arguments({"a": {"anyOf": [True, TEXT]}}), "a (any value or string, optional)"),
    "one of none": (arguments({"a": {"anyOf": []}}), "a (any value, optional)"),
    "one of 5": (arguments({"a": {"anyOf": 5}}), "a (any value, optional)"),
    "enum 5": (arguments({"a": {"enum": 5, "type": "integer"}}), "a (integer, optional)"),
    "enum null": (arguments({"a": {"enum": None}}), "a (any value, optional)"),
    "types": (arguments({"a": {"type": ["string", "null"]}}), "a (string or null, optional)"),
    "type 5": (arguments({"a": {"type": 5}}), "a (any value, optional)"),
    "required null": (arguments({"a": TEXT}, required=None), "a (string, optional)"),
    "required 5": (arguments({"a": TEXT}, required=5), "a (string, optional)"),
    "required of anything": (arguments({"a": TEXT}, required=[5, None, ["a"]]), "a (string, optional)"),
    "properties: a list": ({"type": "object", "properties": [TEXT]}, "no arguments"),
    "properties: null": ({"type": "object", "properties": None, "required": None}, "no arguments"),
    "a property: a list": (arguments({"a": [TEXT]}), "a (any value, optional)"),
    "a description: a list": (arguments({"a": {**TEXT, "description": [1]}}, required=["a"]), "a (string)"),
    "no number": (
        arguments({"a": {"default": float("nan"), "maximum": float("inf")}}),
        "a (any value, optional)",
    ),
    "a long number": (arguments({"a": {"const": 10**4000}}), "a (null, optional)"),
    "half a character": (arguments({"a": {"const": "\ud800"}}), 'a ("\\ud800", optional)'),
}

FINE = (
    {},
    {"type": "object"},
    {"type": "object", "required": ["query"]},
    arguments({}),
    arguments({"query": {**TEXT, "description": "words", "title": "Query"}}, required=["query"], title="Arguments"),
    arguments({"$ref": TEXT, "type": TEXT, "enum": TEXT, "required": {"type": "boolean", "required": True}}),
    arguments({"a": {"items": True, "additionalProperties": False, "not": {}, "x-meta": {"type": 5, "enum": None}}}),
    arguments({"a": {"default": {"$ref": "nowhere"}, "examples": [{"anyOf": []}], "const": None}}),
    arguments(
        {"a": {"properties": {"b": True}, "anyOf": [{"items": [TEXT, False]}, True]}},
        additionalProperties=False,
    ),
    {
        **{"$defs": {"Node": arguments({"value": TEXT, "next": {"items": {"$ref": "#/$defs/Node"}}})}},
        **arguments({"root": {"$ref": "#/$defs/Node", "description": "a tree"}}, required=["root"]),
        "$schema": "http://json-schema.org/draft-07/schema#",
    },
    arguments({"a": TEXT, "b": {"items": {"$ref": "#/properties/a"}}, "c": {"items": {"$ref": "#"}}}),
    arguments({"a": {"items": {"$ref": "#/definitions/X"}}}, definitions={"X": {"type": "integer", "minimum": 0.5}}),
)  # fmt: skip
"""What passes as it is: prompts with these schemas have the tokens that they always had."""

_MAPS = ("properties", "$defs", "definitions", "components", "patternProperties")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not")
_NAMES = st.sampled_from(["a", "b", "X", "type", "$ref", "x/y", "", "é\n", "0"])
_STEPS = st.sampled_from([*_MAPS, *_LISTS, *_SINGLE, "a", "b", "X", "schemas", "0", "x~1y", "%61"])
_JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=4,
)
_REFERENCES = st.lists(_STEPS, max_size=4).map(lambda steps: "/".join(["#", *steps])) | st.sampled_from(
    ["#/$defs/X", "#/definitions/a", "#/properties/a", "http://127.0.0.1:9/x", "x#/a", "#x", "#/", "#//", "#/%ff~"]
)  # fmt: skip
_SIMPLE = {
    "type": st.sampled_from(["string", "object", ["string", "null"], "integer"]) | _JUNK,
    "enum": st.lists(_JUNK, max_size=3) | _JUNK,
    "const": _JUNK,
    "required": st.lists(_NAMES, max_size=3) | _JUNK,
    "description": st.text(max_size=5) | _JUNK,
    "default": _JUNK,
    "$ref": _REFERENCES | _JUNK,
}


def _compound(inner):
    maps = {key: st.dictionaries(_NAMES, inner, max_size=3) for key in _MAPS}
    lists = {key: st.lists(inner, max_size=3) for key in _LISTS}
    return st.fixed_dictionaries({}, optional={**_SIMPLE, **maps, **lists, **dict.fromkeys(_SINGLE, inner)})


SCHEMAS = st.recursive(st.fixed_dictionaries({}, optional=_SIMPLE) | st.booleans() | _JUNK, _compound, max_leaves=12)  # fmt: skip
"""Any JSON value that a server may send for the schema of a tool's arguments."""
