"""Shards that torch wrote for FSDP on real ranks come back bit for bit, and wrong ones are refused."""

import functools
import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from ramify.core.errors import DataError
from ramify.modeling import verl_shards
from ramify.modeling.verl_files import find_checkpoint
from ramify.modeling.verl_pickles import require_intact
from ramify.modeling.verl_shards import VerlShards
from verl_checkpoints import (
    damaged_shard,
    rewrite,
    whole_tensors,
    with_mesh,
    write_many_sharded,
    write_plain,
    write_small_model,
)

pytestmark = pytest.mark.integration  # ranks are started

MESHES = ((3,), (1,), (2, 2))
KINDS = ("fsdp1", "fsdp2", "tensors", "torch 2.4")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("verl") / "model")


@pytest.fixture
def tensors(model):
    return whole_tensors(model)


def shards_at(folder):
    return VerlShards(find_checkpoint(folder).shards)


def require_equal(shards, tensors):
    assert shards.shapes.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(shards.tensor(name, torch.float32), tensor), name


@pytest.fixture(scope="module")
def actors(tmp_path_factory, model):
    """Steps on the ranks of a mesh, which are started once: of each kind, and one of another model or with partial sums."""
    folder = tmp_path_factory.mktemp("verl")
    others = {(3,): {"vocab_size": 8}, (2, 2): {"tied": False}}

    @functools.cache
    def on(mesh):
        on_mesh = folder / str(mesh)
        on_mesh.mkdir()
        saves = [(on_mesh / kind, model, mesh, kind) for kind in KINDS]
        if mesh in others:
            other = write_small_model(on_mesh / "model", **others[mesh])
            saves.append((on_mesh / "other", other, mesh, "tensors"))
        else:
            saves.append((on_mesh / "other", model, mesh, "partial"))
        return dict(zip((*KINDS, "other"), write_many_sharded(saves, on_mesh / "scratch"), strict=True))

    return on


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_joined_bit_for_bit(actors, tensors, mesh, kind):
    require_equal(shards_at(actors(mesh)[kind]), tensors)


def test_shards_that_torch_2_4_wrote_are_joined():
    """FSDP1 of torch 2.4.1 on three ranks, over linear maps with 7 and 2 rows; `whole.pt` is the model's state."""
    folder = Path(__file__).parent / "shards_of_torch_2_4"
    shards = shards_at(folder)
    assert {shards._layouts[name].split for name in shards.shapes} == {(0,)}
    require_equal(shards, torch.load(folder / "whole.pt", weights_only=True))


@pytest.fixture(scope="module")
def three(actors):
    return actors((3,))["tensors"]


@pytest.fixture
def copied(three, tmp_path):
    """A copy of it that a test may damage."""
    actor = tmp_path / "global_step_7" / "actor"
    actor.mkdir(parents=True)
    for file in three.glob("*.pt"):
        (actor / file.name).write_bytes(file.read_bytes())
    return actor


def test_the_local_parts_are_uneven_and_one_is_empty(three):
    shards = shards_at(three)
    rows = {
        name: [len(rank[name].local) for rank in shards._ranks]
        for name in ("lm_head.weight", "model.layers.0.self_attn.k_norm.weight")
    }
    assert list(rows.values()) == [[3, 3, 1], [1, 1, 0]]


def test_files_are_opened_again_when_much_of_them_was_read(three, tensors, monkeypatch):
    monkeypatch.setattr(verl_shards, "REOPEN_BYTES", 300)
    shards = shards_at(three)
    before = shards._ranks
    require_equal(shards, tensors)
    assert shards._ranks is not before


def test_plain_tensors_are_taken_if_all_ranks_have_the_same(tmp_path, model, tensors):
    require_equal(shards_at(write_plain(tmp_path / "one", tensors, model)), tensors)
    actor = write_plain(tmp_path / "two", tensors, model, ranks=2)
    require_equal(shards_at(actor), tensors)
    changed = tensors | {"model.norm.weight": tensors["model.norm.weight"] + 1}
    torch.save(changed, actor / "model_world_size_2_rank_1.pt")
    with pytest.raises(DataError, match=r"rank_1\.pt: model\.norm\.weight differs from rank 0"):
        require_equal(shards_at(actor), tensors)


