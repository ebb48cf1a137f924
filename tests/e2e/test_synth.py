"""`ramify synth` as a command: from questions to rows, interrupted and gone on, and told what is wrong in one line."""

import json
import signal
from pathlib import Path

import pytest

from chat_service import called, chat_service, turn_requests
from e2e_runs import SYNTH, overrides, read_lines, write_lines, write_task
from hermes_folders import QWEN3, write_hermes_tokenizer
from ramify.cli import main
from ramify.config import shipped_recipes
from ramify.data.example_formats import COMPLETION
from ramify.data.examples import Example, read_examples
from ramify.runs.run_folder import SYNTHESIS

SCRIPT = r"""
[[turns]]
after = 0
text = "<think> maybe </think><answer> \\boxed{ 41 } </answer>"
entropies = [0.5]
ends = true
[[turns]]
after = 0
text = "<python> print(12 + 30) </python>"
entropies = [0.3]
[[turns]]
after = 1
text = "<think> done </think><answer> \\boxed{ 42 } </answer>"
entropies = [1.5]
ends = true
"""
FILES = ("sft.jsonl", "rl.jsonl", "rejected.jsonl", "questions.jsonl", "summary.json")


@pytest.fixture
def task(tmp_path, model_folder):
    golds = [42, 42, 7, 42, 42, 41]
    rows = [{"prompt": f"what is 12 plus {n} ?", "answer": gold} for n, gold in enumerate(golds)]
    return write_task(tmp_path / "task", model_folder, SYNTH, problems=rows, script=SCRIPT)


def test_from_questions_to_rows(task, capsys):
    assert main(["synth", str(task)]) == 0
    run = task.parent / "run"
    out = capsys.readouterr().out
    summary = json.loads((run / "summary.json").read_text())
    assert sum(summary["classes"].values()) == 6
    assert summary["classes"]["hard"] >= 1
    assert summary["classes"]["helps"] >= 1
    assert "rows for SFT: " in out
    assert "tools: 24 answers" in out
    rows = [example for _, example in read_examples(run / "sft.jsonl", COMPLETION)]
    assert len(rows) == sum(summary["rows"].values())
    assert all(isinstance(row, Example) for row in rows)
    before = {name: (run / name).read_bytes() for name in FILES}
    assert main(["synth", str(task)]) == 2
    assert "holds a synthesis; go on with --resume" in capsys.readouterr().err
    assert main(["synth", str(task), "--resume"]) == 0
    assert {name: (run / name).read_bytes() for name in FILES} == before


def test_the_counts_of_the_summary_are_logged_at_the_end(task):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert main(["synth", str(task)]) == 0
    # Who logs is no part of what the answers depend on.
    assert main(["synth", str(task), "--resume", "-s", 'log.to=["tensorboard"]']) == 0
    run = task.parent / "run"
    summary = json.loads((run / "summary.json").read_text())
    events = accumulators.EventAccumulator(str(run / "tensorboard")).Reload()
    logged = {name: events.Scalars(name)[0].value for name in events.Tags()["scalars"]}
    assert logged["synth/questions"] == summary["questions"]
    assert logged["synth/stages/tools/right"] == pytest.approx(summary["stages"]["tools"]["right"])
    assert {name for name in logged if name.startswith("synth/classes/")} == {
        f"synth/classes/{name}" for name in summary["classes"]
    }


def test_another_recipe_does_not_go_on(task, refused, capsys):
    assert main(["synth", str(task)]) == 0
    capsys.readouterr()
    message = refused("synth", task, "--resume", "-s", "sampling.tools=5")
    assert "sampling.tools = 4, now it is 5" in message


