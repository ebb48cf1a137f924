"""Our side of rows 8 and 8b: a fresh process that makes updates and says how much memory they take."""

import pickle
from pathlib import Path
from typing import Any

from benchmarks.harness.answer import answer_lines
from benchmarks.harness.high_water import peak_above


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """`folder`: of the model; `warm_up`, `rows`: files of packed rows; `denominator`."""
    from benchmarks.update.ours import make_learner

    learner = make_learner(Path(question["folder"]))
    warm_up, rows = (pickle.loads(Path(question[key]).read_bytes()) for key in ("warm_up", "rows"))
    # The optimizer's state comes before the work; gradients are taken off afterwards.
    learner.update_rows(warm_up, 1.0)
    first, second = (peak_above(lambda: learner.update_rows(rows, question["denominator"])) for _ in range(2))
    gradients = sum(p.nbytes for p in learner.model.parameters())
    return {"first": first - gradients, "second": second - gradients}


if __name__ == "__main__":
    answer_lines(answer)
