"""The examples of README.md and docs/python.md, as they stand, on a small model in the place of the quick start's."""

import re
import runpy
import shutil
from pathlib import Path

from e2e_runs import PASSAGES, write_lines

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"


def test_the_examples_run_as_they_stand(tmp_path, caller, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = tmp_path / "runs" / "quickstart" / "world"
    world.mkdir(parents=True)
    shutil.copytree(caller, tmp_path / "runs" / "quickstart" / "sft")
    write_lines(
        world / "train.jsonl", [{"prompt": f"what is 12 plus {i} ?", "answer": 12 + i} for i in range(8)]
    )
    write_lines(world / "passages.jsonl", [{"text": text} for text in PASSAGES])
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    # The practitioner's and the researcher's.
    train, loop = (sum(bool(line.strip()) for line in block.splitlines()) for block in blocks[:2])
    assert train <= 12
    assert loop <= 20
    (readme,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    first = {"__name__": "readme"}
    exec(compile(readme, "README.md", "exec"), first)
    assert first["policy"].step == 2
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["report"].step == 2
    assert names["policy"].step == 3
    assert names["run"].steps == (1, 2)
    assert (tmp_path / "runs" / "python_loop" / "model.safetensors").is_file()


def test_the_typed_example_runs(caller):
    module = runpy.run_path(str(ROOT / "examples" / "typed_run.py"))
    assert module["loop"](str(caller))[0].credit is not None