def test_other_settings_of_quality_sort_the_same_answers_again(task, capsys):
    run = task.parent / "run"
    assert main(["synth", str(task)]) == 0
    trees = {path.name: path.read_bytes() for path in (run / "trees").iterdir()}
    assert (run / "sft.jsonl").read_bytes()
    capsys.readouterr()
    assert main(["synth", str(task), "--resume", "-s", "quality.max_tokens=5"]) == 0
    assert {path.name: path.read_bytes() for path in (run / "trees").iterdir()} == trees
    summary = json.loads((run / "summary.json").read_text())
    assert summary["quality"]["max_tokens"] == 5
    assert summary["rejected"]["more than 5 tokens"] > 0
    assert not (run / "sft.jsonl").read_bytes()
    # It also says which questions get hints, so other trees would be there.
    assert main(["synth", str(task), "--resume", "-s", "quality.right_at=0.9"]) == 2
    assert "quality.right_at = 0.5, now it is 0.9" in capsys.readouterr().err


def test_a_chat_endpoint_is_told_of_tools_only_where_there_are_some(tmp_path):
    folder = tmp_path / "tokenizer"
    write_hermes_tokenizer(folder, QWEN3)
    problems = [{"prompt": "the capital of France ?", "answer": "Paris"}]
    recipe = write_task(tmp_path / "task", folder, SYNTH, problems=problems)

    def model(messages, body):
        if "tools" not in body:
            return {"content": "\\boxed{Rome}"}
        if messages[-1]["role"] == "user":
            return called(("search", {"query": "capital of France"}))
        return {"content": "\\boxed{Paris}"}

    with chat_service(model) as server:
        settings = (
            f'engine={{name="openai",api="chat",url="{server.url}/v1",model="m"}}',
            'model.dialect="hermes"',
            "data.max_prompt_tokens=1200",
            "sampling.max_tokens=600",
            "quality.max_tokens=2000",
        )
        text = recipe.read_text().replace("[hints]\n", "")
        recipe.write_text(text)
        assert main(["synth", str(recipe), *overrides(*settings)]) == 0
        requests = [request.json() for request in turn_requests(server)]
    assert sum("tools" not in body for body in requests) == 4
    assert sum("tools" in body for body in requests) == 8
    (row,) = map(json.loads, (recipe.parent / "run" / "sft.jsonl").read_text().splitlines())
    assert (row["class"], row["stage"], row["calls"]) == ("helps", "tools", 1)


ANYWHERE = """
markers = {letters}
[[hints]]
name = "anywhere"
kind = "verification"
text = " so"
"""
"""Hints that have places in what an untrained model writes."""
LOCAL = ("engine={name='local', slots=24}", "run.deterministic=true", "sampling.max_tokens=60", "hints.after='tools'")  # fmt: skip


def local(task, run, *more):
    return ["synth", task, *overrides(*LOCAL, f"run.dir='{run}'"), *more]


def content(run):
    trees = sorted((run / "trees").iterdir())
    names = [f"{stage}.{kind}" for stage in ("direct", "hints", "tools") for kind in ("index.jsonl", "jsonl")]
    assert [path.name for path in trees] == names
    return {path.name: path.read_bytes() for path in (*trees, *(run / name for name in FILES))}


STOPS = [
    ("direct", 5, signal.SIGKILL), ("direct", 9, signal.SIGINT), ("tools", 9, signal.SIGINT),
    ("tools", 14, signal.SIGKILL), ("hints", 3, signal.SIGKILL), ("hints", 6, signal.SIGINT),
]  # fmt: skip
"""Stage, number of its lines, signal."""


@pytest.mark.integration
def test_an_interrupted_synthesis_goes_on_to_equal_files(task, tmp_path, forked):
    rows = [{"prompt": f"what is 12 plus {n} ?", "answer": n} for n in range(20)]
    write_lines(task.parent / "problems.jsonl", rows)
    library = task.parent / "hints.toml"
    library.write_text(ANYWHERE.format(letters=json.dumps(list("0123456789abcdefghijklmnopqrstuvwxyz"))))
    setting = ("-s", f"hints.library='{library}'")
    status, _, err = forked(*local(task, tmp_path / "quiet", *setting))
    assert status == 0, err
    run = tmp_path / "killed"
    for number, (wanted, lines, sign) in enumerate(STOPS):
        resume = ["--resume"] if number else []
        forked(*local(task, run, *setting, *resume), when=(f"{run}/trees/{wanted}.jsonl", lines, sign))
    status, _, err = forked(*local(task, run, *setting, "--resume"))
    assert status == 0, err
    assert content(run) == content(tmp_path / "quiet")


