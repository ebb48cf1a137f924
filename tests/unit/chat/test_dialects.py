"""Every dialect over templates that refuse messages or open the thought, and with a turn that the prompt begins."""

import json
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dialect_folders import WRITERS
from ramify.chat.conversation import AssistantCall, AssistantTurn
from ramify.chat.demonstrations import check, demonstrate, most_tokens, split
from ramify.chat.renderers import renderer_for
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError
from ramify.core.messages import Calls, Dialect, Final, Message, Problem, ToolResult, ToolSpec, ToolStatus
from ramify.core.tree import Source, TreeKey

DIALECTS = get_args(Dialect)
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SPECS = [ToolSpec("search", "d", PARAMETERS, True, 1.0)]
QUESTION = Message.of("user", "Which city is older?")
REFUSES = (
    "{%- for m in messages -%}{%- if 'forbidden' in m.content -%}"
    "{{- raise_exception('no such\\nword') -}}{%- endif -%}{%- endfor -%}"
)
OPENS = "{%- if add_generation_prompt -%}{{- '<think>\\n' -}}{%- endif -%}"
WORDS = st.text("abc XYZ09.,!?\n\u00e9\u4e2d", min_size=1, max_size=20).map(str.strip).filter(bool)
THOROUGH = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


def written(folder, dialect, before="", after=""):
    """The dialect's renderer over its template with something around it."""
    path = WRITERS[dialect](folder) / "chat_template.jinja"
    path.write_text(before + path.read_text() + after)
    return renderer_for(dialect, ChatTokenizer(folder))


def answered(dialect, words):
    return f"<answer> {words} </answer>" if dialect == "tags" else words


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("refused_message", range(3))
def test_a_template_that_refuses_messages_refuses_their_problem(tmp_path, dialect, refused_message):
    renderer = written(tmp_path, dialect, before=REFUSES)
    roles = ("system", "user", "assistant", "user")

    def problem(word):
        texts = [word if number == refused_message else "hi" for number in range(4)]
        return Problem("p-7", tuple(Message.of(*each) for each in zip(roles, texts, strict=True)), ())

    parts = split(renderer, (AssistantTurn(answered(dialect, "Rome")),), SPECS)
    assert renderer.fitting([problem("allowed")], SPECS, 10_000) == [True]
    for refused in (
        lambda: renderer.render_prompt(problem("forbidden"), SPECS),
        lambda: most_tokens(renderer, problem("forbidden"), parts, SPECS),
        lambda: demonstrate(renderer, problem("forbidden"), parts, TreeKey(0, 0), SPECS),
    ):
        with pytest.raises(DataError, match="refuses the messages: no such word"):
            refused()
    with pytest.raises(DataError, match=r"problem 'p-7': .*no such word"):
        renderer.fitting([problem("allowed"), problem("forbidden")], SPECS, 10_000)


@pytest.fixture(scope="module", params=[each for each in DIALECTS if each != "harmony"])
def renderers(request, tmp_path_factory):
    """The dialect, with its template as it is and opening each thought."""
    plain, opening = (tmp_path_factory.mktemp(name) for name in ("plain", "opening"))
    return request.param, written(plain, request.param), written(opening, request.param, after=OPENS)


@THOROUGH
@given(
    st.lists(st.tuples(st.just("") | WORDS, WORDS, st.booleans()), max_size=3),
    st.just("") | WORDS,
    WORDS,
    st.booleans(),
)
def test_opened_thoughts_change_no_turn(renderers, rounds, thought, words, in_text):
    """A demonstration has the same calls and answers, each thought is opened once, and a rollout would read the same."""
    dialect, plain, opening = renderers
    lines = []
    for number, (each, query, separate) in enumerate(rounds):
        call = AssistantCall(f"{number}", "search", json.dumps({"query": query}))
        before = f"<think>{each}</think>" if each and not separate else ""
        lines += [
            AssistantTurn(before, each if separate else "", (call,)),
            ToolResult(f"{number}", ToolStatus.OK, "r"),
        ]
    text = answered(dialect, words)
    lines.append(
        AssistantTurn(f"<think>{thought}</think>{text}")
        if in_text and thought
        else AssistantTurn(text, thought)
    )
    problem = Problem("p", (QUESTION,), ())
    trees = []
    for renderer in (plain, opening):
        parts = split(renderer, lines, SPECS)
        check(renderer, parts, SPECS)
        trees.append(demonstrate(renderer, problem, parts, TreeKey(0, 0), SPECS))
    turns = [[node.turn for node in tree.nodes if node.source is Source.POLICY] for tree in trees]
    assert turns[0] == turns[1]
    assert [isinstance(turn, Calls) for turn in turns[0]] == [True] * len(rounds) + [False]
    assert isinstance(turns[0][-1], Final)
    whole = "".join(node.text for node in trees[1].nodes)
    assert trees[1].nodes[0].text.endswith("<think>\n")
    assert "<think>\n<think>" not in whole
    assert whole.count("<think>") == whole.count("</think>")


@THOROUGH
@given(WORDS, WORDS)
def test_a_turn_that_the_prompt_begins_is_continued_or_refused(renderers, begun, words):
    dialect, plain, opening = renderers
    problem, bare = (
        Problem("p", (QUESTION, Message.of("assistant", begun)), ()),
        Problem("p", (QUESTION,), ()),
    )
    assert plain.prompt_text(problem, SPECS) == plain.prompt_text(bare, SPECS) + begun
    assert plain.render_prompt(problem, SPECS) == plain.tokenizer.encode(plain.prompt_text(problem, SPECS))
    text = answered(dialect, words)
    parts = split(plain, (AssistantTurn(f"<think>so</think>{text}" if dialect == "tags" else text),), SPECS)
    check(plain, parts, SPECS, begun=begun)
    prompt, turn = demonstrate(plain, problem, parts, TreeKey(0, 0), SPECS).nodes
    assert prompt.text.endswith(begun)
    assert turn.turn == Final(words)
    with pytest.raises(DataError, match="opens a thought"):
        opening.render_prompt(problem, SPECS)


def test_harmony_takes_neither(tmp_path):
    plain = written(tmp_path / "plain", "harmony")
    with pytest.raises(DataError, match="harmony does not continue"):
        plain.render_prompt(Problem("p", (QUESTION, Message.of("assistant", "It is")), ()), SPECS)
    with pytest.raises(DataError, match="does not write calls and results"):
        written(tmp_path / "opening", "harmony", after=OPENS)
