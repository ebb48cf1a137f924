"""Files of demonstrations and pairs as people have them, from the command line to a checkpoint."""

import json
import math

import pytest

from e2e_runs import DPO, SFT, overrides, write_lines, write_task
from ramify.cli import main
from ramify.config import shipped_recipes
from ramify.obs.metrics import read_metrics

CODE = r"<think> add </think><python>\nx = 12 + 30\nprint(x)\n</python> <result>\n42\n</result>"
ANSWER = "<answer> \\boxed{ 42 } </answer>"
ALPACA = {"instruction": "You can call tools.", "input": "what is 12 plus 30 ?", "output": CODE + ANSWER}
USER = {"role": "user", "content": "what is 12 plus 30 ?"}
CALL = {"id": "a", "type": "function", "function": {"name": "python", "arguments": '{"code": "print(42)"}'}}
OPENAI = {
    "messages": [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "42 </result><answer> 7 </answer>"},
        {"role": "assistant", "content": ANSWER},
    ]
}
SHAREGPT = {"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": CODE + ANSWER}], "system": "s"}  # fmt: skip
PLAIN = {"prompt": "what is 12 plus 30 ?", "completion": ANSWER}
CUT = {**ALPACA, "output": CODE}


def steps_of(task):
    return read_metrics(task.parent / "run" / "metrics.jsonl")


def test_the_shipped_recipe_reads_the_papers_file_as_it_is(tmp_path, model_folder, capsys):
    data = tmp_path / "final_sft_edition9_v2.json"
    long = {**ALPACA, "output": f"<think> {'add ' * 20_000} </think>{ANSWER}"}
    data.write_text(json.dumps([*[ALPACA] * 62, CUT, long]))
    settings = (
        f"model.path={model_folder}", "model.device=cpu", f"data.train={data}", f"run.dir={tmp_path / 'run'}",
        "data.max_tokens=8000",
    )  # fmt: skip
    words = overrides(*settings)
    assert main(["sft", str(shipped_recipes() / "toolstar_sft.toml"), "--max-steps", "3", *words]) == 0
    out = capsys.readouterr().out
    for words in (
        "left out 1 of 64 rows that cannot be used: row 63: it does not end with a turn of the assistant",
        "left out 1 of 64 rows with more than data.max_tokens = 8000 tokens: row 64",
        "unescaped newlines in Python calls of 62 of 64 rows: rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...",
    ):
        assert words in out
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    # Three epochs of 62 rows are 12 steps, of which a tenth are two; half a cosine begins after them.
    factors = [
        min(1, (step + 1) / 2) * (1 + math.cos(math.pi * max(0, step - 1.2) / 10.8)) / 2 for step in range(3)
    ]
    assert [row["lr_factor"] for row in rows] == pytest.approx(factors)
    assert all(0 < row["tokens/written"] < row["tokens/unique"] for row in rows)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_every_format_in_every_kind_of_file(tmp_path, model_folder, capsys, name):
    task = write_task(tmp_path / "task", model_folder, SFT)
    rows = [ALPACA, OPENAI, SHAREGPT, PLAIN]
    data = task.parent / name
    if name.endswith("l"):
        write_lines(data, rows)
    elif name.endswith("n"):
        data.write_text(json.dumps(rows, indent=1))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {key for row in rows for key in row}
        pq.write_table(pa.Table.from_pylist([{key: row.get(key) for key in columns} for row in rows]), data)
    assert main(["sft", str(task), "-s", f"data.train={data}"]) == 0
    out = capsys.readouterr().out
    assert "rows of 4 formats: 1 alpaca (from row" in out
    assert len(steps_of(task)) == 2


def test_pairs_of_the_papers_layout(tmp_path, model_folder, capsys):
    task = write_task(tmp_path / "task", model_folder, DPO)
    data = task.parent / "pairs.json"
    rows = [
        {
            "conversations": [{"from": "human", "value": f"what is 12 plus {number} ?"}],
            "chosen": {"from": "gpt", "value": f"{CODE}<answer> {12 + number} </answer>"},
            "rejected": {"from": "gpt", "value": f"{CODE}<answer> 0 </answer>"},
        }
        for number in range(1, 9)
    ]
    data.write_text(json.dumps(rows))
    assert main(["dpo", str(task), "-s", f"data.train={data}", "--max-steps", "2"]) == 0
    first, second = steps_of(task)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert second["margin"] > 0


BAD = [
    ("rows.jsonl", b'\xef\xbb\xbf{"text": "a"}\r\n', "row 1: unknown format"),
    ("rows.json", b'[{"prompt": ' + b"[" * 9000, "row 1: the array does not end"),
    ("rows.json", json.dumps(PLAIN).encode(), "If each line is a row, name the file .jsonl"),
    ("rows.jsonl", json.dumps(CUT).encode(), "row 1: it does not end with a turn of the assistant. Mend them"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD, ids=range(len(BAD)))
def test_bad_files_are_one_line_and_leave_no_run_behind(
    tmp_path, model_folder, refused, name, content, message
):
    task = write_task(tmp_path / "task", model_folder, SFT)
    (task.parent / name).write_bytes(content)
    assert message in refused("sft", task, "-s", f"data.train={task.parent / name}")
    assert not (task.parent / "run").exists()


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_a_row_of_100_mb_is_left_out_and_named(tmp_path, model_folder, capsys, name):
    task = write_task(tmp_path / "task", model_folder, SFT)
    huge = {"instruction": "a" * 100_000_000, "output": ANSWER}
    rows = [json.dumps(row) for row in (ALPACA, huge, PLAIN)]
    data = task.parent / name
    data.write_text("\n".join(rows) if name.endswith("l") else f"[{', '.join(rows)}]")
    assert main(["sft", str(task), "-s", f"data.train={data}"]) == 0
    assert f"{name}: left out 1 of 3 rows with more than 32 MiB: row 2" in capsys.readouterr().out
    assert len(steps_of(task)) == 1
