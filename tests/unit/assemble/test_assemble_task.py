"""Groups of trees that are grown together."""

from ramify.assemble.task import group_size
from ramify.engines.configs import LocalEngineConfig, ScriptedEngineConfig
from ramify.runs.configs import RunConfig


def test_only_a_deterministic_run_on_a_local_engine_grows_whole_groups():
    local = LocalEngineConfig(name="local", slots=12)
    certain = RunConfig(dir="run", deterministic=True)
    assert group_size(certain, local) == 12
    assert group_size(RunConfig(dir="run"), local) is None
    assert group_size(certain, ScriptedEngineConfig(name="scripted", script="s.toml")) is None
