import pytest
from pydantic import BaseModel

from ramify.core.errors import ConfigError
from ramify.obs.files import replace_lines
from ramify.obs.metrics import read_metrics
from ramify.train.run_folder import RunFolder, check_run_folder, claim_run_folder


def test_what_a_kill_left_of_later_steps_is_forgotten(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.metrics.append(step, {"loss": 0.5})
        replace_lines(folder.trees(step), [])
        replace_lines(folder.timing(step), [])
    folder.trees(4).with_name("000004.jsonl.part").write_bytes(b"{")
    folder.rewind(1)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1]
    for name in ("trees", "timing"):
        assert [path.name for path in (tmp_path / name).iterdir()] == ["000001.jsonl"]


class Recipe(BaseModel):
    name: str = "a"


def test_a_run_folder_belongs_to_one_process_at_a_time(tmp_path):
    path = tmp_path / "run"
    with (
        claim_run_folder(path, Recipe(), resume=False),
        pytest.raises(ConfigError, match="in use by another process"),
        claim_run_folder(path, Recipe(), resume=False),
    ):
        pass
    assert not path.exists()
    with claim_run_folder(path, Recipe(), resume=False) as folder:
        folder.create(Recipe())
    with pytest.raises(ConfigError, match="go on with --resume"):
        check_run_folder(path, Recipe(), resume=False)
    with claim_run_folder(path, Recipe(), resume=True):
        pass
    with pytest.raises(ConfigError, match="differs from the recipe"):
        check_run_folder(path, Recipe(name="b"), resume=True)
    (path / "recipe.json").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="differs from the recipe"):
        check_run_folder(path, Recipe(), resume=True)
