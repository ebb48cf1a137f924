"""`ramify audit`: options that belong to runs of another kind are refused."""

import pytest

from ramify.cli import main
from viewed_runs import two_calls, write_training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "m"], "--model: trees of ours go on with the engine of their recipe"),
        (["--key-variable", "KEY"], "--key-variable: trees of ours go on"),
        (["--url", "http://127.0.0.1:1/v1"], "--url: trees of ours go on"),
    ],
)
def test_an_endpoint_has_no_effect_on_runs_of_ours(tmp_path, capsys, options, message):
    texts = (f"word{number}" for number in range(100))
    run = write_training(tmp_path / "rl", {1: [two_calls(texts)]})
    assert main(["audit", str(run), "--out", str(tmp_path / "audit"), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_step_has_no_effect_on_verifiers_traces(tmp_path, capsys):
    (tmp_path / "traces.jsonl").write_text("{}\n")
    assert main(["audit", str(tmp_path), "--step", "3", "--out", str(tmp_path / "audit")]) == 2
    assert "traces.jsonl has no steps" in capsys.readouterr().err
