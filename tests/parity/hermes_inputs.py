"""Conversations with calls that tests/parity compares with the `renderers` package."""

import json

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
    for name, about in (("search", "Looks things up."), ("price", "Says what an item costs, in \u20ac."))
]  # fmt: skip

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


SINGLE_CALLS = (
    {
        "question": "tea?",
        "rounds": [
            {"thought": "", "calls": [("price", 'green "tea"\n\u00e9')], "results": ["\n7 > 6.\n\n"]},
            {"thought": "", "calls": [("search", "cup")], "results": ['none "x" \\frac']},
        ],
        "answer": "\\boxed{7}",
    },
)
"""For Llama 3, whose template takes no thought and a single call a turn."""


THOUGHTFUL = tuple(
    {**each, "rounds": [turn | {"thought": turn["thought"] or "Hm."} for turn in each["rounds"]]}
    for each in CONVERSATIONS[1:]
)
"""For Qwen3.5, whose prompt ends with the line break of an opened thought: a whole render merges it with that of an empty thought."""


def call_text(name: str, query: str) -> str:
    """A call as a model writes it."""
    arguments = json.dumps({"query": query}, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
