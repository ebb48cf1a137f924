"""A step computes what the model computes, however its tokens are split into rows and chunks."""

import copy
import json

import numpy as np
import pytest
import torch

from model_folders import write_model
from ramify.engines.decoder import Decoder
from ramify.engines.model_step import Bucket, ModelStep, StaticStep, bucket_for, cache_dtype, cache_shape
from ramify.engines.slots import CacheShape, DecodeRows, PrefillChunk, PrefixGroup, SlotTable
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model
from ramify.modeling.lora import add_lora

PROMPT = [5, 9, 33, 60, 81, 12, 7, 7, 40]
TAILS = [[101], [102, 90, 4], [103, 8], [104, 17, 17, 22]]


@pytest.fixture(
    scope="module", params=["qwen2", "qwen3", "qwen3_moe", "llama", "ministral3", "seed_oss", "smollm3"]
)
def folder(request, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("step") / request.param, request.param)


def table_of(model, num_slots=6):
    return SlotTable(cache_shape(model, num_slots, 64), cache_dtype(model), model.device)


def expected(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids], device=model.device)).logits[0, -1].float()


def assert_as_exact_as_the_model(model, logits, contexts):
    """bfloat16 logits err no more than the model's own pass does here: rounding differs from one processor to the next."""
    exact = copy.deepcopy(model).float()
    got = torch.log_softmax(logits.float(), -1)
    plain, want = (
        torch.stack([torch.log_softmax(expected(m, ids), -1) for ids in contexts]) for m in (model, exact)
    )
    own_error, error = ((x - want).square().mean().sqrt() for x in (plain, got))
    assert error <= 2 * own_error


