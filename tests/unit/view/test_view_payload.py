"""The values of a page: they are the trace's, nothing in a trace can break them, and what cannot be read is left out."""

import json
import time
from itertools import count, cycle

import pytest

from ramify.core.errors import ConfigError
from ramify.obs.trace import read_trees, tree_record, write_trees
from ramify.view.folders import lines_of_attempt
from ramify.view.payload import COLUMNS, NotThereError, RunView
from ramify.view.safe import MAX_TEXT, dump, hide_keys
from viewed_runs import (
    HOSTILE,
    one_path,
    texts_in,
    two_calls,
    write_evaluation,
    write_json_lines,
    write_training,
)


def words(start="word"):
    return (f"{start}{number:03}" for number in count())


def rows_of(view, source):
    return [dict(zip(COLUMNS, row, strict=True)) for row in view.index(source)["rows"]]


def left_out(view):
    return [text for label, text in view.run()["about"] if label == "Left out"]


def test_a_tree_is_that_of_the_trace(tmp_path):
    folder = write_training(tmp_path / "rl", {12: [two_calls(words()), two_calls(words("x"), "p1", slot=1)]})
    write_json_lines(
        _with_parents(folder / "timing" / "000012.jsonl"),
        [
            {"kind": "event_loop", "seconds": 1.0, "longest": 0.1},
            _event("turn", "0", 1.0, 0.5),
            _event(
                "tool/search",
                "0",
                1.5,
                0.25,
                queued_seconds=0.125,
                issued=2,
                services={"cache/search/hits": 1},
            ),
            _event("turn", "0.0.1", 2.0, 1.0),
            _event("turn", "0", 9.0, 9.0) | {"tree": [0, 1]},
        ],
    )
    view = RunView([folder])
    run = view.run()
    assert (run["kind"], run["live"], run["sources"]) == (
        "train", False, [{"id": "trees/000012", "run": 0, "step": 12, "trees": 2}],
    )  # fmt: skip
    assert run["series"] == {"reward/mean": [[12, 6.0]]}
    (first, second) = rows_of(view, "trees/000012")
    assert (first["row"], first["problem"], first["n"], first["right"], first["step"]) == (0, "p0", 3, 1, 12)
    assert (first["seconds"], second["seconds"]) == (2.0, 9.0)
    tree = view.tree("trees/000012", 0)
    traced = read_trees(folder / "trees" / "000012.jsonl")[0]
    nodes = {each["id"]: each for each in tree["nodes"]}
    assert [(n["id"], n["text"], n["ids"]) for n in tree["nodes"]] == [
        (n.id, n.text, list(n.token_ids)) for n in traced.tree.nodes
    ]
    assert [nodes[name]["mass"] for name in ("", "0", "0.0.1", "1")] == [1, 0.666667, 0.333333, 0.333333]
    assert [each["outcome"] for each in tree["decisions"]] == ["granted", "no budget"]
    # The call that could not be read was not run, so the time is that of the other one.
    unread, searched = nodes["0.0"]["calls_time"]
    assert unread is None
    assert searched == {"begin": 1.5, "seconds": 0.25, "queued": 0.125, "cached": True, "issued": 2}
    assert (nodes["0"]["time"]["seconds"], nodes["0.0.0"]["time"]) == (0.5, None)
    right, wrong, failed = tree["trajectories"]
    assert (right["right"], wrong["right"], failed["right"]) == (True, False, None)
    assert (right["seconds"], wrong["seconds"]) == (0.75, 2.0)
    assert wrong["tokens"] == {"prompt": 5, "written": 7, "results": 3, "sent": 17}
    why = " ".join(wrong["why"])
    assert traced.tree.problem.answer[0] in why
    assert traced.tree.by_id["0.0.1"].turn.reason in why
    assert view.problem("p1") == [["trees/000012", 1, 0.0, 1, 3]]
    with pytest.raises(NotThereError, match="It has 2"):
        view.tree("trees/000012", 2)
    with pytest.raises(NotThereError):
        view.index("../rl/trees/000012")


