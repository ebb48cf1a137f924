"""The tool and a part of the reward."""

import json
from functools import cache
from pathlib import Path


@cache
def prices() -> dict[str, int]:
    """Return the price list."""
    return dict(json.loads(Path(__file__).with_name("prices.json").read_text()))


def price(item: str) -> str:
    """Says what one piece costs.

    Args:
        item: The item and the shop.
    """
    return f"- {item} {prices()[item]}" if item in prices() else "- not found"


def well_asked(completions: list[str], **columns) -> list[float]:
    """Return 1 where the price list was asked, and knew every answer."""
    return [float("<price>" in text and "- not found" not in text) for text in completions]
