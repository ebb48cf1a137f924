"""`ramify audit`: in a world whose effects are known by construction intervals cover them, and estimators are ranked."""

import json
import shutil

import numpy as np
import pytest

from e2e_runs import TRAIN, overrides, read_lines, write_task
from loopback import as_json, serve
from ramify.cli import main
from ramify.obs.trace import read_trees

WAYS, ENDS, PROBLEMS = 4, 20, 30
REWARD = '''
import re


def right(completion, answer, most=20):
    """The chance of an answer depends on the two searches and on the problem."""
    (way,), (gate,) = re.findall("way ([0-9]+)", completion), re.findall("gate ([0-9]+)", completion)
    end = re.findall("boxed{ ([0-9]+) }", completion)
    return float(int(end[0]) < (7 * int(answer[0]) + 5 * int(way) + 3 * int(gate)) % (most + 1))


def percent(completion, answer):
    return 100 * right(completion, answer)
'''


def chance(problem, way, gate):
    return ((7 * problem + 5 * way + 3 * gate) % (ENDS + 1)) / ENDS


def turns():
    """Each turn is one of several, all as likely as each other."""
    texts = [
        [f"<search> way {way} </search>" for way in range(WAYS)],
        [f"<search> gate {gate} </search>" for gate in range(WAYS)],
        [f"<answer> \\\\boxed{{ {end} }} </answer>" for end in range(ENDS)],
    ]
    for after, choices in enumerate(texts):
        for number, text in enumerate(choices):
            ends = "\nends = true" if after == 2 else ""
            yield f'[[turns]]\nafter = {after}\ntext = "{text}"\nentropies = [{0.1 + number % 5}]{ends}\n'


@pytest.fixture(scope="module")
def world(tmp_path_factory, tokenizer_folder):
    folder = tmp_path_factory.mktemp("world") / "task"
    problems = [{"id": f"p{i}", "prompt": f"question {i}", "answer": i} for i in range(PROBLEMS)]
    text = TRAIN.replace('name = "local"\nslots = 12', f'name = "scripted"\nscript = "{folder}/script.toml"')
    text = text.replace(
        'name = "length"', f'name = "parts"\nown = [{{{{ path = "{folder}/right.py", function = "right" }}}}]'
    )
    recipe = write_task(folder, tokenizer_folder, text, problems=problems, script="".join(turns()))
    (folder / "right.py").write_text(REWARD)
    settings = {"rollout.n": 8, "rollout.m": 2, "run.deterministic": "false", "rollout.max_tokens": 120}
    settings["rollout.branching"] = '{name="random",rate=0.6,probe_tokens=2}'
    assert main(["rollout", str(recipe), "--problems", f"{PROBLEMS}", *overrides(settings)]) == 0
    return recipe.parent / "run"


def audit(capsys, source, out, *words):
    capsys.readouterr()
    assert main(["audit", str(source), "--out", str(out), *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out), read_lines(out / "effects.jsonl")


@pytest.fixture(scope="module")
def audited(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("audited") / "audit"
    assert main(["audit", str(world), "--out", str(out), "--decisions", "200", "--samples", "12"]) == 0
    return json.loads((out / "audit.json").read_text()), read_lines(out / "effects.jsonl"), out


def true_effect(tree, node):
    texts = [each.text for each in tree.path_to(tree.by_id[node]) if each.source.value == "policy"]
    return effect_of(int(tree.problem.answer[0]), "".join(texts))


def effect_of(problem, written):
    """E[R | with the turn] - E[R | before it], by enumeration, of the last of the turns that were written."""
    written = written.replace(" ", "")
    way, gate = (
        [int(written.partition(word)[2].partition("<")[0])] if word in written else []
        for word in ("way", "gate")
    )
    if "boxed" in written:
        end = int(written.partition("boxed{")[2].partition("}")[0])
        after = float(end < round(chance(problem, way[0], gate[0]) * ENDS))
        return after - chance(problem, way[0], gate[0])
    of_way = np.mean([chance(problem, w, g) for w in way for g in range(WAYS)])
    if gate:
        return chance(problem, way[0], gate[0]) - of_way
    return of_way - np.mean([chance(problem, w, g) for w in range(WAYS) for g in range(WAYS)])


def test_intervals_cover_known_effects_over_200_decisions(world, audited):
    summary, lines, _ = audited
    trees = [traced.tree for traced in read_trees(world / "trees" / "000001.jsonl")]
    assert (summary["decisions"], summary["known"], summary["unknown_samples"]) == (200, 200, 0)
    true = [true_effect(trees[line["row"]], line["node"]) for line in lines]
    inside = [
        line["low"] <= t + 1e-9 and t - 1e-9 <= line["high"] for line, t in zip(lines, true, strict=True)
    ]
    assert sum(inside) >= 190
    # Nor are they so wide that they say nothing.
    assert np.mean([line["high"] - line["low"] for line in lines]) < 0.6
    sure = [
        (line["effect"], t)
        for line, t in zip(lines, true, strict=True)
        if line["low"] > 0 or line["high"] < 0
    ]
    assert len(sure) == summary["sure"] > 40
    assert np.mean([effect * t > 0 for effect, t in sure]) > 0.95
    assert {line["turn"] for line in lines} == {1, 2, 3}
    measured = [line["effect"] for line in lines]
    assert np.corrcoef(measured, true)[0, 1] == pytest.approx(summary["ceiling"], abs=0.06)


def test_estimators_are_ranked_and_the_page_shows_them(audited):
    summary, lines, out = audited
    names = [ranking["name"] for ranking in summary["estimators"]]
    assert sorted(names) == sorted(
        ["group", "group, scale none", "leave subtree out", "node value", "turn level", "Tree-GRPO"]
    )
    values = [ranking["spearman"]["value"] for ranking in summary["estimators"]]
    assert values == sorted(values, reverse=True)
    assert all(ranking["spearman"]["low"] > 0.1 for ranking in summary["estimators"])
    assert all(ranking["auroc_sure"]["value"] > 0.55 for ranking in summary["estimators"])
    assert all(set(line["credits"]) == set(names) for line in lines)
    assert summary["entropy"]["spearman"]["low"] < 0.1
    page = (out / "AUDIT.html").read_text()
    assert all(f"<td>{name}</td>" in page for name in names)
    helped, harmed = page.partition("Turns that helped")[2].split("Turns that harmed")
    assert "<td>-" not in helped
    assert harmed.count("<td>-") >= 15


def test_the_draw_and_the_samples_are_the_same_whatever_was_done_before(world, tmp_path, capsys):
    """An audit that gets more decisions, or was cut, ends as that which was done at once."""
    words = ("--samples", 3, "--decisions")
    _, whole = audit(capsys, world, tmp_path / "whole", *words, 20)
    _, first = audit(capsys, world, tmp_path / "grown", *words, 6)
    trees = tmp_path / "grown" / "trees" / "000001.jsonl"
    trees.write_bytes(trees.read_bytes()[:-30])
    _, grown = audit(capsys, world, tmp_path / "grown", *words, 20)
    assert grown == whole
    assert [line["node"] for line in first] == [line["node"] for line in whole[:6]]
    for name in ("AUDIT.html", "trees/000001.jsonl", "audit.json"):
        same = [(tmp_path / folder / name).read_bytes() for folder in ("whole", "grown")]
        assert same[0].replace(b"whole", b"grown") == same[1]
    before = trees.stat().st_mtime_ns
    _, again = audit(capsys, world, tmp_path / "grown", *words, 20)
    assert (again, trees.stat().st_mtime_ns) == (whole, before)
    _, other = audit(capsys, world, tmp_path / "other", *words, 20, "--seed", 1)
    assert [line["node"] for line in other] != [line["node"] for line in whole]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples", "1"], "at least 2"),
        (["--step", "7"], "--step 7"),
        (["-s", "reward.nothing=1"], "reward"),
        (["--recipe", "quickstart_eval"], "--recipe"),
        (["--temperature", "0.5"], "--temperature: trees of ours go on with the engine of their recipe"),
        (["--max-tokens", "9"], "--max-tokens: trees of ours"),
        (["--model", "m"], "--model: trees of ours"),
        (["--key-variable", "KEY"], "--key-variable: trees of ours"),
    ],
)
def test_an_audit_that_cannot_be_is_one_line(world, tmp_path, refused, words, message):
    assert message in refused("audit", world, "--out", tmp_path / "audit", *words)


def test_trees_that_were_grown_otherwise_than_the_recipe_says_are_refused(world, tmp_path, refused):
    run = tmp_path / "run"
    for file, message in (
        ("evals/000001.jsonl", "grown with the settings of [eval]"),
        ("cycle-01/trees.jsonl", "the weights that its RL ended with. Give --recipe"),
    ):
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(world / "trees" / "000001.jsonl", run / file)
        shutil.copy(world / "recipe.toml", run)
        (run / "cycle-01" / "rl").mkdir(parents=True, exist_ok=True)
        assert message in refused("audit", run / file, "--out", tmp_path / "audit")
        # Also if no decision is drawn from it yet.
        few = ["--decisions", 1, "--samples", 2]
        for seed in range(3):
            message_of_both = refused(
                "audit", world, run / file, *few, "--seed", seed, "--out", tmp_path / f"{seed}"
            )
            assert message in message_of_both


