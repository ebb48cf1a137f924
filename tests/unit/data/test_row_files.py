"""Rows of any file come one by one, and a row that cannot be read is told without stopping those behind it."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import DataError, RowError, RowTooLargeError
from ramify.data import row_files
from ramify.data.row_files import read_rows

TEXT = st.text(st.sampled_from('a"\\[]{},\n \u4e2d'), max_size=8)
VALUE = st.recursive(
    st.none() | st.integers() | TEXT, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v)
)


def values(path: Path, content: str | bytes):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [f"{value}" if isinstance(value, RowError) else value for _, value in read_rows(path)]


@given(
    rows=st.lists(VALUE, max_size=4), size=st.sampled_from([1, 2, 5, 1000]), indent=st.sampled_from([None, 1])
)
def test_an_array_is_read_as_python_reads_it_wherever_it_is_cut(tmp_path_factory, rows, size, indent):
    path = tmp_path_factory.getbasetemp() / "rows.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "_CHUNK", size)
        assert values(path, json.dumps(rows, indent=indent)) == rows
        assert values(path, "\ufeff \r\n" + json.dumps(rows, ensure_ascii=False) + "\n ") == rows


def test_rows_are_numbered_as_people_count_them(tmp_path):
    lines = tmp_path / "a.jsonl"
    lines.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n[2]\r\n3')
    assert list(read_rows(lines)) == [(1, {"a": 1}), (4, [2]), (5, 3)]
    array = tmp_path / "a.json"
    array.write_text('[{"a": 1},\n\n2]')
    assert list(read_rows(array)) == [(1, {"a": 1}), (2, 2)]
    table = tmp_path / "a.parquet"
    pq.write_table(
        pa.Table.from_pylist([{"m": [{"r": "u", "c": {"q": "x"}}]}, {"m": [{"r": "a", "c": {"k": 1}}]}]),
        table,
    )
    # All records of a column have the fields of any of them.
    assert list(read_rows(table)) == [
        (0, {"m": [{"r": "u", "c": {"k": None, "q": "x"}}]}),
        (1, {"m": [{"r": "a", "c": {"k": 1, "q": None}}]}),
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (b"tru", "broken JSON: Expecting value at column 1"),
        (b'{"a": 1, "a": 2}', "key 'a' appears twice in one object"),
        (b"[" * 5000 + b"]" * 5000, "nested more than 100 deep"),
        (b"9" * 5000, "a number has too many digits"),
        (b'"\xff"', "expected UTF-8 text: invalid start byte at byte 1"),
        (b'{"a" 1}', "broken JSON: Expecting ':' delimiter at column 6"),
    ],
)
def test_a_row_that_cannot_be_read_does_not_hide_the_next(tmp_path, row, expected):
    assert values(tmp_path / "a.jsonl", b"1\n" + row + b"\n2\n") == [1, expected, 2]
    assert values(tmp_path / "a.json", b"[1, " + row + b",2]") == [1, expected, 2]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_huge_row_is_passed_over_without_being_held(tmp_path, monkeypatch, name):
    monkeypatch.setattr(row_files, "MAX_ROW_BYTES", 1 << 20)
    monkeypatch.setattr(row_files, "_CHUNK", 1 << 16)
    huge = json.dumps({"a": 'b"\\' * 700_000})
    last = json.dumps({"a": "c" * (1 << 19)})
    text = f"[1, {huge}, {last}, {huge}]" if name == "a.json" else f"1\n{huge}\n{last}\n{huge}"
    (tmp_path / name).write_text(text)
    rows = [value for _, value in read_rows(tmp_path / name)]
    assert [type(value) for value in rows] == [int, RowTooLargeError, dict, RowTooLargeError]
    assert len(rows[2]["a"]) == 1 << 19


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected an array of rows, the file is empty"),
        (" \n", "the file is empty"),
        ('{"a": 1}', "it begins with '{'. If each line is a row, name the file .jsonl"),
        ("[1, 2", " row 2: the array does not end"),
        ('[1, "a\\', " row 2: the array does not end"),
        ("[1, {2]", " row 2: the array does not end"),
        ("[1, 2]]", "expected nothing after the array"),
        ("[1, 2] 3", "expected nothing after the array"),
        ("[1, 2}", " row 2: } closes nothing"),
        ("[1, " + "[" * 20_000_000, " row 2: nested more than 10,000 deep"),
    ],
)
def test_an_array_that_does_not_end_where_the_file_does(tmp_path, content, message):
    with pytest.raises(DataError, match=r"a\.json") as caught:
        values(tmp_path / "a.json", content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["[\n{}]", '\ufeff[{"a": 1},\n{"a": 2}]'])
def test_an_array_in_a_file_of_lines_is_told_its_name(tmp_path, content):
    with pytest.raises(DataError, match=r"a\.jsonl: .* Name a file that is one array of rows \.json"):
        values(tmp_path / "a.jsonl", content)


def test_what_is_no_file_of_rows(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("none.jsonl", "pipe.jsonl", "folder.jsonl"):
        with pytest.raises(DataError, match=rf"{name}: expected a file"):
            next(read_rows(tmp_path / name))
    (tmp_path / "a.xls").write_text("a,b")
    with pytest.raises(DataError, match=r"a\.xls: unknown kind of file '\.xls'; expected \.jsonl, \.json"):
        next(read_rows(tmp_path / "a.xls"))
    (tmp_path / "a.parquet").write_text("x")
    with pytest.raises(DataError, match=r"a\.parquet: not a readable parquet file"):
        next(read_rows(tmp_path / "a.parquet"))


def test_tables_in_text_are_records_of_texts(tmp_path: Path) -> None:
    rows = [{"a": "1, 2", "b": 'x "y"\nz'}, {"a": "\u00e9", "b": None}]
    (tmp_path / "a.csv").write_bytes('\ufeff,a,b\r\n0,"1, 2","x ""y""\nz"\r\n\r\n1,\u00e9,\r\n'.encode())
    (tmp_path / "a.tsv").write_text('a\tb\n1, 2\t"x ""y""\nz"\n\u00e9\t\n', encoding="utf-8")
    for name in ("a.csv", "a.tsv"):
        assert list(read_rows(tmp_path / name)) == list(enumerate(rows, 1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'a,b\n1,2\n"3,4\n',
            r"a\.csv row 2 \(rows count from 1\) or after it: cannot be read: unexpected end",
        ),
        (b"a,b\n\xff,2\n", r"a\.csv row 1 .* codec can't decode"),
        (b"a,b,a\n1,2,3\n", r"a\.csv: two columns are called 'a'"),
    ],
)
def test_a_table_in_text_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_rows(tmp_path / "a.csv"))


def test_a_row_of_a_table_in_text_with_other_cells_is_an_error_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1\n1,2\n")
    (_, error), (_, row) = read_rows(tmp_path / "a.csv")
    assert isinstance(error, RowError)
    assert str(error) == "not 2 cells, as the first line has: 1"
    assert row == {"a": "1", "b": "2"}
