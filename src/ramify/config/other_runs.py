"""Values that a recipe takes from the folder of another run."""

from pathlib import Path

from ramify.core.errors import ConfigError, DataError


def read_rate(run_dir: Path) -> float:
    """The rate at which `random` branches as often as the rule of a training run did.

    Raises:
        ConfigError: The folder is not that of a run.
        DataError: The run's metrics cannot be read, or hold no rate.
    """
    from ramify.obs.branch_metrics import rate_of_control
    from ramify.obs.metrics import read_metrics

    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        raise ConfigError(f"rollout.branching.rate_from: expected a run's folder, {path} is missing")
    rate = rate_of_control(read_metrics(path))
    if rate is None:
        raise DataError(
            f"{path}: expected branch/matched_rate and branch/decisions, found no step with decisions"
        )
    return rate
