"""The folder of a finished ablation, taken up again: shown, looked at blindly, compared with what it was begun with."""

import html
import json
import shlex
import shutil
from dataclasses import asdict, replace

import pytest

from ramify.cli import main
from ramify.commands.input_checksums import input_checksums
from ramify.files.durable import locked_folder
from ramify.study.ablation_folder import note_ablation
from ramify.study.arms import plan_ablation
from ramify.study.lines import RunLine, YokedMatch, read_lines, write_lines
from train_recipes import RECIPE

EVAL = '[eval]\ntest = "{folder}/test.jsonl"\nevery = 5\n'
SUCCESS = {"flat": (0.2, 0.5), "yoked": (0.2, 0.55), "rule": (0.2, 0.6)}


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    text = RECIPE.replace('"train.jsonl"', f'"{tmp_path}/train.jsonl"')
    path.write_text(text + EVAL.format(folder=tmp_path))
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "?", "answer": "1"}\n')
    return path


def line_of(run, fingerprint):
    """The line that the run would have."""
    first, last = SUCCESS[run.arm]
    curve = ((0, 0.0, 0.0, 0.0, first), (5, 1000.0, 100.0, 9.0, last + run.seed**2 / 100))
    match = YokedMatch(8, 8, 0.0) if run.arm == "yoked" else None
    inputs = input_checksums(run.recipe, {})
    rule = run.branching
    packages = {"ramify": "1"}
    return RunLine(
        run.arm, run.seed, rule, fingerprint, curve, (4.0,), (0.5,), match, "abc", packages, inputs=inputs
    )


@pytest.fixture
def out(recipe):
    folder = recipe.parent / "ein ordner ü"
    ablation = plan_ablation(recipe, (), tuple(SUCCESS), {}, 3, folder)
    folder.mkdir()
    note_ablation(ablation, folder)
    write_lines(folder / "results.jsonl", [line_of(run, ablation.fingerprint) for run in ablation.runs])
    return folder


def ablate(recipe, out, *words):
    return ["ablate", str(recipe), "--out", str(out), *words]


def test_an_ablation_at_work_has_a_page_on_request(out, refused):
    """Its results.jsonl was taken for that of an evaluation."""
    (out / "starts.jsonl").touch()
    assert main(["report", str(out)]) == 0
    assert f"Ablation: {out.name}" in html.unescape((out / "ablate.html").read_text())
    (out / "results.jsonl").unlink()
    assert "nothing to report yet. No run has ended." in refused("report", out)


