"""Training and evaluation through stand-ins of vLLM servers, from the command line (`tests/engine` has the real ones)."""

import json

import pytest

from e2e_runs import EVAL, TRAIN, overrides, write_task
from ramify.cli import main
from ramify.modeling import plain_folder
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from vllm_stand_in import sent, stand_in

SERVED = TRAIN.replace(
    'name = "local"\nslots = 12', 'name = "vllm"\nurls = ["{{url}}"]\ndtype = "float32"'
).replace("deterministic = true\n", "")


def recipe_of(folder, caller, url, text=SERVED):
    recipe = write_task(folder, caller, text)
    recipe.write_text(recipe.read_text().replace("{url}", url))
    return recipe


def ramify(command, recipe, *settings):
    return main([command, str(recipe), *overrides(*settings)])


@pytest.mark.parametrize(
    "settings",
    [(), ("model.lora.rank=4", "model.lora.alpha=8"), ("engine.weights=gloo",)],
    ids=["tied", "adapter", "over gloo"],
)
def test_a_run_on_a_server_learns_from_its_ids_and_weights(tmp_path, caller, settings):
    with stand_in(caller) as (here, server):
        recipe = recipe_of(tmp_path / "task", caller, server.url)
        assert ramify("train", recipe, "run.steps=3", *settings) == 0
        loads = here.loads
        requests = sent(server, "/inference/v1/generate")
    rows = read_metrics(recipe.parent / "run" / "metrics.jsonl")
    assert len(rows) == loads == 3
    assert all(row["update/mismatch_max"] < 1e-3 for row in rows if row["update/steps"])
    assert any(row["update/steps"] for row in rows)
    written = {tuple(body["token_ids"]) for body in requests}
    for step in (1, 2, 3):
        for traced in read_trees(recipe.parent / "run" / "trees" / f"{step:06d}.jsonl"):
            assert traced.tree.nodes[0].token_ids in written
            assert {n.policy_version for n in traced.tree.nodes if n.source == "policy" and n.token_ids} == {
                step - 1
            }


def test_evaluations_in_training_need_no_weights_of_their_own(tmp_path, caller):
    """The servers get the weights of a step once, for its evaluation and for its rollout."""
    with stand_in(caller) as (here, server):
        recipe = recipe_of(tmp_path / "task", caller, server.url)
        dev = (f"eval.test={str(recipe.parent / 'problems.jsonl')!r}", "eval.every=2", "eval.limit=4")
        assert ramify("train", recipe, "run.steps=3", "reward.name=hierarchical", *dev) == 0
        assert here.loads == 4
    run = recipe.parent / "run"
    assert [row["step"] for row in read_metrics(run / "evals.jsonl")] == [0, 2, 3]
    for step in (0, 2, 3):
        versions = {
            node.policy_version
            for traced in read_trees(run / "evals" / f"{step:06d}.jsonl")
            for node in traced.tree.nodes
            if node.source == "policy" and node.token_ids
        }
        assert versions == {step}


def test_a_run_goes_on_with_another_server(tmp_path, caller):
    with stand_in(caller) as (_, first):
        recipe = recipe_of(tmp_path / "task", caller, first.url)
        assert main(["train", str(recipe), "-s", "run.steps=2", "--max-steps", "1"]) == 0
    with stand_in(caller) as (here, second):
        recipe = recipe_of(tmp_path / "task", caller, second.url)
        assert main(["train", str(recipe), "-s", "run.steps=2", "--resume"]) == 0
        assert here.loads == 1
    assert len(read_metrics(recipe.parent / "run" / "metrics.jsonl")) == 2


def test_an_evaluation_on_a_server_names_it(tmp_path, caller):
    with stand_in(caller) as (here, server):
        recipe = write_task(tmp_path / "task", caller, EVAL)
        settings = ("engine.name=vllm", f'engine.urls=["{server.url}"]', "engine.dtype=float32")
        assert ramify("eval", recipe, *settings) == 0
        assert here.loads == 0
    out = recipe.parent / "run"
    assert server.url in (out / "report.html").read_text()
    assert json.loads((out / "summary.json").read_text())


