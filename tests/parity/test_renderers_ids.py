"""The dialects on the templates of Qwen3, Qwen3.5 and Llama 3 against the ids of the `renderers` package, which has them in Python."""

import json
from itertools import groupby
from pathlib import Path

import pytest
from hermes_inputs import CONVERSATIONS, SINGLE_CALLS, THOUGHTFUL, TOOLS, call_text

from hermes_folders import QWEN3, write_hermes_tokenizer, write_qwen35_tokenizer
from llama3_folders import write_llama3_tokenizer
from ramify.chat.conversation import AssistantCall, AssistantTurn
from ramify.chat.demonstrations import split
from ramify.chat.hermes import HermesRenderer
from ramify.chat.renderers import renderer_for
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Final, Message, Problem, ToolResult, ToolSpec, ToolStatus
from ramify.core.tree import Source

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


@pytest.mark.parametrize(
    ("dialect", "write", "conversations"),
    [("llama3", write_llama3_tokenizer, SINGLE_CALLS), ("qwen3_xml", write_qwen35_tokenizer, THOUGHTFUL)],
)
def test_calls_and_results_have_the_ids_of_a_whole_render(tmp_path, dialect, write, conversations):
    renderer = renderer_for(dialect, ChatTokenizer(write(tmp_path)))
    for conversation, expected in zip(conversations, RECORDED["behind_prompt"][dialect], strict=True):
        ids: list[int] = []
        for turn in conversation["rounds"]:
            calls = tuple(
                AssistantCall("c", name, json.dumps({"query": query}, ensure_ascii=False))
                for name, query in turn["calls"]
            )
            written = AssistantTurn("", turn["thought"], calls)
            lines = (written, *(ToolResult("c", ToolStatus.OK, text) for text in turn["results"]))
            for source, group in groupby(split(renderer, lines, SPECS), lambda part: part[0]):
                texts = [text for _, text in group]
                ids += renderer.tokens(source, texts, SPECS)
                ids += [renderer.tokenizer.eos_id] if source is Source.POLICY else []
        assert ids == expected
