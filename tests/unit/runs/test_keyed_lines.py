"""A file that grows: what a crash leaves is read again, lines are dropped, sorted and replaced by key."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ramify.runs.keyed_lines import KeyedLines, key_of

MADE = [{"problem": f"caf\u00e9 {i}", "attempt": i, "answer": "\ud800" * i} for i in range(3)]
KEYS = [(record["problem"], record["attempt"]) for record in MADE]


def written(folder):
    lines = KeyedLines(folder / "lines.jsonl", lambda record: key_of(record["problem"], record["attempt"]))
    for record in MADE:
        lines.append(record)
    return lines


@given(cut=st.integers(0, 300))
def test_a_file_that_is_cut_anywhere_keeps_its_whole_lines(tmp_path_factory, cut):
    lines = written(tmp_path_factory.mktemp("cut"))
    content = lines.path.read_bytes()[:cut]
    lines.path.write_bytes(content)
    whole = content.count(b"\n")
    assert list(lines.read().values()) == MADE[:whole]
    lines.keep(set(KEYS))
    assert lines.path.read_bytes() == content[: content.rfind(b"\n") + 1]


def test_lines_with_other_keys_are_dropped(tmp_path):
    lines = written(tmp_path)
    lines.keep({KEYS[1]})
    assert lines.read() == {KEYS[1]: MADE[1]}
    assert lines.keys() == {KEYS[1]}


def test_lines_are_sorted_and_replaced(tmp_path):
    lines = written(tmp_path)
    lines.sort([KEYS[2], ("other", 0), KEYS[0]])
    assert list(lines.read().values()) == [MADE[2], MADE[0]]
    new = MADE[0] | {"answer": "a much longer answer"}
    lines.update({KEYS[0]: new})
    assert list(lines.read().values()) == [MADE[2], new]
    row, text = lines.texts({KEYS[0]})[KEYS[0]]
    assert (row, json.loads(text)) == (2, new)


def test_a_file_that_is_not_there_stays_so(tmp_path):
    lines = KeyedLines(tmp_path / "none.jsonl", lambda record: key_of(record["problem"], record["attempt"]))
    lines.keep(set())
    lines.sort([("p", 0)])
    assert lines.read() == {}
    assert not lines.path.exists()
