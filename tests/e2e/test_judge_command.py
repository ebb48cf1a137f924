"""`ramify judge`: verdicts on the answers of a finished evaluation, and of files of results as the releases write them."""

import json
import re

import pytest

from e2e_runs import EVAL, overrides, read_lines, write_lines, write_task
from loopback import as_json, serve
from ramify.cli import main
from ramify.eval.results import read_records


class StandIn:
    """Compares letters. About questions of `silent` it never keeps to the form; `answers` are those that it got."""

    def __init__(self, silent=()):
        self.silent, self.answers = silent, []

    def __call__(self, request):
        if request.method == "GET":  # a service is asked for its models; this one lists none
            return as_json({}, 404)
        mark, *lines, _ = request.json()["messages"][1]["content"].split("\n")
        data = json.loads("\n".join(lines))
        self.answers.append(data["candidate_answer"])
        verdict = "CORRECT" if data["candidate_answer"] in data["accepted_answers"] else "INCORRECT"
        silent = any(word in data["question"] for word in self.silent)
        return as_json({"choices": [{"message": {"content": "Hm." if silent else f"{mark} {verdict}"}}]})


def judge(source, service, *options):
    with serve(service) as server:
        return main(["judge", str(source), "--url", f"{server.url}/v1", "--model", "big", *map(str, options)])


def printed(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def evaluate(tmp_path, model_folder):
    golds = ["42", "Paris", "x"]
    rows = [{"id": f"p{i}", "prompt": f"what is {i} ?", "answer": golds[i % 3]} for i in range(9)]

    def run(name, *settings):
        task = write_task(tmp_path / name, model_folder, EVAL, problems=rows)
        settings = (
            f'engine={{name="scripted",script="{task.parent / "script.toml"}"}}',
            "sampling.max_calls=3",
            "sampling.max_tokens=120",
            "sampling.attempts=3",
            "sampling.k=[1,3]",
            "tools.python.timeout_seconds=10",
            "sandbox.min_level=0",
            *settings,
        )
        words = ["eval", str(task), *overrides(*settings)]
        assert main(words) == 0
        return task.parent / "run", words

    return run


def test_a_judge_that_comes_later_gives_the_figures_of_one_that_was_there(evaluate, capsys, refused):
    with serve(StandIn()) as server:
        inside, _ = evaluate(
            "inside", f'reward.judge={{url="{server.url}/v1",model="big"}}', "sampling.right_by='judge'"
        )
    later, words = evaluate("later")
    before = json.loads((later / "summary.json").read_text())
    trees = (later / "trees.jsonl").read_bytes()
    capsys.readouterr()
    half = StandIn(silent=[f"{number} ?" for number in range(0, 9, 2)])
    assert judge(later, half, "--json") == 0
    figures = printed(capsys)
    assert (figures["judged"], figures["without_verdict"]) == (12, 15)
    # The same command asks again about what has no verdict, and about nothing else.
    others = StandIn()
    assert judge(later, others) == 0
    answers = [record.answer for record in read_records(later) if int(record.problem[1:]) % 2 == 0]
    assert sorted(others.answers) == sorted(answers)
    assert "going on in" in capsys.readouterr().out
    summary = json.loads((later / "summary.json").read_text())
    expected = json.loads((inside / "summary.json").read_text())
    assert summary["judge"].pop("model") == "big"
    assert summary["judge"] == expected["judge"]
    assert summary["judge"]["pass_at"] == expected["pass_at"]
    assert (summary["pass_at"], summary["tokens"]) == (before["pass_at"], before["tokens"])
    verdicts = [{r.problem: r.parts["judge"] for r in read_records(run)} for run in (inside, later)]
    assert verdicts[0] == verdicts[1]
    assert "27 answers judged" in (later / "report.html").read_text()
    assert (later / "trees.jsonl").read_bytes() == trees
    assert main(["score", str(later), "--task", "qa"]) == 0
    averages = json.loads(capsys.readouterr().out.splitlines()[-1])
    used = [record for record in read_records(later) if record.calls]
    assert (averages["n"], averages["llm_equal"]) == (27, pytest.approx(summary["parts"]["judge"]["value"]))
    assert averages["TE"] == pytest.approx(sum(record.parts["judge"] for record in used) / len(used))
    assert averages["tool_call"] == pytest.approx(summary["calls_per_attempt"])
    # The evaluation stays one that goes on, and another judge does not mix with the first.
    assert main([*words, "--resume"]) == 0
    resumed = json.loads((later / "summary.json").read_text())["judge"]
    assert resumed == expected["judge"]
    message = refused("judge", later, "--url", "http://127.0.0.1:9/v1", "--model", "other")
    assert "holds verdicts with another judge. Remove the folder to judge again" in message
    assert "another judge, big" in refused(
        "judge", inside, "--url", "http://127.0.0.1:9/v1", "--model", "other"
    )


def test_a_judge_of_the_recipe_is_asked_later_about_what_it_left_out(evaluate, capsys):
    with serve(StandIn(silent=["what is"])) as server:
        judge_of_run = f'reward.judge={{url="{server.url}/v1",model="big",attempts=1}}'
        run, _ = evaluate("run", judge_of_run)
    attempts = ("-s", "judge.attempts=1")
    half = StandIn(silent=["is 0", "is 1", "is 2"])
    for service, requests, missing in ((half, 27, 9), (StandIn(), 9, 0), (StandIn(), 0, 0)):
        capsys.readouterr()
        assert judge(run, service, "--json", *attempts) == 0
        figures = printed(capsys)
        assert (len(service.answers), figures["without_verdict"]) == (requests, missing)


def rows_of_the_release():
    called = "<search> q </search><result> r </result>"
    for number in range(8):
        answer = "Paris" if number % 2 else "Rome"
        yield {
            "id": number // 4,
            "input": f"capital {number}?",
            "output": (called if number > 3 else "")
            + f"<think> t </think><answer>\\boxed{{{answer}}}</answer>",
            "prediction": answer,
            "answer": ["Paris", "Lutetia"],
            "logs": [],
        }


def test_a_file_of_the_release_is_judged_and_goes_on(tmp_path, capsys, refused):
    file = tmp_path / "gaia_output_1.json"
    file.write_text(json.dumps(list(rows_of_the_release())))
    service = StandIn()
    assert judge(file, service, "--task", "qa", "--json") == 0
    output = capsys.readouterr()
    figures = json.loads(output.out)
    assert "6 rows have the id of an earlier row" in output.err
    assert (figures["n"], figures["judge"]["judged"], figures["llm_equal"], figures["TE"]) == (8, 8, 0.5, 0.5)
    assert figures["judge"]["agreement"]["em"]["rate"] == 1.0
    assert figures["tool_productivity"] == pytest.approx(50 * 0.5 / 0.6)
    folder = tmp_path / "gaia_output_1.json.judged"
    assert json.loads((folder / "summary.json").read_text()) == figures
    # A kill leaves the verdicts so far, and half a line.
    lines = (folder / "verdicts.jsonl").read_text().splitlines(keepends=True)
    (folder / "verdicts.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
    (folder / "summary.json").unlink()
    service.answers.clear()
    assert judge(file, service, "--task", "qa", "--json") == 0
    assert (printed(capsys), len(service.answers)) == (figures, 5)
    assert len(read_lines(folder / "verdicts.jsonl")) == 8
    # As lines, the same; and a changed file is another source.
    same = write_lines(tmp_path / "r.jsonl", rows_of_the_release())
    cache = tmp_path / "verdicts.sqlite"
    assert judge(same, StandIn(), "--task", "qa", "--json", "--cache", cache) == 0
    assert printed(capsys) == figures
    assert judge(same, service, "--task", "qa", "--json", "--cache", cache, "--out", tmp_path / "again") == 0
    assert (printed(capsys), len(service.answers)) == (figures, 5)
    file.write_text(json.dumps(list(rows_of_the_release())[:7]))
    options = ("--task", "qa", "--url", "http://127.0.0.1:9/v1", "--model", "big")
    assert "with another source" in refused("judge", file, *options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"score": 1}]', "row 1: expected one of the keys response, output"),
        ('{"output": "x", "answer": "y"}', "line 1: expected a question, as question, input or Prompt"),
        ('[{"input": "q", "output": "x", "answer": "y"}, {"input"', "row 2: the array does not end"),
        ("", "the file is empty"),
    ],
)
def test_a_broken_file_is_refused_before_anybody_is_asked(tmp_path, refused, content, message):
    file = tmp_path / "r.json"
    file.write_text(content)
    options = ("--url", "http://127.0.0.1:9/v1", "--model", "big", "--task", "qa")
    assert message in refused("judge", file, *options)
    assert list(tmp_path.iterdir()) == [file]


