"""Signed messages: one of another run, generation, command, sender or receiver, or with any bit changed, is refused."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.errors import ConfigError
from ramify.learner.seal import ForgedError, Label, Seal, checked_secret

SEAL = Seal(b"a secret", "run")
labels = st.builds(Label, st.text(max_size=9), st.text(max_size=9), *[st.integers(-1, 9)] * 3)


@settings(max_examples=60, deadline=None)
@given(labels, st.binary(max_size=50))
def test_a_message_is_opened_under_its_label(label, content):
    assert bytes(SEAL.open(label, SEAL.close(label, content))) == content


@settings(max_examples=100, deadline=None)
@given(labels, labels, st.binary(max_size=50), st.data())
def test_any_change_is_refused(label, other, content, data):
    message = SEAL.close(label, content)
    name = data.draw(st.sampled_from([field.name for field in fields(Label)]))
    changed = replace(label, **{name: getattr(other, name)})
    flipped = bytearray(message)
    flipped[data.draw(st.integers(0, len(message) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = message[: data.draw(st.integers(0, len(message) - 1))]
    attempts = [(label, flipped), (label, cut), (label, message + b"\0")]
    attempts += [(wrong, message) for wrong in (changed, other) if wrong != label]
    for wrong, forged in attempts:
        with pytest.raises(ForgedError):
            SEAL.open(wrong, forged)
    for stranger in (Seal(b"another secret", "run"), Seal(b"a secret", "another run")):
        with pytest.raises(ForgedError):
            stranger.open(label, message)


@settings(max_examples=60, deadline=None)
@given(labels, st.binary(max_size=100))
def test_random_bytes_are_refused(label, message):
    with pytest.raises(ForgedError):
        SEAL.open(label, message)


def test_no_two_labels_share_a_key():
    parts = [
        Label(k, g, s, r, n) for k in "ab" for g in "cd" for s in (0, 1) for r in (-1, 1) for n in (1, 11)
    ]
    assert len({label.key for label in parts}) == len(parts)


@pytest.mark.parametrize(
    ("secret", "problem"), [(None, "is not set"), ("", "has 0 characters"), ("x" * 31, "has 31")]
)
def test_short_secrets_are_refused_and_not_shown(secret, problem):
    with pytest.raises(ConfigError, match=rf"^RAMIFY_SECRET: {problem}") as caught:
        checked_secret(secret)
    assert not secret or secret not in str(caught.value)
    assert checked_secret("x" * 32) == b"x" * 32
