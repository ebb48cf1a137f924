"""The texts of tokens are together the text of all, wherever characters are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.chat.token_texts import copy_tokenizer, run_tokenizer, token_texts
from ramify.chat.tokenizer import ChatTokenizer


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return ChatTokenizer(tokenizer_folder)


@given(data=st.data(), text=st.text(max_size=12))
def test_texts_of_tokens_are_the_text(tokenizer, data, text):
    ids = data.draw(
        st.one_of(
            st.just(tokenizer.encode_plain(text)),
            st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=12).map(tuple),
        )
    )
    cut = data.draw(st.integers(0, len(ids)))
    texts = token_texts(tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer.decode(ids)
    assert token_texts(tokenizer, ids[cut:], ids[:cut]) == texts[cut:]


def test_a_character_of_several_tokens_is_the_text_of_the_last(tokenizer):
    ids = tokenizer.encode_plain("\U0001f600")
    assert len(ids) > 1
    assert token_texts(tokenizer, ids) == ("",) * (len(ids) - 1) + ("\U0001f600",)
    assert token_texts(tokenizer, ids[:-1]) == ("",) * (len(ids) - 2) + ("\N{REPLACEMENT CHARACTER}",)


def test_a_run_keeps_its_tokenizer(tokenizer, tmp_path):
    assert run_tokenizer(tmp_path) is None
    copy_tokenizer(tokenizer, tmp_path)
    assert run_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint
