"""`ramify eval` with a judge that is slow, busy, broken, or answers in another form: verdicts, failures, agreement."""

import json
import shutil
import signal
import threading
import time
from collections import Counter

import pytest

from e2e_runs import EVAL, overrides, write_task
from loopback import as_json, serve
from ramify.cli import main
from ramify.eval.results import read_records
from ramify.obs.trace import read_trees

FORMLESS = "That isn't correct."
PATIENT = (
    "reward.judge.http={attempts=1,in_flight=16}",
    "reward.judge.pause_seconds=0.001",
    "reward.judge.failures_to_stop=1000",
)
"""A judge that is down fails answer by answer, without a pause."""


class StandIn:
    """Compares letters; each answer meets trouble first. Where "x" is accepted, it never keeps to the form."""

    def __init__(self) -> None:
        self.down = False
        self.turns: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __call__(self, request):
        if request.method == "GET":  # a service is asked for its models; this one lists none
            return as_json({}, 404)
        if self.down:
            return as_json({}, 500)
        mark, *lines, _ = request.json()["messages"][1]["content"].split("\n")
        data = json.loads("\n".join(lines))
        answer = data["candidate_answer"]
        if data["accepted_answers"] == ["x"]:
            return reply(FORMLESS)
        with self.lock:
            turn = self.turns[answer]
            self.turns[answer] += 1
        if turn < 3:
            return (as_json({}, 429, **{"retry-after": "0"}), as_json({}, 500), reply(FORMLESS))[turn]
        time.sleep(0.02)
        return reply(f"{mark} {'CORRECT' if answer in data['accepted_answers'] else 'INCORRECT'}")


def reply(text):
    return as_json({"choices": [{"index": 0, "message": {"content": text}}]})


@pytest.fixture
def task(tmp_path, model_folder):
    golds = ["42", "Paris", "x"]
    rows = [{"id": f"p{i}", "prompt": f"what is {i} ?", "answer": golds[i % 3]} for i in range(9)]
    return write_task(tmp_path / "task", model_folder, EVAL, problems=rows)


def words(folder, url, *settings):
    judge = f'url="{url}/v1",model="big"'
    common = (
        f'engine={{name="scripted",script="{folder / "script.toml"}"}}',
        "sampling.max_calls=3",
        "sampling.max_tokens=120",
        "sampling.attempts=3",
        "sampling.k=[1,3]",
        "tools.python.timeout_seconds=10",
        "sandbox.min_level=0",
        f"reward.judge={{{judge}}}",
    )
    return overrides(*common, *settings)


def test_verdicts_are_right_and_failures_are_counted(task, capsys):
    with serve(StandIn()) as server:
        assert main(["eval", str(task), *words(task.parent, server.url, "sampling.right_by='judge'")]) == 0
    output = capsys.readouterr().out
    run = task.parent / "run"
    records = read_records(run)
    for record in records:
        gold = ["42", "Paris", "x"][int(record.problem[1:]) % 3]
        assert record.parts.get("judge") == (None if gold == "x" else float(record.answer == gold))
        assert record.correct is (record.answer == gold)
    assert "judge: 18 verdicts" in output
    assert "without a verdict: no_verdict 9" in output
    judge = json.loads((run / "summary.json").read_text())["judge"]
    right = sum(record.correct for record in records)
    assert 0 < right < 18
    assert (judge["judged"], judge["right"], judge["without_verdict"]) == (18, right, 9)
    assert judge["agreement"]["em"]["rate"] == 1.0
    counts = json.loads((run / "times.json").read_text())["judge"]
    assert counts["failures"] == {"no_verdict": 9}
    # Two answers met two errors and another form once, nine were asked three times and got no verdict.
    assert (counts["requests"], counts["asked_again"]) == (18 + 4 + 2 + 27, 4 + 2 + 18)
    judged_by = json.loads((run / "manifest.json").read_text())["scores"]["reward_identities"]["judge"]
    assert (judged_by["model"], judged_by["prompt"], judged_by["temperature"]) == ("big", 1, 0.0)
    page = (run / "report.html").read_text()
    assert "18 answers judged" in page
    assert "9 without a verdict" in page


def test_a_judge_that_is_down_is_told_and_asked_again_on_resume(task, capsys):
    stand_in = StandIn()
    run = task.parent / "run"
    with serve(stand_in) as server:
        arguments = words(task.parent, server.url, *PATIENT)
        stand_in.down = True
        assert main(["eval", str(task), *arguments]) == 0
        assert "without a verdict: server 27" in capsys.readouterr().out
        down = json.loads((run / "summary.json").read_text())
        assert (down["judge"]["judged"], down["judge"]["without_verdict"]) == (0, 27)
        assert down["pass_at"]["1"]["value"] > 0
        stand_in.down = False
        stand_in.turns.update({"42": 3, "Paris": 3})
        assert main(["eval", str(task), "--resume", *arguments]) == 0
    assert (
        "27 of 27 attempts are done, 27 of them without a verdict: they are judged again"
        in capsys.readouterr().out
    )
    judge = json.loads((run / "summary.json").read_text())["judge"]
    assert (judge["judged"], judge["without_verdict"]) == (18, 9)
    assert json.loads((run / "summary.json").read_text())["pass_at"] == down["pass_at"]
    verdicts = [record.parts.get("judge") for record in read_records(run)]
    traced = [item.rewards[0].parts.get("judge") for item in read_trees(run / "trees.jsonl")]
    assert verdicts == traced


def test_verdicts_that_came_before_the_judge_failed_again_are_kept(task, refused):
    stand_in, run, answers_left = StandIn(), task.parent / "run", [10**6]

    def service(request):
        answers_left[0] -= request.method == "POST"
        return stand_in(request) if answers_left[0] >= 0 else as_json({}, 401)

    with serve(service) as server:
        arguments = words(task.parent, server.url, *PATIENT, "reward.judge.in_flight=1")
        stand_in.down = True
        assert main(["eval", str(task), *arguments]) == 0
        stand_in.down = False
        stand_in.turns.update({"42": 3, "Paris": 3})
        # Those of the first two problems; the third has no verdict in any case.
        answers_left[0] = 6
        assert "401" in refused("eval", task, "--resume", *arguments)
    judged = [record.problem for record in read_records(run) if "judge" in record.parts]
    assert judged == ["p0"] * 3 + ["p1"] * 3
    assert sum("judge" in item.rewards[0].parts for item in read_trees(run / "trees.jsonl")) == 6


def test_a_judge_that_decides_nothing_gives_no_result(task, refused, capsys):
    stand_in = StandIn()
    run = task.parent / "run"
    with serve(stand_in) as server:
        arguments = words(task.parent, server.url, *PATIENT, "sampling.right_by='judge'")
        stand_in.down = True
        message = refused("eval", task, *arguments)
        assert (
            "the judge gave no verdict on any of 27 attempts, so there is no result; the last failure: "
            in message
        )
        assert "500" in message
        assert not (run / "summary.json").exists()
        stand_in.down = False
        stand_in.turns.update({"42": 3, "Paris": 3})
        assert main(["eval", str(task), "--resume", *arguments]) == 0
    assert "warning: 9 of 27 attempts have no verdict and count as wrong" in capsys.readouterr().out
    again = shutil.copytree(run, run.with_name("again"))
    assert main(["runs", "compare", str(run), str(again)]) == 0
    assert f"warning: {run}: 9 attempts have no verdict" in capsys.readouterr().out


def test_too_many_answers_without_a_verdict_stop_the_evaluation(task, refused):
    stand_in = StandIn()
    stand_in.down = True
    with serve(stand_in) as server:
        arguments = words(task.parent, server.url, *PATIENT, "reward.judge.failures_to_stop=5")
        message = refused("eval", task, *arguments)
    assert "the judge big gave no verdict 5 times in a row, the last time: server" in message
    assert not (task.parent / "run" / "summary.json").exists()


def test_sigterm_keeps_what_has_ended(task, forked):
    with serve(StandIn()) as server:
        arguments = words(task.parent, server.url)
        when = (f"{task.parent}/run/results.jsonl", 1, signal.SIGTERM)
        status, _, err = forked("eval", task, *arguments, when=when)
        assert status in (0, 128 + signal.SIGTERM), err
        if status:
            assert "stopped by SIGTERM; the attempts that have ended are in" in err
        assert main(["eval", str(task), "--resume", *arguments]) == 0
    assert len(read_records(task.parent / "run")) == 27


def test_another_address_is_the_same_judge_and_another_file_another_reward(task, refused, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("def one(completions, **columns):\n    return [1.0] * len(completions)\n")
    part = f'reward.own=[{{path="{own}",function="one",weight=0.0}}]'
    for _ in range(2):
        with serve(StandIn()) as server:
            arguments = words(task.parent, server.url, *PATIENT, part)
            assert (
                main(["eval", str(task), "--resume", *arguments, "-s", "price={input=1.0,output=2.0}"]) == 0
            )
    assert main(["eval", str(task), "--resume", *arguments]) == 0
    own.write_text("def one(completions, **columns):\n    return [2.0] * len(completions)\n")
    assert "with reward_identities.one.sha256 = " in refused("eval", task, "--resume", *arguments)


def test_verdicts_need_a_judge(task, refused):
    message = refused("eval", task, "-s", "sampling.right_by='judge'")
    assert 'sampling.right_by: "judge" takes [reward.judge], which is missing' in message
