"""FlexAttention and the flash kernel against a dense mask, forward and backward."""

import pytest
import torch

from ramify.learner.flex_attention import FlexTreeAttention, _flash_can, causal_attention
from segment_rows import chain, dense_mask, random_spans, spans, states

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda")


def outputs_and_gradients(attend, inputs, context):
    query, key, value = (x.detach().requires_grad_() for x in inputs)
    output = attend(query[:, :, context:], key, value)
    grad_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return output, *torch.autograd.grad(output, (query, key, value), grad_output)


def dense(segments, context, window=None):
    mask = dense_mask(segments, window)[context:].to(CUDA)

    def attend(query, key, value):
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=0.1, enable_gqa=query.shape[1] != key.shape[1]
        )
        return output.transpose(1, 2)

    return attend


def flex(segments, window=None):
    plan = FlexTreeAttention(segments, CUDA)
    return lambda *inputs: plan(0, *inputs, 0.1, window)


# Each number of heads, head size and type is compiled apart, so there are few.
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(4, 64), (2, 128)])
def test_float32_equals_a_dense_mask(kv_heads, head_dim):
    for segments in (spans(0), random_spans(300, 40, 1), chain(200, 60)):
        size = segments[-1].stop
        inputs = states(size, kv_heads, head_dim=head_dim, device=CUDA)
        for context in (0, segments[-1].start):
            ours = outputs_and_gradients(flex(segments), inputs, context)
            wanted = outputs_and_gradients(dense(segments, context), inputs, context)
            for a, b in zip(ours, wanted, strict=True):
                torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("window", [1, 50, 200])
def test_a_window_hides_keys_along_each_path_and_in_rows_without_forks(window):
    for segments in (random_spans(300, 40, 1), chain(200, 60)):
        inputs = states(segments[-1].stop, 4, head_dim=64, device=CUDA)
        for context in (0, segments[-1].start):
            ours = outputs_and_gradients(flex(segments, window), inputs, context)
            wanted = outputs_and_gradients(dense(segments, context, window), inputs, context)
            for a, b in zip(ours, wanted, strict=True):
                torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def assert_rounded(ours, exact):
    """Rounding to 16 bits errs by up to a hundredth here, in the sums over heads that share keys; a wrong mask by far more."""
    for a, wanted in zip(ours, exact, strict=True):
        assert (a.float() - wanted).norm() <= 0.02 * wanted.norm()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype"),
    [(14, 2, 64, torch.bfloat16), (12, 2, 128, torch.bfloat16), (14, 2, 64, torch.float16)],
)
def test_sixteen_bits_are_a_rounded_dense_mask(heads, kv_heads, head_dim, dtype):
    segments = random_spans(700, 90, 0)
    inputs = states(700, kv_heads, heads, head_dim, dtype, CUDA)
    exact = outputs_and_gradients(dense(segments, 0), [x.float() for x in inputs], 0)
    assert_rounded(outputs_and_gradients(flex(segments), inputs, 0), exact)


@pytest.mark.parametrize("context", [0, 300])
def test_the_flash_kernel_and_flex_agree_in_bfloat16(context, monkeypatch):
    segments = chain(300, 400)
    query, key, value = inputs = states(700, 2, 14, 64, torch.bfloat16, CUDA)
    assert _flash_can(query[:, :, context:], key, value)
    exact = outputs_and_gradients(dense(segments, context), [x.float() for x in inputs], context)

    def causal(*inputs):
        return causal_attention(*inputs, 0.1).transpose(1, 2)

    assert_rounded(outputs_and_gradients(causal, inputs, context), exact)
    monkeypatch.setattr("ramify.learner.flex_attention._flash_can", lambda *_: False)
    assert_rounded(outputs_and_gradients(flex(segments), inputs, context), exact)


def test_a_row_without_forks_takes_the_flash_kernel_and_float32_does_not():
    wide, narrow = (states(200, 2, 14, 64, dtype, CUDA) for dtype in (torch.float32, torch.bfloat16))
    assert not _flash_can(*wide)
    with torch.no_grad(), torch.profiler.profile() as profile:
        FlexTreeAttention(chain(200), CUDA)(0, *narrow, 0.1)
    # Torch may prefer cuDNN's kernel, which keeps no scores either.
    assert any("flash" in event.key or "cudnn" in event.key for event in profile.key_averages())
