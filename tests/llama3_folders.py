"""Model folders whose chat template has the llama3 dialect: the format of Llama 3.1 to 3.3, written anew for these tests."""

import json
from pathlib import Path

from hermes_folders import write_byte_tokenizer

STRUCTURE = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
    "<|eot_id|>", "<|python_tag|>",
)  # fmt: skip
TEMPLATE = (
    "{{- bos_token -}}"
    "{%- if messages[0].role == 'system' -%}"
    "{%- set system = messages[0].content | trim -%}{%- set messages = messages[1:] -%}"
    "{%- else -%}{%- set system = '' -%}{%- endif -%}"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + ('Environment: ipython\\n' if tools else '') -}}"
    "{{- 'Today Date: ' + strftime_now('%d %b %Y') + '\\n\\n' + system + '<|eot_id|>' -}}"
    "{%- if tools -%}"
    "{%- set first = messages[0].content | trim -%}{%- set messages = messages[1:] -%}"
    "{{- '<|start_header_id|>user<|end_header_id|>\\n\\nFunctions:\\n\\n' -}}"
    "{%- for tool in tools -%}{{- (tool | tojson(indent=4)) + '\\n\\n' -}}{%- endfor -%}"
    "{{- first + '<|eot_id|>' -}}"
    "{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- if m.tool_calls -%}"
    "{%- if m.tool_calls | length != 1 -%}{{- raise_exception('single tool-calls only') -}}{%- endif -%}"
    "{%- set call = m.tool_calls[0].function -%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{\"name\": \"' + call.name + '\", ' -}}"
    "{{- '\"parameters\": ' + (call.arguments | tojson) + '}<|eot_id|>' -}}"
    "{%- elif m.role == 'tool' -%}"
    "{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (m.content | tojson) + '<|eot_id|>' -}}"
    "{%- else -%}"
    "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + (m.content | trim) + '<|eot_id|>' -}}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"
)


def write_llama3_tokenizer(folder: Path) -> Path:
    """The folder of a Llama 3 model."""
    settings = {"bos_token": STRUCTURE[0], "eos_token": "<|eot_id|>", "pad_token": STRUCTURE[1]}
    write_byte_tokenizer(folder, STRUCTURE, (), settings, TEMPLATE)
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    ends = [token["id"] for token in added if token["content"] in ("<|eom_id|>", "<|eot_id|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder
