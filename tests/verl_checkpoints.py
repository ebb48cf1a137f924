"""Checkpoints in verl's layout: FSDP shards that torch writes on real ranks, and plain ones made by hand."""

import pickletools
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from group_of_processes import on_ranks

NAMES_OF_2_4 = [
    (b"torch.distributed.tensor\nDTensor", b"torch.distributed._tensor.api\nDTensor"),
    (b"torch.distributed.tensor._dtensor_spec\nDTensorSpec", b"torch.distributed._tensor.placement_types\nDTensorSpec"),
    (b"torch.distributed.tensor._dtensor_spec\nTensorMeta", b"torch.distributed._tensor.placement_types\nTensorMeta"),
    (b"torch.distributed.tensor.placement_types\n", b"torch.distributed._tensor.placement_types\n"),
]  # fmt: skip
SIZES = {
    "vocab_size": 7, "hidden_size": 8, "intermediate_size": 7, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 2, "max_position_embeddings": 64,
    "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None, "initializer_range": 0.2,
}  # fmt: skip
"""On three ranks 7 rows are 3, 3 and 1, and 2 rows 1, 1 and none."""


def write_small_model(folder, *, tied=True, **sizes):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES | sizes, tie_word_embeddings=tied))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    return folder


def whole_tensors(model):
    """The tensors of a model folder's state dict; a tied head is in it too."""
    tensors = load_file(model / "model.safetensors")
    return {"lm_head.weight": tensors["model.embed_tokens.weight"], **tensors}


def write_sharded(save, model, mesh, scratch, *, kind="fsdp2", step=7):
    """A save folder with one step, whose shards `torch` wrote on as many ranks as the mesh has; returns the actor."""
    (actor,) = write_many_sharded([(save, model, mesh, kind)], scratch, step=step)
    return actor


def write_many_sharded(saves, scratch, *, step=7):
    """`write_sharded` for each (save, model, mesh, kind), by one group of processes; all meshes have as many ranks."""
    (ranks,) = {torch.Size(mesh).numel() for _, _, mesh, _ in saves}
    scratch.mkdir()
    actors = [save / f"global_step_{step}" / "actor" for save, *_ in saves]
    for actor in actors:
        actor.mkdir(parents=True)
    jobs = [
        (str(m), str(actor), tuple(mesh), kind)
        for actor, (_, m, mesh, kind) in zip(actors, saves, strict=True)
    ]
    on_ranks(ranks, _save_all, scratch, jobs)
    for actor, (save, model, *_) in zip(actors, saves, strict=True):
        _write_settings(save, actor, model, step)
    return actors


def write_plain(save, tensors, model, *, ranks=1, step=7):
    """The same with plain tensors on each rank."""
    actor = save / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    for rank in range(ranks):
        torch.save(tensors, actor / f"model_world_size_{ranks}_rank_{rank}.pt")
    _write_settings(save, actor, model, step)
    return actor


def _write_settings(save, actor, model, step):
    (actor / "huggingface").mkdir()
    for file in model.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copyfile(file, actor / "huggingface" / file.name)
    (save / "latest_checkpointed_iteration.txt").write_text(str(step))


def _save_all(rank, jobs):
    for job in jobs:
        with pytest.MonkeyPatch.context() as patch:
            _save(rank, patch, *job)


def _save(rank, patch, model_folder, actor, mesh_shape, kind):
    names = ("fsdp",) if len(mesh_shape) == 1 else ("ddp", "fsdp")
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    ranks = torch.Size(mesh_shape).numel()
    file = Path(actor, f"model_world_size_{ranks}_rank_{rank}.pt")
    if kind == "torch 2.4":
        patch.setattr(
            DeviceMesh,
            "__getstate__",
            lambda mesh: {"device_type": "cpu", "mesh": mesh.mesh, "mesh_dim_names": names},
            raising=False,
        )
    torch.save(_state(model_folder, mesh, kind), file)
    if kind == "torch 2.4":
        _rename(file)


