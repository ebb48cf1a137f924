import pytest
import torch

from ramify.modeling.head import written_backward, written_logprobs


def random_head(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(40, 16, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, 40, (23,), generator=generator)


def grad_room(weight):
    """Zeros for the weight's gradient, in at least float32."""
    return torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32)).detach()


def mixed(mix):
    """A loss that is a sum over tokens, with a weight for each logprob and each entropy."""

    def loss(part, logprobs, entropies):
        return (logprobs * mix[0, part]).sum() + (entropies * mix[1, part]).sum()

    return loss


def plain_loss(hidden, weight, targets, temperature, mix, cap=None):
    logits = hidden @ weight.T
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    block = torch.log_softmax(logits / temperature, -1)
    logprobs, entropies = block.gather(1, targets[:, None])[:, 0], -(block.exp() * block).sum(-1)
    return (logprobs * mix[0] + entropies * mix[1]).sum(), logprobs, entropies


@pytest.mark.parametrize("chunk_tokens", [1, 7, 23, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("cap", [None, 3.0])
def test_values_and_gradients_equal_those_of_plain_operations(chunk_tokens, temperature, cap):
    hidden, weight, targets = random_head()
    mix = torch.randn(2, 23, generator=torch.Generator().manual_seed(1))
    plain = plain_loss(hidden, weight, targets, temperature, mix, cap)
    by_weight = grad_room(weight)
    grad, *ours = written_backward(
        hidden, weight, targets, temperature, True, chunk_tokens, mixed(mix), by_weight, cap=cap
    )
    for a, b in zip(ours, plain[1:], strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    for a, b in zip(
        written_logprobs(hidden, weight, targets, temperature, True, chunk_tokens, cap=cap), ours, strict=True
    ):
        assert torch.equal(a, b)
    expected = torch.autograd.grad(plain[0], (hidden, weight))
    for a, b in zip((grad, by_weight), expected, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_several_calls_add_up(dtype):
    hidden, weight, targets = random_head(dtype)
    whole, expected = grad_room(weight), grad_room(weight)
    for places in (slice(0, 9), slice(9, 23)):
        once = grad_room(weight)
        for room in (once, whole):
            written_backward(
                hidden[places], weight, targets[places], 1.0, False, 5, lambda _, x, __: x.sum(), room
            )
        expected += once
    assert torch.allclose(whole, expected, atol=1e-6)


def gradient_by_weight(with_entropy, loss):
    hidden, weight, targets = random_head()
    by_weight = grad_room(weight)
    written_backward(hidden, weight, targets, 1.0, with_entropy, 5, loss, by_weight)
    return by_weight


def test_a_loss_may_look_at_entropies_or_logprobs_alone_or_at_neither():
    hidden, weight, targets = random_head()
    block = torch.log_softmax(hidden @ weight.T, -1)
    expected = torch.autograd.grad(-(block.exp() * block).sum(), weight, retain_graph=True)[0]
    by_entropy = gradient_by_weight(True, lambda _, logprobs, entropies: entropies.sum())
    assert torch.allclose(by_entropy, expected, atol=1e-5)
    expected = torch.autograd.grad(block.gather(1, targets[:, None]).sum(), weight)[0]
    by_logprob = gradient_by_weight(False, lambda _, logprobs, entropies: logprobs.sum())
    assert torch.allclose(by_logprob, expected, atol=1e-5)
    assert not gradient_by_weight(False, lambda _, logprobs, entropies: torch.ones(())).any()


def test_a_frozen_weight_gets_no_gradient():
    hidden, weight, targets = random_head()
    weight.requires_grad_(False)
    grad, _, _ = written_backward(hidden, weight, targets, 1.0, False, 5, lambda _, x, __: x.sum(), None)
    assert weight.grad is None
    assert grad.any()


def test_without_entropy_there_is_none_and_logprobs_are_the_same():
    hidden, weight, targets = random_head()
    logprobs, entropies = written_logprobs(hidden, weight, targets, 1.0, False, 8)
    assert entropies is None
    assert torch.equal(logprobs, written_logprobs(hidden, weight, targets, 1.0, True, 8)[0])


def in_low_precision(dtype):
    """The head's results in 16 bits, those of the same numbers in float32, and those of plain operations in 16 bits."""
    hidden, weight, targets = random_head(dtype)
    by_weight = grad_room(weight)
    grad, logprobs, _ = written_backward(
        hidden, weight, targets, 1.0, False, 8, lambda _, x, __: x.sum(), by_weight
    )
    assert (logprobs.dtype, grad.dtype, by_weight.dtype) == (torch.float32, dtype, torch.float32)
    references = []
    for leaves in ([hidden, weight], [x.detach().float().requires_grad_() for x in (hidden, weight)]):
        chosen = torch.log_softmax((leaves[0] @ leaves[1].T).float(), -1).gather(1, targets[:, None])[:, 0]
        references.append((chosen, *torch.autograd.grad(chosen.sum(), leaves)))
    plain, exact = references
    return (logprobs, grad, by_weight), exact, plain


def test_sixteen_bits_give_float32_logprobs_and_a_weight_gradient_in_float32():
    # A CPU multiplies float16 in float32, so that only the stored numbers are rounded.
    (logprobs, grad, by_weight), exact, _ = in_low_precision(torch.float16)
    assert torch.allclose(logprobs, exact[0], atol=1e-5)
    assert torch.allclose(grad.float(), exact[1], atol=1e-3, rtol=1e-3)
    assert torch.allclose(by_weight, exact[2], atol=1e-5)


def test_bfloat16_is_multiplied_in_float32_where_torch_has_no_products_of_it(monkeypatch):
    # Such as on Apple's machines, whose build has not the operators of oneDNN either.
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    monkeypatch.setattr(torch.ops, "mkldnn", None)
    (logprobs, grad, by_weight), exact, _ = in_low_precision(torch.bfloat16)
    assert torch.allclose(logprobs, exact[0], atol=1e-5)
    assert torch.allclose(grad.float(), exact[1], atol=1e-2, rtol=1e-2)
    assert torch.allclose(by_weight, exact[2], atol=1e-5)


def test_bfloat16_is_as_near_to_float32_as_its_products_can_be():
    ours, exact, plain = in_low_precision(torch.bfloat16)
    for value, reference, rounded in zip(ours, exact, plain, strict=True):
        error = (value.float() - reference).norm()
        assert error <= 1.1 * (rounded.float() - reference).norm()
        assert error <= 0.01 * reference.norm()


def test_float64_is_float64_throughout():
    hidden, weight, targets = random_head(torch.float64)
    mix = torch.ones(2, 23, dtype=torch.float64)
    plain = plain_loss(hidden, weight, targets, 0.7, mix)
    by_weight = grad_room(weight)
    grad, *ours = written_backward(hidden, weight, targets, 0.7, True, 8, mixed(mix), by_weight)
    assert all(torch.allclose(a, b, rtol=1e-13, atol=1e-13) for a, b in zip(ours, plain[1:], strict=True))
    expected = torch.autograd.grad(plain[0], (hidden, weight))
    for a, b in zip((grad, by_weight), expected, strict=True):
        assert a.dtype == torch.float64
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)
