"""The drawing of a tree: a box a node, all ends in view, safe against what a model or a page wrote."""

import html
import re

import numpy as np
from obs_trees import HOSTILE, SMALL_REWARDS, big_tree, small_tree

from ramify.core.records import Reward
from ramify.core.tree import Cut
from ramify.obs.trace import TracedTree
from ramify.obs.tree_sections import WIDTH, draw_tree, trajectory_texts
from random_trees import random_tree


def test_tree_drawing_has_a_box_for_each_node_and_marks_decisions():
    traced = big_tree()
    drawing = draw_tree(traced)
    assert drawing.count('<g class="node ') == len(traced.tree.nodes)
    under = sum(node.source == "tool" for node in traced.tree.nodes)
    assert drawing.count('class="edge"') == len(traced.tree.nodes) - 1 - under
    assert drawing.count('class="mark taken"') == 8
    assert drawing.count('class="mark wanted"') == sum(d.planned > d.taken for d in traced.tree.decisions)
    assert drawing.count('class="reward ') == len(traced.tree.trajectories) == 16
    texts = trajectory_texts(traced)
    anchors = re.findall(r'<a href="#([^"]+)"', drawing)
    assert [re.search(r'id="([^"]+)"', text.body)[1] for text in texts] == anchors


def test_the_drawing_shows_where_contexts_go_on():
    tree = random_tree(np.random.default_rng(0), depth=4)
    cuts = [n.context for n in tree.nodes if isinstance(n.context, Cut)]
    fresh = [n for n in tree.nodes if n.context == "fresh"]
    drawing = draw_tree(TracedTree(tree, (Reward(0.0, {}),) * len(tree.trajectories)))
    assert cuts
    assert fresh
    assert drawing.count('class="context"') == len(cuts)
    assert drawing.count("a fresh context") == len(fresh)
    for cut in cuts:
        assert f"continues after {cut.tokens} tokens of {cut.node or 'the prompt'}" in drawing


def test_boxes_of_the_drawing_do_not_overlap():
    rects = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', draw_tree(big_tree())
    )
    boxes = [tuple(map(float, rect)) for rect in rects]
    for index, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[:index]:
            beside = x >= other_x + other_width or other_x >= x + width
            assert beside or y >= other_y + other_height or other_y >= y + height


def test_the_ends_of_all_leaves_are_in_view_at_1280_pixels_and_every_box_has_its_whole_text():
    traced = big_tree()
    drawing = draw_tree(traced)
    assert f'viewBox="0 0 {WIDTH:.0f} ' in drawing
    ends = [float(x) for x in re.findall(r'class="reward [^"]*" x="([\d.]+)"', drawing)]
    # The longest is "+1.00  A +0.25  not counted".
    assert len(ends) == 16
    assert max(ends) < WIDTH - 190
    titles = re.findall(r'<g class="node \w+"><title>([^<]*)', drawing)
    assert [html.unescape(title).split("\n", 1)[1] for title in titles] == [
        node.text for node in traced.tree.nodes
    ]


def test_hostile_texts_stay_texts():
    traced = TracedTree(small_tree(HOSTILE, tool_text=HOSTILE), SMALL_REWARDS, (0.0, 1.0, -1.0))
    page = draw_tree(traced) + "".join(str(text.body) for text in trajectory_texts(traced))
    assert not re.search(r"<(script|img)", page)
    assert page.count("&lt;script&gt;") >= 4