def test_recorded_ends_get_the_reward_that_is_asked_for(world, tmp_path, capsys):
    """So that an effect does not compare a reward of the run with one of another scale."""
    words = ("--samples", 3, "--decisions", 12)
    own = f'reward.own=[{{path = "{world.parent}/right.py", function = "percent"}}]'
    summary, lines = audit(capsys, world, tmp_path / "audit", *words, "-s", own)
    _, before = audit(capsys, world, tmp_path / "plain", *words)
    ends = [(line["reward"], was["reward"]) for line, was in zip(lines, before, strict=True)]
    assert [new for new, _ in ends] == [None if old is None else 100 * old for _, old in ends]
    assert {old for _, old in ends} >= {None, 0.0, 1.0}
    assert summary["rewards"] == [0, 100]
    rescored = summary["rescored"]
    assert rescored["mean"] == pytest.approx(100 * rescored["recorded"])
    assert (rescored["n"] % 8, rescored["unknown"], rescored["changed"] > 0) == (0, 0, True)
    # The estimators' ranks are those of the same rewards on another scale.
    assert [line["credits"]["group"] for line in lines] == pytest.approx(
        [line["credits"]["group"] for line in before], rel=1e-3
    )


def test_a_folder_holds_one_audit(world, tmp_path, refused, capsys):
    words = ["audit", str(world), "--out", str(tmp_path / "audit"), "--decisions", "2", "--samples"]
    # A command that is refused does not bind the next one.
    refused(*words, "3", "--url", "http://127.0.0.1:9")
    assert main([*words, "2"]) == 0
    capsys.readouterr()
    assert "samples = 2" in refused(*words, "3")
    # What the trajectories would go on with now is not what the others went on with.
    for name in ("right.py", "script.toml", "run/recipe.toml"):
        file = world.parent / name
        whole = file.read_text()
        file.write_text(f"{whole}# another one\n")
        message = refused(*words, "2")
        file.write_text(whole)
        assert f"{file} has changed since the audit in {tmp_path / 'audit'} began" in message
    assert main([*words, "2"]) == 0
    capsys.readouterr()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_text("")
    assert "holds no audit" in refused("audit", world, "--out", tmp_path / "other")


def test_a_trained_run_goes_on_with_the_weights_of_its_step(tmp_path, caller, capsys, refused):
    recipe = write_task(tmp_path / "task", caller, TRAIN)
    assert main(["train", str(recipe), "--max-steps", "2", *overrides("run.save_every=1")]) == 0
    run, words = recipe.parent / "run", ("--samples", 4, "--decisions", 5, "--step", 2)
    _, lines = audit(capsys, run, tmp_path / "audit", *words)
    trace = tmp_path / "audit" / "trees" / "000001.jsonl"
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-30])
    assert audit(capsys, run, tmp_path / "audit", *words)[1] == lines
    assert trace.read_bytes() == whole
    capsys.readouterr()
    (run / "checkpoints" / "step-000001").rename(tmp_path / "gone")
    message = refused("audit", run, *words, "--out", tmp_path / "audit")
    assert f"the model of {run / 'trees' / '000002.jsonl'} has changed since" in message
    out = ["--out", str(tmp_path / "before")]
    assert main(["audit", str(run), *map(str, words), *out]) == 0
    assert capsys.readouterr().out.count("those after step 1, were not saved") == 1
    (warning, *_) = json.loads((tmp_path / "before" / "audit.json").read_text())["warnings"]
    assert "Audit trees whose weights are there" in warning
    assert "those after step 1, were not saved" in (tmp_path / "before" / "AUDIT.html").read_text()
    own, before = (
        [node.behavior_logprobs for traced in read_trees(path) for node in traced.tree.nodes]
        for path in (trace, tmp_path / "before" / "trees" / "000001.jsonl")
    )
    assert own != before


def test_decisions_of_several_files_name_their_file(world, tmp_path):
    runs, out = [str(world), str(shutil.copytree(world, tmp_path / "run"))], tmp_path / "audit"
    assert main(["audit", *runs, "--out", str(out), "--decisions", "40", "--samples", "8"]) == 0
    lines = read_lines(out / "effects.jsonl")
    sure = {line["trace"] for line in lines if line["low"] > 0 or line["high"] < 0}
    page = (out / "AUDIT.html").read_text()
    assert len(sure) == 2
    assert all(f"<td>{name}</td>" in page for name in sure)