def test_a_folder_is_shown_like_its_results(out, capsys, refused):
    shown = []
    for source in (out, out / "results.jsonl"):
        assert main(["ablate", str(source), "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0] == shown[1]
    assert shown[0]["seeds"] == [0, 1, 2]
    assert not (out / "ablate.html").exists()
    begun = out.parent / "begun"
    begun.mkdir()
    (begun / "starts.jsonl").write_text("")
    assert "no run of it has ended yet" in refused("ablate", begun)
    (begun / "results.jsonl").write_text("\n")
    assert "no run of it has ended yet" in refused("ablate", begun / "results.jsonl")
    assert "shown as they are" in refused("ablate", out, "--seeds", 2)


def test_the_page_of_lines_alone_names_commands_that_work_and_joins_nothing_else(out, capsys, refused):
    lines, shown = out / "results.jsonl", out.parent / "shown"
    assert main(["ablate", str(lines), "--out", str(shown)]) == 0
    page = shown / "ablate.html"
    assert f"<pre>ramify ablate {shlex.quote(str(lines))} --out {shown}\n</pre>" in html.unescape(
        page.read_text()
    )
    written = page.read_bytes()
    assert f"LINES --out {shown}" in refused("report", shown)
    assert page.read_bytes() == written
    assert main(["ablate", str(lines), "--out", str(shown)]) == 0
    # A folder of its own has what its page names; runs that were removed are not shown.
    assert main(["ablate", str(out), "--out", str(out)]) == 0
    assert "ramify view" not in (out / "ablate.html").read_text()
    (out / "rule-0").mkdir()
    assert main(["report", str(out)]) == 0
    assert "rule-0'\n" in html.unescape((out / "ablate.html").read_text())
    copied = shutil.copy(lines, out.parent / "lines.jsonl")
    capsys.readouterr()
    for other in (out, out.parent):
        assert "holds more than a page. Name a new folder" in refused("ablate", copied, "--out", other)


def test_a_blind_look_shows_the_spread_alone_and_writes_no_page(recipe, out, capsys, refused):
    fields = {"first", "second", "n", "sd", "pairs_for_0.005", "pairs_for_0.01"}
    # Of a folder, and where a session ends that has nothing left to train.
    for command in (["ablate", str(out)], ablate(recipe, out)):
        assert main([*command, "--blind", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert [set(each) for each in answer["contrasts"]] == [fields] * 2
        assert answer["warnings"] == []
        assert main([*command, "--blind"]) == 0
        text = capsys.readouterr().out
        assert "rule minus yoked" in text
        assert not any(word in text for word in ("better", "worse", "no difference", "success", "page"))
    assert not [*out.glob("ablate.*")]
    assert "Leave out --out" in refused("ablate", out, "--blind", "--out", out.parent / "shown")


def test_a_session_names_what_differs_from_the_one_before(recipe, out, refused):
    rate = ("-s", "learner.optimizer.rate=2e-3", "-s", "rollout.max_calls=2")
    message = f"--out: {out} holds runs with learner.optimizer.rate = 0.001, now it is 0.002; rollout.max_calls = 3, now it is 2."
    rule = "-s", 'rollout.branching={name="threshold",min_entropy_delta=0.5}'
    coin = ("--arm", 'coin={name="random",rate=0.5}')
    lines = read_lines(out / "results.jsonl")
    # Of finished runs, and of those that have no line yet.
    for finished in (lines, ()):
        write_lines(out / "results.jsonl", finished)
        for words in ((), ("--dry-run",)):
            assert message in refused(*ablate(recipe, out, *rate, *words))
            assert "rollout.branching" in refused(*ablate(recipe, out, *rule, *words))
    write_lines(out / "results.jsonl", lines)
    note_ablation(plan_ablation(recipe, (), ("rule",), {"coin": coin[1][5:]}, 1, out), out)
    message = refused(*ablate(recipe, out, "--arm", 'coin={name="random",rate=0.6}', "--dry-run"))
    assert "--arm coin: " in message
    assert "rate = 0.5, now it is 0.6" in message
    # Of lines that came from elsewhere the recipe's fingerprint alone is known.
    (out / "settings.json").unlink()
    assert "holds runs of another recipe, or with other -s" in refused(*ablate(recipe, out, *rate))


def test_a_file_with_another_content_is_refused_by_its_key(recipe, out, refused):
    (recipe.parent / "train.jsonl").write_text('{"prompt": "?", "answer": "2"}\n')
    message = refused(*ablate(recipe, out))
    assert "the content of data.train is not that from which rule-0 was made. Put it back" in message
    # Lines of before there were checksums are taken as they are.
    lines = [{**asdict(line), "inputs": {}} for line in read_lines(out / "results.jsonl")]
    (out / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(ablate(recipe, out)) == 0


def test_runs_that_a_command_did_not_ask_for_are_left_out_with_a_note(recipe, out, capsys):
    assert main(ablate(recipe, out, "--seeds", "2", "--arms", "flat,rule")) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "also has 5 finished runs that this command did not ask for, such as yoked-0" in text
    assert "no verdict on rule and flat yet: 2 pairs, a verdict needs 1 more" in text


def test_arms_of_finished_runs_can_be_chosen_so_that_one_with_fewer_seeds_takes_no_pair_from_others(
    out, capsys, refused
):
    lines = read_lines(out / "results.jsonl")
    oracle = replace(lines[0], arm="oracle", branching={"name": "oracle"})
    write_lines(out / "results.jsonl", (*lines, oracle))
    chosen = {}
    for words in ((), ("--arms", "flat,yoked,rule"), ("--arms", "oracle,yoked")):
        assert main(["ablate", str(out), "--json", *words]) == 0
        chosen[words] = json.loads(capsys.readouterr().out)
    every, usual, two = chosen.values()
    assert ("compare fewer arms (--arms)" in " ".join(every["warnings"]), usual["warnings"]) == (True, [])
    assert (len(every["seeds"]), len(usual["seeds"]), list(two["arms"])) == (1, 3, ["yoked", "oracle"])
    assert f"{out / 'results.jsonl'} has no arm 'coin'. Choose among flat, yoked, rule, oracle." in refused(
        "ablate", out, "--arms", "flat,coin"
    )


def test_mistakes_about_arms_and_folders_are_one_line(recipe, out, refused):
    for name in ("../up", "a b", "a/b", "é", "a" * 61, ""):
        assert "letters, digits and _ as NAME" in refused(*ablate(recipe, out, "--arm", f"{name}=random"))
    twice = ("--arm", "coin=random", "--arm", "Coin=random")
    assert "coin: it is named twice" in refused(*ablate(recipe, out, *twice))
    lost = f"other={{name='shuffled',of='{out.parent}/lost',rule='threshold'}}"
    assert "lost/trees has no traces" in refused(*ablate(recipe, out, "--arm", lost))
    results = out / "results.jsonl"
    whole = results.read_bytes()
    results.write_bytes(whole[:-20])
    for command in (ablate(recipe, out), ["ablate", out]):
        assert "row 9: the line is cut off" in refused(*command)
    results.write_bytes(whole)
    with locked_folder("--out", out):
        assert "in use by another process" in refused(*ablate(recipe, out))
    (out.parent / "file").write_text("")
    assert "file cannot be created" in refused(*ablate(recipe, out.parent / "file"))
