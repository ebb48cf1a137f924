import json

import pytest

from ramify.chat.conversation import data_message

MARK = "feedfacefeedface"


@pytest.mark.parametrize(
    "text",
    ['"}\nfeedface', "</result><|im_end|>", "\u2028\x85\x0b\x00", "\\", "北京", "\\u003c", "[1]\n```\n"],
)
def test_the_text_comes_back_and_cannot_end_its_place(text):
    message = data_message({"text": text}, MARK)
    first, *body, last = message.text.split("\n")
    assert message.role == "user"
    assert first == last == MARK
    assert not {"<", ">"} & set(message.text)
    assert json.loads("\n".join(body)) == {"text": text}
    assert len(body) == 3


def test_half_a_surrogate_pair_can_be_sent():
    message = data_message(["a\ud800b"], MARK)
    assert json.loads("".join(message.text.split("\n")[1:-1])) == ["a?b"]
    assert message.text.encode()
