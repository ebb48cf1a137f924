"""From recorded answers to rows: classes, quality, what is refused and why, and the files."""

import json
import random
from collections import Counter

import pytest
from synth_agents import RIGHT, WRONG, grow, question, sampler_of

from ramify.core.tree import Source, TreeKey
from ramify.data.example_formats import COMPLETION
from ramify.data.examples import Example, read_examples
from ramify.data.problems import load_problems
from ramify.files.durable import dump_line, replace_lines
from ramify.obs.token_counts import PriceConfig
from ramify.obs.trace import TracedTree, tree_record
from ramify.rollout.plan import TreeRequest
from ramify.synth.configs import HintsConfig, QualityConfig
from ramify.synth.hints import load_hints
from ramify.synth.results import PassRates, Sorter, StageTotals, _rates, write_results
from ramify.synth.rows import Answer, read_stage, refusal_reason
from ramify.synth.run import DIRECT, TOOLS, planned_answers, planned_hints, with_samples, without_tools

CALL = "<think> I add</think><python> print(12 + 30) </python>"
DONE = f"<think> done</think>{RIGHT}"


def answer_of(context, seed):
    """The agent's turn, by its question and by what stands in the context."""
    kind = next(
        name
        for name in ("easy", "tool", "hard", "hint", "many", "twice", "odd", "often")
        if f"{name} ?" in context
    )
    results = context.count("</result>")
    if "Before I answer" in context or "check this" in context or "look it up" in context:
        return f"</think>{CALL}" if not results else DONE
    match kind:
        case "easy":
            return DONE
        case "often":
            return f"<think> maybe</think>{RIGHT if random.Random(seed).random() < 0.5 else WRONG}"
        case "tool":
            return DONE if results else CALL
        case "many":
            return DONE if results == 3 else f"<think> {results}</think><search> number {results} </search>"
        case "twice":
            return DONE if results == 2 else CALL
        case "odd":
            return DONE if results else "<Think> I add</ think ><python> print(1) </python>"
        case _:
            return f"<think> maybe 41</think>{WRONG}"


def synthesis(folder, tmp_path, names, hints=False, quality=None, price=None, direct=4):
    """The summary and the rows of each file."""
    problems = [question(name) for name in names]
    sampler = sampler_of(folder, answer_of, max_calls=5, max_tokens=1500)
    plain = without_tools(sampler, direct)
    run = tmp_path / "run"
    (run / "trees").mkdir(parents=True)
    alone = grow(plain, planned_answers(problems, DIRECT))
    tools = grow(with_samples(sampler, 4), planned_answers(problems, TOOLS))
    stages = {"direct": alone, "tools": tools}
    for stage in ("direct", "tools"):
        record(run, stage, stages[stage])
    if hints:
        unanswered = frozenset(s.tree.problem.id for s in alone if s.rewards[0].parts["correct"] < 1)
        planned = planned_hints(
            run, HintsConfig(), load_hints(None), with_samples(sampler, 1), problems, unanswered
        )
        stages["hints"] = grow(with_samples(sampler, 1), planned)
        record(run, "hints", stages["hints"])
    quality = quality or QualityConfig()
    summary = write_results(
        run, problems, Sorter(sampler.agent.renderer, sampler.agent.tools, quality, 3), price
    )
    files = ("sft", "rl", "rejected", "questions")
    rows = {
        name: [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]
        for name in files
    }
    # Nothing is lost: every answer is a row, or was refused with a reason.
    answers = sum(len(each.tree.trajectories) for trees in stages.values() for each in trees)
    assert len(rows["sft"]) + len(rows["rejected"]) == answers
    assert all(row["reason"] for row in rows["rejected"])
    return summary, rows, run


def read_ids(path):
    """The ids that `ramify sft` reads."""
    examples = [example for _, example in read_examples(path, COMPLETION)]
    assert all(isinstance(example, Example) for example in examples)
    return [example.problem.id for example in examples]


def record(run, stage, scored):
    lines = [dump_line(tree_record(TracedTree(each.tree, each.rewards))) for each in scored]
    replace_lines(run / "trees" / f"{stage}.jsonl", lines)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (PassRates(1.0, 1.0, None), "direct"),
        (PassRates(0.5, 0.5, None), "direct"),
        (PassRates(0.5, 0.25, 1.0), "hurts"),
        (PassRates(0.25, 0.5, None), "helps"),
        (PassRates(0.25, 0.25, 0.5), "helps"),
        (PassRates(0.25, 0.25, 0.0), "hard"),
        (PassRates(0.0, 0.0, None), "hard"),
        (PassRates(None, 1.0, None), "unclear"),
        (PassRates(0.0, None, 1.0), "unclear"),
    ],
)
def test_the_classes_of_the_paper(rates, expected):
    assert rates.difficulty(0.5) == expected