def test_of_two_judges_the_one_that_answers_judges_and_the_other_is_named(tmp_path, capsys, caplog):
    file = tmp_path / "r.json"
    file.write_text(json.dumps(list(rows_of_the_release())))
    dead = "http://127.0.0.1:9/v1"
    options = ("--url", dead, "--task", "qa")
    service = StandIn()
    assert judge(file, service, *options) == 0
    output = capsys.readouterr().out
    assert (len(service.answers), "judge: 8 verdicts" in output) == (8, True)
    assert "reward.judge: http://127.0.0.1:9/v1 does not answer" in caplog.text
    counts = re.search("; ([0-9]+) requests, ([0-9]+) of them again", output)
    # The first requests were all in flight to the dead one or the other.
    assert int(counts[1]) - int(counts[2]) == 8
    assert int(counts[2]) >= 1
    assert judge(file, service, *options) == 0
    output = capsys.readouterr().out
    assert "has the verdicts on all 8 answers: there is nothing to judge" in output
    assert ("0 verdicts" in output, "llm_equal: 0.5" in output, len(service.answers)) == (False, True, 8)


def test_options_that_do_not_fit_are_named(tmp_path, refused):
    options = ("--url", "http://127.0.0.1:9/v1", "--model", "big")
    assert "--task: expected math or qa" in refused("judge", tmp_path / "r.jsonl", *options)
    assert "takes no --task" in refused("judge", tmp_path, *options, "--task", "qa")
    assert "summary.json is missing" in refused("judge", tmp_path, *options)
    wrong = (*options, "--task", "qa", "-s", "judge.in_fligt=3")
    assert "in_flight" in refused("judge", tmp_path / "r.jsonl", *wrong)
