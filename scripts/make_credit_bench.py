"""Makes the worlds of `rf.bench_credit`: trees of a cold start's policy, and an audit of them.

    python scripts/make_credit_bench.py WORLD RECIPE WORK KEY=VALUE ...

WORLD is a name of `ramify.study.bench.WORLDS`, RECIPE one of recipes/, WORK a new folder; the settings name the model and the data. It
writes src/ramify/study/worlds/WORLD.jsonl.xz.
"""

import json
import subprocess
import sys
from pathlib import Path

from ramify.cli import main
from ramify.obs.trace import read_trees
from ramify.study.bench import WORLDS, pack_world

ROOT = Path(__file__).resolve().parents[1]
PROBLEMS, DECISIONS, SAMPLES = 20, 60, 24


def make(world: str, recipe: str, work: Path, settings: list[str]) -> None:
    """Grow trees, audit them, and pack both."""
    words = [word for setting in settings for word in ("-s", setting)]
    run, audit = work / "run", work / "audit"
    rollout = ["rollout", recipe, "--problems", f"{PROBLEMS}", *words, "-s", f"run.dir={run}"]
    audited = [
        "audit",
        f"{run}",
        "--out",
        f"{audit}",
        "--decisions",
        f"{DECISIONS}",
        "--samples",
        f"{SAMPLES}",
    ]
    for command in (rollout, audited):
        if main(command) != 0:
            raise SystemExit(f"ramify {' '.join(command)}")
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    about = {
        "world": world,
        "commit": commit.stdout.strip(),
        "commands": [" ".join(("ramify", *command)) for command in (rollout, audited)],
        "seeds": "run.seed of the recipe (0), --seed 0",
    }
    effects = [json.loads(line) for line in (audit / "effects.jsonl").read_text().splitlines()]
    for effect in effects:
        effect["trace"] = world
    content = pack_world(about, read_trees(run / "trees" / "000001.jsonl"), effects)
    path = ROOT / "src" / "ramify" / "study" / "worlds" / f"{world.replace(' ', '_')}.jsonl.xz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    sys.stdout.write(f"{path}: {len(content)} bytes\n")


if __name__ == "__main__":
    assert sys.argv[1] in WORLDS, f"expected one of {WORLDS}"
    make(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
