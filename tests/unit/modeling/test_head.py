import pytest
import torch

from ramify.modeling.head import written_logprobs, written_loss


def random_head(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(40, 16, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, 40, (23,), generator=generator)


def mixed(mix):
    """A loss that is a sum over tokens, with a weight for each logprob and each entropy."""

    def loss(part, logprobs, entropies):
        return (logprobs * mix[0, part]).sum() + (entropies * mix[1, part]).sum()

    return loss


def plain_loss(hidden, weight, targets, temperature, mix):
    block = torch.log_softmax(hidden @ weight.T / temperature, -1)
    logprobs, entropies = block.gather(1, targets[:, None])[:, 0], -(block.exp() * block).sum(-1)
    return (logprobs * mix[0] + entropies * mix[1]).sum(), logprobs, entropies


@pytest.mark.parametrize("chunk_tokens", [1, 7, 23, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_equal_those_of_plain_operations(chunk_tokens, temperature):
    hidden, weight, targets = random_head()
    mix = torch.randn(2, 23, generator=torch.Generator().manual_seed(1))
    plain = plain_loss(hidden, weight, targets, temperature, mix)
    ours = written_loss(hidden, weight, targets, temperature, True, chunk_tokens, mixed(mix))
    for a, b in zip(ours, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    for a, b in zip(
        written_logprobs(hidden, weight, targets, temperature, True, chunk_tokens), ours[1:], strict=True
    ):
        assert torch.equal(a, b)
    expected = torch.autograd.grad(3 * plain[0], (hidden, weight))
    actual = torch.autograd.grad(3 * ours[0], (hidden, weight))
    for a, b in zip(actual, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_a_loss_may_look_at_entropies_or_logprobs_alone_or_at_neither():
    hidden, weight, targets = random_head()
    block = torch.log_softmax(hidden @ weight.T, -1)
    by_entropy = written_loss(
        hidden, weight, targets, 1.0, True, 5, lambda _, logprobs, entropies: entropies.sum()
    )
    expected = torch.autograd.grad(-(block.exp() * block).sum(), weight, retain_graph=True)[0]
    assert torch.allclose(torch.autograd.grad(by_entropy[0], weight)[0], expected, atol=1e-5)
    by_logprob = written_loss(
        hidden, weight, targets, 1.0, False, 5, lambda _, logprobs, entropies: logprobs.sum()
    )
    expected = torch.autograd.grad(block.gather(1, targets[:, None]).sum(), weight)[0]
    assert torch.allclose(torch.autograd.grad(by_logprob[0], weight)[0], expected, atol=1e-5)
    constant = written_loss(
        hidden, weight, targets, 1.0, False, 5, lambda _, logprobs, entropies: torch.ones(())
    )
    assert not torch.autograd.grad(constant[0], weight)[0].any()


def test_a_frozen_weight_gets_no_gradient():
    hidden, weight, targets = random_head()
    written_loss(hidden, weight.detach(), targets, 1.0, False, 5, lambda _, x, __: x.sum())[0].backward()
    assert hidden.grad is not None


def test_without_entropy_there_is_none_and_logprobs_are_the_same():
    hidden, weight, targets = random_head()
    logprobs, entropies = written_logprobs(hidden, weight, targets, 1.0, False, 8)
    assert entropies is None
    assert torch.equal(logprobs, written_logprobs(hidden, weight, targets, 1.0, True, 8)[0])


def test_low_precision_weights_give_float32_logprobs_and_gradients_of_their_own_type():
    hidden, weight, targets = random_head(torch.bfloat16)
    value, logprobs, _ = written_loss(hidden, weight, targets, 1.0, False, 8, lambda _, x, __: x.sum())
    value.backward()
    assert (logprobs.dtype, hidden.grad.dtype, weight.grad.dtype) == (
        torch.float32,
        torch.bfloat16,
        torch.bfloat16,
    )
    exact = torch.log_softmax(hidden.float() @ weight.float().T, -1).gather(1, targets[:, None])[:, 0]
    assert torch.allclose(logprobs, exact, atol=0.1)


def test_float64_is_float64_throughout():
    hidden, weight, targets = random_head(torch.float64)
    mix = torch.ones(2, 23, dtype=torch.float64)
    plain = plain_loss(hidden, weight, targets, 0.7, mix)
    ours = written_loss(hidden, weight, targets, 0.7, True, 8, mixed(mix))
    assert all(torch.allclose(a, b, rtol=1e-13, atol=1e-13) for a, b in zip(ours, plain, strict=True))
    expected = torch.autograd.grad(plain[0], (hidden, weight))
    actual = torch.autograd.grad(ours[0], (hidden, weight))
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == torch.float64
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)


def test_no_logits_are_kept():
    hidden, weight, targets = random_head()
    saved = []

    def keep(tensor):
        saved.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        written_loss(hidden, weight, targets, 1.0, False, 8, lambda _, x, __: x.sum())
    assert sorted(saved) == [(23, 16), (40, 16)]