def give_adapter(model):
    with torch.inference_mode(False):
        add_lora(model, AdapterConfig(rank=4, alpha=8), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.normal_(0.0, 0.03, generator=generator)


def fill(model, table, step):
    """Rows 0..3 hold the prompt and a tail each, of which the last token has not been fed."""
    contexts = [PROMPT + tail for tail in TAILS]
    for row, ids in enumerate(contexts):
        table.tokens[row, : len(ids)] = ids
    step(
        None,
        np.zeros(0, np.int64),
        [PrefillChunk(row, 0, len(ids) - 1) for row, ids in enumerate(contexts) if row],
    )
    return contexts


@pytest.mark.parametrize("groups", [(), (PrefixGroup(0, 3, 9),), (PrefixGroup(1, 3, 6),)])
@torch.inference_mode()
def test_rows_that_write_beside_stretches_that_continue(folder, groups):
    model = load_model(folder)
    table = table_of(model)
    step = ModelStep(model, table)
    contexts = fill(model, table, step)
    longer = [*contexts[3], 55, 56, 57]
    table.tokens[3, : len(longer)] = longer
    rows = np.array([2, 1, 4])
    table.tokens[4], table.lengths[4] = table.tokens[1], table.lengths[1]
    table.keys[:, 4], table.values[:, 4] = table.keys[:, 1], table.values[:, 1]
    fed = np.array([contexts[2][-1], contexts[1][-1], 77])
    logits = step(
        DecodeRows(rows, groups),
        fed,
        [PrefillChunk(3, len(contexts[3]) - 1, len(longer)), PrefillChunk(0, 0, 10)],
    )
    wanted = [contexts[2], contexts[1], [*contexts[1][:-1], 77], longer, contexts[0]]
    for got, ids in zip(logits, wanted, strict=True):
        torch.testing.assert_close(got, expected(model, ids), atol=2e-5, rtol=1e-4)
    assert table.lengths.tolist() == [10, 12, 11, 16, 12, 0]


@pytest.mark.parametrize("with_adapter", [False, True])
@torch.inference_mode()
def test_bfloat16_weights(folder, with_adapter):
    model = load_model(folder, "bfloat16")
    if with_adapter:
        give_adapter(model)
    table = table_of(model)
    step = ModelStep(model, table)
    contexts = fill(model, table, step)
    assert table.keys.dtype == torch.float32
    rows = DecodeRows(np.array([1, 2]), (PrefixGroup(0, 2, 9),))
    logits = step(rows, np.array([c[-1] for c in contexts[1:3]]), [])
    assert_as_exact_as_the_model(model, logits, contexts[1:3])


@torch.inference_mode()
def test_a_static_step_over_all_rows_is_the_step_of_those_that_write(folder):
    model = load_model(folder)
    table = table_of(model)
    step = ModelStep(model, table)
    contexts = fill(model, table, step)
    table.lengths[0], table.tokens[0, :3] = 3, [1, 2, 3]
    before = table.keys[:, 0, :, :3].clone()
    static = StaticStep(Decoder(model, 65), table, Bucket(4, 32))
    for rows in ([1, 3], [2]):
        static.fill(np.array(rows), np.array([contexts[row][-1] for row in rows]))
        logits = static.compute()
        for row in rows:
            torch.testing.assert_close(logits[row], expected(model, contexts[row]), atol=2e-5, rtol=1e-4)
    assert torch.equal(table.keys[:, 0, :, :3], before)


def test_buckets_are_powers_of_two_within_the_table():
    shape = CacheShape(1, 24, 1, 3000, 8)
    assert bucket_for(0, 1, shape) == Bucket(1, 256)
    assert bucket_for(4, 256, shape) == Bucket(8, 256)
    assert bucket_for(15, 257, shape) == Bucket(16, 512)
    assert bucket_for(16, 2049, shape) == Bucket(24, 3000)


LINEAR = ("self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")


def linear_of(layer, name):
    if name.startswith("mlp.") and hasattr(layer.mlp, "experts"):
        pytest.skip("a mixture of experts has no such module")
    return layer.get_submodule(name)


@pytest.mark.parametrize("name", LINEAR)
def test_weights_are_those_of_the_last_change(folder, name):
    model = load_model(folder)
    table = table_of(model)
    step = ModelStep(model, table)
    table.tokens[0, :4] = [5, 6, 7, 8]

    def logits():
        with torch.inference_mode():
            return step(None, np.zeros(0, np.int64), [PrefillChunk(0, 0, 4)])[0]

    old = logits()
    with torch.no_grad():
        linear_of(model.model.layers[0], name).weight.mul_(1.5)
    step.weights_changed()
    table.clear()
    new = logits()
    torch.testing.assert_close(new, expected(model, [5, 6, 7, 8]), atol=2e-5, rtol=1e-4)
    assert (new - old).abs().max() > 1e-3


@pytest.mark.parametrize("name", LINEAR)
def test_an_adapter_around_a_linear_module_is_called(folder, name):
    class Adapter(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 0.5

    model = load_model(folder)
    for layer in model.model.layers:
        plain = linear_of(layer, name)
        adapter = Adapter(plain.in_features, plain.out_features, bias=False)
        adapter.weight = plain.weight
        layer.set_submodule(name, adapter)
    table = table_of(model)
    table.tokens[0, :4] = [5, 6, 7, 8]
    with torch.inference_mode():
        logits = ModelStep(model, table)(None, np.zeros(0, np.int64), [PrefillChunk(0, 0, 4)])[0]
    torch.testing.assert_close(logits, expected(model, [5, 6, 7, 8]), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
    ],
)
def test_rotary_embeddings_of_other_kinds(tmp_path, rope):
    folder = write_model(tmp_path / "m", "llama")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_theta": 10000.0, **rope}
    (folder / "config.json").write_text(json.dumps(config))
    model = load_model(folder)
    table = table_of(model)
    table.tokens[0, :6] = ids = [5, 6, 7, 8, 90, 91]
    with torch.inference_mode():
        logits = ModelStep(model, table)(None, np.zeros(0, np.int64), [PrefillChunk(0, 0, 6)])[0]
    torch.testing.assert_close(logits, expected(model, ids), atol=2e-5, rtol=1e-4)


@pytest.mark.gpu
def test_graphs_compute_the_steps_of_the_model(folder):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = load_model(folder, "bfloat16", "cuda")
    table = table_of(model)
    step = ModelStep(model, table)
    with torch.inference_mode():
        contexts = fill(model, table, step)
        for _ in range(2):
            table.lengths[1:3] = [len(c) - 1 for c in contexts[1:3]]
            logits = step(DecodeRows(np.array([1, 2]), ()), np.array([c[-1] for c in contexts[1:3]]), [])
            assert_as_exact_as_the_model(model, logits, contexts[1:3])


@pytest.mark.gpu
def test_context_that_goes_on_is_fed_as_the_model_feeds_it(folder):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for dtype in ("bfloat16", "float32"):
        model = load_model(folder, dtype, "cuda")
        table = table_of(model)
        ids = PROMPT + TAILS[3] + [55, 56, 57]
        table.tokens[0, : len(ids)] = ids
        step, nobody = ModelStep(model, table), np.zeros(0, np.int64)
        with torch.inference_mode():
            step(None, nobody, [PrefillChunk(0, 0, 5)])
            logits = step(None, nobody, [PrefillChunk(0, 5, len(ids))])
            if dtype == "bfloat16":
                assert_as_exact_as_the_model(model, logits, [ids])
            else:
                torch.testing.assert_close(logits[0], expected(model, ids), atol=1e-4, rtol=1e-3)