def _with_parents(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _event(kind, node, begin, seconds, **fields):
    return {"kind": kind, "tree": [0, 0], "node": node, "begin": begin, "seconds": seconds, "fields": fields}


@pytest.mark.parametrize("redact", [False, True])
def test_hostile_texts_are_harmless_in_every_field(tmp_path, redact):
    trees = [two_calls(cycle((text, *HOSTILE)), text, 0, slot, text) for slot, text in enumerate(HOSTILE)]
    view = RunView([write_training(tmp_path / "rl", {1: trees})], redact=redact)
    values = [view.run(), view.index("trees/000001")]
    values += [view.tree("trees/000001", row) for row in range(len(trees))]
    content = dump(values)
    assert b"<" not in content
    assert json.loads(content) == values
    for text in texts_in(values):
        assert all(letter.isprintable() or letter in "\n\t\r" for letter in text)
        assert "hunter2" not in text
    shown = "\n".join(texts_in(values))
    assert redact or "alert(1)" in shown
    assert len(values) == 2 + len(HOSTILE)


def test_a_redacted_run_has_the_shape_and_no_text(tmp_path):
    folder = write_training(tmp_path / "rl", {1: [two_calls(words("secret"))]})
    plain, view = RunView([folder]), RunView([folder], redact=True)
    tree, hidden = plain.tree("trees/000001", 0), view.tree("trees/000001", 0)
    everything = dump([view.run(), view.index("trees/000001"), hidden]).decode()
    assert "secret" in dump(tree).decode()
    assert "secret" not in everything
    assert view.search("secret") == []
    assert view.run()["runs"] == [{"name": "rl", "dir": ""}]
    for key in ("logprobs", "mass", "source", "stop", "parent", "entropy", "time"):
        assert [each[key] for each in hidden["nodes"]] == [each[key] for each in tree["nodes"]]
    assert [each["reward"] for each in hidden["trajectories"]] == [1.0, -1.0, 0.0]
    assert [len(each["ids"]) for each in hidden["nodes"]] == [len(each["ids"]) for each in tree["nodes"]]
    assert not any(any(each["ids"]) for each in hidden["nodes"])


def test_a_run_is_what_it_became(tmp_path):
    folder = write_training(tmp_path / "rl", {1: [two_calls(words())]})
    metrics = (folder / "metrics.jsonl").rename(tmp_path / "later")
    view = RunView([folder])
    kinds = [dict(view.run()["about"])["Kind"]]
    metrics.rename(folder / "metrics.jsonl")
    assert [*kinds, dict(view.run()["about"])["Kind"]] == ["rollout", "train"]


def test_a_note_that_quotes_a_prompt_is_redacted(tmp_path):
    folder = write_evaluation(tmp_path / "eval", [one_path("p0", 0, "said", 1.0)])
    (folder / "summary.json").write_text('{"notes": ["1 of 1 prompts have the system message secret"]}')
    plain, view = (RunView([folder], redact=redact).run() for redact in (False, True))
    assert "secret" in dump(plain).decode()
    assert "secret" not in dump(view).decode()


def test_keys_of_services_are_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCH_API_KEY", "abcd-efgh-ijkl")
    folder = write_training(tmp_path / "rl", {1: [two_calls(cycle(["key abcd-efgh-ijkl !"]))]})
    hide_keys()
    content = dump(RunView([folder]).tree("trees/000001", 0))
    assert b"abcd-efgh-ijkl" not in content
    assert b"[key]" in content


def test_a_long_text_is_cut(tmp_path):
    view = RunView([write_training(tmp_path / "rl", {1: [two_calls(cycle(["long " * 2_000_000]))]})])
    tree = view.tree("trees/000001", 0)
    assert max(map(len, texts_in(tree))) < MAX_TEXT + 100
    assert "more characters" in tree["nodes"][0]["text"]


def test_what_cannot_be_read_is_left_out_and_named(tmp_path):
    trees = [two_calls(words(), f"p{number}", slot=number) for number in range(4)]
    folder = write_training(tmp_path / "rl", dict.fromkeys((1, 2, 3, 4, 5), trees))
    cut, damaged, older, other = ((folder / "trees" / f"00000{step}.jsonl") for step in (2, 3, 4, 5))
    cut.write_bytes(cut.read_bytes()[:-20])
    lines = damaged.read_text().splitlines()
    damaged.write_text("\n".join([*lines[:2], lines[2].replace('"nodes"', '"knots"'), lines[3]]) + "\n")
    for path in (older, other):
        path.write_text(path.read_text().replace('{"schema":', '{"schema":5,"was":', 1))
    (folder / "metrics.jsonl").write_text('{"step":"one"}\n')
    view = RunView([folder])
    sources = [source["id"] for source in view.run()["sources"]]
    assert sources == ["trees/000001", "trees/000002", "trees/000003"]
    assert [len(rows_of(view, source)) for source in sources] == [4, 3, 2]
    notes = left_out(view)
    assert [note.split(".jsonl")[0].rpartition("/")[2] for note in notes] == [
        "000004",
        "metrics",
        "000002",
        "000003",
    ]
    assert "and 1 more: tree trace schema 5 is older" in notes[0]
    assert view.tree("trees/000003", 1)["problem"]["id"] == "p1"
    for row in range(3):
        assert view.tree("trees/000002", row)["problem"]["id"] == f"p{row}"
    # A search leads to no tree that is left out.
    assert {where[0] for where in view.search("p3")} == {"trees/000001"}


def test_the_page_may_ask_by_the_names_that_it_shows(tmp_path):
    for folder, problem in (("a\x1b[31m\udcff", "p0"), ("b\u202e <i>", "\u202ep1\ud800")):
        write_training(tmp_path / folder, {1: [two_calls(words(), problem)]})
    view = RunView([tmp_path])
    for source in view.run()["sources"]:
        (row,) = rows_of(view, source["id"])
        assert view.tree(source["id"], 0)["source"] == source["id"]
        assert view.problem(row["problem"]) == [[source["id"], 0, row["mean"], row["right"], row["n"]]]


def test_an_evaluation_that_grows_is_followed(tmp_path):
    attempts = [one_path(f"p{number}", 0, "some text", float(number % 2)) for number in range(6)]
    folder = write_evaluation(tmp_path / "eval", attempts[:2])
    view = RunView([folder])
    assert [row["problem"] for row in rows_of(view, "trees")] == ["p0", "p1"]
    with (folder / "trees.jsonl").open("a") as file:
        record = json.dumps(tree_record(attempts[2]), separators=(",", ":"))
        file.write(record + "\n" + record[:50])
    assert [row["problem"] for row in rows_of(view, "trees")] == ["p0", "p1", "p2"]
    assert view.run()["sources"][0]["trees"] == 3
    # A resumed evaluation writes the file anew.
    write_trees(folder / "trees.jsonl", attempts[3:])
    assert [row["problem"] for row in rows_of(view, "trees")] == ["p3", "p4", "p5"]
    assert view.tree("trees", 2)["problem"]["id"] == "p5"


def test_the_lines_of_an_attempt_are_found_again_where_a_file_grows(tmp_path):
    path, names = tmp_path / "results.jsonl", ("p", 'q"u\\ote', "\u202e\ud800", "p")
    records = [{"problem": name, "attempt": n % 3, "correct": True} for n, name in enumerate(names)]
    write_json_lines(path, records[:2])
    assert [*lines_of_attempt(path, "p", 0)] == [path.read_bytes().splitlines(keepends=True)[0]]
    with path.open("a") as file:
        file.write("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records[2:]))
        file.write('{"problem":"cut","attempt":0,"correct":tr')
    lines = path.read_bytes().splitlines(keepends=True)
    assert [*lines_of_attempt(path, "p", 0)] == [lines[0], lines[3]], "in their order, the last one counts"
    assert [*lines_of_attempt(path, names[1], 1)] == [lines[1]]
    assert [*lines_of_attempt(path, names[2], 2)] == [lines[2]]
    assert [*lines_of_attempt(path, "cut", 0)] == [*lines_of_attempt(path, "p", 1)] == []
    assert [*lines_of_attempt(tmp_path / "none.jsonl", "p", 0)] == []


def test_a_page_of_many_attempts_reads_their_results_once(tmp_path):
    """Each attempt read all of them: a page of 40,000 took hours."""

    def seconds(num):
        path = tmp_path / f"{num}.jsonl"
        write_json_lines(path, [{"problem": "p", "attempt": n, "text": "x" * 200} for n in range(num)])
        begin = time.process_time()
        assert all(len([*lines_of_attempt(path, "p", n)]) == 1 for n in range(num))
        return time.process_time() - begin

    # 16 times as many; where each reads all it is 256 times as long.
    assert seconds(4000) < 64 * max(seconds(250), 0.002)


def test_two_evaluations_with_the_judges_words(tmp_path):
    verdict = {
        "problem": "p1",
        "attempt": 0,
        "correct": True,
        "reason": "The same number.",
        "source": "asked",
    }
    texts = ["40", "41"]
    first = write_evaluation(
        tmp_path / "a", [one_path(f"p{n}", 0, texts[n], float(n)) for n in (0, 1)], [verdict]
    )
    second = write_evaluation(tmp_path / "b", [one_path(f"p{n}", 0, texts[1 - n], 1.0 - n) for n in (0, 1)])
    results = [json.loads(line) for line in (second / "results.jsonl").read_text().splitlines()]
    # The results decide what is right, not the reward: a judge may have been asked later.
    write_json_lines(second / "results.jsonl", [record | {"correct": True} for record in results])
    view = RunView([first, second])
    run = view.run()
    assert (run["kind"], [each["run"] for each in run["sources"]]) == ("comparison", [0, 1])
    assert [each["dir"] for each in run["runs"]] == [str(first), str(second)]
    assert [row["right"] for row in rows_of(view, "trees")] == [0, 1]
    assert [row["flags"] for row in rows_of(view, "2:trees")] == [["right"], ["right"]]
    assert [row["seconds"] for row in rows_of(view, "2:trees")] == [2.0, 2.0]
    assert view.problem("p1") == [["trees", 1, 1.0, 1, 1], ["2:trees", 1, 0.0, 1, 1]]
    (attempt,) = view.tree("trees", 1)["trajectories"]
    assert "Judge: right. The same number." in attempt["why"]


def test_the_search_reads_calls_answers_and_results(tmp_path):
    folder = write_training(
        tmp_path / "rl", {1: [two_calls(words(), "p0"), two_calls(words(), "Größe \u4e2d", slot=1)]}
    )
    traced = read_trees(folder / "trees" / "000001.jsonl")[0].tree
    view = RunView([folder])
    argument = next(iter(traced.by_id["0"].calls[1].arguments.values()))
    for text, where in (
        (traced.by_id["0.0.1"].text.upper(), "0.0.1"),
        (argument, "0"),
        (traced.by_id["0.0"].results[1].text, "0.0"),
        (traced.problem.answer[0], "answer"),
    ):
        assert view.search(text)[0] == ["trees/000001", 0, where]
    assert (
        view.search("GRÖ")
        == view.search("größe")
        == view.search("\u4e2d")
        == [["trees/000001", 1, "problem"]]
    )
    assert view.search("nowhere") == []


def test_a_folder_of_several_runs_gives_the_traces_of_all(tmp_path):
    write_training(tmp_path / "rl", {1: [two_calls(words())]})
    write_evaluation(tmp_path / "eval" / "last", [one_path("p0", 0, "41", 1.0)])
    write_training(tmp_path / "sft", {3: []})
    (tmp_path / "linked").symlink_to(tmp_path / "rl")
    (tmp_path / "rl" / "trees" / "000009.jsonl").symlink_to(tmp_path / "rl" / "trees" / "000001.jsonl")
    run = RunView([tmp_path]).run()
    assert [each["name"] for each in run["runs"]] == ["rl", "sft", "eval/last"]
    assert [source["id"] for source in run["sources"]] == [
        "rl/trees/000001",
        "sft/trees/000003",
        "eval/last/trees",
    ]
    assert sorted(run["series"]) == ["rl: reward/mean", "sft: reward/mean"]


@pytest.mark.parametrize("steps", [400, 401, 1202])
def test_a_long_curve_ends_with_the_last_step(tmp_path, steps):
    folder = write_training(tmp_path / "rl", {1: []})
    rows = [{"step": step, "time": 1.0, "reward/mean": 0.5 * step} for step in range(1, steps + 1)]
    write_json_lines(folder / "metrics.jsonl", rows)
    points = RunView([folder]).run()["series"]["reward/mean"]
    assert 200 <= len(points) <= 400
    assert points[-1] == [steps, 0.5 * steps]


def test_an_ablation_is_its_runs_and_no_evaluation(tmp_path):
    write_training(tmp_path / "rule-0", {1: [two_calls(words())]})
    for name in ("results.jsonl", "starts.jsonl"):
        (tmp_path / name).write_text("{}\n")
    assert [(run.name, run.kind) for run in RunView([tmp_path]).runs] == [("rule-0", "train")]


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"{name}: (expected the folder of a run|no run is in it)"):
        RunView([tmp_path / name])
