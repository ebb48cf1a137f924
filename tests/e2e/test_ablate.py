"""`ramify ablate`: three arms over two seeds on a tiny model, killed and repeated, shown again from its lines."""

import json
import re
import shutil
import signal

import pytest

from e2e_runs import SECONDS, TRAIN, overrides, read_lines, start, write_task
from processes import wait_until
from ramify.cli import main

EVAL = """
[eval]
test = "{folder}/problems.jsonl"
every = 1
limit = 3
max_tokens = 32
max_calls = 1
"""
SHORT = overrides("run.steps=2", "reward.name=answer", "rollout.n=4", "rollout.m=2")


pytestmark = pytest.mark.timeout(4 * SECONDS)


def run(command):
    """Run the command line, which starts several others."""
    process = start(*command)
    output, errors = process.communicate(timeout=4 * SECONDS)
    return process.returncode, output, errors


def ablate(recipe, out, *options):
    return ["ablate", str(recipe), "--out", str(out), "--jobs", "2", *SHORT, *map(str, options)]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, caller):
    return write_task(tmp_path_factory.mktemp("task"), caller, TRAIN + EVAL)


@pytest.fixture(scope="module")
def finished(recipe):
    """The folder of a finished ablation, and the JSON object of its command."""
    out = recipe.parent / "ablation"
    status, output, errors = run(ablate(recipe, out, "--seeds", 2, "--json"))
    assert status == 0, errors
    return out, json.loads(output)


def results(out):
    """The lines without what a repetition cannot have again: seconds."""
    lines = {(line["arm"], line["seed"]): line for line in read_lines(out / "results.jsonl")}
    for line in lines.values():
        for point in line["curve"]:
            point.pop(3)
    return lines


def test_three_arms_and_two_seeds_make_a_page(finished):
    out, answer = finished
    lines = results(out)
    assert set(lines) == {(arm, seed) for arm in ("flat", "yoked", "rule") for seed in (3, 4)}
    assert (answer["schema"], answer["dir"], answer["seeds"]) == (1, str(out), [3, 4])
    contrasts = [(each["first"], each["second"]) for each in answer["contrasts"]]
    assert contrasts == [("yoked", "rule"), ("flat", "yoked")]
    for line in lines.values():
        assert [point[0] for point in line["curve"]] == [0, 1, 2]
        rows = read_lines(out / f"{line['arm']}-{line['seed']}" / "metrics.jsonl")
        assert line["curve"][2][1] == sum(row["tokens/written"] for row in rows)
        assert line["curve"][2][2] == sum(row["calls/executed"] for row in rows)
    # Pairs begin at the same model, and their rules are all that differs.
    assert len({line["curve"][0][3] for (_, seed), line in lines.items() if seed == 3}) == 1
    assert not any(lines["flat", 3]["branches"])
    assert sum(lines["yoked", 3]["branches"]) == sum(lines["rule", 3]["branches"]) > 0
    assert all(len(line["mixed"]) == len(line["branches"]) for line in lines.values())
    files = {"data.train", "eval.test", "model.path", "tools.search.corpus"}
    assert all(set(line["inputs"]) == files for line in lines.values())
    assert {each["verdict"][:10] for each in answer["contrasts"]} == {"no verdict"}
    page = (out / "ablate.html").read_text()
    assert not re.search(r"<(script|img|link|iframe)|https?:", page)
    for text in ("Verdict", "Success against sampled tokens", "Success against seconds", "Branches by step"):
        assert text in page


def test_what_is_finished_is_not_trained_again(finished, recipe, capsys):
    out, answer = finished
    before = (out / "results.jsonl").read_bytes()
    starts = (out / "starts.jsonl").read_bytes()
    assert main([*ablate(recipe, out, "--seeds", 2, "--json")]) == 0
    assert json.loads(capsys.readouterr().out) == answer
    assert ((out / "results.jsonl").read_bytes(), (out / "starts.jsonl").read_bytes()) == (before, starts)


