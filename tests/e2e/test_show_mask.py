"""`ramify sft` and `ramify dpo --show-mask`: what is trained on, for people to look at; nothing is trained."""

import json

import pytest

from e2e_runs import DPO, SFT, write_lines, write_task
from model_folders import write_tokenizer
from ramify.cli import main


def shown(text):
    """The lines with what stands before them; without those of notes."""
    return [line for line in text.splitlines() if line[:2] in (" |", " >", "+|", "+>")]


def test_trained_text_has_a_mark_of_its_own(tmp_path, model_folder, capsys):
    task = write_task(tmp_path / "task", model_folder, SFT)
    assert main(["sft", str(task), "--show-mask"]) == 0
    out = capsys.readouterr().out
    assert shown(out)[:8] == [
        " | <|im_start|>user", " | what is 12 plus 30 ?<|im_end|>", " | <|im_start|>assistant",
        "+| <python> print(42) </python>", " >  <result>", " | 42", " | </result>",
        "+> <answer> \\boxed{ 42 } </answer><|im_end|>",
    ]  # fmt: skip
    lines = [line for line in out.splitlines() if line not in shown(out)]
    assert lines[0] == f"{task.parent}/demonstrations.jsonl row 1: 37 tokens, 16 trained (43%), 21 masked"
    assert len(lines) == 4
    assert lines[-1].startswith("together: ")
    assert not (task.parent / "run").exists()


def test_both_sides_of_a_pair_and_no_more_pairs_than_asked_for(tmp_path, model_folder, capsys):
    task = write_task(tmp_path / "task", model_folder, DPO)
    assert main(["dpo", str(task), "--show-mask", "2"]) == 0
    out = capsys.readouterr().out
    assert [
        line.partition(":")[0].rpartition("/")[2] for line in out.splitlines() if "jsonl row" in line
    ] == [f"pairs.jsonl row {row}, {side} side" for row in (1, 2) for side in ("chosen", "rejected")]


def test_no_weights_are_needed_and_no_text_reaches_the_terminal_as_it_is(tmp_path, capsys):
    write_tokenizer(tmp_path / "model")
    task = write_task(tmp_path / "task", tmp_path / "model", SFT)
    row = {"prompt": "\x1b[2J hi \u202e", "completion": "a\tb\r\x00 +| c\n\x9bd"}
    write_lines(task.parent / "demonstrations.jsonl", [{"prompt": "a", "completion": "<think>"}, row])
    assert main(["sft", str(task), "--show-mask", "-s", 'data.malformed="drop"']) == 0
    out = capsys.readouterr().out
    assert " | \\x1b[2J hi \\u202e<|im_end|>\n" in out
    assert "+| a\\tb\\r\\x00 +| c\n+| \\x9bd<|im_end|>\n" in out
    assert "left out 1 of 2 rows that cannot be used: row 1: tags are not balanced" in out


def test_colours_on_a_terminal(tmp_path, model_folder, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    task = write_task(tmp_path / "task", model_folder, SFT)
    assert main(["sft", str(task), "--show-mask", "1"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[1;32m<python> print(42) </python>\x1b[0m\x1b[2m <result>\x1b[0m" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--show-mask", "0"], "argument --show-mask: expected a whole number of at least 1, got '0'"),
        *[
            (["--show-mask", *more], "trains nothing; leave out --dry-run, --rows, --resume, --json and --max-steps")
            for more in (["--dry-run"], ["--resume"], ["--max-steps", "3"])
        ],
        (["--show-mask", "-s", "data.max_tokens=5"], "no example is left"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, model_folder, capsys, words, message):
    task = write_task(tmp_path / "task", model_folder, SFT)
    assert main(["sft", str(task), *words]) == 2
    assert message in capsys.readouterr().err


def test_the_rest_of_a_large_file_is_not_read(tmp_path, model_folder, capsys):
    task = write_task(tmp_path / "task", model_folder, SFT)
    data = task.parent / "demonstrations.json"
    row = {"instruction": "a", "output": "<answer> 4 </answer>"}
    data.write_text("[" + ", ".join([json.dumps(row)] * 3) + ", what follows is broken")
    assert main(["sft", str(task), "--show-mask", "3", "-s", f"data.train={data}"]) == 0
    assert "together: " in capsys.readouterr().out


def test_rows_that_would_end_the_run_are_refused_after_what_can_be_shown(tmp_path, model_folder, capsys):
    task = write_task(tmp_path / "task", model_folder, SFT)
    good = {"prompt": "a", "completion": "<answer> 4 </answer>"}
    write_lines(task.parent / "demonstrations.jsonl", [good, {"prompt": "a", "completion": "<think>"}, good])
    assert main(["sft", str(task), "--show-mask"]) == 2
    out, err = capsys.readouterr()
    assert out.count("tokens, ") == 2
    assert "demonstrations.jsonl row 2: tags are not balanced" in err
    assert main(["sft", str(task), "--show-mask", "1"]) == 0
