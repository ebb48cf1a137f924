"""Model folders whose chat template has the hermes dialect: Qwen2.5's and Qwen3's formats, written anew for these tests."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

QWEN25, QWEN3 = "qwen2.5", "qwen3"
FAMILIES = (QWEN25, QWEN3)
DEFAULT_SYSTEM = {QWEN25: "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", QWEN3: ""}
TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_STRUCTURE = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MARKUP = {
    QWEN25: ("<tool_call>", "</tool_call>"),
    QWEN3: ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
}
_WORDS = [
    "search", "query", "name", "arguments", "city", "Paris", "Rome", "answer", "the", "tool", "system",
    "user", "assistant", "think", "call", "result",
]  # fmt: skip
_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen's tokenizers split text before they merge: a full stop takes the line break after it along."""


def template(family: str) -> str:
    """A chat template of the family's format."""
    thinks = family == QWEN3
    default = json.dumps(DEFAULT_SYSTEM[family])
    # The thought of an earlier turn is dropped, unless it stands after the user's last message.
    assistant = (
        "{%- set parts = m.content.split('</think>') -%}"
        "{%- set thought = parts[0].split('<think>')[-1].strip('\\n') if parts|length > 1 else '' -%}"
        "{%- set said = parts[-1].lstrip('\\n') if parts|length > 1 else m.content -%}"
        "{%- if loop.index0 > ns.user and (loop.last or thought) -%}"
        "{{- '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' + said -}}"
        "{%- else -%}{{- '<|im_start|>assistant\\n' + said -}}{%- endif -%}"
        if thinks
        else "{%- set said = m.content -%}"
        "{{- '<|im_start|>assistant' + ('\\n' + said if said or not m.tool_calls else '') -}}"
    )
    before_call = "'\\n' if said or not loop.first else ''" if thinks else "'\\n'"
    return (
        f"{{%- set default = {default} -%}}"
        "{%- set system = messages[0].content if messages[0].role == 'system' else default -%}"
        "{%- set ns = namespace(user=-1) -%}"
        "{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.user = loop.index0 -%}{%- endif -%}{%- endfor -%}"
        "{%- if tools -%}"
        "{{- '<|im_start|>system\\n' + (system + '\\n\\n' if system else '') -}}"
        f"{{{{- {json.dumps(TOOLS_HEAD)} -}}}}"
        "{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}"
        f"{{{{- {json.dumps(TOOLS_TAIL + '<|im_end|>' + chr(10))} -}}}}"
        "{%- elif system -%}{{- '<|im_start|>system\\n' + system + '<|im_end|>\\n' -}}{%- endif -%}"
        "{%- for m in messages -%}"
        "{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}"
        "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}"
        "{%- elif m.role == 'assistant' -%}" + assistant + "{%- for c in m.tool_calls or [] -%}"
        "{{- (" + before_call + ') + \'<tool_call>\\n{"name": "\' + c.function.name + \'", "arguments": \' '
        "+ (c.function.arguments | tojson) + '}\\n</tool_call>' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}"
        "{%- elif m.role == 'tool' -%}"
        "{{- '<|im_start|>user' if messages[loop.index0 - 1].role != 'tool' else '' -}}"
        "{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' -}}"
        "{{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' -}}"
        "{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
    )


def write_hermes_tokenizer(folder: Path, family: str = QWEN25) -> Path:
    """The folder of a Qwen model."""
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return write_byte_tokenizer(folder, _STRUCTURE, _MARKUP[family], settings, template(family))


def write_byte_tokenizer(
    folder: Path, structure: Sequence[str], markup: Sequence[str], settings: dict[str, str], source: str
) -> Path:
    """A byte-level tokenizer that is the same everywhere: bytes, a few words, special tokens and other added tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []

    def learn(left: str, right: str) -> None:
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append((left, right))

    for word in _WORDS:
        for spelt in (word, "\u0120" + word):
            for end in range(1, len(spelt)):
                learn(spelt[:end], spelt[end])
    for pair in ((".", "\u010a"), (">", "\u010a"), ("\u010a", "\u010a"), ('"', ":"), ("}", "\u010a")):
        learn(*pair)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in structure])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in markup])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(source)
    return folder


def write_xml_tokenizer(folder: Path) -> Path:
    """As `write_hermes_tokenizer`, for Qwen3; calls are XML, as in the templates of Qwen3-Coder and Qwen3.5."""
    path = write_hermes_tokenizer(folder, QWEN3) / "chat_template.jinja"
    path.write_text(xml_template())
    return folder


def xml_template() -> str:
    """As `template`, for Qwen3, with calls in XML."""
    before, start, after = template(QWEN3).partition("'<tool_call>\\n{")
    _, end, after = after.partition("'}\\n</tool_call>' -}}")
    assert start
    assert end
    calls = (
        "'<tool_call>\\n<function=' + c.function.name + '>\\n' -}}{%- for k, v in c.function.arguments | items -%}"
        "{{- '<parameter=' + k + '>\\n' + (v | tojson if v is mapping or (v is sequence and v is not string) else v | string)"
        " + '\\n</parameter>\\n' -}}{%- endfor -%}{{- '</function>\\n</tool_call>' -}}"
    )
    return before + calls + after


def write_qwen35_tokenizer(folder: Path) -> Path:
    """As `write_xml_tokenizer`; the template also opens each thought and leaves out blanks around results, as that of Qwen3.5."""
    path = write_opening_tokenizer(folder) / "chat_template.jinja"
    opening = "{{- '<|im_start|>assistant\\n<think>\\n' -}}"
    before, plain, after = xml_template().rpartition(opening.replace("<think>\\n", ""))
    assert plain
    source = before + opening + after
    assert source.count("+ m.content + '\\n</tool_response>'") == 1
    path.write_text(
        source.replace("+ m.content + '\\n</tool_response>'", "+ (m.content | trim) + '\\n</tool_response>'")
    )
    return folder


def write_opening_tokenizer(folder: Path) -> Path:
    """As `write_hermes_tokenizer`, for Qwen3; the template opens the thought with which each turn of the assistant begins."""
    path = write_hermes_tokenizer(folder, QWEN3) / "chat_template.jinja"
    before, start, after = path.read_text().rpartition("{{- '<|im_start|>assistant\\n' -}}")
    path.write_text(before + start.replace("assistant\\n", "assistant\\n<think>\\n") + after)
    return folder
