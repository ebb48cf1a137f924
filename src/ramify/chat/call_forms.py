"""How chat templates write calls and results, read from renderings of a call with its results."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

from ramify.chat.template import ChatTemplate
from ramify.core.errors import DataError
from ramify.core.messages import Dialect


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form in which a chat template writes calls.

    Attributes:
        dialect: The dialect that needs it.
        probe: The call of `ramify_probe` with the text "a".
        words: The form in words, for messages.
    """

    dialect: Dialect
    probe: str
    words: str


HERMES = CallForm(
    "hermes",
    '<tool_call>\n{"name": "ramify_probe", "arguments": {"text": "a"}}\n</tool_call>',
    "<tool_call> with JSON",
)
LLAMA3 = CallForm("llama3", '{"name": "ramify_probe", "parameters": {"text": "a"}}', "JSON")
QWEN3_XML = CallForm(
    "qwen3_xml",
    "<tool_call>\n<function=ramify_probe>\n<parameter=text>\na\n</parameter>\n</function>\n</tool_call>",
    "<tool_call> with <function=..>",
)
HARMONY = CallForm(
    "harmony", '<|message|>{"text": "a"}<|call|>', "<|message|> with JSON in the commentary channel"
)
_FORMS = (HERMES, LLAMA3, QWEN3_XML, HARMONY)
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "ramify_probe",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}


@dataclass(frozen=True, slots=True)
class ResultFrame:
    """The template's text around tool results, from the end token of the turn with the calls on.

    Attributes:
        before: Up to the first result.
        between: Between two results.
        after: From the last result to where the assistant begins to write.
        trims: The template leaves out blanks around a result, as that of Qwen3.5 does.
    """

    before: str
    between: str
    after: str
    trims: bool

    @property
    def result_end(self) -> str:
        """The text that closes each result: with what follows it begins alike, whether that is another result or not."""
        pairs = zip(self.between, self.after, strict=False)
        return "".join(character for character, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def pieces(self, results: int) -> tuple[str, ...]:
        """Return the texts around `results` results, at least 1; one more than there are results."""
        return (self.before, *(self.between,) * (results - 1), self.after)


@lru_cache(maxsize=4)
def read_frame(template: ChatTemplate, end: str, origin: str, form: CallForm) -> ResultFrame:
    """Return a template's text around tool results, read from renderings of a call with one result, with two, and with blanks around one.

    Args:
        template: The chat template.
        end: The text of the end token.
        origin: The template's folder, with which error messages begin.
        form: How the template must write calls.

    Raises:
        DataError: The template shows no tools, writes calls or results in another way, or ends turns with another token.
    """
    key = f'model.dialect = "{form.dialect}"'
    marks = ["ramify_first", "ramify_second"]
    one_result = probed_results(template, origin, marks[:1], form)
    two_results = probed_results(template, origin, marks, form)
    trims = probed_results(template, origin, [f" \n{marks[0]}\n "], form) == one_result
    _, call, after_call = two_results.partition(form.probe)
    if call and not after_call.startswith(end):
        raise DataError(
            f"{origin}: the chat template ends a turn with {after_call.partition(chr(10))[0]!r:.60}, but eos_token in "
            f"tokenizer_config.json is {end!r}. {key} needs them equal"
        )
    if not call or any(two_results.count(mark) != 1 for mark in marks):
        raise other_form(origin, two_results, form)
    before, _, after_first = after_call.removeprefix(end).partition(marks[0])
    between, _, after = after_first.partition(marks[1])
    frame = ResultFrame(before, between, after, trims)
    if not one_result.endswith(form.probe + end + before + marks[0] + after):
        raise DataError(
            f"{origin}: the chat template writes one tool result differently from two, which {key} does not "
            'support. Use "tags" or another template'
        )
    return frame


def other_form(origin: str, rendered: str, form: CallForm) -> DataError:
    """Return the refusal of a template that writes calls or results in another form, as this rendering of them shows."""
    others = (each.dialect for each in _FORMS if each != form and each.probe in rendered)
    return DataError(
        f'{origin}: the chat template does not write calls and results as model.dialect = "{form.dialect}" does '
        f'({form.words}, then the end of the turn). Use "{next(others, "tags")}" or another template'
    )


def probed_results(template: ChatTemplate, origin: str, results: Sequence[str], form: CallForm) -> str:
    """Render a call of `ramify_probe` with the text "a", and results.

    Raises:
        DataError: The template shows no tools, or refuses such a chat.
    """
    key = f'model.dialect = "{form.dialect}"'
    if "ramify_probe" not in template.render([{"role": "user", "content": "q"}], [_PROBE_TOOL]):
        raise DataError(
            f'{origin}: the chat template shows the model no tools, which {key} needs. Use "tags" or another template'
        )
    call = {"type": "function", "function": {"name": "ramify_probe", "arguments": {"text": "a"}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        *({"role": "tool", "name": "ramify_probe", "content": text} for text in results),
    ]
    try:
        return template.render(messages, [_PROBE_TOOL])
    except DataError as error:
        raise DataError(f"{error} (a call and its results, for {key})") from None
