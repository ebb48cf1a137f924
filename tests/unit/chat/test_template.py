"""Chat templates are programs of strangers: they end, in time and in memory, and the prompt is what transformers makes."""

import pytest

from ramify.chat.template import ChatTemplate, read_user_frame
from ramify.core.errors import DataError

MESSAGES = [{"role": "user", "content": "what is 12 plus 30 ?"}]
GOOD = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"


def refusal(source, messages=MESSAGES):
    with pytest.raises(DataError) as refused:
        ChatTemplate(source, {}, "folder").render(messages)
    message = str(refused.value)
    assert message.startswith("folder: the chat template ")
    assert "\n" not in message
    return message


@pytest.mark.integration
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "processor time"),
        ("{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(99) }}", "processor time"),
        ("{{ 'a' * 10**10 }}", "MiB of memory"),
        ("{{ messages[0].content * 10**9 }}", "MiB of memory"),
        ("{{ messages[0].content | center(10**10) }}", "MiB of memory"),
        (
            "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "it takes more than ",  # memory, or on a machine that is slow at copying, processor time
        ),
        ("{{ 'ab' * 5 * 10**7 }}", "too long"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ {}['x'].y }}", "has no attribute"),
        ("{{ raise_exception('first\nmust be user') }}", "first must be user"),
        ("{{ messages[0].content + 1 }}", "refuses the messages"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ messages.append(1) }}", "refuses the messages"),
        ("{{ ''.__class__.__mro__ }}", "refuses the messages"),
    ],
)
def test_what_a_template_may_not_do(source, reason):
    assert reason in refusal(source)
    assert ChatTemplate(GOOD, {"eos_token": "!"}, "folder").render(MESSAGES) == "what is 12 plus 30 ?!"


def test_a_bomb_that_waits_for_a_long_chat():
    """To have rendered one chat says nothing about the next: every render has its limits."""
    template = ChatTemplate(
        "{% if messages | length > 1 %}{{ 'a' * 10**10 }}{% else %}ok{% endif %}", {}, "folder"
    )
    assert template.render(MESSAGES) == "ok"
    with pytest.raises(DataError, match="MiB of memory"):
        template.render(MESSAGES * 2)
    assert template.render(MESSAGES) == "ok"


def test_any_text_comes_back_as_it_was():
    texts = [
        "caf\u00e9 \u4e2d\u6587 \U0001f600",
        "a\ud800b",
        'quotes " \\ and\nlines\r\n',
        "\x00\x1f\u2028",
        "x" * 3_000_000,
    ]
    for text in texts:
        template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}", {}, "folder")
        assert template.render([{"role": "user", "content": text}]) == f"[{text}]"


def test_a_template_that_opens_thoughts_and_keeps_them_lets_the_user_speak_again():
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}{{ '[assistant]<think>\\n' }}"
    template = ChatTemplate(source, {"eos_token": "!"}, "folder")
    assert read_user_frame(template, "!", "folder") == ("[user]", "![assistant]<think>\n")
