"""Rows of the verl-style parquet that ARPO, AEPO and Tool-Star train on, as plain rows.

Columns: data_source, prompt[role, content], ability, reward_model{ground_truth, ...}, extra_info{index, ...},
metadata.
"""

from collections.abc import Collection, Mapping
from typing import Any

_BROKEN_BOXED = "\x08oxed"


def is_verl(columns: Collection[str]) -> bool:
    """Whether a table with these columns is in the verl style."""
    return "reward_model" in columns and "answer" not in columns


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A verl row as {"prompt", "answer", free columns}; the fields of extra_info become free columns.

    Raises:
        ValueError: `reward_model` or `extra_info` is not a record.
    """
    reward_model = _record(row, "reward_model")
    extra_info = _record(row, "extra_info")
    kept = {key: row[key] for key in row if key not in ("reward_model", "extra_info")}
    # extra_info may contain a "prompt", an "answer" or an "id"; they must not replace our columns.
    free = {key: value for key, value in extra_info.items() if key not in ("prompt", "answer", "id")}
    return {**free, **kept, "answer": reward_model.get("ground_truth")}


def repair_boxed(text: str) -> str:
    r"""Repair a defect of published prompts: a backspace (U+0008) before "oxed" where "\boxed" was meant."""
    return text.replace(_BROKEN_BOXED, r"\boxed")


def _record(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key!r} must be a record, got {type(value).__name__}")
    return value
