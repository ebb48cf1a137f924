"""The first example: a tiny model that is trained from nothing in a world of its own, in minutes on a CPU."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from ramify.chat.tokenizer import ChatTokenizer
from ramify.modeling.load import save_model, writing_model
from ramify.modeling.tiny import make_tiny_qwen3
from ramify.obs.console import RunConsole
from ramify.quickstart.demonstrator import write_demonstrations
from ramify.quickstart.example import Example, ExampleData, Settings, search_tool
from ramify.quickstart.world_files import WorldSettings, build_world
from ramify.quickstart.world_tokenizer import train_world_tokenizer

FULL = WorldSettings(num_train=750, num_dev=100, num_test=500, num_seen=250)
SMOKE = WorldSettings(num_train=30, num_dev=10, num_test=20, num_seen=20, num_demo_editions=10)
_SHARES = {"data": 0.02, "SFT": 0.42, "RL": 0.38, "evaluation": 0.18}
_SMOKE_SHARES = {"data": 0.05, "SFT": 0.20, "RL": 0.25, "evaluation": 0.50}


def make_example(difficulty: int, *, smoke: bool) -> Example:
    """Return the example in a world of some difficulty; `smoke` is a miniature that learns nothing."""
    size = SMOKE if smoke else FULL
    settings = replace(size, difficulty=difficulty)
    # Tokens and calls that a question of the difficulty can need, with room to try again.
    limits = {"max_tokens": 256, "max_calls": 10} if difficulty > 1 else {"max_tokens": 180, "max_calls": 7}
    short: Settings = {"learner.optimizer.warmup_steps": 3} if smoke else {}
    return Example(
        name="quickstart",
        base="Untrained",
        make_data=partial(_make_data, settings, 480 if smoke else 19_200),
        shares=_SMOKE_SHARES if smoke else _SHARES,
        sft=short,
        rl={
            **{f"rollout.{key}": value for key, value in limits.items()},
            **({"learner.optimizer.warmup_steps": 1, "preflight.enabled": False} if smoke else {}),
        },
        evaluation={f"sampling.{key}": value for key, value in limits.items()},
        greedy=True,
    )


def _make_data(
    settings: WorldSettings, num_demonstrations: int, out: Path, seed: int, console: RunConsole
) -> ExampleData:
    with console.phase("data", 3) as phase:
        world = build_world(out / "world", settings, seed)
        phase.advance(passages=world.num_passages)
        with writing_model(out / "base"):
            write_base(out / "base", seed)
        phase.advance()
        demonstrations = out / "world" / "demonstrations.jsonl"
        with search_tool("quickstart", world.passages) as search:
            summary = write_demonstrations(demonstrations, settings, seed, num_demonstrations, search)
        phase.advance(demonstrations=summary.count, correct=f"{summary.correct:.0%}")
    return ExampleData(
        out / "base", demonstrations, world.train, world.passages, world.test, world.train_entities
    )


def write_base(folder: Path, seed: int) -> None:
    """Write the untrained model."""
    train_world_tokenizer(folder)
    tokenizer = ChatTokenizer(folder)
    model = make_tiny_qwen3(
        vocab_size=tokenizer.vocab_size,
        hidden=128,
        layers=2,
        heads=4,
        kv_heads=4,
        head_dim=32,
        intermediate=384,
        rope_theta=100.0,
        context=512,
        eos_id=tokenizer.eos_id,
        pad_id=0,
        seed=seed,
    )
    save_model(model, folder)