def test_copies_that_differ_are_refused(tmp_path, actors, tensors):
    actor = tmp_path / "global_step_7" / "actor"
    shutil.copytree(actors((2, 2))["tensors"], actor)
    name = "model_world_size_4_rank_3.pt"
    (actor / name).write_bytes((actors((2, 2))["other"] / name).read_bytes())
    with pytest.raises(DataError, match=r"rank_3\.pt: lm_head\.weight differs from rank 1"):
        require_equal(shards_at(actor), tensors)


def shard(actor, rank):
    return actor / f"model_world_size_3_rank_{rank}.pt"


def test_a_missing_rank_is_refused(copied):
    shard(copied, 1).unlink()
    with pytest.raises(DataError, match=r"rank 1 of 3 missing .*Copy the files of all nodes"):
        shards_at(copied)


def test_mixed_world_sizes_are_refused(copied):
    (copied / "model_world_size_2_rank_0.pt").write_bytes(b"")
    with pytest.raises(DataError, match="world sizes 2 and 3 are mixed"):
        shards_at(copied)


@pytest.mark.parametrize("length", [0, 1, 1000, -20])
def test_a_file_that_is_cut_off_is_refused(copied, length):
    whole = shard(copied, 2).read_bytes()
    shard(copied, 2).write_bytes(whole[:length])
    with pytest.raises(DataError, match=r"rank_2\.pt: cannot be read .*copy it again"):
        shards_at(copied)


class Code:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("nested", [False, True])
def test_code_in_a_pickle_is_not_run(copied, tensors, tmp_path, nested):
    mark = tmp_path / "mark"
    code = Code(mark)
    torch.save({"a": {"b": [code]}, **tensors} if nested else code, shard(copied, 0))
    with pytest.raises(DataError, match=r"rank_0\.pt: holds posix\.mkdir, .*it was not run"):
        shards_at(copied)
    assert not mark.exists()


def test_classes_that_others_allowed_are_not_made(copied):
    torch.save({"a": Code}, shard(copied, 0))
    with torch.serialization.safe_globals([Code]):
        with pytest.raises(DataError, match=r"rank_0\.pt: holds .*Code"):
            shards_at(copied)
        assert Code in torch.serialization.get_safe_globals()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.zeros(2)], "expected tensors by name, found list"),
        ({}, "expected tensors by name"),
        ({"a": 3}, "a: expected a tensor, found int"),
        ({"a": torch.zeros(2, dtype=torch.int32)}, "a: is of type torch.int32, expected floats"),
    ],
)
def test_other_content_is_refused(copied, content, message):
    torch.save(content, shard(copied, 0))
    with pytest.raises(DataError, match=message):
        shards_at(copied)


def test_ranks_of_different_runs_are_refused(copied, actors):
    shard(copied, 1).write_bytes(shard(actors((3,))["other"], 1).read_bytes())
    with pytest.raises(
        DataError, match=r"rank_1\.pt: lm_head\.weight is \[8, 8\] float32 .* on rank 0 \[7, 8\]"
    ):
        shards_at(copied)


def test_partial_sums_are_refused(actors):
    with pytest.raises(DataError, match="partial sums and strides are not read"):
        shards_at(actors((1,))["other"])


def test_a_mesh_of_fewer_ranks_than_files_is_refused(copied, actors):
    whole = (actors((1,))["tensors"] / "model_world_size_1_rank_0.pt").read_bytes()
    for rank in range(3):
        shard(copied, rank).write_bytes(whole)
    with pytest.raises(DataError, match="spread over 1 ranks, but there are 3 files"):
        shards_at(copied)


