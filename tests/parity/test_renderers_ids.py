"""The hermes dialect on Qwen3's template against the ids of the `renderers` package, which has that template in Python."""

import json
from pathlib import Path

import pytest
from hermes_inputs import CONVERSATIONS, TOOLS, call_text

from hermes_folders import QWEN3, write_hermes_tokenizer
from ramify.chat.hermes import HermesRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Final, Message, Problem, ToolResult, ToolSpec, ToolStatus

RECORDED = json.loads(Path(__file__).with_name("renderers_ids.json").read_text())


SPECS = [
    ToolSpec(tool["name"], tool["description"], tool["parameters"], forks=True, timeout_seconds=1.0)
    for tool in (each["function"] for each in TOOLS)
]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    return HermesRenderer(ChatTokenizer(write_hermes_tokenizer(tmp_path_factory.mktemp("qwen3"), QWEN3)))


@pytest.mark.parametrize("index", range(len(CONVERSATIONS)))
def test_a_context_that_grows_has_the_ids_of_a_whole_render(renderer, index):
    conversation = CONVERSATIONS[index]
    system = [Message.of("system", conversation["system"])] if "system" in conversation else []
    problem = Problem("p", (*system, Message.of("user", conversation["question"])), ())
    ids = list(renderer.render_prompt(problem, SPECS))
    for turn in conversation["rounds"]:
        thought = f"<think>\n{turn['thought']}\n</think>\n\n" if turn["thought"] else ""
        written = thought + "\n".join(call_text(*call) for call in turn["calls"])
        own = (*renderer.tokenizer.encode(written), renderer.tokenizer.eos_id)
        parsed = renderer.parse(renderer.decode(own), SPECS)
        assert [(call.name, call.arguments["query"]) for call in parsed.calls] == turn["calls"]
        ids += own
        ids += renderer.render_results(
            [ToolResult("c", ToolStatus.OK, text) for text in turn["results"]], SPECS
        )
    assert RECORDED["renderers"] == "0.1.12"
    assert ids == RECORDED["ids"][index]
    assert renderer.parse(conversation["answer"] + "<|im_end|>", SPECS) == Final(conversation["answer"])
