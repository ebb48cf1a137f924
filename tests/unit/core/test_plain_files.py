"""Files from outside that are read whole: never one that does not end."""

import os

import pytest

from ramify.core.errors import DataError
from ramify.core.plain_files import MAX_BYTES, read_small_file, require_plain_model


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def large(path):
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)


ODD = [(pipe, "a pipe"), (device, "a device"), (large, "bytes, expected at most")]


@pytest.mark.parametrize(("make", "told"), ODD)
def test_what_does_not_end_or_is_too_large_is_not_read(tmp_path, make, told):
    path = tmp_path / "config.json"
    make(path)
    with pytest.raises(DataError, match=rf"config\.json: .*{told}"):
        read_small_file(path)
    with pytest.raises(DataError, match=rf"config\.json: .*{told}"):
        require_plain_model(tmp_path)


def test_what_is_not_there_or_a_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_small_file(tmp_path / "none")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_small_file(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    with pytest.raises(DataError, match=r"dangling: cannot be read"):
        require_plain_model(tmp_path)


def test_links_folders_and_large_weights_are_no_harm(tmp_path):
    (tmp_path / "blob").write_bytes(b"{}")
    (tmp_path / "config.json").symlink_to(tmp_path / "blob")
    (tmp_path / "onnx").mkdir()
    large(tmp_path / "model.safetensors")
    require_plain_model(tmp_path)
    assert read_small_file(tmp_path / "config.json") == b"{}"
