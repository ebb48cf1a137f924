"""Demonstrations that a data set has as one text."""

from ramify.chat.conversation import AssistantTurn
from ramify.chat.demonstrations import check, demonstrate, split
from ramify.core.tree import TreeKey

FIRST = TreeKey(0, 0)


def parts_of(renderer, text, tools=()):
    """The turns and the results of a text, checked."""
    parts = split(renderer, (AssistantTurn(text),), tools)
    check(renderer, parts, tools)
    return parts


def tree_of(renderer, problem, text, tools=(), key=FIRST):
    """The text as a tree with one leaf."""
    return demonstrate(renderer, problem, parts_of(renderer, text, tools), key, tools)
