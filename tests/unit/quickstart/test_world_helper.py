import json

from ramify.quickstart.world_helper import help_out


def help_with(**data):
    return help_out(
        [{"role": "system", "content": "x"}, {"role": "user", "content": f"ab\n{json.dumps(data)}\nab"}]
    )


def test_operators_in_words_become_pythons():
    assert (
        help_with(program='print("=", 12 plus 30 minus 4)', error="SyntaxError") == 'print("=", 12 + 30 - 4)'
    )
    assert help_with(program='print("=", 6 times 7)', error="SyntaxError") == 'print("=", 6 * 7)'


def test_the_facts_that_were_noted_are_kept_and_nothing_else():
    work = (
        "<think> find Gure age</think><search> Gure age</search> <result>\n- Gure age 40\n- Gure area 1\n</result>"
        "<think> Gure age 40</think><search> Peli area</search> <result>\n- Peli area 25\n</result>"
        "<think> Peli area 25</think><think> compute this</think>"
    )
    assert help_with(question="?", work=work) == "Gure age 40 Peli area 25"
