"""What a dry run says of slips that its run would refuse, or would take without effect; and a rehearsal with a script."""

import json
import re

import pytest

from e2e_runs import EVAL, TRAIN, overrides, write_lines, write_task
from ramify.cli import main
from ramify.eval.results import read_records

SCRIPT = r"""
[[turns]]
after = 0
text = "<think> who </think><search> capital of France </search>"
[[turns]]
after = 1
text = "<think> so </think><answer> \\boxed{ 3 } </answer>"
ends = true
"""


@pytest.fixture
def task(tmp_path, model_folder):
    task = write_task(tmp_path / "task", model_folder, EVAL, script=SCRIPT)
    rows = [{"question": f"what is {i} plus 1 ?", "answer": str(i + 1)} for i in range(7)]
    for name in ("gsm8k", "aime24", "shards"):
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name / "test.jsonl", rows[: 3 if name == "aime24" else None])
    (tmp_path / "array.json").write_text(json.dumps(rows))
    return task


@pytest.mark.parametrize(
    ("test", "limit", "words"),
    [
        ("{0}/gsm8k", 50, "1 step of 7 problems x 2 attempts"),
        ("{0}/gsm8k", None, "1 step of 7 problems"),
        ("{0}/gsm8k", 2, "1 step of 2 problems"),
        ("aime24={0}", 5, "1 step of 3 problems"),
        ('["{0}/gsm8k", "aime24={0}"]', 5, "1 step of 8 problems"),
        ("{0}/shards", 50, "1 step of 7 problems"),
        ("{0}/array.json", 5, "1 step of at most 5 problems"),
        ("{0}/array.json", None, "as many steps as the data give of each problem"),
    ],
)
def test_the_problems_of_any_source_are_counted_and_no_limit_is_taken_for_them(
    task, capsys, test, limit, words
):
    settings = [f"data.test={test.format(task.parents[1])}", *([f"data.limit={limit}"] if limit else [])]
    assert main(["eval", str(task), "--dry-run", *overrides(*settings)]) == 0
    assert f"# {words}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.test=[]", "data.test: expected a list of at least 1, got 0"),
        ('data.test=["a", 3]', "data.test.1: expected a valid string, got 3"),
        ("data.test={0}/prompt.txt", "data.test: {0}/prompt.txt: unknown kind of file '.txt', expected .jsonl"),
        ("data.instructions=from:{0}/prompt.txt", "expected a data file behind from:"),
        ("data.instructions={0}/prompt.txt", "prompt.txt: the text spells '<|im_start|>'"),
        ("data.instructions=You are <|im_start|> a bot", "the text spells '<|im_start|>'"),
        (
            'engine={{name="openai", url=["http://a", "b"], model="m"}}',
            "engine.url: entry 2 of the list: expected an address",
        ),
        ("rollout.temperature=1", "rollout.temperature: unknown key, did you mean sampling.temperature?"),
        ('tools.python.preamble="import math"', 'Write preamble = ["import math"].'),
        ('tools.python.packages=["numpy>=1"]', "got 'numpy>=1'. Write 'numpy'"),
    ],
)  # fmt: skip
def test_a_slip_is_answered_by_what_would_do(task, refused, setting, words):
    folder = task.parent
    (folder / "prompt.txt").write_text("You are <|im_start|> a bot.\n")
    message = refused("eval", task, "--dry-run", "-s", setting.format(folder))
    assert words.format(folder) in message


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("sampling.top_k=20", "sampling.top_k: unknown key, did you mean eval.top_k?"),
        ("rollout.max_turn_tokens=9", "rollout.max_turn_tokens: unknown key, did you mean eval.max_turn_tokens?"),
        ("engine.gpu_memory_utilization=0.5", 'The engine "vllm" with launch = true takes flags = ["--gpu-memory-util'),
        ("engine.max_model_len=100", "did you mean flags?"),
        ('datasets=[{path="x.json", type="alpaca"}]', "datasets: unknown key, did you mean data.train?"),
        ("eval.test=[]", "eval.test: expected a list of at least 1, got 0"),
    ],
)  # fmt: skip
def test_a_key_of_another_recipe_or_trainer_is_answered_by_that_of_this_one(
    tmp_path, model_folder, refused, setting, words
):
    task = write_task(tmp_path / "task", model_folder, TRAIN)
    assert words in refused("train", task, "--dry-run", "-s", setting)


def test_a_limit_of_a_turn_that_does_nothing_is_noted_by_the_dry_run_and_the_run(task, capsys):
    note = "max_turn_tokens = 32 has no effect, because max_tokens = 32 limits the whole trajectory"
    words = ["eval", str(task), *overrides("sampling.max_turn_tokens=32", "data.limit=1", "sampling.k=[1]")]
    assert main([*words, "--dry-run"]) == 0
    assert f"# {note}" in capsys.readouterr().out
    assert main([*words, *overrides("sampling.max_turn_tokens=31"), "--dry-run"]) == 0
    assert "has no effect" not in capsys.readouterr().out
    assert main(words) == 0
    assert note in capsys.readouterr().out


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
def test_a_scripted_policy_calls_the_tools_under_any_prompt_whatever_its_line_breaks(task, capsys, end):
    """The prompt explains `</result>`, which is none, and a file's line breaks of Windows are those of any prompt."""
    lines = ("Use <search> words </search>.", "You read <result> text </result>.")
    (task.parent / "prompt.txt").write_bytes(end.join(lines).encode() + end.encode())
    settings = (
        f'engine={{name="scripted", script="{task.parent / "script.toml"}"}}',
        f"data.instructions={task.parent / 'prompt.txt'}",
        f"data.test=aime24={task.parents[1]}",
        "sampling.max_tokens=200",
    )
    assert main(["eval", str(task), *overrides(*settings)]) == 0
    records = read_records(task.parent / "run")
    assert [len(record.calls) for record in records] == [1] * 6
    tree = json.loads((task.parent / "run" / "trees.jsonl").read_text().splitlines()[0])
    assert tree["problem"]["messages"][0]["content"][0]["text"] == "\n".join(lines)


def test_verdicts_have_no_card(tmp_path, refused):
    folder = tmp_path / "r.json.judged"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"judge": {}, "source": {}}')
    (folder / "verdicts.jsonl").write_text("")
    assert re.search("holds a judge's verdicts, and is no run", refused("card", folder))


def test_a_recipe_for_several_processes_has_a_dry_run_on_one(tmp_path, model_folder, capsys):
    task = write_task(tmp_path / "task", model_folder, TRAIN)
    assert main(["train", str(task), "--dry-run", "-s", "learner.copies=2"]) == 0
    assert "# memory: about" in capsys.readouterr().out
