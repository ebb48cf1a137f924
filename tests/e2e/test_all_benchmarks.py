"""`recipes/eval_all.toml`: fifteen benchmarks in one evaluation, on small files of the released shapes, with scripted policies."""

import json
from pathlib import Path

import pytest

from e2e_runs import overrides, write_lines
from loopback import as_json, serve
from ramify.cli import main
from ramify.eval.results import read_records

RECIPE = Path(__file__).parents[2] / "recipes" / "eval_all.toml"
EVIDENCE = {"docid": "d7", "text": "The harbour of Laru was built by Bado.", "url": "https://a.test/7"}
ROWS = {
    "aime24": {"id": 60, "problem": "Sum of {}?", "solution": "Add.", "answer": "025", "url": "u"},
    "aime25": {"problem": "Product of {}?", "answer": 70, "id": "0"},
    "math500": {"question": "Half of {}?", "answer": r"\frac{1}{2}"},
    "gsm8k": {"question": "Apples of {}?", "answer": "3 * 4 = <<3*4=12>>12\n#### 1,012", "idx": 0},
    "math": {"problem": "Find ${}$.", "answer": "x^2", "level": "Level 3", "type": "Algebra"},
    "webwalker": {"question": "Who chairs {}?", "answer": "Ann Lee", "info": {"domain": "conference"}},
    "hotpotqa": {"question": "Which town has {}?", "answer": ["Paris"]},
    "2wiki": {"question": "Who directed {}?", "answer": ["Li Jie", "Jie Li"]},
    "bamboogle": {"question": "When was {}?", "answer": ["1867"]},
    "musique": {"question": "Where is {}?", "answer": ["New York", "NYC"]},
    "hle": {"id": "h{}", "question": "Which law of {}?", "answer": "B", "category": "Law", "canary": "c"},
    "gaia": {"task_id": "t{}", "Question": "Which list of {}?", "answer": "a, b, c", "Level": 2},
    "SimpleQA": {"question": "Whose is {}?", "answer": ["Bado"]},
    "xbench": {"question": "{}是哪一年?", "answer": ["1984年"]},
    "browsecomp-plus": {
        "query_id": "q{}", "query": "Who built the harbour {}?", "answer": "Bado", "gold_docs": [EVIDENCE],
        "evidence_docs": [EVIDENCE, {**EVIDENCE, "docid": "d9"}], "negative_docs": [],
    },
}  # fmt: skip
GOLDS = {name: row["answer"][0] if isinstance(row["answer"], list) else row["answer"] for name, row in ROWS.items()}  # fmt: skip
GOLDS["gsm8k"] = "1012"


def question_of(name, number):
    row = ROWS[name]
    key = next(key for key in ("question", "problem", "Question", "query") if key in row)
    return key, row[key].replace("{}", f"number {number}")


def write_benchmarks(folder):
    for name, row in ROWS.items():
        rows = []
        for number in range(2):
            key, question = question_of(name, number)
            ids = {
                k: row[k].replace("{}", str(number))
                for k in ("id", "task_id", "query_id")
                if isinstance(row.get(k), str)
            }
            rows.append({**row, **ids, key: question})
        (folder / name).mkdir(parents=True)
        write_lines(folder / name / "test.jsonl", rows)
    other = [{"docid": f"d{n}", "text": f"Street {n} of Laru has a baker."} for n in range(6)]
    write_lines(folder / "browsecomp-plus" / "corpus.jsonl", [EVIDENCE, *other])


class Policy:
    """A service that knows every answer and how sure it is of it, or writes nothing; and the judge."""

    def __init__(self, knows):
        self.knows, self.web = knows, 0

    def __call__(self, request):
        if request.method == "GET":  # a service is asked for its models; this one lists none
            return as_json({}, 404)
        if request.path.startswith("/judge"):
            mark, *lines, _ = request.json()["messages"][1]["content"].split("\n")
            data = json.loads("\n".join(lines))
            assert "Confidence" not in data["question"]
            right = data["candidate_answer"] in data["accepted_answers"]
            return as_json(
                {"choices": [{"message": {"content": f"{mark} {'CORRECT' if right else 'INCORRECT'}"}}]}
            )
        if request.path != "/engine/v1/completions":
            self.web += 1
            return as_json({}, 404)
        body = request.json()
        if body.get("echo"):
            return as_json({"error": "prompt: expected a text"}, 400)
        text = self.write(body["prompt"]) if self.knows else ""
        ends = [(text.find(stop), stop) for stop in body["stop"] if stop in text]
        if not ends:
            return as_json({"choices": [{"text": text, "finish_reason": "stop"}]})
        at, stop = min(ends)
        return as_json({"choices": [{"text": text[:at], "finish_reason": "stop", "stop_reason": stop}]})

    def write(self, prompt):
        (name,) = {name for name in ROWS for number in range(2) if question_of(name, number)[1] in prompt}
        if name == "browsecomp-plus" and "</result>" not in prompt.partition("Who built")[2]:
            return "<search> harbour of Laru </search>"
        return f"<think> Confidence: 90% </think><answer> \\boxed{{{GOLDS[name]}}} </answer>"


