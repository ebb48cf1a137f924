"""A second process on the card: it opens a context, takes and gives back memory, and reads a folder of weights."""

import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.harness.answer import answer_lines

_TAKEN: list[torch.Tensor] = []


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Do what the question names: "open", "take" so many bytes, "release", or "read" a folder."""
    device = torch.device(question["device"])
    if question["do"] == "open":
        torch.zeros(1, device=device)
        _wait(device)
        return {}
    if question["do"] == "take":
        _TAKEN.append(torch.zeros(question["bytes"], dtype=torch.uint8, device=device))
        _wait(device)
        return {"bytes": _TAKEN[-1].numel()}
    if question["do"] == "release":
        _TAKEN.clear()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return {}
    started = time.perf_counter()
    tensors = {
        name: tensor
        for file in sorted(Path(question["folder"]).glob("*.safetensors"))
        for name, tensor in load_file(file, device=str(device)).items()
    }
    _wait(device)
    seconds = time.perf_counter() - started
    sums = {
        name: int(t.contiguous().view(-1).view(torch.int16).sum(dtype=torch.int64))
        for name, t in tensors.items()
    }
    return {"seconds": seconds, "sums": sums}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    answer_lines(answer)
