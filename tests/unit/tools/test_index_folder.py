"""An index in a folder: opened when it fits, built anew otherwise, never half."""

import fcntl
import json
import multiprocessing
import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ramify.core.errors import DataError
from ramify.tools import index_folder
from ramify.tools.index_folder import open_index
from ramify.tools.passage_index import PassageIndex

WORDS = [f"w{i}" for i in range(40)]
QUERIES = [*WORDS[::2], *(" ".join(WORDS[i : i + 1 + i % 5]) for i in range(0, 35, 2))]


def lines(numbers: range) -> str:
    rng = random.Random(str(numbers))
    rows = ({"id": str(i), "text": " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))} for i in numbers)
    return "".join(json.dumps(row) + "\n" for row in rows)


class Case:
    """A file of passages, its index, and what was said while opening it."""

    def __init__(self, folder: Path) -> None:
        self.corpus, self.folder = folder / "corpus.jsonl", folder / "index"
        self.notes: list[str] = []

    def open(self) -> PassageIndex:
        self.notes.clear()
        return open_index(self.corpus, self.folder, note=self.notes.append)

    def answers(self) -> list[list[str]]:
        index = self.open()
        return [[p.id for p in index.search(word, 30)] for word in QUERIES]

    def fresh(self) -> list[list[str]]:
        index = PassageIndex.build(self.corpus)
        return [[p.id for p in index.search(word, 30)] for word in QUERIES]

    def data(self) -> Path:
        (folder,) = self.folder.glob("index-*")
        return folder


@pytest.fixture
def case(tmp_path: Path) -> Case:
    fresh = Case(tmp_path)
    fresh.corpus.write_text(lines(range(300)))
    return fresh


def test_a_long_build_says_how_far_it_is(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramify.runtime.progress.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("ramify.runtime.progress.NEXT_SECONDS", 0.0)
    case.open()
    assert case.notes[-1].startswith(f"{case.corpus}: index: 100% after 0 s")


def test_who_waits_for_another_process_that_builds_it_says_so(case: Case) -> None:
    case.folder.mkdir()
    with (case.folder / "lock").open("w") as other, ThreadPoolExecutor(1) as second:
        fcntl.flock(other, fcntl.LOCK_EX)
        opening = second.submit(case.open)
        while not case.notes:
            time.sleep(0.01)
        assert case.notes == [f"{case.folder}: another process works on the search index. Waiting for it"]
        fcntl.flock(other, fcntl.LOCK_UN)
        assert len(opening.result(60.0)) == 300


def test_it_is_built_once(case: Case) -> None:
    first = case.answers()
    assert len(case.notes) == 1
    assert "building" in case.notes[0]
    before = case.data()
    assert case.answers() == first == case.fresh()
    assert case.notes == []
    assert case.data() == before


@pytest.mark.parametrize(
    "text",
    [lines(range(1, 300)), lines(range(320)), lines(range(300)).replace("w1 ", "w2 "), lines(range(200))],
)
def test_another_file_is_indexed_anew(case: Case, text: str) -> None:
    case.answers()
    case.corpus.write_text(text)
    assert case.answers() == case.fresh()
    assert "changed" in case.notes[0]


def test_a_touched_file_is_not(case: Case) -> None:
    case.answers()
    before = case.data()
    os.utime(case.corpus, (1, 1))
    assert case.answers() == case.fresh()
    assert case.notes == []
    assert case.data() == before


def test_a_broken_file_names_its_row_and_leaves_the_index(case: Case) -> None:
    before = case.answers()
    with case.corpus.open("a") as file:
        file.write('{"text": "w1"}\n{"text": 3}\n')
    with pytest.raises(DataError, match=r"row 302 .*'text' must be text"):
        case.open()
    case.corpus.write_text(lines(range(300)))
    assert case.answers() == before
    assert case.notes == []


def edit_manifest(case: Case, **changes: object) -> None:
    path = case.folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 0},
        {"engine": ["other", "1", "1"]},
        {"engine": 3},
        {"folder": "index-gone"},
        {"passages": 299},
        {"surprise": 1},
    ],
)
def test_an_index_that_does_not_fit_is_built_anew_with_a_note(case: Case, changes: dict[str, object]) -> None:
    before = case.answers()
    edit_manifest(case, **changes)
    assert case.answers() == before
    assert "building" in case.notes[0]
    assert "again" in case.notes[0]
    assert case.answers() == before
    assert case.notes == []


def test_a_newer_index_is_refused(case: Case) -> None:
    case.open()
    edit_manifest(case, schema=99)
    with pytest.raises(DataError, match="schema 99, this ramify reads up to 2"):
        case.open()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff"])
def test_a_damaged_manifest_is_replaced(case: Case, content: bytes) -> None:
    before = case.answers()
    (case.folder / "manifest.json").write_bytes(content)
    assert case.answers() == before
    assert "damaged" in case.notes[0]