def _state(model_folder, mesh, kind):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from transformers import AutoModelForCausalLM

    if kind in ("tensors", "torch 2.4"):
        placements = [Replicate()] * (mesh.ndim - 1) + [Shard(0)]
        return {
            name: distribute_tensor(tensor, mesh, placements)
            for name, tensor in whole_tensors(Path(model_folder)).items()
        }
    if kind == "partial":
        return {"a": DTensor.from_local(torch.ones(2), mesh, [Partial()])}
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    if kind == "fsdp1":
        return _fsdp1_state(model, mesh)
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model.state_dict()


def _fsdp1_state(model, mesh):
    import functools

    from torch.distributed.fsdp import (
        FullyShardedDataParallel,
        ShardedStateDictConfig,
        ShardingStrategy,
        StateDictType,
    )
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    policy = functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={type(model.model.layers[0])}
    )
    strategy = ShardingStrategy.FULL_SHARD if mesh.ndim == 1 else ShardingStrategy.HYBRID_SHARD
    wrapped = FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy,
        sharding_strategy=strategy,
        device_mesh=mesh,
        use_orig_params=False,
        device_id=torch.device("cpu"),
    )
    kind = StateDictType.SHARDED_STATE_DICT
    with FullyShardedDataParallel.state_dict_type(wrapped, kind, ShardedStateDictConfig(offload_to_cpu=True)):
        return wrapped.state_dict()


def _rename(file):
    """Write the file again with the module names of torch 2.4, and as if its tensors had been on a GPU."""

    def change(records):
        content = records["data.pkl"]
        for new, old in NAMES_OF_2_4:
            content = content.replace(new, old)
            assert old in content
        records["data.pkl"] = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")

    rewrite(file, change)


def rewrite(file, change):
    """Write a shard again after `change` of its records, with checksums that are right."""
    reader = torch._C.PyTorchFileReader(str(file))
    records = {name: reader.get_record(name) for name in reader.get_all_records()}
    del reader
    change(records)
    file.unlink()
    writer = torch._C.PyTorchFileWriter(str(file))
    for name, content in records.items():
        if name not in (
            "version",
            ".data/serialization_id",
            "byteorder",
            ".format_version",
            ".storage_alignment",
        ):
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()


def with_mesh(file, change):
    """Write a shard again after `change` of the mesh that its tensors share, as a class of torch."""
    content = torch.load(file, weights_only=False)
    (mesh,) = {id(tensor._spec.mesh): tensor._spec.mesh for tensor in content.values()}.values()
    change(mesh)
    torch.save(content, file)


def damaged_shard(file, rng):
    """Give a shard one fault: in its bytes, in the length of a record, or in a number or a name of its pickle."""
    match rng.randrange(5):
        case 0:
            whole = bytearray(file.read_bytes())
            for _ in range(rng.choice([1, 3, 20])):
                whole[rng.randrange(len(whole))] = rng.randrange(256)
            file.write_bytes(whole)
        case 1:
            file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])
        case 2:
            rewrite(file, lambda records: _resize(records, rng))
        case _:
            rewrite(file, lambda records: _other_number(records, rng))


def _resize(records, rng):
    name = rng.choice([name for name in records if name.startswith("data/") and records[name]])
    whole = records[name]
    records[name] = rng.choice([whole[:-4], whole[:4], b"", whole + whole, whole[::-1] + b"1234"])


def _other_number(records, rng):
    """Replace an argument of the pickle, which only numbers and texts have, by one of the same kind."""
    pickled = records["data.pkl"]
    places = [*pickletools.genops(pickled), (None, None, len(pickled))]
    kinds = ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE")
    chosen = [i for i, (code, _, _) in enumerate(places[:-1]) if code.name in kinds]
    code, value, start = places[at := rng.choice(chosen)]
    if code.name == "BINUNICODE":
        text = rng.choice([value[::-1], value + "x", "0", "", "../data.pkl", "9" * 6000, "cuda:0"]).encode()
        new = b"X" + len(text).to_bytes(4, "little") + text
    else:
        number = rng.choice([0, 1, 2, 3, 7, 64, -1, 10**5, 10**9, 2**31 - 1, -(2**31), 10**12, 10**30])
        size = number.bit_length() // 8 + 1
        new = bytes([0x8A, size]) + number.to_bytes(size, "little", signed=True)
    records["data.pkl"] = pickled[:start] + new + pickled[places[at + 1][2] :]
