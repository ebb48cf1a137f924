import pytest

from ramify.core.terminal import printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, naïve, 日本, 🙂, a\u00a0b", "plain, naïve, 日本, 🙂, a\u00a0b"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\rb\x9b31m\x7f", r"a\rb\x9b31m\x7f"),
        ("half \ud800 of a pair", r"half \ud800 of a pair"),
        ("\u202eevil\u2066\u200b\u2028", r"\u202eevil\u2066\u200b\u2028"),
        ("\U000e0041", r"\U000e0041"),
        ("a\n\tb", r"a\n\tb"),
    ],
)
def test_what_would_act_on_a_terminal_is_spelled_out(text, expected):
    assert printable(text) == expected
    printable(text).encode()


def test_line_breaks_stay_where_they_are_asked_for():
    assert printable("a\n\x1b\tb", keep="\n") == "a\n\\x1b\\tb"
