import pytest
import torch

from ramify.modeling.head import written_logprobs


def random_head(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(40, 16, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, 40, (23,), generator=generator)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 23, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_equal_those_of_plain_operations(chunk_tokens, temperature):
    hidden, weight, targets = random_head()
    mix = torch.randn(2, 23, generator=torch.Generator().manual_seed(1))
    block = torch.log_softmax(hidden @ weight.T / temperature, -1)
    plain = (block.gather(1, targets[:, None])[:, 0], -(block.exp() * block).sum(-1))
    ours = written_logprobs(hidden, weight, targets, temperature, True, chunk_tokens)
    for a, b in zip(ours, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    expected = torch.autograd.grad((plain[0] * mix[0] + plain[1] * mix[1]).sum(), (hidden, weight))
    actual = torch.autograd.grad((ours[0] * mix[0] + ours[1] * mix[1]).sum(), (hidden, weight))
    for a, b in zip(actual, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_entropy_alone_carries_gradient():
    hidden, weight, targets = random_head()
    ours = written_logprobs(hidden, weight, targets, 1.0, True, 5)[1]
    block = torch.log_softmax(hidden @ weight.T, -1)
    plain = -(block.exp() * block).sum(-1)
    actual, expected = (torch.autograd.grad(x.sum(), weight)[0] for x in (ours, plain))
    assert torch.allclose(actual, expected, atol=1e-5)


def test_without_entropy_there_is_none_and_logprobs_are_the_same():
    hidden, weight, targets = random_head()
    logprobs, entropies = written_logprobs(hidden, weight, targets, 1.0, False, 8)
    assert entropies is None
    assert torch.equal(logprobs, written_logprobs(hidden, weight, targets, 1.0, True, 8)[0])


def test_low_precision_weights_give_float32_logprobs_and_gradients_of_their_own_type():
    hidden, weight, targets = random_head(torch.bfloat16)
    logprobs, _ = written_logprobs(hidden, weight, targets, 1.0, False, 8)
    logprobs.sum().backward()
    assert (logprobs.dtype, hidden.grad.dtype) == (torch.float32, torch.bfloat16)
    exact = torch.log_softmax(hidden.float() @ weight.float().T, -1).gather(1, targets[:, None])[:, 0]
    assert torch.allclose(logprobs, exact, atol=0.1)


def test_float64_is_float64_throughout():
    hidden, weight, targets = random_head(torch.float64)
    block = torch.log_softmax(hidden @ weight.T / 0.7, -1)
    plain = (block.gather(1, targets[:, None])[:, 0], -(block.exp() * block).sum(-1))
    ours = written_logprobs(hidden, weight, targets, 0.7, True, 8)
    assert all(torch.allclose(a, b, rtol=1e-13, atol=1e-13) for a, b in zip(ours, plain, strict=True))
    expected = torch.autograd.grad((plain[0] + plain[1]).sum(), (hidden, weight))
    actual = torch.autograd.grad((ours[0] + ours[1]).sum(), (hidden, weight))
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == torch.float64
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)


def test_no_more_than_one_chunk_of_logits_is_kept():
    hidden, weight, targets = random_head()
    saved = []

    def keep(tensor):
        saved.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        written_logprobs(hidden, weight, targets, 1.0, False, 8)
    assert all(shape != (23, 40) and shape != (8, 40) for shape in saved)
