"""Objects are tables of recipes; whatever is wrong is one sentence."""

import inspect
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

import ramify as rf
from ramify.api.tables import AS_RECIPE, function_table, reward_table, tool_tables
from ramify.api.views import Table
from ramify.core.errors import ConfigError, DataError
from ramify.files.user_code import WITHOUT_FILE, load_function


def price(item: str) -> str:
    """Return the price of an item.

    Args:
        item: Name of the item.
    """
    return f"{item} costs 3"


def right(completions, answer):
    return [1.0] * len(completions)


ROW = {"prompt": "what is 1 plus 1?", "answer": 2}


def test_functions_become_the_tables_that_name_them():
    assert tool_tables([price, rf.tools.Python(timeout_seconds=5)])["tools"] == {
        "own": [{"path": __file__, "function": "price"}],
        "python": {"timeout_seconds": 5.0, "max_output_chars": 4000, "stateful": False},
    }
    (own,) = tool_tables(rf.tools.Function(price, in_prompt=False, timeout_seconds=3))["tools"]["own"]
    assert (own["path"], own["function"]) == (__file__, "price")
    assert (own["in_prompt"], own["timeout_seconds"]) == (False, 3)
    assert reward_table([right, (price, 0.2)]) == {
        "name": "parts",
        "own": [
            {"path": __file__, "function": "right", "weight": 1.0},
            {"path": __file__, "function": "price", "weight": 0.2},
        ],
    }
    assert reward_table("length") == {"name": "length"}


def test_what_no_file_has_is_found_in_this_process_only():
    rules = [lambda d, k=k: k for k in range(3)]
    tables = [function_table(rule) for rule in rules]
    assert len({table["function"] for table in tables}) == 3
    for rule, table in zip(rules, tables, strict=True):
        assert load_function(Path(table["path"]), table["function"]).function is rule
        assert function_table(rule) == table
    with pytest.raises(ConfigError, match="a function of another Python session"):
        load_function(WITHOUT_FILE, "rule")


@pytest.mark.parametrize("has_file", [False, True])
def test_a_name_that_is_defined_again_is_another_function(tmp_path, monkeypatch, has_file):
    monkeypatch.setitem(sys.modules, "own_cells", module := ModuleType("own_cells"))
    path = tmp_path / "own_cells.py" if has_file else Path("<cell>")
    if has_file:
        path.write_text("# as it was when it began to run")

    def defined(cell):
        exec(compile(cell, str(path), "exec"), module.__dict__)
        return module.own_rule, function_table(module.own_rule)

    cells = (
        "def own_rule(d): return 0.1",
        "def own_rule(d): return 0.9",
        # As in a loop over b.
        "def own_rule(d, b=0.1): return b",
        "def own_rule(d, b=0.9): return b",
        "class own_rule:\n    def __call__(self, d): return 0.1",
        "class own_rule:\n    def __call__(self, d): return 0.9",
    )
    rules = [defined(cell) for cell in cells[: 4 if has_file else 6]]
    for rule, table in rules:
        assert load_function(Path(table["path"]), table["function"]).function is rule
    assert (rules[0][1]["function"] == "own_rule") == has_file
    # A cell that runs again as it was has the name of before, so that a run goes on with it.
    for cell, (_, table) in zip(cells, rules, strict=False):
        assert defined(cell)[1] == table


def test_a_file_that_was_changed_and_imported_again_keeps_its_names(tmp_path, monkeypatch):
    path = tmp_path / "own_rules.py"
    monkeypatch.setitem(sys.modules, "own_rules", module := ModuleType("own_rules"))
    for chance in ("0.1", "0.9"):
        path.write_text(f"def own_rule(d): return {chance}")
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
        table = function_table(module.own_rule)
        assert (table["path"], table["function"]) == (str(path), "own_rule")
        assert load_function(path, "own_rule").function is module.own_rule


