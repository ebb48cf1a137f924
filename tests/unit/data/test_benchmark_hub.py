"""Data sets of the hub, from a stand-in for it; the real hub was never asked."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hub_stand_in import OTHER_SHA, SHA, HubStandIn
from loopback import Loopback, serve

pytestmark = pytest.mark.integration


def parquet(*rows: dict[str, Any]) -> bytes:
    file = BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), file)
    return file.getvalue()


def jsonl(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def row(question: str, answer: Any = "A") -> dict[str, Any]:
    return {"question": question, "answer": answer}


REPOSITORIES: Mapping[str, Mapping[str, bytes]] = {
    "org/sharded": {
        "README.md": b"#",
        "main/test-00001-of-00002.parquet": parquet(row("Q2?", "#### 2")),
        "main/test-00000-of-00002.parquet": parquet(row("Q1?", "so\n#### 1,000")),
        "main/train-00000-of-00001.parquet": parquet(row("T?", "#### 3")),
        "socratic/test-00000-of-00001.parquet": parquet(row("S?", "#### 4")),
    },
    "org/one": {"test.jsonl": jsonl(row("Q?", 7))},
    "org/only-train": {"data/train-00000-of-00001.parquet": parquet(row("Q?"))},
    "org/converted": {"default/test/0000.parquet": parquet(row("Q1?")), "default/test/0001.parquet": parquet(row("Q2?"))},
    "org/nested": {f"2023/validation/metadata{level}.jsonl": jsonl(row(f"Q{level}?")) for level in ("", ".level1", ".level2")},
    "org/none": {"README.md": b"#", "test.csv": b"a,b"},
    "org/cut": {"test.jsonl": b'{"question": "Q?"'},
}  # fmt: skip


HUB = HubStandIn(datasets=REPOSITORIES, statuses={"org/gated": (403, "GatedRepo"), "org/broken": (500, "")})


@pytest.fixture(scope="module")
def hub() -> Iterator[Loopback]:
    with serve(HUB) as here:
        yield here


SCRIPT = """
import json, sys
from ramify.core.errors import UserError
from ramify.data.benchmarks import load_benchmark
from ramify.data.problems import load_problems
for name, location in json.loads(sys.argv[1]):
    try:
        loaded = load_benchmark(name, location) if name else load_problems(location)
        print(json.dumps([[[p.messages[0].text, p.answer[0]] for p in loaded.problems], loaded.notes]))
    except UserError as error:
        print(json.dumps(str(error)))
"""


def load(endpoint: str, home: Path, *datasets: tuple[str, str], **more: str) -> list[Any]:
    """Call `load_benchmark` in a process of its own, since the hub's client reads its variables once."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_ETAG_TIMEOUT": "5"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(datasets)],
        env={**os.environ, **settings, **more},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_tables_of_the_hub_are_read_and_read_again_without_it(hub: Loopback, tmp_path: Path) -> None:
    datasets = (
        ("gsm8k", "hf:org/sharded:main/test"),
        ("aime25", "hf:org/one"),
        ("hotpotqa", "hf:org/only-train"),
        ("2wiki", "hf:org/converted@refs/convert/parquet"),
        ("gaia", "hf:org/nested:2023/validation/metadata"),
        ("", "hf:org/sharded:main/train@main"),
        ("", "hf:org/only-train"),
    )
    loaded = load(hub.url, tmp_path, *datasets)
    assert loaded == [
        [[["Q1?", "1000"], ["Q2?", "2"]], [f"hf:org/sharded:main/test: revision {SHA}"]],
        [[["Q?", "7"]], [f"hf:org/one: revision {SHA}"]],
        [[["Q?", "A"]], [f"hf:org/only-train: revision {SHA}"]],
        [[["Q1?", "A"], ["Q2?", "A"]], [f"hf:org/converted@refs/convert/parquet: revision {OTHER_SHA}"]],
        [[["Q?", "A"]], [f"hf:org/nested:2023/validation/metadata: revision {SHA}"]],
        [
            [["T?", "3"]],
            [
                f"hf:org/sharded:main/train@main: revision {SHA}",
                "the gold is what follows the last #### in 1 worked answer",
            ],
        ],
        [[["Q?", "A"]], [f"hf:org/only-train: revision {SHA}"]],
    ]
    assert not any("socratic" in each.path for each in hub.requests)
    before = len(hub.requests)
    assert load(hub.url, tmp_path, *datasets, HF_HUB_OFFLINE="1") == loaded
    assert len(hub.requests) == before
    assert load("http://127.0.0.1:9", tmp_path, datasets[1]) == loaded[1:2]


def test_what_the_hub_does_not_give_is_one_line(hub: Loopback, tmp_path: Path) -> None:
    messages_by_location = {
        "hf:org/gated": "gated. Accept its terms on its page of the hub and set HF_TOKEN.",
        "hf:org/absent": "no such data set on the hub (or a private one that needs HF_TOKEN)",
        "hf:org/one@absent": "the data set has no such revision",
        "hf:org/broken": "the hub answered with HTTP status 500. Try again later.",
        "hf:org/sharded": "expected one table named 'test', found 2. Name one as hf:org/name:table; there is main/test.parquet, socratic/test.parquet",
        "hf:org/one:dev": "expected one table named 'dev', found 0. Name one as hf:org/name:table; there is test.jsonl",
        "hf:org/none": "found 0. Name one as hf:org/name:table; there is no .jsonl and no .parquet",
        "hf:noslash": "'hf:noslash': expected hf:org/name[:table][@revision]",
        "hf:org/../x": "expected hf:org/name[:table][@revision]",
        "hf:org/cut": "test.jsonl row 1 (lines count from 1): broken JSON",
    }  # fmt: skip
    messages = load(hub.url, tmp_path, *(("bamboogle", location) for location in messages_by_location))
    for message, (location, expected) in zip(messages, messages_by_location.items(), strict=True):
        assert isinstance(message, str), message
        assert expected in message
        assert "\n" not in message
        assert location in message or location == "hf:org/cut"


@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_the_hub_and_nothing_fetched_before(tmp_path: Path, offline: str) -> None:
    (message,) = load("http://127.0.0.1:9", tmp_path, ("gaia", "hf:org/one"), HF_HUB_OFFLINE=offline)
    assert message.startswith("hf:org/one: the hub cannot be reached, and the cache has no copy (")
