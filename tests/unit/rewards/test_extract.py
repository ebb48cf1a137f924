import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.messages import (
    Calls,
    Final,
    MalformedTurn,
    Message,
    Problem,
    ToolCall,
    ToolResult,
    ToolStatus,
)
from ramify.core.tree import Node, Source, StopReason, Trajectory
from ramify.rewards.extract import Box, answer_of, has_closed_box, last_box, plain
from ramify.rewards.responses import answer_in


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{42}", "42"),
        (r"so \[ \boxed{ 42 } \]", "42"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed 7", "7"),
        (r"\boxed New York. That is it", "New York"),
        (r"\boxed{Rome} \boxed Paris ", "Paris"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{5} and \boxed{6", "5"),
        (r"\boxed{6 \boxed{5}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{a\boxed{b}c}", "b"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{[0, 1\}}", r"[0, 1\}"),
        (r"\boxed{a \\{b}}", r"a \\{b}"),
        (r"\\boxed{3}", "3"),
        (r"} \boxed{4} {", "4"),
        (r"\boxed{}", ""),
        (r"\boxed{1} and \boxed{-2}", "1, -2"),
        (r"\boxed{1},\boxed{2}, and $\boxed{3}$.", "1, 2, 3"),
        (r"\[ \boxed{-2} \quad \text{and} \quad \boxed{1}. \]", "-2, 1"),
        (r"\boxed{Rome} \boxed{Paris}", "Paris"),
        (r"\boxed{1}, so \boxed{2}", "2"),
        (r"\boxed{\boxed{1}} and \boxed{2}", "2"),
    ],
)
def test_the_last_closed_box(text: str, content: str) -> None:
    assert last_box(text) == Box(content, True)


def test_a_box_that_is_not_closed_is_read_to_the_end() -> None:
    assert last_box(r"\boxed{4} is \boxed{\frac{14}{3}") == Box("4", True)
    assert last_box(r"so \boxed{\frac{14}{3} ") == Box(r"\frac{14}{3}", False)
    assert not has_closed_box(r"\boxed{4")
    assert not has_closed_box(r"\boxed 4")
    assert last_box("boxed{4}") is None
    assert last_box("") is None


@given(st.text(alphabet="\\{}boxed 1"))
def test_any_text_is_read(text: str) -> None:
    box = last_box(text)
    assert box is None or box.content in text
    assert last_box(text + r". \boxed{last}") == Box("last", True)


def test_megabytes_of_open_braces_are_read_once() -> None:
    assert last_box("\\boxed{" * 300_000) == Box("", False)
    assert last_box("\\" * 2_000_001) is None
    assert answer_in("<result>" * 300_000) == ""
    assert answer_in("<answer>" * 300_000 + "\\boxed{") == ""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (r"\text{Paris}, \text{Rome}", "Paris, Rome"),
        (r"\textbf{Frank Lowy}", "Frank Lowy"),
        (r"\text{\frac{14}{3}}", r"\frac{14}{3}"),
        (r"385\text{ units}", r"385\text{ units}"),
        (r"\text{a} + x", r"\text{a} + x"),
        (r"\mathbf{5}", r"\mathbf{5}"),
    ],
)
def test_text_macros_go_where_nothing_else_is(content: str, expected: str) -> None:
    assert plain(content) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"<think>\boxed{3}</think><answer>it is four</answer>", "it is four"),
        (r"<think> so \boxed{2} </think><answer></answer>", "2"),
        (r"<answer>\boxed{1}</answer><answer>\boxed{2}</answer>", "2"),
        (r"<answer>\boxed{42}", "42"),
        (r"the result is \boxed{7} </answer>", "7"),
        (r"<search>q</search><result>\boxed{9}</result><think> unsure </think>", ""),
        (r"<result> \boxed{9}", ""),
        (r"The final answer is \[ \boxed{answer here} \]", ""),
        (r"<answer>\boxed{}</answer>", ""),
        ("I believe it was Frank Lowy.", ""),
        ("<answer>The answer is Paris.</answer>", "Paris."),
        ("<answer>**Answer:** Paris</answer>", "Paris"),
        ("<answer>So the final answer is **4/7**.</answer>", "**4/7**."),
        ("<answer>Paris is the answer</answer>", "Paris is the answer"),
        (r"<answer>\boxed{**Paris**}</answer>", "Paris"),
        (r'<answer>\boxed{"\text{Paris}"}</answer>', "Paris"),
        ("", ""),
    ],
)
def test_the_answer_of_a_response(response: str, expected: str) -> None:
    assert answer_in(response) == expected


def test_a_trajectory_answers_in_its_last_turn() -> None:
    call = ToolCall("0", "search", {"query": "q"})
    nodes = (
        Node("", (), None, Source.PROMPT, (0,), "Who?"),
        Node(
            "0", (0,), "", Source.POLICY, (1,), r"<answer>\boxed{no}</answer>", (-0.5,), turn=Calls((call,))
        ),
        Node(
            "0.0",
            (0, 0),
            "0",
            Source.TOOL,
            (2,),
            r"<answer>\boxed{page}</answer>",
            results=(ToolResult("0", ToolStatus.OK, "r"),),
        ),
        Node("0.0.0", (0, 0, 0), "0.0", Source.POLICY, (3,), r"<answer>\boxed{", (-0.5,)),
        Node(
            "0.0.0.0",
            (0, 0, 0, 0),
            "0.0.0",
            Source.POLICY,
            (4,),
            "me}</answer>",
            (-0.5,),
            turn=Final(r"\boxed{me}"),
            stop=StopReason.ANSWERED,
        ),
    )
    problem = Problem("p", (Message.of("user", "Who?"),), ("me",))
    assert answer_of(Trajectory(problem, nodes)) == "me"

    def cut(text: str, marked: str = "") -> str:
        turn = MalformedTurn("it was cut", marked)
        leaf = Node(
            "0.0.0", (0, 0, 0), "0.0", Source.POLICY, (3,), text, (-0.5,), turn=turn, stop=StopReason.TOKENS
        )
        return answer_of(Trajectory(problem, (*nodes[:3], leaf)))

    assert (cut("hm"), cut(r"so \boxed{5} hm"), cut(r"\boxed{5}", "6")) == ("", "5", "6")
