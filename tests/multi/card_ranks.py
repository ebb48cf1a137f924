"""ramify on ranks with GPUs of paper: what a rank keeps and computes is booked on its card (`cards`), as an allocator would."""

import os
import sys
from functools import wraps
from pathlib import Path

import torch

import cards
from ramify.cli import main
from ramify.learner.worker import Worker
from ramify.train import row_memory

COMPUTES = ("forward", "gradients", "step", "whole_parameters", "begin_writing", "write_state", "load_weights")  # fmt: skip


def book_on(card):
    """Have the worker's methods book what they take."""

    def computing(method):
        @wraps(method)
        def work(worker, *arguments):
            try:
                card.book(cards.PEAK, "computes")
            except cards.OverlapError as error:
                raise torch.OutOfMemoryError(f"CUDA {error}") from None
            return method(worker, *arguments)

        return work

    def building(worker, *arguments):
        build(worker, *arguments)
        card.book(cards.RESIDENT, "built")

    def release(worker):
        card.book(cards.RESIDENT, "released")

    for name in COMPUTES:
        setattr(Worker, name, computing(getattr(Worker, name)))
    build, Worker.__init__, Worker.release_memory = Worker.__init__, building, release
    # On a GPU the largest row is computed at the start.
    row_memory.compute_device = lambda model: torch.device("cuda")
    row_memory.available_bytes = lambda device: 1 << 40


if __name__ == "__main__":
    number = os.environ["LOCAL_RANK"]
    book_on(cards.Card(Path(os.environ[cards.FOLDER]), number, f"rank-{number}"))
    sys.exit(main(sys.argv[1:]))
