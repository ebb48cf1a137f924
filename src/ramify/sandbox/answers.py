"""Reading a zygote's answer: how a program ended, and its two output streams as text."""

from collections.abc import Mapping
from typing import Any

from ramify.core.protocols import SandboxResult, SandboxStatus
from ramify.sandbox.snippet import NOT_REPLAYED, failed_cell, own_errors

_SHOWN_FOLDER = "/sandbox"


def read_answer(head: Mapping[str, Any], body: bytes, level: int, mark: str = "") -> SandboxResult:
    """Turn an answer (`calls.Call.answer`) into a result.

    Args:
        head: The head of the answer's frame.
        body: The kept standard output, then the kept standard error.
        level: Isolation level of the zygote.
        mark: The mark of the request, if it had cells (see `snippet`).
    """
    limit, cut = head["limit"], head["stdout_kept"]
    status, note = SandboxStatus(head["status"]), head["note"]
    failed = failed_cell(head["num_marks"], head["num_cells"])
    if failed is not None and status is SandboxStatus.OK:
        status, note = SandboxStatus.ERROR, NOT_REPLAYED
    shown = _text(body[:cut], head["stdout_bytes"], limit, head["folder"], keep_tail=False)
    errors = _text(body[cut:], head["stderr_bytes"], limit, head["folder"], keep_tail=True)
    if head["num_cells"]:
        errors = own_errors(errors, mark, failed)
    said = "\n".join(filter(None, (errors, note)))
    return SandboxResult(status, shown, said, level, failed_cell=failed)


def _text(kept: bytes, num_bytes: int, limit: int, folder: str, *, keep_tail: bool) -> str:
    """A stream's kept bytes as text. The snippet's folder is shown under one fixed name, so equal calls give equal text."""
    text = kept.decode("utf-8", "replace").replace(folder, _SHOWN_FOLDER)
    if num_bytes <= limit:
        return text
    note = f"[output cut at {limit} bytes]"
    return f"{note}\n{text}" if keep_tail else f"{text}\n{note}"
