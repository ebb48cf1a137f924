"""Recorded tokens and the tokenizer that is to read them."""

import pytest

from ramify.core.errors import DataError
from ramify.core.tree import Node, Source
from ramify.runs.recorded_trees import require_tokenizer


def test_a_prompt_of_another_tokenizer_is_refused_by_its_place():
    prompt = Node("", (), None, Source.PROMPT, (104, 105), "hi")
    require_tokenizer("here", prompt, lambda ids: bytes(ids).decode())
    with pytest.raises(
        DataError, match=r"^here: its tokens .* another model's tokenizer\. Use the model that wrote them"
    ):
        require_tokenizer("here", prompt, lambda ids: "other")
