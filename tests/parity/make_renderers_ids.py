"""Make tests/parity/renderers_ids.json: the token ids that the `renderers` package (0.1.12) gives the conversations of
hermes_inputs.py, with the Qwen3 tokenizer of tests/hermes_folders.py.

    python -m venv DIR; DIR/bin/pip install renderers==0.1.12 httpx tokenizers
    PYTHONPATH=tests DIR/bin/python tests/parity/make_renderers_ids.py

Nothing of ramify is imported.
"""

import json
import tempfile
from pathlib import Path

import renderers
from hermes_inputs import CONVERSATIONS, TOOLS
from renderers.qwen3 import Qwen3Renderer
from tokenizers import Tokenizer

from hermes_folders import QWEN3, write_hermes_tokenizer


class Bare:
    """What the package asks of a tokenizer."""

    unk_token_id = None

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.eos_token_id = self._tokenizer.token_to_id("<|im_end|>")

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: list[int], **_: object) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)


def messages_of(conversation: dict) -> list[dict]:
    """The conversation up to its last tool results, as OpenAI's API has it."""
    messages = [{"role": "system", "content": conversation["system"]}] if "system" in conversation else []
    messages.append({"role": "user", "content": conversation["question"]})
    for turn in conversation["rounds"]:
        calls = [
            {"type": "function", "function": {"name": name, "arguments": {"query": query}}}
            for name, query in turn["calls"]
        ]
        messages.append(
            {"role": "assistant", "content": "", "reasoning_content": turn["thought"], "tool_calls": calls}
        )
        messages += [{"role": "tool", "content": text} for text in turn["results"]]
    return messages


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        renderer = Qwen3Renderer(Bare(write_hermes_tokenizer(Path(folder), QWEN3)))
        ids = [
            list(renderer.render_ids(messages_of(each), tools=TOOLS, add_generation_prompt=True))
            for each in CONVERSATIONS
        ]
    recorded = {"renderers": renderers.__version__, "ids": ids}
    Path(__file__).with_name("renderers_ids.json").write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()
