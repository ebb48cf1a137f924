"""Texts of others, cut to a limit."""


def cut_to(limit: int, text: str) -> str:
    """Return at most `limit` characters of a text; a longer one ends with how many more there were."""
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]}\n[cut: {left_out} more characters]"
