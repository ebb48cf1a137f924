"""Make tests/parity/renderers_ids.json: the token ids that the `renderers` package (0.1.12) gives the conversations of
hermes_inputs.py, with the Qwen3 tokenizer of tests/hermes_folders.py; and of the dialects of Llama 3 and Qwen3.5 the ids behind the
prompt, whose words differ between the package and the templates of these tests.

    python -m venv DIR; DIR/bin/pip install renderers==0.1.12 httpx tokenizers
    PYTHONPATH=tests DIR/bin/python tests/parity/make_renderers_ids.py

Nothing of ramify is imported.
"""

import json
import tempfile
from pathlib import Path

import renderers
from hermes_inputs import CONVERSATIONS, SINGLE_CALLS, THOUGHTFUL, TOOLS
from renderers.llama_3 import Llama3Renderer
from renderers.qwen3 import Qwen3Renderer
from renderers.qwen35 import Qwen35Renderer
from tokenizers import Tokenizer

from hermes_folders import QWEN3, write_hermes_tokenizer, write_qwen35_tokenizer
from llama3_folders import write_llama3_tokenizer


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

    def convert_tokens_to_ids(self, token: str) -> int:
        # Tokens of pictures, which these tokenizers lack and no text needs.
        return self._tokenizer.token_to_id(token) or 0


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


def behind_prompt(renderer: object, conversation: dict) -> list[int]:
    """The ids of the calls and the results, without those of the prompt."""
    messages = messages_of(conversation)
    size = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    prompt, whole = (
        list(renderer.render_ids(part, tools=TOOLS, add_generation_prompt=True))
        for part in (messages[:size], messages)
    )
    assert whole[: len(prompt)] == prompt
    return whole[len(prompt) :]


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        renderer = Qwen3Renderer(Bare(write_hermes_tokenizer(Path(folder), QWEN3)))
        ids = [
            list(renderer.render_ids(messages_of(each), tools=TOOLS, add_generation_prompt=True))
            for each in CONVERSATIONS
        ]
    behind: dict[str, list[list[int]]] = {}
    for dialect, renderer_class, write, conversations in (
        ("llama3", Llama3Renderer, write_llama3_tokenizer, SINGLE_CALLS),
        ("qwen3_xml", Qwen35Renderer, write_qwen35_tokenizer, THOUGHTFUL),
    ):
        with tempfile.TemporaryDirectory() as folder:
            renderer = renderer_class(Bare(write(Path(folder))))
            behind[dialect] = [behind_prompt(renderer, each) for each in conversations]
    recorded = {"renderers": renderers.__version__, "ids": ids, "behind_prompt": behind}
    Path(__file__).with_name("renderers_ids.json").write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()
