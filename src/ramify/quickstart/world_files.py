"""The quick-start world: an encyclopedia in many editions with different facts, and questions about it.

A model cannot memorise this world. A problem names its *edition* (a collection of the passage index), each edition has
its own random facts, and the model never sees the edition's name, so it must search and read the results. An edition
has twelve names with five facts each, one sentence per passage, shuffled:

    - Laru area 56
    - Laru mayor Bado

Three relations lead to another name of the same edition (mayor, neighbor, founder), three to a number from 10 to 59
(area, age, height). Each name has two of the first kind and all three of the second. Some facts use a synonym (size for
area), so a search may miss the fact and has to be repeated in other words. The dash is there for the tokenizer: it
gives the first word of a line a leading space, so that a name is the same token in a question, a query, a passage and
an answer.

Kinds of question, in equal shares: `lookup` (what is the area of Laru?), `arith` (what is 53 plus 41?),
`hop2` (what is the area of the mayor of Laru?), `calc` (what is the area of Laru times the age of Bado?),
`compare` (which has the larger area, Laru or Bado?).

Held out: 13 of the 64 names. Questions of `train`, `seen` and demonstrations never ask about them; questions of `dev`
and `test` ask only about them. Every edition has nine training names and three held-out names, so in training a model
meets held-out names as values and as the second entity of a hop, but never as the subject of a question. Each split has
its own editions and random draws. Only `train` depends on the run's seed; passages, `dev`, `test` and `seen` do not.

Difficulty (`WorldSettings.difficulty`):

    1   The quick start. One synonym for each relation, used by 20 % of the facts. Training comes near a full score.
    2   As 1, but synonyms in 50 % of the facts; for 30 % of the facts there is also an outdated passage ("- Laru area
        was 33"), which a search may find instead; three-hop questions (`hop3`); `arith` has three operands, with the
        usual precedence.
    3   As 2, but two synonyms for each relation, in 70 % of the facts; outdated passages for 60 %; `arith` has four
        operands, `calc` three.

Ambiguity by construction (`WorldSettings.ambiguous`): no synonym and no outdated passage, but this share of the facts has a
rival, a second passage in the same words with another value, which nothing in the result tells from the valid one; a search
with the synonym finds the valid value alone ("- Laru area 56", "- Laru area 33"; "- Laru size 56"). A problem's row lists the
pairs under "ambiguous", and the search tool marks a result that shows both of a pair (`ToolResult.ambiguous`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError
from ramify.quickstart.world_questions import LEVELS, Edition, Level, Split, make_edition, make_question

_PROBLEM_SPLITS: tuple[Split, ...] = ("train", "dev", "test", "seen")


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """Difficulty and sizes of the world.

    Attributes:
        difficulty: 1, 2 or 3.
        ambiguous: Share of the facts that have a rival, in a world without synonyms and outdated passages; None: those of
            the difficulty.
        num_train, num_dev, num_test, num_seen: Problems of each split.
        problems_per_edition: Problems of a split that share an edition.
        num_demo_editions: Editions that the demonstrations share.

    Raises:
        ConfigError: The difficulty is not 1, 2 or 3.
    """

    difficulty: int = 1
    num_train: int = 960
    num_dev: int = 300
    num_test: int = 600
    num_seen: int = 300
    problems_per_edition: int = 2
    num_demo_editions: int = 150
    ambiguous: float | None = None

    def __post_init__(self) -> None:
        if self.difficulty not in LEVELS:
            raise ConfigError(f"world difficulty: expected 1, 2 or 3, not {self.difficulty}")

    @property
    def level(self) -> Level:
        """The parameters of the difficulty."""
        level = LEVELS[self.difficulty]
        if self.ambiguous is None:
            return level
        return replace(level, synonym_share=0.0, outdated_share=0.0, ambiguous_share=self.ambiguous)

    def num_problems(self, split: Split) -> int:
        """Return the number of problems of a split (not of demonstrations: `write_demonstrations` takes their number)."""
        sizes: dict[Split, int] = {
            "train": self.num_train,
            "dev": self.num_dev,
            "test": self.num_test,
            "seen": self.num_seen,
        }
        return sizes[split]


@dataclass(frozen=True, slots=True)
class WorldFiles:
    """The files that `build_world` wrote (`train_entities` is the split `seen`), and the number of passages."""

    passages: Path
    train: Path
    dev: Path
    test: Path
    train_entities: Path
    num_passages: int


def split_editions(split: Split, settings: WorldSettings) -> list[Edition]:
    """Return the editions that the problems of a split, or the demonstrations, are about."""
    if split == "demo":
        count = settings.num_demo_editions
    else:
        count = -(-settings.num_problems(split) // settings.problems_per_edition)
    return [make_edition(f"{split}-{number:04d}", settings.level) for number in range(count)]


def build_world(folder: Path, settings: WorldSettings, seed: int) -> WorldFiles:
    """Write the passages and the problems of every split.

    Args:
        folder: Created if missing; gets passages.jsonl {id, text, collection} and train, dev, test and
            seen.jsonl {id, prompt, answer, kind, collection, difficulty}, and {ambiguous} where `settings` sets a share.
        settings: Difficulty and sizes.
        seed: Run seed; changes `train` only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    editions = {split: split_editions(split, settings) for split in (*_PROBLEM_SPLITS, "demo")}
    for split in _PROBLEM_SPLITS:
        write_rows(folder / f"{split}.jsonl", _problem_rows(split, editions[split], settings, seed))
    passages = (
        {"id": f"{edition.id}/{number}", "text": text, "collection": edition.id}
        for each in editions.values()
        for edition in each
        for number, text in enumerate(edition.passages())
    )
    num_passages = write_rows(folder / "passages.jsonl", passages)
    train, dev, test, train_entities = (folder / f"{split}.jsonl" for split in _PROBLEM_SPLITS)
    return WorldFiles(folder / "passages.jsonl", train, dev, test, train_entities, num_passages)


def _problem_rows(
    split: Split, editions: Sequence[Edition], settings: WorldSettings, seed: int
) -> Iterator[dict[str, Any]]:
    for number in range(settings.num_problems(split)):
        edition = editions[number // settings.problems_per_edition]
        question = make_question(number, split, edition, settings.level, seed)
        yield {
            "id": question.id,
            "prompt": question.prompt,
            "answer": [question.answer],
            "kind": question.kind,
            "collection": question.edition,
            "difficulty": settings.difficulty,
            **({} if settings.ambiguous is None else {"ambiguous": edition.ambiguous_passages()}),
        }


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a JSONL file; returns the number of rows."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            count += 1
    return count
