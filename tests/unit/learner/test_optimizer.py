import pytest
import torch
from transformers import TrainingArguments, get_cosine_schedule_with_warmup

import build
from ramify.core.errors import ConfigError, DataError
from ramify.learner.configs import OptimizerConfig, ScheduleConfig
from ramify.learner.optimizer import COEFFICIENTS, Muon, Optimizers, orthogonalized
from ramify.learner.optimizer_files import StoredState, held_state, write_state_tensors
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.lora import add_lora

MUON = OptimizerConfig(name="muon", rate=0.006, vector_rate=4e-3, embedding_rate=1e-3)


def test_schedule_warms_up_holds_and_falls_to_its_final_fraction():
    schedule = ScheduleConfig(warmup_steps=4, decay_from=0.5, final_rate=0.1)
    factors = [schedule.factor(step, 20) for step in range(21)]
    assert factors[:5] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert factors[10] == 1
    assert factors[15] == pytest.approx(0.55)
    assert factors[20] == pytest.approx(0.1)


def test_half_a_cosine_falls_as_transformers_does_after_the_warm_up():
    parameter = torch.nn.Parameter(torch.zeros(1))
    theirs = get_cosine_schedule_with_warmup(torch.optim.SGD([parameter], lr=1.0), 5, 50)
    ours = ScheduleConfig(warmup_steps=5, decay_from=0.1, final_rate=0.0, decay="cosine")
    for number in range(50):
        if number >= 5:
            assert ours.factor(number, 50) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        theirs.optimizer.step()
        theirs.step()
    held = ScheduleConfig(final_rate=0.2, decay="cosine")
    assert [held.factor(step, 20) for step in (0, 10, 20)] == pytest.approx([1, 0.6, 0.2])


def test_a_warm_up_that_is_a_share_of_the_run_is_as_long_as_transformers_makes_it():
    schedule = ScheduleConfig(warmup_ratio=0.1)
    for total in (1, 9, 10, 11, 29, 10_120):
        arguments = TrainingArguments(warmup_steps=0.1)
        same = ScheduleConfig(warmup_steps=arguments.get_warmup_steps(total))
        assert [schedule.factor(n, total) for n in range(total)] == [
            same.factor(n, total) for n in range(total)
        ]
    assert schedule.warmup(10_120) == 1012
    again = ScheduleConfig(**schedule.values())
    assert again == schedule
    with pytest.raises(ConfigError, match="warmup_ratio: expected this or warmup_steps, got both"):
        ScheduleConfig(warmup_ratio=0.1, warmup_steps=1)


def test_constant_schedule_and_no_warmup():
    assert {ScheduleConfig().factor(step, 7) for step in range(7)} == {1.0}


