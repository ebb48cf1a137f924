"""What a recipe takes from the folder of another run."""

from pathlib import Path

from ramify.core.errors import ConfigError, DataError


def read_rate(run_dir: Path) -> float:
    """The branch rate that a training run has had.

    Raises:
        ConfigError: The folder is no run folder.
        DataError: The run's metrics cannot be read, or hold no rate.
    """
    from ramify.obs.branch_metrics import realised_rate
    from ramify.obs.metrics import read_metrics

    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        raise ConfigError(f"rollout.branching.rate_from: expected a run's folder, {path} is missing")
    rate = realised_rate(read_metrics(path))
    if rate is None:
        raise DataError(f"{path}: expected branch/rate and branch/decisions, found no step with decisions")
    return rate
