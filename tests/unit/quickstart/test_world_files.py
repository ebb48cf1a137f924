import asyncio
import json
from pathlib import Path

import pytest

from ramify.core.errors import ConfigError
from ramify.core.messages import Problem, ToolCall, ToolResult
from ramify.data.problems import load_problems
from ramify.quickstart.world_files import WorldSettings, build_world, split_editions
from ramify.quickstart.world_questions import HELD_OUT_NAMES, SYNONYMS, TO_NAME, TRAINING_NAMES
from ramify.tools.configs import SearchConfig
from ramify.tools.passage_index import LocalSearch, PassageIndex
from ramify.tools.search import SearchTool

SMALL = WorldSettings(num_train=60, num_dev=40, num_test=60, num_seen=30, num_demo_editions=4)
SPLITS = ("train", "dev", "test", "train_entities")


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def asked_names(row: dict) -> set[str]:
    words = set(row["prompt"][0]["content"].replace("?", "").replace(",", "").split())
    return words & {*TRAINING_NAMES, *HELD_OUT_NAMES}


def test_seed_changes_the_training_problems_and_nothing_else(tmp_path: Path) -> None:
    first = build_world(tmp_path / "a", SMALL, seed=0)
    again = build_world(tmp_path / "b", SMALL, seed=0)
    other = build_world(tmp_path / "c", SMALL, seed=1)
    for name in ("passages", *SPLITS):
        content = getattr(first, name).read_bytes()
        assert content == getattr(again, name).read_bytes()
        assert (content == getattr(other, name).read_bytes()) == (name != "train")


def test_held_out_names_are_asked_about_in_dev_and_test_only(tmp_path: Path) -> None:
    files = build_world(tmp_path, SMALL, seed=0)
    for split in SPLITS:
        names = set().union(*(asked_names(row) for row in rows(getattr(files, split))))
        assert names <= set(HELD_OUT_NAMES if split in ("dev", "test") else TRAINING_NAMES)
        assert names


def test_splits_share_neither_editions_nor_draws(tmp_path: Path) -> None:
    files = build_world(tmp_path, SMALL, seed=0)
    collections = [{row["collection"] for row in rows(getattr(files, split))} for split in SPLITS]
    assert len(set().union(*collections)) == sum(map(len, collections)) == 95
    texts = [tuple(row["prompt"][0]["content"] for row in rows(getattr(files, split))) for split in SPLITS]
    assert len({text[:30] for text in texts}) == 4
    known = {row["collection"] for row in rows(files.passages)}
    assert set().union(*collections) < known
    assert files.num_passages == len(rows(files.passages)) == 60 * len(known)


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_kinds_have_equal_shares(tmp_path: Path, difficulty: int) -> None:
    files = build_world(tmp_path, WorldSettings(difficulty, 2, 2, 60, 2, num_demo_editions=2), seed=0)
    kinds = [row["kind"] for row in rows(files.test)]
    shares = {kind: kinds.count(kind) for kind in kinds}
    expected = {"lookup", "arith", "hop2", "calc", "compare"} | ({"hop3"} if difficulty > 1 else set())
    assert set(shares) == expected
    assert set(shares.values()) == {60 // len(expected)}
    assert {row["difficulty"] for row in rows(files.test)} == {difficulty}


def test_difficulty_adds_synonyms_and_outdated_passages() -> None:
    shares = []
    for difficulty in (1, 2, 3):
        editions = split_editions("demo", WorldSettings(difficulty, num_demo_editions=40))
        facts = [(key[1], fact) for edition in editions for key, fact in edition.facts.items()]
        reworded = sum(relation != fact.word for relation, fact in facts) / len(facts)
        shares += [reworded, sum(len(edition.outdated) for edition in editions) / len(facts)]
    assert shares == pytest.approx([0.2, 0.0, 0.5, 0.3, 0.7, 0.6], abs=0.03)


@pytest.mark.parametrize("share", [0.0, 0.8])
def test_an_ambiguous_fact_shows_two_values_until_it_is_searched_for_in_other_words(
    tmp_path: Path, share: float
) -> None:
    settings = WorldSettings(1, 20, 20, 2, 2, num_demo_editions=20, ambiguous=share)
    index = PassageIndex.build(build_world(tmp_path, settings, seed=0).passages)
    problems = load_problems(tmp_path / "train.jsonl").problems
    search = SearchTool(LocalSearch(index), config=SearchConfig(top_k=2, page_labels=False))
    editions = {edition.id: edition for edition in split_editions("train", settings)}
    rivals = 0
    for each in problems:
        edition = editions[each.info["collection"]]
        assert not edition.outdated
        rivals += len(edition.rivals) / len(edition.facts)
        for (name, relation), fact in edition.facts.items():
            assert fact.word == relation
            first, second = (
                asyncio.run(search_in(search, each, f"{name} {word}"))
                for word in (relation, SYNONYMS[relation][0])
            )
            assert edition.sentence(name, relation) in first.text.splitlines()
            assert first.ambiguous == ((name, relation) in edition.rivals)
            if first.ambiguous:
                assert not second.ambiguous
                assert edition.rival_sentence(name, relation) in first.text.splitlines()
                assert second.text.splitlines()[0] == edition.settling_sentence(name, relation)
    assert rivals / len(problems) == pytest.approx(share, abs=0.05)


async def search_in(tool: SearchTool, problem: Problem, query: str) -> ToolResult:
    session = await tool.open(problem)
    return await session.call(ToolCall("c", "search", {"query": query}))


def test_unknown_difficulty_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected 1, 2 or 3, not 4"):
        WorldSettings(difficulty=4)


@pytest.mark.parametrize("difficulty", [1, 3])
def test_every_fact_is_found_under_its_own_word_and_often_not_under_another(
    tmp_path: Path, difficulty: int
) -> None:
    settings = WorldSettings(difficulty, 2, 2, 2, 2, num_demo_editions=20)
    index = PassageIndex.build(build_world(tmp_path, settings, seed=0).passages)
    outcomes_of = {"own word": [], "asked word": [], "name": []}
    for edition in split_editions("demo", settings):
        for (name, relation), fact in edition.facts.items():
            queries = {"own word": f"{name} {fact.word}", "asked word": f"{name} {relation}", "name": name}
            for kind, query in queries.items():
                hits = index.search(query, 2, edition.id)
                outcomes_of[kind].append(edition.sentence(name, relation) in [hit.text for hit in hits])
    rates = {kind: sum(outcomes) / len(outcomes) for kind, outcomes in outcomes_of.items()}
    assert rates["own word"] == 1.0
    assert rates["asked word"] == pytest.approx({1: 0.86, 3: 0.5}[difficulty], abs=0.05)
    assert rates["name"] == pytest.approx(0.29, abs=0.05)


def test_relations_lead_to_names_that_lack_them() -> None:
    for edition in split_editions("demo", SMALL):
        for name in edition.names:
            relations = edition.relations(name, TO_NAME)
            assert len(relations) == 2
            for relation in relations:
                value = edition.value(name, relation)
                assert value in edition.names
                assert relation not in edition.relations(value, TO_NAME)


def test_problem_files_are_read_by_the_problem_reader(tmp_path: Path) -> None:
    files = build_world(tmp_path, SMALL, seed=0)
    problems = load_problems(files.test).problems
    assert len(problems) == 60
    assert problems[1].answer == (rows(files.test)[1]["answer"][0],)
    assert dict(problems[1].info) == {"kind": "arith", "collection": "test-0000", "difficulty": 1}
