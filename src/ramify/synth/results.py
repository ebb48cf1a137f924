"""The results of a synthesis: the class of each question, rows for supervised training, questions for RL, refused answers.

Every answer is a row or is refused with a reason. Difficulty classes of Tool-Star (arXiv 2505.16410, section 3.2), from the shares
of right answers without and with tools:

    without   with     class     goes to
    right     right    direct    supervised rows, answered without tools
    right     wrong    hurts     the same
    wrong     right    helps     supervised rows, answered with tools, after a hint or not
    wrong     wrong    hard      questions for RL

Answers that do not count (`Reward.counts`: a failed service, a deadline, no verdict) are in no share. With fewer than four others of a kind the question is
"unclear", and goes nowhere.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias

from ramify.chat.renderer import ExampleRenderer
from ramify.core.draws import stream
from ramify.core.errors import DataError, RowError
from ramify.core.json_types import count, mapping, number, part
from ramify.core.messages import Problem, ToolSpec
from ramify.files.durable import dump_line, read_record, replacing, write_record
from ramify.obs.page import Card, Page, Section, Table
from ramify.obs.token_counts import PriceConfig, TokenCounts, count_tokens
from ramify.obs.trace import TracedTree
from ramify.rollout.repair import repairs_of
from ramify.runs.manifest import file_sha256
from ramify.runs.page import origin_sections
from ramify.synth.configs import QualityConfig
from ramify.synth.rows import STAGES, Answer, Stage, completion_of, is_right, read_stage, refusal_reason

Class: TypeAlias = Literal["direct", "hurts", "helps", "hard", "unclear"]

_ROWS_FROM: Final[Mapping[Class, tuple[Stage, ...]]] = {
    "direct": ("direct",),
    "hurts": ("direct",),
    "helps": ("tools", "hints"),
    "hard": (),
    "unclear": (),
}
"""Stages whose answers may give rows, by the class of the question."""
_LEAST: Final = 4
"""Answers of a kind that a class needs."""


@dataclass(frozen=True, slots=True)
class PassRates:
    """Shares of right answers to a question: without tools, with them, and after hints (None: too few of them, or none)."""

    direct: float | None
    tools: float | None
    hints: float | None

    def difficulty(self, right_at: float) -> Class:
        """Return the class of the question, which counts as answered from a share of `right_at` on.

        An answer after a hint is one with tools, so it counts for a question that the tools alone do not answer.
        """
        if self.direct is None or self.tools is None:
            return "unclear"
        with_tools = max(self.tools, self.hints or 0.0) >= right_at
        if self.direct >= right_at:
            return "direct" if self.tools >= right_at else "hurts"
        return "helps" if with_tools else "hard"


@dataclass(slots=True)
class StageTotals:
    """Totals over the answers of a stage."""

    answers: int = 0
    counted: int = 0
    right: int = 0
    calls: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    repairs: Counter[str] = field(default_factory=Counter)

    def add(self, answer: Answer) -> None:
        """Count an answer."""
        counts: TokenCounts = count_tokens(answer.trajectory, answer.earlier)
        nodes = answer.trajectory.nodes
        self.answers += 1
        self.counted += answer.counts
        self.right += answer.right and answer.counts
        self.calls += sum(len(node.results) for node in nodes if not {node.id, node.parent} & answer.earlier)
        self.repairs.update(repairs_of(answer.trajectory, answer.earlier))
        self.tokens.update({"written": counts.written, "sent": counts.sent})

    def as_json(self, price: PriceConfig | None) -> dict[str, Any]:
        """Return the entry of summary.json; with a price it has the cost of the tokens."""
        paid = {}
        if price is not None:
            tokens = self.tokens
            paid = {"cost": (price.input * tokens["sent"] + price.output * tokens["written"]) / 1e6}
        share = self.right / self.counted if self.counted else 0.0
        return {
            "answers": self.answers,
            "not_counted": self.answers - self.counted,
            "right": share,
            "calls": self.calls,
            "tokens": {name: self.tokens[name] for name in ("written", "sent")},
            **paid,
            **({"repairs": dict(sorted(self.repairs.items()))} if self.repairs else {}),
        }


@dataclass(frozen=True, slots=True)
class Sorter:
    """Sorts the answers to questions into rows.

    Attributes:
        renderer: Reads rows before they are written.
        tools: The tools in the prompts of the rows.
        quality: Limits of a row.
        seed: Seed of the run, which draws the rows of a question.
    """

    renderer: ExampleRenderer
    tools: tuple[ToolSpec, ...]
    quality: QualityConfig
    seed: int

    def rows_of(
        self, answers: Sequence[Answer], difficulty: Class
    ) -> tuple[list[tuple[Answer, str]], list[tuple[Answer, str, str]]]:
        """Return rows with their texts, and refused answers with their reasons and texts, of one question.

        Of more than `quality.rows_per_question` possible rows some are drawn.
        """
        fit: list[tuple[Answer, str]] = []
        out: list[tuple[Answer, str, str]] = []
        for answer in answers:
            reason = refusal_reason(answer, self.quality)
            text = ""
            try:
                text = completion_of(self.renderer, answer, self.tools, self.quality.max_tokens)
            except RowError as error:
                reason = reason or f"{error}"
            if reason is None and answer.stage not in _ROWS_FROM[difficulty]:
                reason = f"not for a question of the class {difficulty}"
            if reason is None and any(text == other for _, other in fit):
                reason = "the same as another row"
            if reason is None:
                fit.append((answer, text))
            else:
                out.append((answer, reason, text))

        def draw(row: tuple[Answer, str]) -> int:
            answer, _ = row
            path = answer.trajectory.leaf.path
            return stream(self.seed, "row", answer.problem.id, answer.stage, answer.key.attempt, path)

        drawn = sorted(fit, key=draw)
        most = self.quality.rows_per_question
        out += ((answer, "not drawn", text) for answer, text in drawn[most:])
        return drawn[:most], out


def write_results(
    folder: Path,
    problems: Sequence[Problem],
    sorter: Sorter,
    price: PriceConfig | None,
) -> dict[str, Any]:
    """Read the recorded answers, write all results, and return the summary.

    The files of an interrupted call are written again; summary.json comes last.
    """
    totals = {stage: StageTotals() for stage in STAGES}
    classes: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    hints: Counter[str] = Counter()
    without_rows = Counter[str]()
    with ExitStack() as stack:
        sft, rl, rejected, questions = (
            stack.enter_context(replacing(folder / name))
            for name in ("sft.jsonl", "rl.jsonl", "rejected.jsonl", "questions.jsonl")
        )
        for problem, answers in _by_question(folder, problems):
            for answer in answers:
                totals[answer.stage].add(answer)
            rates = _rates(answers)
            difficulty = rates.difficulty(sorter.quality.right_at)
            classes[difficulty] += 1
            labels = {
                "class": difficulty,
                "pass_rate_direct": rates.direct,
                "pass_rate_tools": rates.tools,
                "pass_rate_hints": rates.hints,
            }
            drawn, refused = sorter.rows_of(answers, difficulty)
            for answer, reason, text in refused:
                reasons[reason.partition(": ")[0]] += 1
                _write(rejected, {**_row(answer, text), **labels, "reason": reason})
            if difficulty == "hard":
                _write(rl, {**problem.info, **_prompt(problem), "answer": list(problem.answer), **labels})
            for number, (answer, text) in enumerate(drawn):
                name = problem.id if number == 0 else f"{problem.id}#{number}"
                rows[difficulty] += 1
                hints.update([answer.hint] if answer.hint else [])
                _write(sft, {**_row(answer, text), "id": name, **labels})
            if _ROWS_FROM[difficulty] and not drawn:
                without_rows[difficulty] += 1
            _write(questions, {"id": problem.id, **labels, "rows": len(drawn)})
    summary = {
        "schema": 1,
        "questions": len(problems),
        "quality": sorter.quality.values(),
        "classes": {name: classes[name] for name in _ROWS_FROM},
        "rows": {name: rows[name] for name, stages in _ROWS_FROM.items() if stages},
        "questions_without_rows": dict(sorted(without_rows.items())),
        "rl": classes["hard"],
        "hints": dict(sorted(hints.items())),
        "rejected": dict(sorted(reasons.items())),
        "stages": {stage: total.as_json(price) for stage, total in totals.items() if total.answers},
        "files": {
            name: file_sha256(folder / name)
            for name in ("sft.jsonl", "rl.jsonl", "rejected.jsonl", "questions.jsonl")
        },
    }
    write_record(folder / "summary.json", summary)
    return summary


def summary_metrics(summary: Mapping[str, Any], prefix: str = "synth") -> dict[str, float]:
    """Return the counts of a summary as metrics with flat names, such as `synth/stages/tools/right`."""
    metrics: dict[str, float] = {}
    for name in ("questions", "classes", "rows", "rl", "stages") if prefix == "synth" else summary:
        value = summary[name]
        if isinstance(value, Mapping):
            metrics |= summary_metrics(value, f"{prefix}/{name}")
        else:
            metrics[f"{prefix}/{name}"] = value
    return metrics


def _by_question(folder: Path, problems: Sequence[Problem]) -> Iterator[tuple[Problem, list[Answer]]]:
    """Yield each question with all of its answers; the files of the stages are in the order of the questions."""
    files = {
        stage: groupby(read_stage(folder, stage), key=lambda traced: traced.tree.problem.id)
        for stage in STAGES
    }
    ahead = {stage: next(groups, None) for stage, groups in files.items()}
    for problem in problems:
        trees: dict[Stage, list[TracedTree]] = {}
        for stage in files:
            group = ahead[stage]
            if group is not None and group[0] == problem.id:
                trees[stage] = list(group[1])
                ahead[stage] = next(files[stage], None)
        # The question as shown with tools: an environment may have added words of its own.
        shown = trees["tools"][0].tree.problem if "tools" in trees else problem
        yield (
            problem,
            [
                answer
                for stage in trees
                for traced in trees[stage]
                for answer in _answers(shown, stage, traced)
            ],
        )


def _answers(problem: Problem, stage: Stage, traced: TracedTree) -> Iterator[Answer]:
    tree = traced.tree
    for trajectory, reward in zip(tree.trajectories, traced.rewards, strict=True):
        yield Answer(
            problem, stage, tree.key, trajectory, is_right(reward), reward.counts, tree.inherited_ids
        )


def _rates(answers: Sequence[Answer]) -> PassRates:
    def share(stage: Stage, least: int) -> float | None:
        right = [answer.right for answer in answers if answer.stage == stage and answer.counts]
        return sum(right) / len(right) if len(right) >= least else None

    return PassRates(share("direct", _LEAST), share("tools", _LEAST), share("hints", 1))


def _row(answer: Answer, text: str) -> dict[str, Any]:
    return {
        **_prompt(answer.problem),
        "completion": text,
        "stage": answer.stage,
        "hint": answer.hint,
        "attempt": answer.key.attempt,
        "leaf": answer.trajectory.leaf.id,
        "calls": len(answer.calls),
    }


def _prompt(problem: Problem) -> dict[str, Any]:
    messages = [{"role": message.role, "content": message.text} for message in problem.messages]
    return {"id": problem.id, "prompt": messages}


def _write(file: BinaryIO, row: Mapping[str, Any]) -> None:
    file.write(f"{dump_line(row)}\n".encode("ascii"))


_READ_SUMMARY = part(
    questions=count,
    classes=mapping(count),
    rows=mapping(count),
    rl=count,
    hints=mapping(count),
    rejected=mapping(count),
    stages=mapping(part(answers=count, right=number, calls=count, tokens=part(written=count))),
)


def synthesis_page(folder: Path) -> Page:
    """Return the page of a finished synthesis.

    Raises:
        DataError: It is not finished, or its summary cannot be read.
    """
    path = folder / "summary.json"
    if not path.is_file():
        raise DataError(f"{folder}: the synthesis is not finished. Finish it with ramify synth --resume.")
    summary = read_record(path, _READ_SUMMARY)
    cards = (
        Card("Questions", f"{summary['questions']:,}", "in the data", 0),
        Card("Rows for SFT", f"{sum(summary['rows'].values()):,}", "in sft.jsonl", 1),
        Card("Questions for RL", f"{summary['rl']:,}", "in rl.jsonl", 2),
    )
    rejected = Table(
        "Answers that gave no row (rejected.jsonl has them)",
        ("reason", "answers"),
        list(summary["rejected"].items()),
    )
    section = synthesis_section(summary)
    failures = [] if not rejected.rows else [Section("Failures", tables=(rejected,))]
    sections = (section, *failures, *origin_sections(folder, "synth"))
    return Page(f"Synthesis: {folder.absolute().name}", str(folder), cards, sections)


def synthesis_section(summary: Mapping[str, Any]) -> Section:
    """Return the section of a synthesis by the content of its summary.json."""
    classes = [[name, count, summary["rows"].get(name, 0)] for name, count in summary["classes"].items()]
    stages = [
        [stage, total["answers"], round(100 * total["right"], 1), total["calls"], total["tokens"]["written"]]
        for stage, total in summary["stages"].items()
    ]
    hints = [[name, count] for name, count in summary["hints"].items()]
    return Section(
        "Results of the synthesis",
        "Questions by whether the weak start answers them without and with tools; the hard ones go to RL.",
        tables=(
            Table("Answers", ("with", "answers", "percent right", "calls", "tokens written"), stages),
            Table("Questions", ("class", "questions", "rows for SFT"), classes),
            Table("Rows that continue from a hint", ("hint", "rows"), hints),
        ),
    )
