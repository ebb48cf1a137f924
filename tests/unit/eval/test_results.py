"""The file that grows: what a crash leaves is read again, what is wrong is named."""

import json

import pytest
from eval_records import attempt

from ramify.core.errors import ConfigError, DataError
from ramify.eval.results import read_manifest, read_records, read_times, results_lines, times_lines
from ramify.runs.manifest import write_manifest
from ramify.runs.run_folder import EVALUATION

RECORDS = [attempt(f"caf\u00e9 {i}", 0, "\ud800", True, (("search", "ok", False),)) for i in range(3)]


def written(folder):
    lines = results_lines(folder)
    for record in RECORDS:
        lines.append(record.to_json())
    return lines


def test_records_come_back(tmp_path):
    written(tmp_path)
    assert read_records(tmp_path) == tuple(RECORDS)


def test_a_duplicate_is_refused(tmp_path):
    lines = written(tmp_path)
    lines.append(RECORDS[1].to_json())
    with pytest.raises(
        DataError, match=r"results.jsonl row 4: attempt 0 at problem 'caf\u00e9 1' is in row 2"
    ):
        read_records(tmp_path)


@pytest.mark.parametrize("line", ["{", "[]", '{"problem": 1}', '{"problem": "p", "attempt": 0}'])
def test_a_broken_line_in_the_middle_is_named(tmp_path, line):
    lines = written(tmp_path)
    rows = lines.path.read_text().splitlines()
    lines.path.write_text("\n".join([rows[0], line, *rows[1:], ""]))
    with pytest.raises(DataError, match=r"results.jsonl row 2"):
        read_records(tmp_path)


def test_an_unknown_status_is_refused(tmp_path):
    record = RECORDS[0].to_json()
    record["calls"][0]["status"] = "maybe"
    results_lines(tmp_path).append(record)
    with pytest.raises(DataError, match=r"calls\[0\]\.status: expected one of"):
        read_records(tmp_path)


WRONG = [None, -0.5, "x", [1], {"a": []}, True, 10**400]


def edited(record, keys, value):
    copy = json.loads(json.dumps(record))
    inner = copy
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return copy


EVENT = {"kind": "tool/search", "node": "0", "seconds": 0.5, "fields": {"queued_seconds": 0.25}}
ATTEMPT = attempt("q", 0, calls=(("search", "ok", False),)).to_json()
TIMES = {"problem": "p", "attempt": 0, "seconds": 2.5, "events": [EVENT]}


@pytest.mark.parametrize(
    ("record", "keys", "fine"),
    [
        (ATTEMPT, ("reward",), (-0.5,)),
        (ATTEMPT, ("correct",), (True,)),
        (ATTEMPT, ("answer",), ("x",)),
        (ATTEMPT, ("stop",), ()),
        (ATTEMPT, ("parts",), ()),
        (ATTEMPT, ("parts", "correct"), (-0.5,)),
        (ATTEMPT, ("groups",), ()),
        (ATTEMPT, ("calls",), ()),
        (ATTEMPT, ("calls", 0), ()),
        (ATTEMPT, ("calls", 0, "tool"), ("x",)),
        (ATTEMPT, ("calls", 0, "repeated"), (True,)),
        (ATTEMPT, ("tokens",), ()),
        (ATTEMPT, ("tokens", "sent"), (10**400,)),
        (TIMES, ("seconds",), (-0.5,)),
        (TIMES, ("events",), ()),
        (TIMES, ("events", 0), ()),
        (TIMES, ("events", 0, "kind"), ("x",)),
        (TIMES, ("events", 0, "seconds"), (-0.5,)),
        (TIMES, ("events", 0, "fields"), ()),
        (TIMES, ("events", 0, "fields", "queued_seconds"), (-0.5,)),
    ],
)
def test_values_of_another_type_are_refused_with_their_row(tmp_path, record, keys, fine):
    if record is TIMES:
        lines_of, read, kind = times_lines, read_times, "times.jsonl row 2: not the times of an attempt"
    else:
        lines_of, read, kind = results_lines, read_records, "results.jsonl row 2: not an attempt"
    for number, value in enumerate(wrong for wrong in WRONG if wrong not in fine):
        folder = tmp_path / str(number)
        folder.mkdir()
        lines_of(folder).append(record)
        assert len(read(folder)) == 1
        lines_of(folder).append(edited({**record, "attempt": 1}, keys, value))
        with pytest.raises(DataError, match=kind) as refused:
            read(folder)
        assert len(str(refused.value)) < 400


@pytest.mark.parametrize("line", ['{"a":' * 900 + "1" + "}" * 900, '{"attempt":' + "9" * 5000 + "}"])
def test_deep_nests_and_endless_numbers_are_named(tmp_path, line):
    lines = written(tmp_path)
    with lines.path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"results.jsonl row 4: .*(deep|too many digits)"):
        read_records(tmp_path)


MANIFEST = {
    "schema": 2,
    "scores": {
        "problems": {"count": 1, "sha256": "0"},
        "sampling": {"attempts": 1, "right_by": "correct"},
        "engine": {"name": "local"},
        "model": {"path": "m"},
        "reward": {"judge": None},
        "seed": 0,
    },
    "notes": [],
    "made_with": [{}],
}


@pytest.mark.parametrize(
    "keys",
    [
        ("schema",),
        ("scores",),
        ("scores", "problems"),
        ("scores", "problems", "count"),
        ("scores", "sampling"),
        ("scores", "sampling", "attempts"),
        ("scores", "engine"),
        ("scores", "reward"),
        ("scores", "seed"),
        ("notes",),
        ("made_with",),
        ("made_with", 0),
    ],
)
def test_a_manifest_of_other_types_is_refused(tmp_path, keys):
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST | {"notes": ()}
    for value in (None, -0.5, "x", True):
        write_manifest(tmp_path, edited(MANIFEST, keys, value))
        with pytest.raises(DataError, match=r"manifest\.json: [a-z0-9_.[\]]+: expected "):
            read_manifest(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DataError, match=r"manifest\.json: cannot be read"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("left", [".lock", "recipe.toml.part", "manifest.json.part", "results.jsonl.part"])
def test_what_a_kill_left_does_not_count(tmp_path, left):
    (tmp_path / left).write_text("{")
    EVALUATION.check(tmp_path, resume=False)
    EVALUATION.check(tmp_path, resume=True)


def test_an_evaluation_is_resumed_and_anything_else_is_not_touched(tmp_path):
    for name in ("recipe.toml", "manifest.json", "results.jsonl"):
        (tmp_path / name).write_text("{}\n")
    EVALUATION.check(tmp_path, resume=True)
    with pytest.raises(ConfigError, match="holds an evaluation; go on with --resume"):
        EVALUATION.check(tmp_path, resume=False)
    (tmp_path / "results.jsonl").unlink()
    (tmp_path / "thesis.tex").write_text("mine")
    for resume in (False, True):
        with pytest.raises(ConfigError, match="exists and is not empty"):
            EVALUATION.check(tmp_path, resume)


@pytest.mark.parametrize("name", ["manifest.json", "results.jsonl", "trees.jsonl", "report.html"])
def test_a_link_is_refused_before_it_is_followed(tmp_path, name):
    folder, outside = tmp_path / "run", tmp_path / "outside"
    folder.mkdir()
    for begun in ("recipe.toml", "summary.json"):
        (folder / begun).write_text("")
    (folder / name).symlink_to(outside)
    with pytest.raises(ConfigError, match=rf"run\.dir: .*{name} is a link"):
        EVALUATION.check(folder, resume=True)
    assert not outside.exists()
