"""Model folders whose chat template has the harmony dialect: gpt-oss's format, written anew for these tests."""

import json
from pathlib import Path

from hermes_folders import write_byte_tokenizer

STRUCTURE = (
    "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>",
    "<|call|>",
)  # fmt: skip
ENDS = ("<|endoftext|>", "<|return|>", "<|call|>")
TEMPLATE = (
    "{{- '<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\\nKnowledge cutoff: 2024-06\\n'"
    " + 'Current date: ' + strftime_now('%Y-%m-%d') + '\\n\\nReasoning: medium\\n\\n# Valid channels: analysis, commentary, final. '"
    " + 'Channel must be included for every message.' -}}"
    "{%- if tools -%}{{- \"\\nCalls to these tools must go to the commentary channel: 'functions'.\" -}}{%- endif -%}"
    "{{- '<|end|>' -}}"
    "{%- if messages[0].role == 'system' -%}"
    "{%- set system = messages[0].content -%}{%- set messages = messages[1:] -%}"
    "{%- else -%}{%- set system = '' -%}{%- endif -%}"
    "{%- if system or tools -%}"
    "{{- '<|start|>developer<|message|>' + ('# Instructions\\n\\n' + system + '\\n\\n' if system else '') -}}"
    "{%- if tools -%}"
    "{{- '# Tools\\n\\n## functions\\n\\nnamespace functions {\\n\\n' -}}"
    "{%- for tool in tools -%}"
    "{{- '// ' + tool.function.description + '\\ntype ' + tool.function.name + ' = (_: {\\n' -}}"
    "{%- for name, spec in (tool.function.parameters.properties or {}).items() -%}"
    "{{- name + ('' if name in (tool.function.parameters.required or []) else '?') + ': ' + (spec.type or 'any') + ',\\n' -}}{%- endfor -%}"
    "{{- '}) => any;\\n\\n' -}}{%- endfor -%}"
    "{{- '} // namespace functions' -}}{%- endif -%}"
    "{{- '<|end|>' -}}{%- endif -%}"
    "{%- set called = namespace(name=none) -%}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'assistant' -%}"
    "{%- if '<|channel|>' in m.content -%}{{- raise_exception('content holds channels') -}}{%- endif -%}"
    "{%- if m.tool_calls -%}"
    "{%- set call = m.tool_calls[0].function -%}"
    "{%- if m.content -%}{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.content + '<|end|>' -}}{%- endif -%}"
    "{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' -}}"
    "{{- (call.arguments | tojson) + '<|call|>' -}}{%- set called.name = call.name -%}"
    "{%- else -%}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' -}}{%- set called.name = none -%}"
    "{%- endif -%}"
    "{%- elif m.role == 'tool' -%}"
    "{%- if called.name is none -%}{{- raise_exception('a result without a call') -}}{%- endif -%}"
    "{{- '<|start|>functions.' + called.name + ' to=assistant<|channel|>commentary<|message|>' -}}"
    "{{- (m.content | tojson) + '<|end|>' -}}"
    "{%- elif m.role == 'user' -%}{{- '<|start|>user<|message|>' + m.content + '<|end|>' -}}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}"
)


def write_harmony_tokenizer(folder: Path) -> Path:
    """The folder of a gpt-oss model."""
    write_byte_tokenizer(folder, STRUCTURE, (), {"eos_token": ENDS[1], "pad_token": ENDS[0]}, TEMPLATE)
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    ends = [token["id"] for token in added if token["content"] in ENDS]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder
