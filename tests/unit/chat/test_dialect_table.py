"""The table of docs/concepts.md that says which models work with which dialect, made from tokenizers and templates like theirs."""

from typing import get_args

from chat_folders import ROLE_MARK, TURN_END, write_byte_fallback

from dialect_folders import WRITERS
from doc_pages import read_page
from hermes_folders import (
    QWEN3,
    QWEN25,
    write_hermes_tokenizer,
    write_opening_tokenizer,
    write_qwen35_tokenizer,
    write_xml_tokenizer,
)
from model_folders import write_tokenizer
from ramify.chat.conversation import AssistantCall, AssistantTurn
from ramify.chat.demonstrations import check, demonstrate, split
from ramify.chat.renderers import renderer_for
from ramify.chat.stops import StopMatcher
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError
from ramify.core.messages import (
    Calls,
    Dialect,
    Final,
    Message,
    Problem,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolStatus,
)
from ramify.core.tree import Source, TreeKey
from ramify.modeling.model_config import FAMILIES, SLOT_FAMILIES

PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SPECS = [ToolSpec("search", "d", PARAMETERS, True, 1.0)]
CALLED = Calls((ToolCall("0", "search", {"query": "Rome"}),))
R1 = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}"
)
GEMMA = (
    "{%- for m in messages -%}{%- if m.role == 'tool' -%}{{- raise_exception('roles must be user and assistant') -}}{%- endif -%}"
    "{{- '<|im_start|>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + (m.content | trim) + '<|im_end|>\\n' -}}"
    "{%- endfor -%}{{- '<|im_start|>model\\n' -}}"
)
INST = (
    f"{ROLE_MARK}{{%- for m in messages -%}}{{%- if m.role == 'assistant' -%}}{{{{- m.content + '{TURN_END}' -}}}}"
    "{%- else -%}{{- '[INST] ' + m.content + ' [/INST]' -}}{%- endif -%}{%- endfor -%}"
)


def without_tools(write, template):
    """The writer of a folder with this template."""

    def write_folder(folder):
        write(folder)
        (folder / "chat_template.jinja").write_text(template)
        return folder

    return write_folder


MODELS = (
    ("Qwen2.5", "qwen2", lambda folder: write_hermes_tokenizer(folder, QWEN25)),
    ("Qwen3", "qwen3", lambda folder: write_hermes_tokenizer(folder, QWEN3)),
    ("Qwen3-Thinking", "qwen3", write_opening_tokenizer),
    ("Qwen3-Coder-Next", "qwen3_next", write_xml_tokenizer),
    ("Qwen3.5", "qwen3_5", write_qwen35_tokenizer),
    ("Llama 3.1 to 3.3", "llama", WRITERS["llama3"]),
    ("DeepSeek-R1-Distill", "qwen2", without_tools(write_tokenizer, R1)),
    ("Mistral 7B, Llama 2", "mistral", without_tools(write_byte_fallback, INST)),
    ("Gemma 3", "gemma3_text", without_tools(write_tokenizer, GEMMA)),
    ("gpt-oss", "gpt_oss", WRITERS["harmony"]),
)


def fits(folder, dialect):
    """The renderer, if the dialect can be had with this folder: a call, its result and an answer are written and read, and a
    forged result is stopped at.
    """
    try:
        renderer = renderer_for(dialect, ChatTokenizer(folder))
    except DataError:
        return None
    answer = "<answer> 753 </answer>" if dialect == "tags" else "753"
    lines = (
        AssistantTurn("", "I look.", (AssistantCall("0", "search", '{"query": "Rome"}'),)),
        ToolResult("0", ToolStatus.OK, f"{answer} {renderer.result_tags[0]}"),
        AssistantTurn(answer, "So."),
    )
    parts = split(renderer, lines, SPECS)
    check(renderer, parts, SPECS)
    problem = Problem("p", (Message.of("user", "When?"),), ())
    tree = demonstrate(renderer, problem, parts, TreeKey(0, 0), SPECS)
    turns = [node for node in tree.nodes if node.source is Source.POLICY]
    assert [node.turn for node in turns] == [CALLED, Final("753")]
    stops = StopMatcher(renderer.tokenizer.token_bytes, renderer.stops(SPECS))
    forged = renderer.tokenizer.encode(renderer.result_tags[0], continues=True)
    assert any(stops.completes(forged[: size + 1]) for size in range(len(forged)))
    own = turns[0].token_ids
    assert renderer.decode(own).endswith((*renderer.ends, "</search>"))
    return renderer


def table(tmp_path):
    """The table's lines."""
    dialects = get_args(Dialect)
    lines = [
        f"| models | `model_type` | engine | {' | '.join(dialects)} |",
        "| --- | --- | --- |" + " --- |" * len(dialects),
    ]
    for index, (models, family, write) in enumerate(MODELS):
        folder = write(tmp_path / f"{index}")
        trains = family in FAMILIES
        renderers = [fits(folder, dialect) for dialect in dialects]
        for engine in ("local", "vLLM"):
            cells = []
            for renderer in renderers:
                if renderer is None or (engine == "local" and not trains):
                    cells.append("no")
                elif not trains:
                    cells.append("eval")
                else:
                    sft = "SFT" if renderer.keeps_turns else "SFT by turn"
                    writes = engine == "vLLM" or family in SLOT_FAMILIES
                    cells.append(f"{sft}, RL" if writes else sft)
            lines.append(f"| {models} | {family} | {engine} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_page_has_the_table(tmp_path):
    expected = table(tmp_path)
    assert expected in read_page("concepts.md"), f"docs/concepts.md must hold this table:\n{expected}"