@pytest.fixture
def evaluate(tmp_path, model_folder, monkeypatch):
    monkeypatch.setenv("BRIGHTDATA_API_KEY", "key-of-search")
    monkeypatch.chdir(tmp_path)
    write_benchmarks(tmp_path / "data" / "eval")

    def run(policy, name):
        with serve(policy) as server:
            settings = {
                "model.path": model_folder, "data.max_prompt_tokens": 6000, "run.dir": tmp_path / name,
                "run.threads": 1, "sandbox.min_level": 0, "sampling.max_tokens": 3000,
                "engine.url": f"{server.url}/engine/v1", "tools.search.url": server.url,
                "tools.browser.summary.url": f"{server.url}/summary/v1",
            }  # fmt: skip
            assert main(["eval", str(RECIPE), *overrides(settings)]) == 0
            return tmp_path / name

    return run


def test_an_oracle_is_right_everywhere_and_an_empty_agent_nowhere(evaluate, capsys):
    policy = Policy(knows=True)
    run = evaluate(policy, "oracle")
    output = capsys.readouterr().out
    summary = json.loads((run / "summary.json").read_text())
    table = summary["groups"]["benchmark"]
    assert table.keys() == {name.lower() for name in ROWS}
    assert {(group["pass_at"]["1"]["value"], group["pass_at"]["1"]["n"]) for group in table.values()} == {
        (1.0, 2)
    }
    offline = table["browsecomp-plus"]
    assert (offline["parts"]["evidence_recall"]["value"], offline["calls_per_attempt"]) == (0.5, 1.0)
    assert offline["calibration"] == {"n": 2, "error": pytest.approx(0.1)}
    assert "calibration" not in table["gaia"]
    assert policy.web == 0
    lines = [line for line in output.splitlines() if "pass@1 1.000" in line]
    assert len(lines) == 1 + len(ROWS)
    assert any("browsecomp-plus" in line and "evidence recall 0.500" in line for line in lines)
    page = (run / "report.html").read_text()
    assert all(name.lower() in page for name in ROWS)
    assert "15 data sets" in page
    # The judge comes later, for all of them, on the same page.
    with serve(policy) as server:
        assert main(["judge", str(run), "--url", f"{server.url}/judge/v1", "--model", "big"]) == 0
    judged = json.loads((run / "summary.json").read_text())["judge"]
    assert (judged["judged"], judged["pass_at"]["1"]["value"]) == (30, 1.0)
    empty = evaluate(Policy(knows=False), "empty")
    scores = json.loads((empty / "summary.json").read_text())
    assert {group["pass_at"]["1"]["value"] for group in scores["groups"]["benchmark"].values()} == {0.0}
    assert all(record.parts["em"] == record.parts["f1"] == 0.0 for record in read_records(empty))


def test_lists_that_do_not_fit_are_refused(evaluate, refused, model_folder):
    small = overrides({"model.path": model_folder, "data.max_prompt_tokens": 6000, "sandbox.min_level": 0})
    corpus = "tools.search_of={gaia={corpus='data/eval/browsecomp-plus/corpus.jsonl'}}"
    twice = refused(
        "eval",
        RECIPE,
        "-s",
        "data.test=['gaia=data/eval', 'gaia=data/eval/gaia/test.jsonl']",
        *small,
        "-s",
        corpus,
    )
    assert "is in another data set of data.test too" in twice
    unknown = refused("eval", RECIPE, "-s", "data.test=['gaia=data/eval', 'gaja=data/eval']", *small)
    assert "no benchmark is called 'gaja'; did you mean gaia?" in unknown
    unused = refused("eval", RECIPE, "-s", "data.test=['gaia=data/eval', 'hle=data/eval']", *small)
    assert "tools.search_of: no data set of data.test is called browsecomp-plus" in unused
