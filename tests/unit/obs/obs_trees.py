"""Trees for the tests of `ramify.obs`: a hand-made small one and a generated one with sixteen leaves."""

from ramify.core.draws import stream, uniform
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
from ramify.core.records import Reward
from ramify.core.tree import (
    BranchDecision,
    Entropy,
    Node,
    NodePath,
    Source,
    StopReason,
    Tree,
    TreeKey,
    make_tree,
    node_id,
)
from ramify.obs.trace import TracedTree

HOSTILE = '</pre><script>alert("x")</script><img src=x onerror=alert(1)> & \'"'


def problem(identifier: str = "p0", text: str = "what is the age of Laru ?") -> Problem:
    return Problem(
        identifier, (Message.of("user", text),), ("41",), {"kind": "lookup", "hops": [1, 2.5, None]}
    )


def policy(path: NodePath, num_tokens: int = 2, **fields) -> Node:
    fields.setdefault("text", "<think> x </think>")
    return Node(
        id=node_id(path),
        path=path,
        parent=node_id(path[:-1]),
        source=Source.POLICY,
        token_ids=tuple(range(num_tokens)),
        behavior_logprobs=(-0.1,) * num_tokens,
        token_entropies=tuple(0.25 * (index + 1) for index in range(num_tokens)),
        policy_version=3,
        **fields,
    )


def tool(
    path: NodePath, num_tokens: int = 3, status: ToolStatus = ToolStatus.OK, text: str = "Laru age 41 ."
) -> Node:
    call_id = f"c{node_id(path)}"
    return Node(
        id=node_id(path),
        path=path,
        parent=node_id(path[:-1]),
        source=Source.TOOL,
        token_ids=tuple(range(num_tokens)),
        text=f"<result> {text} </result>",
        results=(ToolResult(call_id, status, text, {"passages": ["7", "9"]}),),
    )


def call(path: NodePath) -> ToolCall:
    return ToolCall(f"c{node_id((*path, 0))}", "search", {"query": "Laru age"})


def prompt(num_tokens: int = 5) -> Node:
    return Node("", (), None, Source.PROMPT, tuple(range(num_tokens)), "what is the age of Laru ?")


def small_tree(identifier: str = "p0", tool_text: str = "Laru age 41 .") -> Tree:
    """Root 0 calls and branches into two leaves after the result; root 1 answers at once. [G = 3]"""
    nodes = [
        prompt(),
        policy((0,), 4, turn=Calls((call((0,)),)), entropy=Entropy(0.2, 0.3, 6)),
        tool((0, 0), text=tool_text),
        policy((0, 0, 0), 2, turn=Final("41"), stop=StopReason.ANSWERED, entropy=Entropy(0.8, 0.8, 2)),
        policy((0, 0, 1), 3, turn=MalformedTurn("cut", "4"), stop=StopReason.TOKENS, text=HOSTILE),
        policy((1,), 1, stop=StopReason.ANSWERED, entropy=Entropy(0.4, 0.4, 1)),
    ]
    return make_tree(
        problem(identifier),
        TreeKey(3, 1),
        nodes,
        [BranchDecision("0.0", 1, 0.6, 0.7, 2, 1, True, budget_left=1)],
    )


SMALL_REWARDS = (
    Reward(1.0, {"correct": 1.0}),
    Reward(0.0, {"correct": 0.0}, {"0.0.1": -1.0}),
    Reward(1.1, {"correct": 1.0}),
)


def big_tree(identifier: str = "p16", seed: int = 0) -> TracedTree:
    """Eight roots of up to three calls, one branch each: sixteen leaves."""
    nodes = [prompt(30)]
    decisions = []
    for root in range(8):
        turn: NodePath = (root,)
        num_calls = 1 + root % 3
        branch_at = root % num_calls
        for index in range(num_calls):
            nodes.append(_turn(turn, seed))
            result = (*turn, 0)
            wants = index == branch_at or root == 5
            nodes.append(tool(result, 12))
            decisions.append(
                BranchDecision(
                    node_id(result), index + 1, 0.3, 0.6, int(wants), int(index == branch_at), wants
                )
            )
            if index == branch_at:
                nodes.append(_leaf((*result, 1), seed))
            turn = (*result, 0)
        nodes.append(_leaf(turn, seed))
    tree = make_tree(problem(identifier), TreeKey(40, 2), nodes, decisions)
    rewards = tuple(
        Reward(1.1 if uniform(stream(seed, t.leaf.id)) > 0.4 else -1.0, {"correct": 1.0})
        for t in tree.trajectories
    )
    return TracedTree(tree, rewards, tuple(reward.value - 0.3 for reward in rewards))


def _turn(path: NodePath, seed: int) -> Node:
    entropy = uniform(stream(seed, path))
    text = "<think> find Laru age </think> <search> Laru age </search>"
    return policy(path, 14, turn=Calls((call(path),)), entropy=Entropy(entropy, entropy, 6), text=text)


def _leaf(path: NodePath, seed: int) -> Node:
    entropy = uniform(stream(seed, path))
    text = "<think> Laru age 41 </think> <answer> \\boxed{ 41 } </answer>"
    stop = StopReason.CALLS if path[0] == 2 else StopReason.ANSWERED
    return policy(path, 11, stop=stop, entropy=Entropy(entropy, entropy, 6), text=text)
