import pytest
import torch

from ramify.learner.optimizer import COEFFICIENTS, Muon, orthogonalized

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


def test_singular_values_that_are_not_tiny_come_close_to_one():
    left, right = (
        torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(seed)))[0]
        for seed in (0, 1)
    )
    matrix = left @ torch.diag(torch.linspace(0.2, 1, 32)) @ right
    values = torch.linalg.svdvals(orthogonalized(matrix, 4))
    assert 0.6 < values.min() < values.max() < 1.25


def test_a_matrix_without_a_gradient_stays_and_a_zero_gradient_is_no_division_by_zero():
    still, zero = torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(3, 2))
    zero.grad = torch.zeros(3, 2)
    optimizer = Muon([still, zero], lr=0.1, momentum=0.9, ns_steps=4)
    optimizer.step()
    assert torch.equal(still, torch.ones(3, 2))
    assert torch.equal(zero, torch.ones(3, 2))
    assert still not in optimizer.state