def test_each_class_goes_where_the_paper_sends_it(tokenizer_folder, tmp_path):
    summary, rows, run = synthesis(tokenizer_folder, tmp_path, ["easy", "tool", "hard"])
    assert summary["classes"] == {"direct": 1, "hurts": 0, "helps": 1, "hard": 1, "unclear": 0}
    assert set(summary["stages"]) == {"direct", "tools"}
    assert [(row["id"], row["stage"], row["calls"]) for row in rows["sft"]] == [
        ("easy", "direct", 0),
        ("tool", "tools", 1),
    ]
    assert rows["sft"][1]["completion"].startswith(
        "<think> I add</think><python> print(12 + 30) </python> <result>\n"
    )
    assert [row["id"] for row in rows["rl"]] == ["hard"]
    assert rows["rl"][0]["answer"] == ["42"]
    assert (rows["rl"][0]["pass_rate_direct"], rows["rl"][0]["pass_rate_tools"]) == (0.0, 0.0)
    assert "completion" not in rows["rl"][0]
    # What ramify writes, ramify reads.
    assert read_ids(run / "sft.jsonl") == ["easy", "tool"]
    assert [p.id for p in load_problems(run / "rl.jsonl").problems] == ["hard"]
    assert set(summary["files"]) == {"sft.jsonl", "rl.jsonl", "rejected.jsonl", "questions.jsonl"}


def test_what_is_refused_keeps_its_reason(tokenizer_folder, tmp_path):
    quality = QualityConfig(max_calls=2)
    summary, rows, _ = synthesis(tokenizer_folder, tmp_path, ["many", "twice", "hard"], quality=quality)
    reasons = {row["id"]: row["reason"] for row in rows["rejected"] if row["stage"] == "tools"}
    assert reasons == {"many": "more than 2 calls", "twice": "a call is repeated", "hard": "wrong"}
    # Without tools a call is not made: it ends the answer.
    assert summary["rejected"] == {
        "a call is repeated": 4,
        "more than 2 calls": 4,
        "no answer": 8,
        "wrong": 8,
    }
    assert summary["questions_without_rows"] == {"helps": 2}
    assert rows["sft"] == []
    assert all(row["completion"] for row in rows["rejected"] if row["stage"] == "tools")


def test_right_answers_that_give_no_row_are_kept_too(tokenizer_folder, tmp_path):
    quality = QualityConfig(right_at=1.0)
    _, rows, _ = synthesis(tokenizer_folder, tmp_path, ["often", "easy"], quality=quality)
    reasons = Counter((row["id"], row["stage"], row["reason"]) for row in rows["rejected"])
    assert reasons["often", "tools", "not for a question of the class hard"] >= 1
    assert reasons["easy", "tools", "not for a question of the class direct"] == 4
    assert [row["id"] for row in rows["rl"]] == ["often"]


def test_a_question_with_too_few_answers_has_no_class(tokenizer_folder, tmp_path):
    summary, rows, _ = synthesis(tokenizer_folder, tmp_path, ["easy", "hard"], direct=3)
    assert summary["classes"]["unclear"] == 2
    assert rows["sft"] == rows["rl"] == []
    assert {row["pass_rate_direct"] for row in rows["questions"]} == {None}
    assert summary["questions_without_rows"] == {}


def test_answers_that_a_failure_ended_do_not_count(tokenizer_folder, tmp_path):
    (scored,) = grow(
        sampler_of(tokenizer_folder, answer_of),
        planned_answers([question("easy")], DIRECT),
    )
    answers = [
        Answer(scored.tree.problem, stage, scored.tree.key, trajectory, counts, counts, frozenset())
        for stage in ("direct", "tools")
        for trajectory in scored.tree.trajectories
        for counts in (True, False)
    ]
    assert _rates(answers) == PassRates(1.0, 1.0, None)
    assert _rates(answers[1:]) == PassRates(None, 1.0, None)
    assert [refusal_reason(answer, QualityConfig()) for answer in answers[:2]] == [None, "no verdict"]
    totals = StageTotals()
    for answer in answers:
        totals.add(answer)
    entry = totals.as_json(None)
    assert (entry["answers"], entry["not_counted"], entry["right"]) == (16, 8, 1.0)


