"""Hints: their library, where they can stand, and the trees that go on from them."""

import pytest
from synth_agents import RIGHT, WRONG, grow, question, sampler_of

from ramify.core.errors import DataError
from ramify.core.tree import Cut, Source, TreeKey
from ramify.rollout.plan import TreeRequest
from ramify.rollout.rewriting import last_turn
from ramify.synth.hints import Hint, HintLibrary, hint_positions, load_hints, planned_hint, read_hint

DOUBT = Hint(name="check", kind="verification", text=", I check.", tool="python")
AGAIN = Hint(name="again", kind="reflection", text=" Once more.", tool="")
LIBRARY = HintLibrary((DOUBT, AGAIN), ("wait", "not sure"), "0")


def test_the_shipped_library_has_hints_of_both_kinds_for_both_tools():
    library = load_hints(None)
    assert {(hint.kind, hint.tool) for hint in library.hints} == {
        (kind, tool) for kind in ("verification", "reflection") for tool in ("python", "search")
    }
    assert {hint.tool for hint in library.for_tools(["python"]).hints} == {"python"}
    with pytest.raises(DataError, match="none of its 4 hints is for a tool"):
        library.for_tools(["lookup"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("markers = 7", "markers"),
        ("hints = []", "hints"),
        ("[[hints]]\nname = 'a'\nkind = 'other'\ntext = 'b'", "hints.0.kind"),
        ("[[hints]]\nname = 'a'\nkind = 'reflection'\ntext = 'b'\nwhen = 1", "hints.0.when"),
        ("[[hints]]\nname = 'a'\nkind = 'reflection'\ntext = 'b'\n" * 2, "two hints are named 'a'"),
        ("[[hints]]\nname = 'a'\nkind = 'verification'\ntext = 'b'", "expected words of doubt"),
        ("markers = ['']\n[[hints]]\nname = 'a'\nkind = 'verification'\ntext = 'b'", "markers.0"),
        ("hints", "expected TOML"),
        ("\ud800", "expected TOML"),
    ],
)
def test_a_library_that_is_none_is_one_line(tmp_path, text, message):
    path = tmp_path / "hints.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=r"hints\.toml") as error:
        load_hints(path)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def answers(folder, text, n=1, max_calls=3, after="<answer> \\boxed{ 41 } </answer>"):
    """(a sampler, the trajectories of its answers); each begins with `text`, and goes on with `after` behind a result or a hint."""

    def play(context, seed):
        return after if "</result>" in context or "Once more" in context or "I check" in context else text

    sampler = sampler_of(folder, play, n=n, max_calls=max_calls)
    (scored,) = grow(sampler, [TreeRequest(question("q"), TreeKey(0, 0))])
    return sampler, scored.tree.trajectories


def positions_in(sampler, answer):
    return hint_positions(LIBRARY, sampler.agent.renderer, answer, sampler.agent.tools)


def hinted(sampler, answer, position, problem=None):
    """The request for a tree that goes on from a position in an answer."""
    agent = sampler.agent
    return planned_hint(
        agent.renderer, problem or question("q"), answer, position, TreeKey(0, 0, 2), agent.tools
    )


def text_before(renderer, answer, position):
    return last_turn(renderer.decode, answer.contexts[position.index])[0][: position.chars]


def test_places_stand_behind_words_of_doubt_and_before_the_answer(tokenizer_folder):
    text = f"<think> it is 41, wait no. I am NOT SURE. await</think>{WRONG}"
    sampler, (answer,) = answers(tokenizer_folder, text)
    renderer = sampler.agent.renderer
    assert [
        (position.hint.name, text_before(renderer, answer, position))
        for position in positions_in(sampler, answer)
    ] == [
        ("check", "<think> it is 41, wait"),
        ("check", "<think> it is 41, wait no. I am NOT SURE"),
        ("again", "<think> it is 41, wait no. I am NOT SURE. await"),
    ]


def test_there_is_no_place_in_a_call_or_in_a_turn_without_an_answer(tokenizer_folder):
    sampler, (answer,) = answers(tokenizer_folder, "<think> so</think><python> wait </python>", max_calls=0)
    assert positions_in(sampler, answer) == ()
    sampler, (answer,) = answers(tokenizer_folder, "<think> so wait")
    assert [p.hint.name for p in positions_in(sampler, answer)] == ["check"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_tree_goes_on_from_the_hint_and_the_old_suffix_is_dropped(tokenizer_folder, number):
    text = f"<think> it is 41, wait no</think>{WRONG}"
    sampler, (answer,) = answers(tokenizer_folder, text, after=f" right</think>{RIGHT}")
    renderer = sampler.agent.renderer
    position = positions_in(sampler, answer)[number]
    planned = hinted(sampler, answer, position)
    (scored,) = grow(sampler, [planned])
    (trajectory,) = scored.tree.trajectories
    prompt, first, hint, last = trajectory.nodes
    assert first.token_ids == answer.nodes[1].token_ids
    assert (hint.source, hint.parent, read_hint(hint.rewriter)) == (Source.TOOL, first.id, position.hint.name)
    assert hint.context == Cut(first.id, hint.context.tokens)
    context = renderer.decode(trajectory.segments[-1].token_ids[len(prompt.token_ids) :])
    before = text_before(renderer, answer, position)
    assert context.startswith(before + position.hint.text + " right</think>")
    assert "41 }" not in context
    assert trajectory.final_answer == "\\boxed{ 42 }"
    assert scored.rewards[0].parts["correct"] == 1.0
    assert scored.tree.start == hint.id
    assert scored.tree.inherited_ids == {first.id}
    assert last.behavior_logprobs


def test_the_prompt_is_that_of_the_agent_that_goes_on(tokenizer_folder):
    sampler, (answer,) = answers(tokenizer_folder, f"{WRONG}")
    other = question("another question that is longer")
    (position,) = positions_in(sampler, answer)
    assert position.chars == 0
    planned = hinted(sampler, answer, position, other)
    assert planned.above[0].token_ids == sampler.agent.renderer.render_prompt(other, sampler.agent.tools)
    assert planned.above[-1].context == Cut("", len(planned.above[0].token_ids))
    (scored,) = grow(sampler, [planned])
    assert scored.tree.nodes[0].text != answer.nodes[0].text


def test_calls_before_the_hint_are_made_again_so_that_tools_are_where_they_were(tokenizer_folder):
    sampler, (answer,) = answers(
        tokenizer_folder, "<think> so</think><search> a </search>", after=f"<think> wait</think>{WRONG}"
    )
    positions = positions_in(sampler, answer)
    planned = hinted(sampler, answer, positions[-1])
    before = sum(sampler.agent.environment.members["search"].issued.values())
    (scored,) = grow(sampler, [planned])
    assert sum(sampler.agent.environment.members["search"].issued.values()) == before + 1
    (trajectory,) = scored.tree.trajectories
    assert len(trajectory.exchanges) == 1


def test_an_answer_without_room_for_more_ends_at_once(tokenizer_folder):
    text = f"<think> it is 41, wait no</think>{WRONG}"
    sampler, (answer,) = answers(tokenizer_folder, text)
    position = positions_in(sampler, answer)[0]
    planned = hinted(sampler, answer, position)
    spent = sum(len(node.token_ids) for node in planned.above[1:])
    for room in (-1, 0, 1):
        small = sampler_of(tokenizer_folder, lambda c, s: RIGHT, n=1, max_tokens=spent + room)
        (scored,) = grow(small, [planned])
        assert scored.tree.trajectories[0].stop.truncated
