import json
import operator
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from ramify.chat.tags import split_completion
from ramify.core.tree import Source
from ramify.quickstart.demonstrator import Search, write_logs
from ramify.quickstart.world_files import WorldSettings, build_world, split_editions
from ramify.quickstart.world_questions import Edition
from ramify.tools.passage_index import PassageIndex

SETTINGS = WorldSettings(1, 2, 2, 2, 2, num_demo_editions=20)


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Search:
    index = PassageIndex.build(build_world(tmp_path_factory.mktemp("world"), SETTINGS, 0).passages)
    return lambda collection, query: "\n".join(hit.text for hit in index.search(query, 2, collection))


def written(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


OPERATIONS = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}


def test_a_log_ends_with_the_value_of_what_it_was_told_to_find_or_compute(
    tmp_path: Path, search: Search
) -> None:
    assert write_logs(tmp_path / "logs.jsonl", SETTINGS, 0, 201, search) == 201
    editions = split_editions("demo", SETTINGS)
    for row in written(tmp_path / "logs.jsonl"):
        asked, told = row["prompt"][0]["content"], row["completion"].rpartition(" ")[2]
        if asked.startswith("find "):
            name, relation = asked.rpartition(", ")[2].split()
            assert told in {one.value(name, relation) for one in editions if (name, relation) in one.facts}
            continue
        chain = asked.removeprefix("compute ")
        word = next(word for word in chain.split() if word in OPERATIONS)
        sides = [numbers_of(side, editions) for side in chain.split(f" {word} ")]
        assert int(told) in {OPERATIONS[word](first, second) for first, second in product(*sides)}


def numbers_of(side: str, editions: Sequence[Edition]) -> set[int]:
    """What a side of a sum may be: the number itself, or the fact in any edition that states it."""
    if side.isdigit():
        return {int(side)}
    relation, name = side.removeprefix("the ").split(" of ")
    return {int(one.value(name, relation)) for one in editions if (name, relation) in one.facts}


def test_a_third_of_the_logs_searches_a_third_computes_and_a_third_does_both(
    tmp_path: Path, search: Search
) -> None:
    write_logs(tmp_path / "logs.jsonl", SETTINGS, 0, 201, search)
    told = [row["completion"] for row in written(tmp_path / "logs.jsonl")]
    assert not any("<answer>" in one or "boxed" in one for one in told)
    uses = Counter(("<search>" in one, "<python>" in one) for one in told)
    assert uses == {(True, False): 67, (False, True): 67, (True, True): 67}
    assert all(any(source is Source.TOOL for source, _ in split_completion(one)) for one in told)


def test_logs_repeat_themselves_with_their_seed_alone(tmp_path: Path, search: Search) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_logs(tmp_path / name, SETTINGS, seed, 50, search)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert written(tmp_path / "a") != written(tmp_path / "c")
