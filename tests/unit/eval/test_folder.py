"""Whether an evaluation may use a folder: what a kill left does not count, what is not its own is refused."""

import pytest

from ramify.core.errors import ConfigError
from ramify.eval.folder import check_eval_folder


@pytest.mark.parametrize("left", [".lock", "recipe.toml.part", "manifest.json.part", "results.jsonl.part"])
def test_what_a_kill_left_does_not_count(tmp_path, left):
    (tmp_path / left).write_text("{")
    check_eval_folder(tmp_path, resume=False)
    check_eval_folder(tmp_path, resume=True)


def test_an_evaluation_is_resumed_and_anything_else_is_not_touched(tmp_path):
    (tmp_path / "results.jsonl").write_text("")
    check_eval_folder(tmp_path, resume=True)
    with pytest.raises(ConfigError, match="holds an evaluation; go on with --resume"):
        check_eval_folder(tmp_path, resume=False)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        check_eval_folder(tmp_path, resume=True)


@pytest.mark.parametrize("name", ["manifest.json", "results.jsonl", "trees.jsonl", "report.html"])
def test_a_link_is_refused_before_it_is_followed(tmp_path, name):
    folder, outside = tmp_path / "run", tmp_path / "outside"
    folder.mkdir()
    (folder / name).symlink_to(outside)
    with pytest.raises(ConfigError, match=rf"run\.dir: .*{name} is a link"):
        check_eval_folder(folder, resume=True)
    assert not outside.exists()
