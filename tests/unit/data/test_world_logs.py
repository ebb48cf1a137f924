import json
from pathlib import Path

import pytest

from ramify.chat.tags import split_completion
from ramify.core.tree import Source
from ramify.data.demonstrator import Search
from ramify.data.world import WorldSettings, build_world, split_editions
from ramify.data.world_logs import write_logs
from ramify.tools.passage_index import PassageIndex

SETTINGS = WorldSettings(1, 2, 2, 2, 2, num_demo_editions=20)


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Search:
    index = PassageIndex.build(build_world(tmp_path_factory.mktemp("world"), SETTINGS, 0).passages)
    return lambda collection, query: "\n".join(hit.text for hit in index.search(query, 2, collection))


def written(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_ends_with_the_value_of_what_it_was_told_to_find_or_compute(
    tmp_path: Path, search: Search
) -> None:
    assert write_logs(tmp_path / "logs.jsonl", SETTINGS, 0, 200, search) == 200
    editions = split_editions("demo", SETTINGS)
    for row in written(tmp_path / "logs.jsonl"):
        asked, told = row["prompt"][0]["content"], row["completion"].rpartition(" ")[2]
        if asked.startswith("find "):
            name, relation = asked.rpartition(", ")[2].split()
            assert told in {one.value(name, relation) for one in editions if (name, relation) in one.facts}
        else:
            first, operator, second = asked.removeprefix("compute ").split()
            assert told == str(
                {
                    "plus": int(first) + int(second),
                    "minus": int(first) - int(second),
                    "times": int(first) * int(second),
                }[operator]
            )


def test_no_log_answers_and_half_of_them_compute(tmp_path: Path, search: Search) -> None:
    write_logs(tmp_path / "logs.jsonl", SETTINGS, 0, 200, search)
    told = [row["completion"] for row in written(tmp_path / "logs.jsonl")]
    assert not any("<answer>" in one or "boxed" in one for one in told)
    assert sum("<python>" in one for one in told) == 100
    assert all(("<python>" in one) != ("<search>" in one) for one in told)
    assert all(any(source is Source.TOOL for source, _ in split_completion(one)) for one in told)


def test_logs_repeat_themselves_with_their_seed_alone(tmp_path: Path, search: Search) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_logs(tmp_path / name, SETTINGS, seed, 50, search)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert written(tmp_path / "a") != written(tmp_path / "c")
