"""Plans held against sums by hand, and against the shapes of published models."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from ramify.modeling.load import shapes_of
from ramify.modeling.memory_plan import Job, Layout, ModelSize, choose, plan_of, row_bytes
from ramify.modeling.model_config import published_config

GIB = 1 << 30
ROOM = int(73.6 * GIB)
SIZE = ModelSize(base=1000, adapter=0, layer=100, outside=400, head=200, is_tied=False)
CONFIG = SimpleNamespace(
    model_type="qwen2",
    hidden_size=4,
    num_hidden_layers=6,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=2,
    intermediate_size=8,
    vocab_size=50,
    hidden_act="silu",
)
BY_LAYER = Layout("by_layer")
JOB = Job(CONFIG, SIZE, number_bytes=2, row_tokens=10, processes=8)


def job_of(name, row_tokens, processes=8, number_bytes=2, **more):
    shapes, config = shapes_of(published_config(name), name)
    return Job(config, ModelSize.of(shapes), number_bytes, row_tokens, processes, **more)


def test_the_sizes_of_a_model_by_hand():
    shapes = {
        "model.embed_tokens.weight": (50, 4),
        "model.norm.weight": (4,),
        "model.layers.0.a": (3, 5),
        "model.layers.1.a": (3, 7),
        "model.layers.1.b": (2,),
    }
    tied = ModelSize.of(shapes)
    assert tied == ModelSize(base=204 + 15 + 23, adapter=0, layer=23, outside=204, head=200, is_tied=True)
    assert not ModelSize.of(shapes | {"lm_head.weight": (50, 4)}).is_tied
    # Gemma 4's table for its layers is larger than its head.
    more = ModelSize.of(shapes | {"model.embed_tokens_per_layer.weight": (50, 60)})
    assert more == replace(tied, base=tied.base + 3000, outside=3204)


def test_a_table_of_embeddings_for_layers_is_no_second_head():
    tables = replace(JOB, size=replace(SIZE, base=4000, outside=3200, is_tied=True))
    once, layers = (plan_of(tables, way, recompute=True).parts for way in (Layout(), BY_LAYER))
    assert once["gradients before they are summed"] == 4 * (4000 + 200)
    # The head's, that of the other table, and two layers.
    assert layers["gradients before they are summed"] == 4 * (200 + 3000 + 2 * 100)


def test_one_process_in_float32_keeps_everything_whole():
    plan = plan_of(replace(JOB, number_bytes=4, processes=1, has_reference=True))
    row = row_bytes(CONFIG, 10, 4, "cuda")
    assert plan.parts == {
        "weights": 4000,
        "gradients": 4000,
        "optimizer": 8000,
        "reference model": 4000,
        "activations": row.layers,
        "logits": row.head,
    }
    assert (plan.total, plan.row, plan.host) == (20_000 + row.without_recompute, row.without_recompute, 0)


def test_split_weights_by_hand():
    plan = plan_of(replace(JOB, has_reference=True), recompute=True)
    once = plan.parts
    assert (once["weights"], once["optimizer"], once["reference model"]) == (500, 1000, 250)
    assert plan.resident == 500 + 1000 + 250
    assert (once["gradients"], once["gathered weights"]) == (500, 2000)
    assert once["gradients before they are summed"] == 4000
    tied = replace(JOB, size=replace(SIZE, outside=250, is_tied=True))
    assert plan_of(tied, recompute=True).parts["gradients before they are summed"] == 4800
    layers = plan_of(JOB, BY_LAYER, recompute=True).parts
    assert layers["gathered weights"] == 2 * (400 + 3 * 100)
    assert layers["gradients before they are summed"] == 4 * (200 + 2 * 100)
    twice = plan_of(replace(JOB, copies=2), recompute=True).parts
    assert twice["optimizer"] == 2 * once["optimizer"]


def test_an_adapter_by_hand():
    size = replace(SIZE, adapter=80)
    alone = plan_of(replace(JOB, size=size, processes=1)).parts
    assert (alone["weights"], alone["adapter"], alone["gradients"], alone["optimizer"]) == (
        2000,
        320,
        320,
        640,
    )
    # Its frozen base is in the type that computes, so nothing is gathered.
    assert "gathered weights" not in alone
    several = plan_of(replace(JOB, size=size)).parts
    assert (several["weights"], several["adapter"]) == (250, 40)
    assert several["gathered weights"] == 2 * 1080
    assert several["logits"] == row_bytes(CONFIG, 10, 2, "cuda", adapter=True).head


def test_what_is_not_trained_is_weights_alone():
    plan = choose(replace(JOB, row_tokens=0, processes=1, beside={"keys": 70}), ROOM)
    assert plan.parts == {"weights": 2000, "keys": 70}


def test_the_cheapest_way_with_room_to_spare_is_taken():
    layouts = (Layout(), BY_LAYER)
    ways = [plan_of(JOB, layout, recompute=again) for layout in layouts for again in (False, True)]
    # Four fifths of what is left beside the other parts; the head is most of this row.
    needs = [plan.total - plan.row + plan.row / 0.8 for plan in ways]
    choices = [
        (plan.layout.gather, plan.recompute) for plan in (choose(JOB, int(need) + 1) for need in needs)
    ]
    assert choices[0] == ("once", False)
    assert choices[1] == ("once", True)
    assert choices[3] == ("by_layer", True)
    assert choose(JOB, int(needs[0]) - 1).recompute


def test_where_nothing_fits_the_state_goes_to_the_machines_memory():
    smallest = plan_of(JOB, BY_LAYER, recompute=True)
    assert not choose(JOB, smallest.total).layout.offload
    plan = choose(JOB, smallest.total - 1)
    assert (plan.layout, plan.recompute) == (Layout("by_layer", offload=True), True)
    assert plan.host == 500 + 500 + 1000
    assert plan.total == smallest.total - plan.host
    assert plan.total < smallest.total
    assert choose(JOB, 10).total > 10
    whole = replace(JOB, processes=1, number_bytes=4)
    assert choose(whole, 10).layout == Layout()
    assert choose(replace(JOB, device="cpu"), 10).layout == Layout()


@pytest.mark.parametrize(
    ("name", "row_tokens", "gather"),
    [
        ("Qwen2.5-1.5B", 22_016, "once"),
        ("Qwen2.5-7B", 8192, "once"),
        ("Qwen3-8B", 28_384, "by_layer"),
        ("Qwen3-14B", 24_576, "by_layer"),
    ],
)
def test_published_models_on_eight_gpus_of_80(name, row_tokens, gather):
    plan = choose(job_of(name, row_tokens), ROOM)
    assert plan.total <= ROOM
    assert plan.layout == Layout(gather)


def test_32b_wants_sixteen():
    assert choose(job_of("Qwen2.5-32B", 16_384), ROOM).layout.offload
    assert not choose(job_of("Qwen2.5-32B", 16_384, processes=16), ROOM).layout.offload


def test_the_table_of_the_design_notes():
    """reference/scale.md, section 1: GiB of weights, gradients and Adam over eight GPUs, and of the whole copy."""
    for name, part, copy in (("Qwen2.5-7B", 14.2, 14.2), ("Qwen3-8B", 15.3, 15.3), ("Qwen3-14B", 27.5, 27.5)):
        plan = plan_of(job_of(name, 32_768), recompute=True)
        state = sum(plan.parts[key] for key in ("weights", "gradients", "optimizer"))
        assert state / GIB == pytest.approx(part, abs=0.06)
        assert plan.parts["gathered weights"] / GIB == pytest.approx(copy, abs=0.06)


@pytest.mark.parametrize(("row_tokens", "measured"), [(16_384, 17.1), (65_536, 36.1)])
def test_the_peak_that_prime_rl_publishes(row_tokens, measured):
    """Its benchmarks' GiB on each of 8 H100s, Qwen3-4B, layers computed again; by default its optimizer's state is on the CPU."""
    plan = plan_of(job_of("Qwen3-4B", row_tokens), BY_LAYER, recompute=True)
    assert (plan.total - plan.parts["optimizer"]) / GIB == pytest.approx(measured, rel=0.045)
