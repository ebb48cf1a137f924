"""`ramify report`: a page for the runs of a quick start, finished, killed, cut or hostile; never a traceback."""

import json
import re
import shutil

import pytest

from ramify.cli import main
from ramify.files.durable import locked_folder

HOSTILE = "</p><script>alert(1)</script><img src=x onerror=alert(1)>\"'"


@pytest.fixture(scope="module")
def runs(smoke_quickstart, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "quick"
    shutil.copytree(smoke_quickstart, folder)
    return folder


def report(folder, *options):
    assert main(["report", str(folder), *options]) == 0
    page = (folder / "report.html").read_text()
    assert not re.search(r"<(script|img|link|iframe)|<[^>]*\son\w+=|https?:", page)
    assert f"ramify view {folder}" in page
    return page


def copied(runs, name, tmp_path):
    shutil.copytree(runs / name, tmp_path / "run")
    return tmp_path / "run"


def test_every_run_of_a_quick_start_has_a_page_at_its_end(smoke_quickstart):
    for name in ("", "sft", "rl", "eval/rl-sampled"):
        page = (smoke_quickstart / name / "report.html").read_text()
        assert "ramify report " in page
        assert "commit " in page


@pytest.mark.parametrize(
    ("name", "texts", "figures"),
    [
        (
            "",
            ("How the agent learned", "RL: mean reward", "A tree of step"),
            ("sft-loss", "success-by-kind-of-question"),
        ),
        ("sft", ("Supervised training: sft", "Gradient norm"), ("loss", "learning-rate")),
        ("rl", ("Reinforcement learning: rl", "Failures", "A tree of step"), ("mean-reward", "success-in-training")),
        ("eval/rl-sampled", ("pass@1", "Problems", "Why attempts ended"), ("pass-1-by-kind",)),
    ],
)  # fmt: skip
def test_a_page_and_figures_on_request(runs, name, texts, figures):
    (runs / name / "report.html").unlink()
    page = report(runs / name, "--figures")
    for text in texts:
        assert text in page
    for figure in figures:
        assert (runs / name / "figures" / f"{figure}.svg").is_file()


def test_the_page_of_an_evaluation_shows_wrong_attempts_and_why(runs):
    page = report(runs / "eval" / "sft-sampled")
    rows = [
        json.loads(line)
        for line in (runs / "eval" / "sft-sampled" / "results.jsonl").read_text().splitlines()
    ]
    wrong = [row for row in rows if not row["correct"]]
    assert wrong
    trees = (runs / "eval" / "sft-sampled" / "trees.jsonl").read_text().splitlines()
    problem = next(
        tree["problem"] for tree in map(json.loads, trees) if tree["problem"]["id"] == wrong[0]["problem"]
    )
    assert wrong[0]["problem"] in page
    assert problem["messages"][-1]["content"][0]["text"] in page
    assert f"Wrong in every attempt: {len(wrong)} of {len(rows)} problems" in page


def test_a_killed_run_has_a_page_of_what_there_is(runs, tmp_path):
    run = copied(runs, "rl", tmp_path)
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:-1]) + lines[-1][:50])
    trace = max((run / "trees").glob("[0-9]*[0-9].jsonl"))
    for path in (run / "trees").glob(f"{trace.stem}*"):
        path.write_bytes(path.read_bytes()[:-500])
    (run / "recipe.toml").write_text("[data\n")
    (run / "manifest.json").write_text("{")
    (run / "timing" / "000001.jsonl").write_text("[]\n")
    (run / "status.json").write_text((run / "status.json").read_text().replace("finished", "running"))
    page = report(run)
    assert f": killed, step {len(lines) - 1}" in page
    with locked_folder("run.dir", run):
        assert f": running, step {len(lines) - 1}" in report(run)
    assert "the line is cut off" in page


def test_an_unfinished_evaluation_has_a_page_of_the_problems_that_are_done(runs, tmp_path, refused):
    run = copied(runs, "eval/sft-greedy", tmp_path)
    (run / "summary.json").unlink()
    results = run / "results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:3]) + lines[3][:20])
    (run / "trees.jsonl").write_text("{}\n")
    page = report(run)
    assert f"3 of {len(lines)} problems are done so far" in page
    results.write_text("")
    assert "nothing to report yet" in refused("report", run)


def test_hostile_names_and_texts_stay_texts(runs, tmp_path):
    run = copied(runs, "rl", tmp_path)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    many = {f"{HOSTILE}{number}": 1e308 for number in range(3)}
    for row in rows:
        row |= {"reward/mean": -1e308, "update/kl": 5e-324, "loss": 1e16, **many}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = json.loads((run / "manifest.json").read_text())
    hostile = {
        "made_with": [manifest["made_with"][0] | {"device": HOSTILE, "packages": HOSTILE}],
        "scores": [HOSTILE],
    }
    (run / "manifest.json").write_text(json.dumps(hostile))
    for path in (run / "trees").glob("*.index.jsonl"):
        path.unlink()
    for path in (run / "trees").iterdir():
        path.write_text(path.read_text().replace("what is", json.dumps(HOSTILE)[1:-1]))
    page = report(run, "--figures")
    assert "&lt;script&gt;alert(1)" in page


def test_what_is_no_run_is_refused_in_a_sentence(runs, tmp_path, refused):
    assert "no such folder" in refused("report", tmp_path / "nowhere")
    assert "no run. Name the folder of a run." in refused("report", runs / "world")
    (tmp_path / "unfinished").mkdir()
    shutil.copytree(runs / "sft", tmp_path / "unfinished" / "sft")
    assert f"Name one of the runs in it: {tmp_path}/unfinished/sft." in refused(
        "report", tmp_path / "unfinished"
    )
    (tmp_path / "unfinished" / "sft" / "metrics.jsonl").unlink()
    assert "nothing to report yet. No step has been written." in refused(
        "report", tmp_path / "unfinished" / "sft"
    )
    (tmp_path / "report.json").write_text('{"seed": "<b>"}')
    assert "report.json: lacks the field" in refused("report", tmp_path)