@pytest.mark.parametrize(
    ("tool", "first", "second", "same"),
    [
        ("search", "Paris old", " paris  old", True),
        ("search", "Paris old", "Paris", False),
        ("python", "print(a)", "print(a)\n", True),
        ("python", "print(a)", "print(A)", False),
        ("python", "if a:\n  b", "if a:\n b", False),
    ],
)
def test_calls_are_the_same_where_only_blanks_or_case_differ(tokenizer_folder, tool, first, second, same):
    written = [f"<think> a</think><{tool}> {text} </{tool}>" for text in (first, second)]
    sampler = sampler_of(
        tokenizer_folder,
        lambda context, seed: (*written, DONE)[context.count("</result>")],
        n=1,
        max_calls=5,
        max_tokens=1500,
    )
    (scored,) = grow(sampler, planned_answers([question("a")], TOOLS))
    (trajectory,) = scored.tree.trajectories
    answer = Answer(scored.tree.problem, "tools", scored.tree.key, trajectory, True, True, frozenset())
    assert len(answer.calls) == 2
    assert (refusal_reason(answer, QualityConfig()) == "a call is repeated") is same


def test_tags_have_one_spelling(tokenizer_folder, tmp_path):
    _, rows, _ = synthesis(tokenizer_folder, tmp_path, ["odd"])
    assert rows["sft"][0]["completion"].startswith(
        "<think> I add</think><python> print(1) </python> <result>\n"
    )


def test_rows_that_are_too_long_or_the_same_are_refused(tokenizer_folder, tmp_path):
    quality = QualityConfig(rows_per_question=3)
    summary, rows, _ = synthesis(tokenizer_folder, tmp_path, ["easy"], quality=quality)
    assert len(rows["sft"]) == 1
    assert summary["rejected"] == {
        "not for a question of the class direct": 4,
        "the same as another row": 3,
    }
    quality = QualityConfig(max_tokens=5)
    summary, rows, _ = synthesis(tokenizer_folder, tmp_path / "short", ["easy"], quality=quality)
    assert summary["rejected"] == {"more than 5 tokens": 8}


def test_a_hint_makes_rows_that_say_which_one(tokenizer_folder, tmp_path):
    summary, rows, _ = synthesis(tokenizer_folder, tmp_path, ["hint"], hints=True)
    (row,) = rows["sft"]
    assert row["class"] == "helps"
    assert row["pass_rate_hints"] == 1.0
    assert row["stage"] == "hints"
    assert summary["hints"] == {row["hint"]: 1}
    hint = next(hint for hint in load_hints(None).hints if hint.name == row["hint"])
    assert hint.text in row["completion"]
    assert "41 }" not in row["completion"]
    assert row["completion"].count("<answer>") == 1


def test_several_rows_of_a_question_have_ids_of_their_own_and_are_drawn_by_the_seed(
    tokenizer_folder, tmp_path
):
    quality = QualityConfig(rows_per_question=2)
    _, rows, run = synthesis(tokenizer_folder, tmp_path, ["hint", "tool"], hints=True, quality=quality)
    ids = [row["id"] for row in rows["sft"]]
    assert len(set(ids)) == len(ids)
    assert read_ids(run / "sft.jsonl") == ids
    again, _, other = synthesis(
        tokenizer_folder, tmp_path / "b", ["hint", "tool"], hints=True, quality=quality
    )
    for name in again["files"]:
        assert (run / name).read_bytes() == (other / name).read_bytes()


def test_costs_are_told_where_there_is_a_price(tokenizer_folder, tmp_path):
    summary, _, _ = synthesis(tokenizer_folder, tmp_path, ["tool"], price=PriceConfig(input=1.0, output=2.0))
    tools = summary["stages"]["tools"]
    assert tools["cost"] == (tools["tokens"]["sent"] + 2 * tools["tokens"]["written"]) / 1e6 > 0
    assert tools["calls"] == 4


def test_what_an_earlier_answer_wrote_costs_nothing_again(tokenizer_folder, tmp_path):
    summary, _, run = synthesis(tokenizer_folder, tmp_path, ["hint"], hints=True)
    written = calls = 0
    for traced in read_stage(run, "hints"):
        for node in traced.tree.nodes:
            new = node.source is Source.POLICY and node.id not in traced.tree.inherited_ids
            written += len(node.token_ids) * new
            calls += len(node.calls) * new
    entry = summary["stages"]["hints"]
    assert (entry["tokens"]["written"], entry["calls"]) == (written, calls)
    assert calls == entry["answers"] == 2


def test_planned_trees_of_a_stage_have_draws_of_their_own():
    (direct,), (tools,) = (list(planned_answers([question("a")], attempt)) for attempt in (DIRECT, TOOLS))
    assert direct == TreeRequest(question("a"), TreeKey(0, 0, 0))
    assert tools.key != direct.key