@pytest.mark.parametrize("kind", [rf.Rollout, rf.Learner, rf.Limits])
def test_keys_are_parameters_without_values_of_their_own(kind):
    parameters = inspect.signature(kind).parameters
    assert set(parameters) == {*kind.keys, "unknown"}
    assert {parameters[key].default for key in kind.keys} == {AS_RECIPE}
    assert kind().table == {}
    key = "max_tokens" if "max_tokens" in kind.keys else "rate"
    assert kind(**{key: None}).table == {key: None}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rf.Rollout(max_token=3), "Rollout.max_token: unknown key, did you mean max_tokens?"),
        (lambda: rf.Learner(learning_rate=1), "Learner.learning_rate: unknown key, did you mean rate?"),
        (lambda: rf.Rollout(num_generations=8), "Rollout.num_generations: unknown key, did you mean n? Both count completions of a problem."),
        (lambda: rf.Learner(per_device_train_batch_size=4), "Learner.per_device_train_batch_size: unknown key, did you mean problems_per_minibatch? Ours counts problems of an optimizer step: multiply by devices and accumulation, divide by num_generations."),
        (lambda: rf.Learner(pace=1), "Learner.pace: unknown key. Learner has batch_size, beta, betas, copies, "),
        (lambda: rf.algorithms.named("ppo"), "algorithm: expected one of aepo, aepo_paper, arpo, "),
        (lambda: rf.algorithms.ARPO(shared="twice"), "algorithms.arpo: shared: expected 'repeat', 'split' or 'mass', "),
        (lambda: rf.score([], "lenght"), "score: reward.name: expected "),
        (lambda: rf.score([], ["answer", "length"]), "reward: expected one name or object, and functions beside it, "),
        (lambda: rf.score([], [("answer", 0.5), right]), "reward: a name or an object has no weight. "),
        (lambda: rf.score([], (right, "2")), "score: reward.own.0.weight: expected "),
        (lambda: rf.score([], (right, price)), "score: reward.own.0.weight: expected "),
        (lambda: rf.reward(max), "reward max: its parameters cannot be read. "),
        (lambda: rf.reward(lambda final_answer: (yield 1.0)), "reward <lambda>: it yields. "),
        (lambda: tool_tables([3]), "tools: expected a function, a class or an object of ramify.tools, got int"),
        (lambda: rf.problems(3), "data: expected a file, or rows as a list of dictionaries, "),
        (lambda: next(rf.problems([{"prompt": "?", "answer": 1}]).batches(2)), "batches: expected a size from 1 to 1, "),
        (lambda: rf.Policy(3), "Policy: model: expected a folder or the id of a model, got 3"),
        (lambda: rf.Policy("x", learner={"rate": 1}), "Policy: learner: expected a ramify.Learner, got {'rate': 1}"),
        (lambda: rf.Agent("x"), "Agent: policy: expected a ramify.Policy, got 'x'"),
        (lambda: rf.Trainer("x", train="a.jsonl", reward=right, log="wandb"), "Trainer: log: expected a list, "),
        (lambda: rf.Trainer("x", train="a.jsonl", reward=right, rollout=4), "rollout: expected a ramify.Rollout "),
        (lambda: rf.Trainer(None, train="a.jsonl", reward=right), "model: expected a folder or the id of a model, "),
        (lambda: rf.Trainer("x", train="a.jsonl", reward=right, tools=price).estimate(gpus=0), "estimate: gpus: "),
        (lambda: rf.Trainer("x", train=[ROW], reward=right, dir="."), "dir: expected a folder of the run's own, got '.'. "),
        (lambda: rf.Trainer("x", train=[ROW], reward=right, dir=f"{__file__}/run"), "dir: "),
        (lambda: rf.open_run(None), "open_run: expected the folder of a run, got None"),
        (lambda: rf.credit([], 3), "algorithm: expected a name, an object of ramify.algorithms such as ARPO(), "),
        (lambda: rf.credit([], rf.algorithms.ARPO), "algorithm: expected a name, an object of ramify.algorithms "),
        (lambda: rf.credit([], "arpo", "x"), "credit: policy: expected a ramify.Policy, got 'x'"),
        (lambda: rf.score(None, "answer"), "score: expected trees of agent.rollout or of a run, got None"),
        (lambda: rf.evaluate("x", [], attempts=0), "evaluate: attempts: expected a number from 1, got 0"),
        (lambda: rf.problems("x", limit=-1), "problems: limit: expected a number of rows from 1, got -1"),
        (lambda: rf.problems("x", columns="q"), "problems: columns: expected a dictionary, "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_an_empty_list_is_refused_by_what_it_is():
    with pytest.raises(DataError, match=r"^data: empty; expected at least one row"):
        rf.problems([])
    with pytest.raises(DataError, match=r"^compare: there is no tree"):
        rf.compare(rf.Trees([]), rf.Trees([]))


def test_problems_are_rows_too(tmp_path):
    rows = [
        {"prompt": f"what is {i} plus 1?", "answer": [i + 1, f"{i + 1}.0"], "kind": "sum"} for i in range(3)
    ]
    read = rf.problems([{**row, "id": f"own-{i}"} for i, row in enumerate(rows)])
    again = rf.problems(read)
    # With their ids: draws are hashes of these, so a run on them is the run on their file.
    assert list(again) == list(read)
    assert [each.id for each in rf.problems(rows)] == ["rows-1", "rows-2", "rows-3"]


def test_ranks_that_write_the_same_rows_at_once_name_one_whole_file(tmp_path):
    """Under torchrun each rank makes the trainer of a Python file."""
    rows = [{"prompt": f"{i}?", "completion": "a" * 1000} for i in range(200)]
    begin = threading.Barrier(4)

    def rows_file(_):
        begin.wait()
        return rf.SFT("m", train=rows, dir=tmp_path / "run").config.data.train

    with ThreadPoolExecutor(4) as ranks:
        for _ in range(5):
            (path,) = set(ranks.map(rows_file, range(4)))
            assert [json.loads(line) for line in path.read_text().splitlines()] == rows
    assert list((tmp_path / "run.rows").iterdir()) == [path]


def test_a_column_that_is_not_there_names_those_that_are():
    # A step without a trajectory that counts has no mean reward.
    table = Table([{"step": 1}, {"step": 2, "loss": 0.5}, {"step": 3}])
    assert table.column("loss") == [None, 0.5, None]
    assert table._repr_html_().count("<td>") == 6
    with pytest.raises(rf.RamifyError, match=r"'los'.*step, loss"):
        table.column("los")