CHAT = "engine={name='openai', url='http://127.0.0.1:9', model='m', api='chat'}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["sampling.direct=3"], "sampling.direct"),
        (["reward={name='length'}"], "tells right from wrong"),
        (["hints.afterwards=1"], "did you mean after"),
        (["quality.right_at=0"], "quality.right_at"),
        ([CHAT], "a chat endpoint cannot go on"),
        ([CHAT, "repair={backtracer={calls=1}}"], "repair.backtracer, hints: expected none"),
        (["engine={name='openai', url='http://127.0.0.1:9', model='m'}", "run.deterministic=true"], "run.deterministic"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(task, refused, settings, message):
    assert message in refused("synth", task, *overrides(*settings))
    assert not (task.parent / "run").exists()


def test_a_dry_run_says_how_much_there_is_to_do(task, capsys):
    assert main(["synth", str(task), "--dry-run"]) == 0
    assert "6 questions x 8 answers, and at most 2 after hints" in capsys.readouterr().out


def test_a_folder_in_which_no_answer_came_is_used_again(task):
    run = task.parent / "run"
    with SYNTHESIS.claim(run, resume=False):
        (run / "trees").mkdir()
    assert main(["synth", str(task)]) == 0


def test_hints_that_are_left_out_are_named(task, capsys):
    library = "".join(
        f"[[hints]]\nname = '{name}'\nkind = 'reflection'\ntool = '{tool}'\ntext = ' so'\n"
        for name, tool in (("one", "python"), ("other", "pyhton"))
    )
    (task.parent / "hints.toml").write_text(library)
    assert main(["synth", str(task), "-s", f"hints.library='{task.parent}/hints.toml'"]) == 0
    out = capsys.readouterr()
    assert "hints for tools that the recipe does not have: other (pyhton)" in out.out + out.err


def test_other_recipes_are_told_apart(task, capsys):
    assert main(["eval", str(task)]) == 2
    assert "a recipe for ramify synth, expected one for ramify eval" in capsys.readouterr().err
    assert main(["doctor", str(task)]) == 0


def test_empty_classes_are_told_and_the_run_ends_well(task, capsys):
    write_lines(task.parent / "problems.jsonl", [{"prompt": "what is 1 ?", "answer": "7"}])
    assert main(["synth", str(task)]) == 0
    out = capsys.readouterr().out
    assert "warning: sft.jsonl is empty" in out
    assert Path(task.parent / "run" / "rl.jsonl").read_text().count("\n") == 1


def test_the_recipe_that_ships_on_a_tiny_model(tmp_path, model_folder):
    problems = [{"prompt": "what is 12 plus 30 ?", "answer": n} for n in (42, 41, 7)]
    folder = write_task(tmp_path / "task", model_folder, problems=problems, script=SCRIPT).parent
    small = {
        "model.path": model_folder, "model.device": "cpu", "model.dtype": "float32",
        "data.train": folder / "problems.jsonl", "run.dir": folder / "run", "engine.name": "scripted",
        "engine.script": folder / "script.toml", "tools.search.corpus": folder / "passages.jsonl",
        "tools.python.timeout_seconds": 10, "sandbox.min_level": 0,
    }  # fmt: skip
    assert main(["synth", str(shipped_recipes() / "toolstar_synth.toml"), *overrides(small)]) == 0
    rows = read_lines(folder / "run" / "rl.jsonl")
    # The prompts of what RL gets hold the instructions, so its recipe needs none.
    assert all([message["role"] for message in row["prompt"]] == ["system", "user"] for row in rows)
    assert rows
