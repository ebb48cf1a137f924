"""`trained_prompts.json` in a model's folder: under which prompts, tools and dialect its weights were trained, stage by stage.

    {"schema": 1, "stages": [{"command": "sft", "dialect": "tags", "tools": ["python", "search"], "others": 0,
                              "prompts": [{"role": "system", "sha256": "...", "examples": 9999, "text": "..."}]}]}

The latest stage is the last. `role` is that of the message with the text: "user" if it begins the user's turn, "none" for prompts
without a fixed text. Every copy of a model takes the file over, and each training run adds its stage.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.json_types import FieldError, Reader, count, each, one_of, part, record, text
from ramify.core.messages import Problem
from ramify.data.prompts import FixedText, TextRole, fixed_texts
from ramify.files.durable import read_record
from ramify.modeling.model_config import TRAINED_PROMPTS, is_adapter_folder, whole_folder
from ramify.runs.manifest import text_sha256

_SCHEMA = 1
_MOST_STAGES = 8
_MOST_PROMPTS = 8
"""Texts of a stage, the most frequent ones."""
_MOST_CHARACTERS = 20_000
"""Characters of a text; the checksum is that of the whole."""
_MOST_TOOLS = 64


@dataclass(frozen=True, slots=True)
class TrainedPrompt:
    """A fixed text, and how many examples or problems had it."""

    role: TextRole
    sha256: str
    examples: int
    text: str


@dataclass(frozen=True, slots=True)
class TrainingStage:
    """The prompts and tools of one training run.

    Attributes:
        command: "sft", "train" or "dpo".
        dialect: The recipe's `model.dialect`.
        tools: Names of the recipe's tools, sorted; () if it names none.
        prompts: The most frequent texts.
        others: Examples with other texts than these.
    """

    command: str
    dialect: str
    tools: tuple[str, ...]
    prompts: tuple[TrainedPrompt, ...]
    others: int

    @property
    def user_texts(self) -> tuple[str, ...]:
        """The texts at the beginning of the user's turn."""
        return tuple(prompt.text for prompt in self.prompts if prompt.role == "user")

    @property
    def learned(self) -> tuple[TrainedPrompt, ...]:
        """The texts that the run can have taught: each of at least a twentieth of the examples. () if most had rarer ones."""
        total = self.others + sum(prompt.examples for prompt in self.prompts)
        return tuple(
            each for each in self.prompts if each.examples * 20 >= total and self.others * 2 <= total
        )


def training_stage(
    command: str, dialect: str, tools: Iterable[str], problems: Iterable[Problem], model: Path
) -> TrainingStage:
    """Return the record of a run on these problems that starts from the model in a folder.

    Raises:
        DataError: The model's own file cannot be read.
    """
    known = [text for stage in read_stages(model) for text in stage.user_texts]
    counts = Counter(fixed_texts(problems, known))
    prompts = tuple(
        TrainedPrompt(fixed.role, text_sha256(fixed.text), examples, fixed.text[:_MOST_CHARACTERS])
        for fixed, examples in counts.most_common(_MOST_PROMPTS)
    )
    others = counts.total() - sum(prompt.examples for prompt in prompts)
    return TrainingStage(command, dialect, tuple(sorted({*tools})[:_MOST_TOOLS]), prompts, others)


def with_stage(folder: Path, stage: TrainingStage) -> dict[str, bytes]:
    """Return the file, by its name, of checkpoints of a run that starts from the model in `folder`.

    Raises:
        DataError: The model's own file cannot be read.
    """
    stages = (*read_stages(folder), stage)[-_MOST_STAGES:]
    table = {"schema": _SCHEMA, "stages": [asdict(each) for each in stages]}
    return {TRAINED_PROMPTS: (json.dumps(table, indent=2) + "\n").encode()}


def read_stages(folder: Path) -> tuple[TrainingStage, ...]:
    """Return the stages of the model in `folder`, or of its base if it is an adapter without the file; () without one.

    Raises:
        DataError: The file is damaged.
    """
    path = folder / TRAINED_PROMPTS
    if not path.is_file() and is_adapter_folder(folder):
        path = whole_folder(folder) / TRAINED_PROMPTS
    if not path.is_file():
        return ()
    try:
        return tuple(read_record(path, part(schema=_schema, stages=each(_STAGE)))["stages"])
    except DataError as error:
        raise DataError(
            f"{error}. Copy the model again, or delete this file, which only notes the prompts."
        ) from None


def _schema(value: object) -> int:
    if count(value) != _SCHEMA:
        raise FieldError.of(f"a file of schema {_SCHEMA}", value)
    return _SCHEMA


_PROMPT: Reader[TrainedPrompt] = record(
    TrainedPrompt, role=one_of(("system", "user", "none")), sha256=text, examples=count, text=text
)
_STAGE: Reader[TrainingStage] = record(
    TrainingStage, command=text, dialect=text, tools=each(text), prompts=each(_PROMPT), others=count
)


def prompt_notes(
    model: Path, folder: Path, problems: Sequence[Problem], tools: Collection[str]
) -> tuple[str, ...]:
    """Return a note if prompts or tools are other ones than the model was last trained under.

    Args:
        model: The model as the recipe names it.
        folder: Its folder.
        problems: What the run is about to ask or to train on.
        tools: Names of its tools.

    Raises:
        DataError: The model's file cannot be read.
    """
    stages = read_stages(folder)
    return difference_notes(f"{model} was trained", stages[-1], problems, tools) if stages else ()


def difference_notes(
    trained: str, stage: TrainingStage, problems: Sequence[Problem], tools: Collection[str]
) -> tuple[str, ...]:
    """Return a note if prompts or tools are other ones than those of a training run; `trained`: who is trained, with the verb."""
    differences = []
    learned = stage.learned
    known = {(prompt.role, prompt.sha256) for prompt in learned}
    counts = Counter(fixed_texts(problems, stage.user_texts))
    new = Counter(
        {
            fixed: count
            for fixed, count in counts.items()
            if (fixed.role, text_sha256(fixed.text)) not in known
            and not (fixed.role == "user" and fixed.text in stage.user_texts)
        }
    )
    if new and learned:
        ((fixed, _),) = new.most_common(1)
        usual = learned[0]
        more = f" and {len(learned) - 1} more" if len(learned) > 1 else ""
        differences.append(
            f"{new.total():,} of {len(problems):,} prompts have {fixed}, but {trained} under "
            f"{FixedText(usual.role, usual.text)}{more}"
        )
    if stage.tools and tools and stage.tools != tuple(sorted({*tools})[:_MOST_TOOLS]):
        differences.append(
            f"the tools are {', '.join(sorted({*tools}))}, but {trained} with {', '.join(stage.tools)}"
        )
    if not differences:
        return ()
    advice = "."
    if new and learned:
        # A text that a recipe writes is a system message; only a data file puts it into the user's turn.
        value = "that text" if learned[0].role == "system" else '"from:" and the file of the training data'
        advice = f". Set data.instructions to {value} unless this is meant."
    return (f"{'; '.join(differences)}{advice}",)