@pytest.mark.parametrize("harm", ["cut", "gone", "overwritten"])
def test_damaged_files_are_replaced(case: Case, harm: str) -> None:
    before = case.answers()
    file = max(case.data().iterdir(), key=lambda file: file.stat().st_size)
    if harm == "cut":
        os.truncate(file, file.stat().st_size // 2)
    elif harm == "gone":
        file.unlink()
    else:
        file.write_bytes(b"?" * file.stat().st_size)
    assert case.answers() == before
    assert "again" in case.notes[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"folder": "../elsewhere"},
        {"folder": "index-x/../../elsewhere"},
        {"files": {"../../elsewhere/file": 1}},
        {"files": 5},
        {"folder": 5},
    ],
)
def test_a_manifest_that_leads_elsewhere_is_replaced(case: Case, changes: dict[str, object]) -> None:
    case.open()
    manifest = case.folder / "manifest.json"
    elsewhere = case.folder.parent / "elsewhere"
    case.data().rename(elsewhere)
    before = sorted(path.name for path in elsewhere.iterdir())
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changes}))
    with case.corpus.open("a") as file:
        file.write(lines(range(300, 310)))
    assert case.answers() == case.fresh()
    assert "manifest.json in it is damaged" in case.notes[0]
    assert sorted(path.name for path in elsewhere.iterdir()) == before


def test_a_folder_with_other_things_is_refused_and_left_alone(case: Case) -> None:
    case.folder.mkdir()
    (case.folder / "thesis.txt").write_text("precious")
    with pytest.raises(DataError, match=r"holds thesis\.txt"):
        case.open()
    assert (case.folder / "thesis.txt").read_text() == "precious"


def test_a_file_in_its_place_is_refused(case: Case) -> None:
    case.folder.write_text("no folder")
    with pytest.raises(DataError, match="expected a folder"):
        case.open()


def test_what_a_killed_build_left_is_removed(case: Case) -> None:
    (case.folder / "index-half").mkdir(parents=True)
    (case.folder / "index-half" / "part").write_text("x")
    (case.folder / "manifest.json.part").write_text("{")
    assert case.answers() == case.fresh()
    assert case.data().name != "index-half"


def test_a_full_disk_is_named_and_nothing_is_left(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_folder, "add_rows", full)
    with pytest.raises(DataError, match=r"cannot be written .*No space left"):
        case.open()
    assert list(case.folder.glob("index-*")) == []


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_lock_that_tantivy_writes_into_a_folder_that_goes_does_not_keep_it(
    case: Case, monkeypatch: pytest.MonkeyPatch, is_rebuilt: bool
) -> None:
    def locked_at_first(folder: Path, ignore_errors: bool = False) -> None:
        remove(folder, ignore_errors)
        if not tries:
            folder.mkdir()
            (folder / ".tantivy-meta.lock").touch()
        tries.append(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if is_rebuilt:
        case.open()
    remove, tries = shutil.rmtree, list[Path]()
    monkeypatch.setattr(shutil, "rmtree", locked_at_first)
    if is_rebuilt:
        case.corpus.write_text(lines(range(100)))
        case.open()
    else:
        monkeypatch.setattr(index_folder, "add_rows", full)
        with pytest.raises(DataError, match="No space left"):
            case.open()
    assert len(list(case.folder.glob("index-*"))) == is_rebuilt
    assert len(tries) == 2


def test_empty_and_missing_files(case: Case) -> None:
    case.corpus.write_text("\n")
    with pytest.raises(DataError, match="empty"):
        case.open()
    case.corpus.unlink()
    with pytest.raises(DataError, match="no such file"):
        case.open()


def test_an_index_that_is_in_use_goes_on_while_another_takes_its_place(case: Case) -> None:
    index = case.open()
    before = [p.id for p in index.search("w1 w2", 50)]
    with case.corpus.open("a") as file:
        file.write(lines(range(300, 400)))
    case.open()
    assert [p.id for p in index.search("w1 w2", 50)] == before


def open_and_count(corpus: Path, folder: Path, start: object, out: object) -> None:
    start.wait()
    notes: list[str] = []
    index = open_index(corpus, folder, note=notes.append)
    out.put((len(index), sum("building" in note for note in notes), [p.id for p in index.search("w1", 20)]))


@pytest.mark.integration
def test_processes_that_start_together_build_it_once(case: Case) -> None:
    context = multiprocessing.get_context("spawn")
    start, out = context.Event(), context.Queue()
    arguments = (case.corpus, case.folder, start, out)
    processes = [context.Process(target=open_and_count, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    start.set()
    answers = [out.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sum(notes for _, notes, _ in answers) == 1
    assert {(count, *ids) for count, _, ids in answers} == {
        (300, *[p.id for p in case.open().search("w1", 20)])
    }