def test_the_newest_step_is_taken(tmp_path, model, tensors):
    save = tmp_path / "save"
    for step in (5, 20):
        write_plain(save, tensors, model, step=step)
    (save / "global_step_30").mkdir()
    checkpoint = find_checkpoint(save)
    assert (checkpoint.step, checkpoint.folder.parent.name) == (20, "global_step_20")
    assert find_checkpoint(save / "global_step_5").step == 5
    assert find_checkpoint(save / "global_step_5" / "actor").step == 5
    (save / "latest_checkpointed_iteration.txt").write_text("40")
    with pytest.raises(
        DataError, match=r"step 40, but global_step_40 is missing.*: global_step_5, global_step_20"
    ):
        find_checkpoint(save)
    (save / "latest_checkpointed_iteration.txt").unlink()
    with pytest.raises(DataError, match="global_step_5, global_step_20"):
        find_checkpoint(save)


def test_shards_in_the_step_itself_are_found(tmp_path, model, tensors):
    actor = write_plain(tmp_path, tensors, model)
    for file in actor.glob("*.pt"):
        file.rename(actor.parent / file.name)
    assert find_checkpoint(tmp_path / "global_step_7").step == 7


@pytest.mark.parametrize("short", [4, 1, 100])
def test_a_record_that_is_shorter_than_its_tensor_is_refused(copied, short):
    def change(records):
        records["data/0"] = records["data/0"][:-short]

    rewrite(shard(copied, 0), change)
    with pytest.raises(DataError, match=r"rank_0\.pt: its tensors have other sizes than its records"):
        shards_at(copied)


def _layout(*axes):
    from torch.distributed._mesh_layout import _FlatLayout, _MeshLayout

    return _MeshLayout(tuple(_FlatLayout(shape, stride) for shape, stride in axes))


BOMBS = {
    "a list of ranks": lambda mesh: object.__setattr__(
        mesh, "_rank_map", torch.zeros(1, dtype=torch.int32).expand(10**9)
    ),
    "a long axis": lambda mesh: object.__setattr__(mesh, "_layout", _layout(((10**9,), (0,)))),
    "two axes": lambda mesh: object.__setattr__(mesh, "_layout", _layout(((10**5, 10**5), (0, 0)))),
    "an axis of none": lambda mesh: object.__setattr__(mesh, "_layout", _layout(((10**9, 0), (0, 0)))),
    "strides that lead out": lambda mesh: object.__setattr__(mesh, "_layout", _layout(((3,), (10**9,)))),
    "strides that lead back": lambda mesh: object.__setattr__(mesh, "_layout", _layout(((3,), (-1,)))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BOMBS)
def test_a_mesh_of_more_ranks_than_files_is_refused_before_it_is_counted(copied, name):
    with_mesh(shard(copied, 0), BOMBS[name])
    start = time.monotonic()
    with pytest.raises(DataError, match=r"rank_0\.pt: lm_head\.weight: .*mesh"):
        shards_at(copied)
    assert time.monotonic() - start < 30


def test_more_numbers_than_are_stored_are_refused(copied):
    torch.save({"a": torch.zeros(1).expand(10**9)}, shard(copied, 0))
    with pytest.raises(DataError, match="more than are stored"):
        shards_at(copied)


@pytest.mark.parametrize("text", ["9" * 6000, "\u0663", "-1", "1e3", ""])
def test_the_number_of_the_newest_step_is_one(tmp_path, text):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="expected the number of a step"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize("seed", range(24))
def test_a_damaged_shard_is_refused_or_gives_the_right_weights(copied, tensors, seed):
    rng = random.Random(seed)
    damaged_shard(shard(copied, rng.randrange(3)), rng)
    start = time.monotonic()
    read = {}
    with suppress(DataError):
        for file in copied.glob("*.pt"):
            require_intact(file)
        shards = shards_at(copied)
        read = {name: shards.tensor(name, torch.float32) for name in shards.shapes}
    assert read.keys() <= tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in read)
    assert time.monotonic() - start < 30
