"""Two hundred damaged model folders, each refused in one line, by what every command reads a folder with."""

import shutil

import pytest

from damaged_folders import damages
from model_folders import write_model
from ramify.assemble.model import build_model, build_tokenizer
from ramify.commands.check_files import require_model
from ramify.core.errors import UserError
from ramify.modeling.configs import ModelConfig

COUNT = 200


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("good") / "model", layers=2)


def param_of(damage):
    """One template runs until its time limit ends it: too long for a unit test."""
    marks = pytest.mark.integration if "hardly ends" in str(damage) else ()
    return pytest.param(damage, id=str(damage), marks=marks)


def read(folder):
    """As a run does: a look at the files, then the tokenizer, then the weights."""
    require_model(folder)
    build_tokenizer(folder)
    return build_model(ModelConfig(path=folder, device="cpu"), 100)


def test_the_good_folder_is_read(good):
    assert read(good).config.model_type == "qwen3"


@pytest.mark.parametrize("damage", [param_of(damage) for damage in damages(seed=0, count=COUNT)])
def test_a_damaged_folder_is_refused_in_one_line(damage, good, tmp_path, capfd):
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    damage.do(folder)
    with pytest.raises(UserError) as refused:
        read(folder)
    message = str(refused.value)
    assert damage.about in message
    assert str(folder) in message
    assert "\n" not in message.strip()
    assert len(message) < 700
    assert capfd.readouterr() == ("", "")
