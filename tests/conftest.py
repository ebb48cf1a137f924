"""Fixtures shared by all tests."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

# One thread for each of the processes that share the tests out.
os.environ["OMP_NUM_THREADS"] = "1"
# Compiled kernels of a processor that is limited are not those of the whole one, which the same cache would give: a crash.
if limit := os.environ.get("ATEN_CPU_CAPABILITY"):
    os.environ.setdefault(
        "TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor_{limit}")
    )


import pytest

from forked_runs import ForkedRuns
from model_folders import write_model, write_tokenizer

with suppress(ImportError):  # `make gpu` needs no hypothesis
    from hypothesis import HealthCheck, settings
    from hypothesis.internal.conjecture import providers

    # By hand too (with CI set it is so): how long an example takes says how busy this machine is.
    settings.register_profile(
        "default",
        settings.get_profile("default"),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    if settings().derandomize:
        # Else it draws constants of all modules that the tests before have imported: another order, other examples.
        providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `model_folder`, without weights, which take torch to make."""
    folder = tmp_path_factory.mktemp("models") / "tokenizer"
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def forked(tmp_path_factory):
    """Run the command line in forks of one process, and kill them where a test says so."""
    runs = ForkedRuns(tmp_path_factory.mktemp("forked"))
    yield runs
    runs.close()


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    folder = Path(os.environ.get("RAMIFY_SHARED", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder} (set RAMIFY_SHARED)")
    return folder
