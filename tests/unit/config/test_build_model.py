import json

import pytest

from model_folders import write_model
from ramify.config.build_model import build_tokenizer
from ramify.core.errors import DataError


def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_refused(tmp_path):
    folder = write_model(tmp_path / "m", "qwen3")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 20}))
    with pytest.raises(DataError, match=r"tokenizer\.json has \d+ tokens, config\.json vocab_size = 20"):
        build_tokenizer(folder)
