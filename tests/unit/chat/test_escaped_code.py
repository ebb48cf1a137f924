r"""Programs of a data set in which each line break is written `\n`."""

import pytest

from ramify.chat.escaped_code import with_line_breaks


def turn(program):
    return f"<think> a\\nb </think><python>{program}</python>"


@pytest.mark.parametrize(
    ("program", "mended"),
    [
        (r"import math\nprint(math.pi)", "import math\nprint(math.pi)"),
        (r"\nx = 1\nif x:\n    print('a\nb')\n", "\nx = 1\nif x:\n    print('a\\nb')\n"),
        (r's = """a\nb"""\nprint(s)', 's = """a\\nb"""\nprint(s)'),
        (r"# what isn't so\nprint(1)", "# what isn't so\nprint(1)"),
        (r"x = 1  # one\nprint(x)", "x = 1  # one\nprint(x)"),
        # A comment ends at a line break of its own too; what follows has literals.
        ('# first\nprint("a\\nb")\\nprint(2)', '# first\nprint("a\\nb")\nprint(2)'),
        ('# first\ns = """a\\nb"""\\nprint(s)', '# first\ns = """a\\nb"""\nprint(s)'),
        ("# isn't\\nprint('a')", "# isn't\nprint('a')"),
        ('s = """a\nb\\nc"""\\nprint(s)', 's = """a\nb\\nc"""\nprint(s)'),
        ("s = '''it's\\nb'''\\nprint(s)", "s = '''it's\\nb'''\nprint(s)"),
        ('s = """a "b" c\\nd"""\\nprint(s)', 's = """a "b" c\\nd"""\nprint(s)'),
        ("\n# one\\nprint(1)\n", "\n# one\nprint(1)\n"),
    ],
)
def test_a_program_gets_its_line_breaks_back(program, mended):
    assert with_line_breaks(turn(program)) == turn(mended)


@pytest.mark.parametrize(
    "program",
    [
        'x = 1\nprint("a\\nb")',
        r'print("a\nb")',
        r"x = 1 \n  y",
        # They parse as they stand, and line breaks would change nothing.
        r"print(1)  # done\n",
        r"print(1)  # one\n# two",
        "x = " + "1 + " * 1500 + r"1  # a\nprint(x)",
        r"a\\nb",
        'x = 1  # \\n is a line break\nprint("\\n")',
        "(" * 30_000 + r"\n",
        "-" * 19_000 + r"1\nx",
        r"x = 1\n" * 5000,
        "",
    ],
)
def test_a_program_that_is_right_or_beyond_repair_stays(program):
    assert with_line_breaks(turn(program)) == turn(program)


def test_only_calls_are_looked_at():
    for text in (
        r"import math\nprint(1)",
        r"<search>a\nb</search>",
        r"<python>x = 1\ny = 2",
        "<python>" * 50_000 + r"\n",
    ):
        assert with_line_breaks(text) == text
