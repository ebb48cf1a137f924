"""Tensors come back bit for bit, others read them too, and no damaged file is taken for a whole one."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from ramify.modeling.tensor_files import read_heads, read_rows, write_tensors

TENSORS = {
    "step": torch.tensor(7.0),
    "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "turned": torch.arange(12.0).reshape(3, 4).T,
    "empty": torch.zeros(0, 3),
    "wide": torch.tensor([1.0, 2.0], dtype=torch.float64),
}


def read_tensors(path):
    return {name: read_rows(path, name) for name in read_heads(path)[0]}


def equal(left, right):
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


@pytest.mark.parametrize("tensors", [TENSORS, {}], ids=["some", "none"])
def test_what_is_written_is_what_safetensors_reads(tmp_path, tensors):
    write_tensors(tmp_path / "a", tensors)
    assert equal(read_tensors(tmp_path / "a"), tensors)
    assert equal(load_file(tmp_path / "a"), tensors)


def test_heads_rows_and_metadata_are_read_alone(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {"rows": "some"})
    heads, metadata = read_heads(tmp_path / "a")
    assert {name: (head.dtype, head.shape) for name, head in heads.items()} == {
        name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in TENSORS.items()
    }
    assert metadata == {"format": "pt", "rows": "some"}
    assert torch.equal(read_rows(tmp_path / "a", "turned", slice(1, 3)), TENSORS["turned"][1:3])


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    write_tensors(tmp_path / "a", TENSORS)
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "a", {})


def with_header(content, **changes):
    """The file with another header for `turned`."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["turned"].update(changes)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: b"",
        lambda c: c[:7],
        lambda c: c[:20],
        lambda c: c[:-1],
        lambda c: c + b"\0",
        lambda c: (1 << 62).to_bytes(8, "little") + c[8:],
        lambda c: (len(c)).to_bytes(8, "little") + c[8:],
        lambda c: b"\xff" * len(c),
        lambda c: (100_000).to_bytes(8, "little") + b"[" * 100_000,
        lambda c: with_header(c, dtype="I32"),
        lambda c: with_header(c, dtype="F99"),
        lambda c: with_header(c, shape=[3, 1 << 40]),
        lambda c: with_header(c, shape=[-1]),
        lambda c: with_header(c, data_offsets=[0, 1 << 60]),
        lambda c: with_header(c, data_offsets=[48, 0]),
        lambda c: with_header(c, data_offsets=[0, 16]),
    ],
)
def test_a_damaged_file_is_refused_in_a_line(tmp_path, damage):
    write_tensors(tmp_path / "a", TENSORS)
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(damage(content))
    with pytest.raises(ValueError, match=r".") as error:
        read_tensors(tmp_path / "a")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused(tmp_path, value):
    save_file({"fine": torch.ones(2), "broken": torch.tensor([1.0, value])}, tmp_path / "a")
    with pytest.raises(ValueError, match="broken is not made of finite numbers"):
        read_tensors(tmp_path / "a")


def test_whatever_bytes_change_it_is_read_or_refused(tmp_path):
    write_tensors(tmp_path / "a", TENSORS)
    content = (tmp_path / "a").read_bytes()
    draw = random.Random(0)
    refused = 0
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        (tmp_path / "a").write_bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed))])])
        try:
            read_tensors(tmp_path / "a")
        except ValueError:
            refused += 1
    assert refused > 200