def step(model, optimizers, factor=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizers.step(factor)


def test_adamw_moves_by_its_rate_times_the_factor():
    for factor in (1.0, 0.25):
        model = build.tiny_model()
        before = [p.detach().clone() for p in model.parameters()]
        step(model, Optimizers(model, OptimizerConfig(rate=0.01, weight_decay=0.0)), factor)
        moves = torch.cat([(a - b).abs().flatten() for a, b in zip(before, model.parameters(), strict=True)])
        assert moves.median().item() == pytest.approx(0.01 * factor, rel=1e-3)


def test_muon_takes_matrices_adamw_vectors_and_embeddings_at_their_own_rates():
    model = build.tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizers = Optimizers(
        model,
        OptimizerConfig(name="muon", rate=0.006, vector_rate=4e-3, embedding_rate=1e-3, weight_decay=0.0),
    )
    step(model, optimizers)
    moved = {name: (p.detach() - before[name]).abs() for name, p in model.named_parameters()}
    assert moved["model.embed_tokens.weight"].median().item() == pytest.approx(1e-3, rel=1e-2)
    assert moved["model.norm.weight"].median().item() == pytest.approx(4e-3, rel=1e-2)
    kinds = {key.partition(".")[2]: key.partition(".")[0] for key in optimizers.state_tensors()}
    assert kinds["model.layers.0.mlp.up_proj.weight"] == "momentum_buffer"
    assert sum(kind == "momentum_buffer" for kind in kinds.values()) == 14
    change = model.model.layers[0].mlp.up_proj.weight.detach() - before["model.layers.0.mlp.up_proj.weight"]
    assert torch.linalg.svdvals(change).std() < 0.3 * torch.linalg.svdvals(change).mean()


def stored(folder, tensors):
    write_state_tensors(folder, held_state(tensors, 0, 1))
    return StoredState(folder)


@pytest.mark.parametrize("settings", [OptimizerConfig(rate=0.01), MUON])
def test_state_goes_on_bitwise_in_another_optimizer(settings, tmp_path):
    model, again = build.tiny_model(), build.tiny_model()
    first = Optimizers(model, settings)
    step(model, first, seed=1)
    again.load_state_dict(model.state_dict())
    second = Optimizers(again, settings)
    second.load_state_tensors(stored(tmp_path, first.state_tensors()))
    for seed in (2, 3):
        step(model, first, seed=seed)
        step(again, second, seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exp_avg.nowhere": torch.zeros(3)}, "exp_avg.nowhere belongs to no parameter"),
        ({"momentum_buffer.model.norm.weight": torch.zeros(32)}, "belongs to no parameter"),
        (
            {"exp_avg.model.norm.weight": torch.zeros(3)},
            r"exp_avg.model.norm.weight is float32 \[3\], expected float32 \[32\]",
        ),
        ({"exp_avg.model.norm.weight": torch.zeros(())}, r"is float32 \[\], expected"),
        ({"exp_avg.model.norm.weight": torch.zeros(32).half()}, r"is float16 \[32\], expected"),
        ({"step.model.norm.weight": torch.zeros(1)}, r"is float32 \[1\], expected float32 \[\]"),
        ({"exp_avg_sq.model.norm.weight": None}, "exp_avg_sq.model.norm.weight is missing"),
    ],
)
def test_state_of_another_model_is_refused_and_changes_nothing(change, message, tmp_path):
    model = build.tiny_model()
    optimizers = Optimizers(model, OptimizerConfig(rate=0.01))
    step(model, optimizers, seed=1)
    before = {name: tensor.clone() for name, tensor in optimizers.state_tensors().items()}
    changed = {name: tensor for name, tensor in {**before, **change}.items() if tensor is not None}
    with pytest.raises(DataError, match=message):
        optimizers.load_state_tensors(stored(tmp_path, changed))
    after = optimizers.state_tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("settings", [OptimizerConfig(rate=0.01), MUON])
def test_the_size_of_the_state_is_known_before_there_is_any(settings):
    model = build.tiny_model()
    optimizers = Optimizers(model, settings)
    expected = optimizers.state_bytes()
    step(model, optimizers, seed=1)
    assert sum(tensor.nbytes for tensor in optimizers.state_tensors().values()) == expected