def test_eval_takes_the_address_of_a_server(tmp_path, caller):
    with stand_in(caller) as (_, server):
        recipe = write_task(tmp_path / "task", caller, EVAL)
        words = ["eval", "--model", str(caller), "--dataset", str(recipe.parent / "problems.jsonl")]
        words += ["--engine", server.url, "--out", str(tmp_path / "out"), "-s", "engine.dtype=float32"]
        words += [
            "-s", "sampling.max_tokens=40", "-s", "data.max_prompt_tokens=200", "-s", "sandbox.min_level=0",
        ]  # fmt: skip
        assert main(words) == 0
        assert sent(server, "/inference/v1/generate")


def spoil_tokenizer(here):
    here.tokenizer = type("Other", (), {"encode": staticmethod(lambda text: (1, 2))})()


MISTAKES = {
    "no server": (lambda here: setattr(here, "is_dead", True), "did not come up in 1 s"),
    "another tokenizer": (spoil_tokenizer, "has another tokenizer than model.path"),
    "16 bits": (lambda here: here.config.update(dtype="torch.bfloat16"), "engine.dtype"),
    "a key": (lambda here: setattr(here, "key", "x"), "refuses the key"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_server_that_cannot_be_used_is_one_line(tmp_path, caller, refused, kind):
    spoil, expected = MISTAKES[kind]
    with stand_in(caller) as (here, server):
        recipe = recipe_of(tmp_path / "task", caller, server.url)
        spoil(here)
        patience = 1 if kind == "no server" else 60
        message = refused("train", recipe, "-s", "run.steps=1", "-s", f"engine.start_seconds={patience}")
    assert expected in message


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["engine.name=vllm"], "expected the addresses of servers, or launch = true"),
        (["engine.name=vllm", "engine.launch=true", 'engine.flags=["--port=1"]'], "--port is set by ramify"),
        (
            ["engine.name=vllm", "engine.launch=true", "engine.key_variable=VLLM_KEY"],
            "key_variable: has no effect with launch = true",
        ),
        (["engine.name=vllm", 'engine.urls=["http://a"]', "engine.gpus=['0']"], "gpus: has no effect without launch = true"),
        (["engine.name=vllm", 'engine.urls=["http://gpu-7:8000"]'], "engine.weights_dir: http://gpu-7:8000 is on another"),
        (["engine.name=vllm", "engine.launch=true", "run.deterministic=true"], "does not answer the same way twice"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_work_is_one_line(tmp_path, caller, refused, settings, expected):
    recipe = recipe_of(tmp_path / "task", caller, "http://127.0.0.1:9")
    recipe.write_text(
        recipe.read_text().replace('urls = ["http://127.0.0.1:9"]\n', "").replace('dtype = "float32"\n', "")
    )
    assert expected in refused("train", recipe, *overrides(*settings))


def test_a_full_disk_at_a_hand_over_ends_the_run_in_one_line(tmp_path, caller, monkeypatch, capsys):
    """The second hand-over fails; the checkpoint of the first step is whole, and the run goes on from it."""
    real, calls = plain_folder.write_each_tensor, []

    def full(path, heads, tensor, threads):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device", str(path))
        real(path, heads, tensor, threads=threads)

    monkeypatch.setattr(plain_folder, "write_each_tensor", full)
    with stand_in(caller) as (_, server):
        recipe = recipe_of(tmp_path / "task", caller, server.url)
        assert ramify("train", recipe, "run.steps=3", "run.save_every=1") == 1
        message = capsys.readouterr().err.strip().splitlines()[-1]
        assert "the weights cannot be written for the engine" in message
        assert "No space left" in message
        monkeypatch.undo()
        assert main(["train", str(recipe), "-s", "run.steps=3", "-s", "run.save_every=1", "--resume"]) == 0
    assert len(read_metrics(recipe.parent / "run" / "metrics.jsonl")) == 3