class TrueJudge:
    """Knows the world, so it answers a turn's true effect in tenths; of problems in `odd` it writes no verdict."""

    def __init__(self, odd=()):
        self.odd, self.sent = odd, []

    def __call__(self, request):
        if request.method == "GET":  # a service is asked for its models; this one lists none
            return as_json({}, 404)
        mark, *lines, _ = request.json()["messages"][1]["content"].split("\n")
        shown = json.loads("\n".join(lines))
        self.sent.append(shown)
        problem = int(shown["prompt"][-1]["text"].split()[-1])
        turns = [step["turn"] for step in shown["before"] if "turn" in step] + [shown["turn"]]
        effect = effect_of(problem, "".join(turn["text"] for turn in turns))
        text = "It helped, 7 of 10." if problem in self.odd else f"Because.\n{mark} {10 * effect:.0f}"
        return as_json({"choices": [{"message": {"content": text}}]})


def judged(capsys, world, out, service, *words):
    with serve(service) as server:
        options = ("--judge-url", f"{server.url}/v1", "--judge-model", "big", "-s", "judge.attempts=1")
        return audit(capsys, world, out, "--decisions", 200, "--samples", 12, *options, *words)


def test_a_judge_that_knows_the_effects_ranks_as_high_as_any_score_can(world, audited, tmp_path, capsys):
    before, lines, folder = audited
    out = shutil.copytree(folder, tmp_path / "audit")
    trees = (out / "trees" / "000001.jsonl").read_bytes()
    service = TrueJudge()
    summary, with_judge = judged(capsys, world, out, service)
    tree_of = [traced.tree for traced in read_trees(world / "trees" / "000001.jsonl")]
    true = [true_effect(tree_of[line["row"]], line["node"]) for line in lines]
    assert [line["credits"]["judge"] for line in with_judge] == [round(10 * effect) for effect in true]
    ranking = summary["estimators"][0]
    assert (ranking["name"], ranking["n"]) == ("judge", 200)
    # The measured effects have noise; the ceiling is the correlation of the true ones with them.
    assert ranking["spearman"]["value"] == pytest.approx(before["ceiling"], abs=0.06)
    assert ranking["auroc_sure"]["value"] > 0.97
    assert (summary["estimators"][1:], summary["warnings"]) == (before["estimators"], before["warnings"])
    assert [
        {**line, "credits": {k: v for k, v in line["credits"].items() if k != "judge"}} for line in with_judge
    ] == lines
    assert (out / "trees" / "000001.jsonl").read_bytes() == trees
    page = (out / "AUDIT.html").read_text()
    assert "<td>judge</td>" in page
    assert "the opinion of big as judge" in page
    assert {len(shown["before"]) for shown in service.sent} == {0, 2, 4}
    assert all((shown["reply"] is None) == ("answer" in shown["turn"]["text"]) for shown in service.sent)


def test_turns_without_a_verdict_are_left_out_of_the_judge_s_row(world, audited, tmp_path, capsys, refused):
    out = shutil.copytree(audited[2], tmp_path / "audit")
    words = ("audit", world, "--out", out, "--decisions", 200, "--samples", 12)
    assert "Give both" in refused(*words, "--judge-url", "http://127.0.0.1:9/v1")
    assert "Give both" in refused(*words, "-s", "judge.attempts=1")
    both = ("--judge-url", "http://127.0.0.1:9/v1", "--judge-model", "big")
    assert "judge.weight: has no effect" in refused(*words, *both, "-s", "judge.weight=1")
    # A judge that never answered does not bind the folder.
    gone = ("--judge-url", "http://127.0.0.1:9/v1", "--judge-model", "small")
    keys = ("-s", "judge.failures_to_stop=1", "-s", "judge.http.attempts=1")
    assert "the judge small gave no verdict" in refused(*words, *gone, *keys)
    service = TrueJudge(odd=range(0, PROBLEMS, 3))
    summary, lines = judged(capsys, world, out, service)
    of_odd = [line["problem"] in {f"p{problem}" for problem in service.odd} for line in lines]
    assert [("judge" in line["credits"]) for line in lines] == [not odd for odd in of_odd]
    (ranking,) = [each for each in summary["estimators"] if each["name"] == "judge"]
    assert ranking["n"] == 200 - sum(of_odd) < 190
    warning = f"{sum(of_odd)} of 200 decisions have no verdict of the judge and are left out of its row."
    assert warning in summary["warnings"]
    sent = len(service.sent)
    assert judged(capsys, world, out, service) == (summary, lines)
    assert len(service.sent) == sent
    assert "opinions of a judge with model = 'big'" in refused(*words, *gone)
    assert "opinions of a judge with model = 'big'" in refused(*words)
