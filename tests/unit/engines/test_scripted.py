import pytest

from ramify.core.errors import ConfigError
from ramify.engines.scripted import load_script

TURNS = """
[[turns]]
after = 0
text = "<search> a </search>"
entropies = [0.5, 1]
[[turns]]
after = 1
text = "<answer> b </answer>"
entropies = [0.5]
ends = true
"""


def test_turns_by_results_so_far_the_last_ones_for_ever(tmp_path):
    path = tmp_path / "script.toml"
    path.write_text(TURNS)
    script = load_script(path, "\n</result>")
    result = " <result>\nx\n</result>"
    assert [script(result * done, 1).text for done in range(4)] == [
        "<search> a </search>",
        *["<answer> b </answer>"] * 3,
    ]
    assert script("", 1).entropies == (0.5, 1.0)


def test_pairs_are_brackets_and_the_script_says_so(tmp_path):
    path = tmp_path / "script.toml"
    path.write_text(TURNS)
    assert load_script(path, "\n</result>").exact_entropy
    path.write_text(TURNS.replace("[0.5, 1]", "[0.5, [1, 2.5]]"))
    script = load_script(path, "\n</result>")
    assert script("", 1).entropies == (0.5, (1.0, 2.5))
    assert not script.exact_entropy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("turns = 3", "expected [[turns]] tables"),
        ("turns = []", "without a gap, found []"),
        (TURNS.replace("after = 0", "after = 'x'"), "expected [[turns]] tables"),
        (TURNS.replace("after = 0", "after = 2"), "without a gap, found [1, 2]"),
        (TURNS.replace("[0.5, 1]", "[]"), "entropies a list that is not empty"),
        (TURNS.replace("[0.5, 1]", "['low']"), "a number or a pair [lower, upper], not 'low'"),
        (TURNS.replace("[0.5, 1]", "[[2, 1]]"), "a number or a pair [lower, upper], not [2, 1]"),
        (TURNS.replace('"<search> a </search>"', "3"), "text must be a string"),
        ("turns = [", "expected [[turns]] tables"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused_when_it_is_read(tmp_path, text, message):
    path = tmp_path / "script.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_script(path, "\n</result>")
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
