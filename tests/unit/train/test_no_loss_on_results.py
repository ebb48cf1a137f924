"""No token of a result carries a loss: in SFT, DPO and RL, wherever results stand and whatever they hold."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hermes_folders import FAMILIES, write_hermes_tokenizer
from model_folders import SPECIAL, TAGS, write_tokenizer
from ramify.algos.credit import Sharing, Weighting, credit
from ramify.algos.dpo import PREFERENCE, DpoLoss, pair, preferred
from ramify.algos.losses import Objective
from ramify.algos.ops import Shared
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood, demonstrated
from ramify.chat.conversation import AssistantTurn
from ramify.chat.demonstrations import check, demonstrate, split
from ramify.chat.hermes import HermesRenderer
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Message, Problem, ToolResult, ToolStatus
from ramify.core.records import CreditedTree, behavior_annotations
from ramify.core.tree import Source, TreeKey, make_tree
from ramify.learner.pack import pack, tree_rows
from ramify.train.mask import trained_tokens
from random_trees import annotated, random_advantages, random_tree, training

KEY = TreeKey(0, 0)
PROBLEM = Problem("p", (Message.of("user", "which ?"),), ())
SNOW = "\u2603"
"""In results only."""

PIECES = [
    *TAGS,
    *SPECIAL,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "\n",
    " ",
    "<",
    "42",
    "\u4e2d",
]
RESULT = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=6).map(
    lambda pieces: SNOW + "".join(pieces) + SNOW
)
WORDS = st.text(st.sampled_from("ab 4\n\u00e9"), max_size=12)


@pytest.fixture(scope="module", params=["tags", "tags are text", *FAMILIES])
def renderer(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("folder") / "model"
    if request.param in FAMILIES:
        return HermesRenderer(ChatTokenizer(write_hermes_tokenizer(folder, request.param)))
    write_tokenizer(folder, tags_are_tokens=request.param == "tags")
    return TagRenderer(ChatTokenizer(folder))


def call(renderer, words):
    if isinstance(renderer, TagRenderer):
        return f"<think>{words}</think><search> q{words} </search>"
    return f'<think>{words}</think>\n<tool_call>\n{{"name": "search", "arguments": {{"query": "q"}}}}\n</tool_call>'


def answer(renderer, words):
    return f"{words}<answer> 4 </answer>" if isinstance(renderer, TagRenderer) else f"{words}4"


def spliced(renderer, turns, last):
    """All of it as one text, as the papers' files have it."""
    opening, closing = renderer.result_tags
    text = "".join(f"{call(renderer, words)} {opening}\n{result}\n{closing}" for words, result in turns)
    return (AssistantTurn(text + answer(renderer, last)),)


def in_messages(renderer, turns, last):
    """Each result as a message of its own."""
    exchanges = [
        (AssistantTurn(call(renderer, words)), ToolResult("", ToolStatus.OK, result))
        for words, result in turns
    ]
    return (*(line for exchange in exchanges for line in exchange), AssistantTurn(answer(renderer, last)))


def plainly(renderer, turns, last):
    """Tokens and whether each is trained, put together by hand."""
    eos = [renderer.tokenizer.eos_id]
    tokens = [(token, False) for token in renderer.render_prompt(PROBLEM, ())]
    for words, result in turns:
        between = eos if renderer.ends_each_turn else []
        tokens += [(token, True) for token in (*renderer.insert(call(renderer, words), ()), *between)]
        tokens += [
            (token, False) for token in renderer.render_results([ToolResult("", ToolStatus.OK, result)], ())
        ]
    text = answer(renderer, last)
    text = text.strip() if renderer.ends_each_turn else text
    return [*tokens, *((token, True) for token in (*renderer.insert(text, ()), *eos))]


def tree_of(renderer, spoken):
    parts = split(renderer, spoken, ())
    check(renderer, parts, ())
    return demonstrate(renderer, PROBLEM, parts, KEY, ())


def trained_in(rows):
    """The tokens of packed rows that carry a loss."""
    tokens = []
    for row in rows:
        carries = (row.weight != 0) | (row.s_plus != 0) | (row.s_minus != 0)
        tokens += row.token_ids[row.written[carries]].tolist()
    return tokens


TURNS = st.lists(st.tuples(WORDS, RESULT), max_size=4)


@given(turns=TURNS, last=WORDS)
def test_sft(renderer, turns, last):
    spoken = [in_messages(renderer, turns, last)]
    inside = (*renderer.result_tags, "<answer>", "</answer>")
    if not any(tag in result for _, result in turns for tag in inside):
        spoken.append(spliced(renderer, turns, last))
    for completion in spoken:
        tree = tree_of(renderer, completion)
        objective = Objective(NegativeLogLikelihood(), weighting=SUPERVISED)
        (row,) = pack([objective.credit(demonstrated(tree))], token_budget=10_000)
        expected = plainly(renderer, turns, last)
        assert row.token_ids.tolist() == [token for token, _ in expected]
        assert trained_in([row]) == [token for token, on in expected if on]
        assert trained_tokens(tree) == expected
        assert SNOW not in renderer.decode(trained_in([row]))


@given(chosen=TURNS, rejected=TURNS, common=TURNS, ends=st.tuples(WORDS, WORDS))
def test_dpo(renderer, chosen, rejected, common, ends):
    sides = [[*common, *chosen], [*common, *rejected]]
    trees = [
        tree_of(renderer, in_messages(renderer, turns, end)) for turns, end in zip(sides, ends, strict=True)
    ]
    assume([node.token_ids for node in trees[0].nodes] != [node.token_ids for node in trees[1].nodes])
    tree = pair(*trees)
    credited = Objective(DpoLoss(0.1)).credit(
        preferred(annotated(tree, PREFERENCE, behavior_annotations(tree)))
    )
    for rows in (pack([credited], 10_000), pack([credited], 1, share_prefixes=False)):
        written = trained_in(rows)
        assert SNOW not in renderer.decode(written)
        policy = [node for node in tree.nodes if node.source is Source.POLICY]
        assert len(written) == sum(len(node.token_ids) for node in policy)


def told_apart(tree):
    """The tree with even tokens where the policy wrote and odd ones elsewhere."""
    nodes = [
        replace(
            node, token_ids=tuple(2 * token + (node.source is not Source.POLICY) for token in node.token_ids)
        )
        for node in tree.nodes
    ]
    return make_tree(tree.problem, tree.key, nodes)


@pytest.mark.parametrize("sharing", get_args(Sharing))
@pytest.mark.parametrize("shared", get_args(Shared))
@given(seed=st.integers(0, 2**32 - 1))
def test_rl(shared, sharing, seed):
    rng = np.random.default_rng(seed)
    tree = told_apart(random_tree(rng, contexts=bool(rng.integers(2)), split_turns=bool(rng.integers(2))))
    learned = training(tree, random_advantages(rng, tree))
    credited = CreditedTree(tree, learned.annotations, credit(learned, Weighting(shared, sharing)))
    ways = (
        pack([credited], 10_000),
        pack([credited], 1, share_prefixes=False),
        tree_rows([credited], 5, keep_dead=True, share_prefixes=True, most_tokens=10),
    )
    for rows in ways:
        written = trained_in(rows)
        assert written
        assert all(token % 2 == 0 for token in written)
        assert len(written) <= sum(len(n.token_ids) for n in tree.nodes if n.source is Source.POLICY)
