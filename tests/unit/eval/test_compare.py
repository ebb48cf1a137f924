from ramify.chat.tags import parse_turn
from ramify.core.messages import Message, Problem
from ramify.core.records import Reward
from ramify.core.tree import Node, Source, StopReason, TreeKey, make_tree
from ramify.eval.compare import compare_trainings
from ramify.obs.metrics import MetricsLog
from ramify.obs.trace import TracedTree
from ramify.obs.trace_index import write_indexed
from ramify.runs.run_folder import RunFolder

TEXT = "<answer> \\boxed{5} </answer>"


def attempt(number: int, correct: float, stop: StopReason) -> TracedTree:
    leaf = Node("0", (0,), "", Source.POLICY, (1,), TEXT, (-0.5,), turn=parse_turn(TEXT, {}), stop=stop)
    prompt = Node("", (), None, Source.PROMPT, (0,), "q")
    problem = Problem("p", (Message.of("user", "q"),), ("5",), {})
    tree = make_tree(problem, TreeKey(step=number, slot=0), [prompt, leaf])
    return TracedTree(tree, (Reward(correct, {"correct": correct}, counts=stop.counts),))


def test_an_attempt_that_the_clock_ended_is_wrong_as_in_the_evaluation(tmp_path) -> None:
    for name, stop, correct in (("a", StopReason.DEADLINE, 0.0), ("b", StopReason.ANSWERED, 1.0)):
        MetricsLog(tmp_path / name / "metrics.jsonl").append(1, {})
        attempts = [attempt(0, 1.0, StopReason.ANSWERED), attempt(1, correct, stop)]
        write_indexed(RunFolder(tmp_path / name).evaluation(0), attempts)
    comparison = compare_trainings(tmp_path / "a", tmp_path / "b")
    assert comparison.metric == "eval/pass@1 at step 0"
    assert [score.value for score in comparison.scores] == [0.5, 1.0]