def test_the_lines_are_enough_for_the_result(finished, tmp_path, capsys):
    out, answer = finished
    lines = shutil.copy(out / "results.jsonl", tmp_path / "study.jsonl")
    assert main(["ablate", str(lines), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["contrasts"] == answer["contrasts"]
    assert main(["ablate", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == again
    assert main(["ablate", str(lines), "--out", str(tmp_path / "shown")]) == 0
    assert (tmp_path / "shown" / "ablate.html").is_file()
    assert main(["report", str(out), "--figures"]) == 0
    assert (out / "figures" / "success-against-sampled-tokens.svg").is_file()


def test_a_killed_ablation_goes_on_to_the_same_result(finished, recipe, tmp_path):
    out = tmp_path / "killed"
    command = ablate(recipe, out, "--seeds", 1, "--arms", "yoked,rule")
    process = start(*command)
    metrics = out / "rule-3" / "metrics.jsonl"
    wait_until(lambda: metrics.is_file() and '"step":1,' in metrics.read_text(), SECONDS)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=SECONDS)
    status, output, errors = run(command)
    assert status == 0, errors
    assert "an interval needs at least 2" in output
    whole = results(finished[0])
    assert results(out) == {key: whole[key] for key in (("yoked", 3), ("rule", 3))}


def test_a_dry_run_lists_the_runs_and_writes_nothing(recipe, tmp_path, capsys):
    out = tmp_path / "planned"
    assert main(ablate(recipe, out, "--seeds", 1, "--dry-run", "--json")) == 0
    listed = json.loads(capsys.readouterr().out)
    runs = listed["runs"]
    assert any("rows were not read" in note for note in listed["notes"])
    names = [(run["name"], run["finished"]) for run in runs]
    assert names == [("rule-3", False), ("flat-3", False), ("yoked-3", False)]
    assert not out.exists()


def test_mistakes_are_one_line(finished, recipe, refused, tmp_path):
    out, _ = finished
    for more in ((), ("--dry-run",)):
        other = refused(*ablate(recipe, out, "-s", "rollout.max_calls=1", *more))
        assert "rollout.max_calls = 2, now it is 1" in other
    assert "Set eval.test" in refused(*ablate(recipe, tmp_path / "a", "-s", "eval="))
    assert "of flat, yoked, rule, got 'coin'" in refused("ablate", recipe, "--arms", "flat,coin")
    assert "expected NAME=" in refused("ablate", recipe, "--arm", "coin")
    assert "with names in quotes" in refused("ablate", recipe, "--arm", "coin={name=random}")
    coin = ("--arm", 'coin={name="random",rate=0.5}')
    assert "coin: it is named twice" in refused(*ablate(recipe, out, *coin, *coin))
    assert "holds no ablation" in refused(*ablate(recipe, recipe.parent))
    assert "shown as they are" in refused("ablate", out / "results.jsonl", "--seeds", 2)
    assert "no such file" in refused("ablate", tmp_path / "none.jsonl")
    for more in (("--dry-run",), ()):
        assert "model.path" in refused(*ablate(recipe, tmp_path / "b", "-s", "model.path=runs/none", *more))
        empty = tmp_path / "empty.jsonl"
        empty.write_text("")
        assert "at least one row" in refused(
            *ablate(recipe, tmp_path / "c", "-s", f"data.train={empty}", *more)
        )
    assert not (tmp_path / "b" / "starts.jsonl").exists()
    assert "expected --dry-run too" in refused(*ablate(recipe, tmp_path / "b", "--rows"))


def test_a_run_that_fails_names_its_reason(recipe, tmp_path):
    # As many rows as a step needs, which only a run reads.
    (recipe.parent / "bad.jsonl").write_text('{"prompt": "what is 1 plus 1 ?"}\n' * 9)
    bad = f"data.train={recipe.parent / 'bad.jsonl'}"
    status, _, errors = run(ablate(recipe, tmp_path / "bad", "--arms", "flat", "-s", bad))
    assert status == 1
    # Both seeds fail, at the same time: either may be the first.
    assert re.search(r"(flat-[34]) failed: .*bad.jsonl.* \(its output is in .*\1\.log\)", errors), errors