@pytest.mark.parametrize("settings", [OptimizerConfig(rate=0.01, weight_decay=0.0), MUON])
def test_adapters_are_trained_and_nothing_else(settings):
    model = build.tiny_model()
    add_lora(model, AdapterConfig(rank=4, alpha=8), seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizers = Optimizers(model, settings)
    ids = torch.arange(2, 30)[None]
    losses = []
    for _ in range(8):
        loss = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
        loss.backward()
        losses.append(loss.item())
        optimizers.step(1.0)
        optimizers.zero_grad()
    assert losses[-1] < losses[0] - 0.2
    moved = {name for name, p in model.named_parameters() if not torch.equal(p.detach(), before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert {key.partition(".")[2] for key in optimizers.state_tensors()} == moved


SHAPES = [(12, 12), (20, 8), (8, 20), (5, 1)]


def draws(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def after_steps(make, dtype, steps=5):
    matrices = [torch.nn.Parameter(matrix) for matrix in draws(0, dtype)]
    optimizer = make(matrices)
    for step in range(steps):
        for matrix, grad in zip(matrices, draws(step + 1, dtype), strict=True):
            matrix.grad = grad * 10.0 ** (step - 2)
        optimizer.step()
    return matrices, [optimizer.state[matrix]["momentum_buffer"] for matrix in matrices]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_moves_as_torch_does_with_products_in_the_gradients_own_type(monkeypatch, dtype, tolerance):
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda matrix: matrix.clone())  # what torch computes in
    theirs = after_steps(
        lambda m: torch.optim.Muon(m, lr=0.02, momentum=0.9, ns_steps=4, weight_decay=0.0), dtype
    )
    ours = after_steps(lambda m: Muon(m, lr=0.02, momentum=0.9, ns_steps=4), dtype)
    for got, want in zip((*ours[0], *ours[1]), (*theirs[0], *theirs[1]), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_vectors_stay_and_singular_values_follow_the_polynomial(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm()
    a, b, c = COEFFICIENTS
    for _ in range(4):
        values = a * values + b * values**3 + c * values**5
    want = left * values @ right
    torch.testing.assert_close(orthogonalized(matrix, 4), want, rtol=1e-12, atol=1e-12)
    got = orthogonalized(matrix.float() * 1e-4, 4)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_each_matrix_of_a_stack_moves_as_a_matrix_by_itself():
    generator = torch.Generator().manual_seed(3)
    stack, grads = torch.randn(2, 4, 6, 5, generator=generator)
    matrices, whole = [torch.nn.Parameter(m.clone()) for m in stack], torch.nn.Parameter(stack.clone())
    apart, together = (Muon(each, lr=0.1, momentum=0.9, ns_steps=4) for each in (matrices, [whole]))
    for factor in (1.0, -3.0):
        whole.grad = factor * grads
        for matrix, grad in zip(matrices, grads, strict=True):
            matrix.grad = factor * grad
        apart.step()
        together.step()
    assert torch.equal(whole, torch.stack(list(matrices)))


def test_muon_takes_the_stacks_of_routed_experts_and_no_convolution():
    model = torch.nn.Module()
    model.layer = torch.nn.Module()
    model.layer.experts = torch.nn.Module()
    model.layer.experts.gate_up_proj = torch.nn.Parameter(torch.zeros(3, 4, 6))
    model.layer.conv1d = torch.nn.Conv1d(4, 4, 2, groups=4, bias=False)
    optimizers = Optimizers(model, MUON)
    step(model, optimizers)
    assert set(optimizers.state_tensors()) == {
        "momentum_buffer.layer.experts.gate_up_proj",
        *(f"{kind}.layer.conv1d.weight" for kind in ("step", "exp_avg", "exp_avg_sq")),
    }
    # 4 x 6: each singular direction moves by about the rate.
    moved = torch.linalg.svdvals(model.layer.experts.gate_up_proj.detach())
    assert moved.mean(1).tolist() == pytest.approx([0.006] * 3, rel=0.3)


def test_a_matrix_without_a_gradient_stays_and_a_zero_gradient_is_no_division_by_zero():
    still, zero = torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(3, 2))
    zero.grad = torch.zeros(3, 2)
    optimizer = Muon([still, zero], lr=0.1, momentum=0.9, ns_steps=4)
    optimizer.step()
    assert torch.equal(still, torch.ones(3, 2))
    assert torch.equal(zero, torch.ones(3, 2))
    assert still not in optimizer.state


def test_a_state_replaces_all_of_the_one_before(tmp_path):
    model = build.tiny_model()
    optimizers = Optimizers(model, OptimizerConfig(rate=0.01))
    step(model, optimizers, seed=1)
    kinds = ("step", "exp_avg", "exp_avg_sq")
    part = {
        f"{kind}.model.norm.weight": optimizers.state_tensors()[f"{kind}.model.norm.weight"] for kind in kinds
    }
    optimizers.load_state_tensors(stored(tmp_path, part))
    assert optimizers.state_tensors().keys() == part.keys()
