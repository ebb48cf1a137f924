"""Conversations in the hermes dialect that tests/parity compares with the `renderers` package."""

import json

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}},
                "required": ["query"],
            },
        },
    }
    for name, about in (("search", "Looks things up."), ("price", "Says what an item costs, in \u20ac."))
]

CONVERSATIONS = (
    {"question": "Which city is older?", "rounds": [], "answer": "Rome."},
    {
        "question": "Which city is older?\n",
        "rounds": [{"thought": "Both.", "calls": [("search", "Paris"), ("search", 'Rome "x" \u00e9')], "results": ["old.", "753 BC\n"]}],
        "answer": "It is \\boxed{Rome}.",
    },
    {
        "system": "Be short.",
        "question": "tea?",
        "rounds": [
            {"thought": "", "calls": [("price", "tea")], "results": ["\n7 > 6.\n\n"]},
            {"thought": "Once more", "calls": [("price", "tea"), ("price", "cup"), ("search", "cup")], "results": ["7", "", "  none  "]},
        ],
        "answer": "\\boxed{7}",
    },
)  # fmt: skip


def call_text(name: str, query: str) -> str:
    """A call as a model writes it."""
    arguments = json.dumps({"query": query}, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
