"""The state of several processes: any rows of it can be read, and what is missing or damaged is told."""

import json

import pytest
import torch

from ramify.core.errors import DataError
from ramify.learner.optimizer_files import StoredState, held_state, write_state_tensors
from ramify.modeling.tensor_files import write_tensors

WHOLE = {"exp_avg.a": torch.arange(14.0).reshape(7, 2), "step.a": torch.tensor(3.0)}


def write_parts(folder, sizes, total=7):
    """The state as processes with these numbers of rows write it."""
    start = 0
    for number, size in enumerate(sizes):
        tensors = {"exp_avg.a": WHOLE["exp_avg.a"][start : start + size]}
        if not number:
            tensors["step.a"] = WHOLE["step.a"]
        path = folder / f"optimizer-{number + 1:05d}-of-{len(sizes):05d}.safetensors"
        write_tensors(path, tensors, {"rows": json.dumps({"exp_avg.a": [start, total]})})
        start += size


@pytest.mark.parametrize("sizes", [(4, 3), (3, 3, 1), (7, 0, 0)])
def test_any_rows_are_read_whoever_wrote_them(tmp_path, sizes):
    write_parts(tmp_path, sizes)
    stored = StoredState(tmp_path)
    assert sorted(stored.names) == sorted(WHOLE)
    assert stored.head("exp_avg.a").shape == (7, 2)
    assert torch.equal(stored.rows("step.a", slice(None)), WHOLE["step.a"])
    for rows in (slice(None), slice(0, 2), slice(2, 5), slice(6, 7), slice(7, 7)):
        assert torch.equal(stored.rows("exp_avg.a", rows), WHOLE["exp_avg.a"][rows])


def test_one_process_writes_one_file(tmp_path):
    write_state_tensors(tmp_path, held_state(WHOLE, 0, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["optimizer.safetensors"]
    stored = StoredState(tmp_path)
    assert all(torch.equal(stored.rows(name, slice(None)), tensor) for name, tensor in WHOLE.items())


@pytest.mark.parametrize(
    ("sizes", "spoil", "message"),
    [
        ((4, 3), lambda f: (f / "optimizer-00002-of-00002.safetensors").unlink(), "00002.* is missing"),
        ((4, 2), lambda f: None, "exp_avg.a has 6 rows, expected 7"),
        ((4, 3), lambda f: shorten(f / "optimizer-00001-of-00002.safetensors"), "00001-of-00002.*: "),
        ((4, 3), lambda f: retell(f, "not JSON"), "00002-of-00002.*: "),
        ((4, 3), lambda f: retell(f, '{"exp_avg.a": [5, 7]}'), "goes on from row 4, got rows from 5"),
        ((4, 3), lambda f: retell(f, '{"exp_avg.a": [4, 9]}'), "goes on from row 4, got rows from 4"),
        ((4, 3), lambda f: retell(f, '{"exp_avg.a": "all"}'), "00002-of-00002.*: "),
    ],
)
def test_what_is_missing_or_damaged_is_told_in_a_line(tmp_path, sizes, spoil, message):
    write_parts(tmp_path, sizes)
    spoil(tmp_path)
    with pytest.raises(DataError, match=message) as error:
        StoredState(tmp_path)
    assert "\n" not in str(error.value)


def shorten(path):
    path.write_bytes(path.read_bytes()[:-1])


def retell(folder, rows):
    path = folder / "optimizer-00002-of-00002.safetensors"
    path.unlink()
    write_tensors(path, {"exp_avg.a": WHOLE["exp_avg.a"][4:]}, {"rows": rows})
