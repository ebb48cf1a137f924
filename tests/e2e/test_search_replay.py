"""The references' search cache, imported and replayed: a deep-search rollout on real questions, offline, twice the same."""

import json
from pathlib import Path

import pytest

from e2e_runs import overrides
from ramify.cli import main
from ramify.core.messages import ToolStatus
from ramify.obs.trace import read_trees

RECIPE = Path(__file__).parents[2] / "recipes" / "arpo_deepsearch_8b.toml"
NUM_QUERIES = 40
NUM_PROBLEMS = 6
SEARCH = ("-s", "zone=serp_api1", "-s", "country=cn", "-s", "language=en")


@pytest.fixture(scope="module")
def remembered(shared_dir):
    """Queries that a turn can write as they are, and what the references' tool answered."""
    texts = json.loads((shared_dir / "data" / "search_cache" / "search_cache.json").read_text())
    plain = [
        query for query in texts if query.isascii() and query.isprintable() and not set(query) & set('<>"\\')
    ]
    return {query: texts[query] for query in plain[:NUM_QUERIES]}


@pytest.fixture(scope="module")
def cassette(shared_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("cassette") / "search.sqlite"
    source = shared_dir / "data" / "search_cache" / "search_cache.json"
    assert main(["cache", "import", str(source), "--to", str(path), "--provider", "brightdata", *SEARCH]) == 0
    return path


@pytest.fixture(scope="module")
def script(remembered, tmp_path_factory):
    """Two searches that the seed draws, then an answer; what was read is surprising, so that branches are wanted."""
    searches = [
        {"text": f"<think> I look it up. </think><search> {query} </search>", "entropies": [0.5 + i % 5]}
        for i, query in enumerate(remembered)
    ]
    answer = {
        "text": "<think> So. </think><answer> \\boxed{ Yes } </answer>",
        "ends": True,
        "entropies": [1.0],
    }
    path = tmp_path_factory.mktemp("script") / "script.toml"
    path.write_text(as_toml([searches, searches, [answer]]))
    return path


def as_toml(turns):
    """`turns[i]` are those that may come after i results."""
    tables = [
        {"after": after, "entropies": [0.5]} | turn for after, choices in enumerate(turns) for turn in choices
    ]
    return "".join(
        "[[turns]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items()) for table in tables
    )


def roll_out(run, shared_dir, model_folder, cassette, script):
    settings = {
        "model.path": model_folder,
        "data.train": shared_dir / "data" / "rl" / "hard_search_1k.parquet",
        "data.max_prompt_tokens": 4000,
        "run.dir": run,
        "run.deterministic": "true",
        "rollout.trajectory_seconds": "",
        "rollout.step_seconds": "",
        "engine.name": "scripted",
        "engine.script": script,
        "tools.cache": f'{{path = "{cassette}", mode = "replay_or_fail"}}',
        "tools.python": "",
        "reward.name": "length",
    }
    return main(["rollout", str(RECIPE), *overrides(settings), "--problems", str(NUM_PROBLEMS)])


def test_twice_the_same_bytes_without_a_key_or_a_network(
    shared_dir, remembered, cassette, script, model_folder, tmp_path, monkeypatch
):
    monkeypatch.delenv("BRIGHTDATA_API_KEY", raising=False)
    before = cassette.read_bytes()
    files = []
    for name in ("one", "two"):
        assert roll_out(tmp_path / name, shared_dir, model_folder, cassette, script) == 0
        files.append((tmp_path / name / "trees" / "000001.jsonl").read_bytes())
    assert files[0] == files[1]
    assert cassette.read_bytes() == before
    trees = [item.tree for item in read_trees(tmp_path / "one" / "trees" / "000001.jsonl")]
    assert len(trees) == NUM_PROBLEMS
    assert sum(decision.taken for tree in trees for decision in tree.decisions) > 0
    answers = {
        (call.arguments["query"], result.text)
        for tree in trees
        for t in tree.trajectories
        for call, result in t.exchanges
    }
    assert len(answers) > 10
    for query, text in answers:
        assert text == remembered[query]


def test_a_query_that_is_not_there_ends_the_run_by_name(shared_dir, cassette, model_folder, tmp_path, capsys):
    script = tmp_path / "script.toml"
    script.write_text(as_toml([[{"text": "<search> the mayor of Laru </search>"}]]))
    assert roll_out(tmp_path / "run", shared_dir, model_folder, cassette, script) == 2
    assert "the mayor of laru" in capsys.readouterr().err


def test_a_search_that_the_cache_remembers_as_empty_is_an_empty_result(
    shared_dir, cassette, model_folder, tmp_path
):
    texts = json.loads((shared_dir / "data" / "search_cache" / "search_cache.json").read_text())
    query = next(
        q for q, text in texts.items() if text.startswith("No search results") and not set(q) & set('<>"\\\n')
    )
    script = tmp_path / "script.toml"
    answer = {"text": "<answer> \\boxed{ Yes } </answer>", "ends": True}
    script.write_text(as_toml([[{"text": f"<search> {query} </search>"}], [answer]]))
    assert roll_out(tmp_path / "run", shared_dir, model_folder, cassette, script) == 0
    trees = [item.tree for item in read_trees(tmp_path / "run" / "trees" / "000001.jsonl")]
    assert {r.status for tree in trees for t in tree.trajectories for _, r in t.exchanges} == {
        ToolStatus.EMPTY
    }
