"""Our advantages in verl and prime-rl: equal to our estimators', on the installed packages or on what they say of themselves."""

import asyncio
import sys
import types
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from tests.random_trees import annotated, random_tree

from ramify import algorithms
from ramify.algos.credit import Weighting, credit, training_trees
from ramify.algos.ops import token_weights
from ramify.assemble.algorithm import build_estimator
from ramify.core.errors import ConfigError, DataError, MachineError
from ramify.core.records import Reward
from ramify.interop import prime_rl, verl
from ramify.interop.samples import SampleCredit, format_lineage, lineage_of

ALGORITHMS = {
    "pooled": {"estimator": {"name": "group"}},
    "leave_subtree_out": {"estimator": {"name": "group", "scale": "none", "baseline": "leave_subtree_out"}},
    "mass": {"estimator": {"name": "group", "baseline": "leave_subtree_out"}, "shared": "mass"},
    "split": {"estimator": {"name": "node_value"}, "shared": "split"},
    "tree_grpo": {"estimator": {"name": "tree_grpo"}},
    "turn_level": {"estimator": {"name": "turn_level"}},
    "reinforce_pp": {"estimator": {"name": "reinforce_pp"}},
}


def scored_trees(seed=3, trees=3):
    rng = np.random.default_rng(seed)
    grown = [random_tree(rng, contexts=False, split_turns=True) for _ in range(trees)]
    return [annotated(t, [Reward(float(rng.integers(3)), {}) for _ in t.trajectories]) for t in grown]


def expected(trees, algorithm):
    """For each tree the weighted advantages of each trajectory, by the functions of training."""
    estimator = build_estimator(algorithm)
    trained = training_trees(trees, estimator, None, masks_truncated=False)
    weights = [token_weights(tree.tree, algorithm.shared) for tree in trees]
    return trained, [
        [a * w for a, w in zip(tree.advantages, own, strict=True)]
        for tree, own in zip(trained, weights, strict=True)
    ]


def verl_rows(trees):
    """Samples of the trees as verl holds them, in an order of their own: rewards, mask, uids, and (tree, trajectory) of each."""
    places = [(t, j) for t, tree in enumerate(trees) for j in range(len(tree.rewards))]
    places = [places[i] for i in np.random.default_rng(0).permutation(len(places))]
    masks, uids = [], []
    for t, j in places:
        trajectory = trees[t].tree.trajectories[j]
        after_prompt = trajectory.nodes[1:]
        masks.append([node in trajectory.policy_nodes for node in after_prompt for _ in node.token_ids])
        uids.append(verl.tree_uid(f"prompt-{t}", lineage_of(trajectory)))
    longest = max(map(len, masks)) + 2
    mask = torch.zeros(len(places), longest, dtype=torch.int64)
    rewards = torch.zeros(len(places), longest)
    for row, ((t, j), own) in enumerate(zip(places, masks, strict=True)):
        mask[row, : len(own)] = torch.tensor(own)
        rewards[row, len(own) - 1] = trees[t].rewards[j].value
    return rewards, mask, np.array(uids, dtype=object), places


@pytest.mark.parametrize("name", ALGORITHMS)
def test_verl_gets_the_advantages_of_our_estimators(name):
    trees = scored_trees()
    trained, wanted = expected(trees, algorithms.named("arpo", **ALGORITHMS[name]))
    rewards, mask, uids, places = verl_rows(trees)
    advantages, returns = verl.compute_advantage(
        token_level_rewards=rewards, response_mask=mask, index=uids, config={"ramify": ALGORITHMS[name]}
    )
    assert returns is advantages
    assert (advantages.shape, advantages.dtype) == (mask.shape, rewards.dtype)
    assert advantages.any()
    assert not advantages[mask == 0].any()
    for row, (t, j) in enumerate(places):
        np.testing.assert_allclose(advantages[row][mask[row] == 1], wanted[t][j], atol=1e-6)
    # All copies of a shared token together have the credit that an update of ours gives it.
    algorithm = algorithms.named("arpo", **ALGORITHMS[name])
    for tree, own in zip(trained, wanted, strict=True):
        nodes = credit(tree, Weighting(algorithm.shared))
        total = sum(values.sum() for values in own)
        assert sum((n.s_plus + n.s_minus).sum() for n in nodes.values()) == pytest.approx(total, abs=1e-6)


def test_samples_with_plain_uids_share_nothing_and_a_run_of_the_mask_is_a_turn():
    mask = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 0]])
    rewards = torch.tensor([[0.5, 0.5, 0, 0.0], [3.0, 0, 0, 0], [0, 0, 8.0, 0]])
    table = {"estimator": {"name": "turn_level", "scale": "none"}}
    advantages, _ = verl.compute_advantage(rewards, mask, ["a", "a", "a"], {"ramify": table})
    # Turn 1 returns 1, 3 and 8. In turn 2 the first sample stands alone: 0 against the last returns of the others.
    torch.testing.assert_close(
        advantages, torch.tensor([[-4.5, -4.5, 0, -5.5], [-1.5, 0, 0, 0], [6.0, 6.0, 6.0, 0]])
    )


def test_a_response_that_verl_cut_loses_its_last_tokens():
    uids = [verl.tree_uid("a", (("0", 2), ("0.0.0", 3))), verl.tree_uid("a", (("0", 2), ("0.0.1", 1)))]
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 1]])
    table = {"estimator": {"name": "group", "scale": "none", "baseline": "leave_subtree_out"}}
    advantages, _ = verl.compute_advantage(
        torch.tensor([[0, 0, 0, 1.0], [0, 0, 0, 0]]), mask, uids, {"ramify": table}
    )
    assert advantages.tolist() == [[0, 0, 0, 1], [0, 0, 0, -1]]


@pytest.mark.parametrize(
    ("uids", "config", "error", "words"),
    [
        (None, None, DataError, "verl passes no uid"),
        (["a#0:2", "a#0:1 0.0.0:1"], None, DataError, "node 0: one sample says 2 tokens, another 1"),
        (["a#0:2", "a#0:2"], None, DataError, "Name each leaf once"),
        (["a#0:2", "b#one:2"], None, DataError, "expected node ids with numbers of tokens"),
        (["a#0:1", "b#0:1"], None, DataError, "the sample has 1 written tokens more than its nodes"),
        (["a#0:1 0.0.0:1", "a#0.0.0.0.0:2"], None, DataError, "leaves out a node above|make no tree"),
        (["a", "a"], {"ramify": "sarsa"}, ConfigError, "expected one of aepo"),
        (["a", "a"], {"ramify": {"entropy_advantage": {}}}, ConfigError, "needs entropies of the tokens"),
    ],
)
def test_wrong_samples_are_one_sentence(uids, config, error, words):
    with pytest.raises(error, match=words) as caught:
        verl.compute_advantage(torch.ones(2, 2), torch.ones(2, 2), uids, config)
    assert "\n" not in str(caught.value)


def test_the_installed_verl_calls_our_estimator(monkeypatch):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="verl is not installed")
    from omegaconf import OmegaConf
    from verl import DataProto

    verl.register()
    trees, table = scored_trees(), ALGORITHMS["mass"]
    rewards, mask, uids, places = verl_rows(trees)
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": mask}, non_tensors={"uid": uids}
    )
    config = OmegaConf.create({"ramify": table})
    result = trainer.compute_advantage(data, adv_estimator="ramify", config=config).batch["advantages"]
    _, wanted = expected(trees, algorithms.named("arpo", **table))
    for row, (t, j) in enumerate(places):
        np.testing.assert_allclose(result[row][mask[row] == 1], wanted[t][j], atol=1e-6)
    # And the same numbers as verl's own estimators where they are the same function.
    flat = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "index": [f"g{i % 2}" for i in range(len(uids))],
    }
    for theirs, ours in (
        ("rloo", {"estimator": {"name": "group", "scale": "none", "baseline": "leave_subtree_out"}}),
        ("grpo", {"estimator": {"name": "group"}}),
    ):
        known, _ = trainer.core_algos.get_adv_estimator_fn(theirs)(**flat)
        own, _ = verl.compute_advantage(**flat, config={"ramify": ours})
        torch.testing.assert_close(own, known * mask, atol=1e-5, rtol=1e-5)


def stand_in(monkeypatch, name, **values):
    """Put a module, and the packages above it, in the place of an installed one."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = types.ModuleType(".".join(parts[:end]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if end > 1:
            setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module)
    for key, value in values.items():
        setattr(module, key, value)


def test_registering_in_verls_table(monkeypatch):
    table = {}

    def register_adv_est(name):
        # As verl 0.9.1 has it: another function under a known name is an error.
        def decorate(function):
            if table.setdefault(name, function) != function:
                raise ValueError(name)
            return function

        return decorate

    stand_in(monkeypatch, "verl.trainer.ppo.core_algos", register_adv_est=register_adv_est)
    verl.register()
    verl.register()
    assert table == {"ramify": verl.compute_advantage}


@dataclass
class Message:
    """As verifiers' MessageNode: `mask` for each token, `advantages` for each sampled one."""

    mask: list[bool]
    advantages: list[float] | None = None


@dataclass
class Rollout:
    """As verifiers' Trace."""

    nodes: list[Message]
    reward: float
    info: dict = field(default_factory=dict)
    has_error: bool = False
    agent: types.SimpleNamespace = field(default_factory=lambda: types.SimpleNamespace(trainable=True))


@dataclass
class Episode:
    traces: list[Rollout]


class Algorithm:
    """As prime-rl's base class: it calls the hook of a finished group."""

    action_loss_type = "rl"

    def __init__(self, config, policy_pool):
        self.policy_pool = policy_pool

    async def finalize_group(self, episodes):
        await self.score_group(episodes)


def rollouts_of(tree):
    """The trajectories as rollouts: each node a message, and the policy's begin with a token that was not sampled."""
    rollouts = []
    for trajectory, reward in zip(tree.tree.trajectories, tree.rewards, strict=True):
        written = [node in trajectory.policy_nodes for node in trajectory.nodes]
        nodes = [
            Message([False, *[True] * len(node.token_ids)] if by_policy else [False] * len(node.token_ids))
            for node, by_policy in zip(trajectory.nodes, written, strict=True)
        ]
        rollouts.append(Rollout(nodes, reward.value, {"ramify": format_lineage(lineage_of(trajectory))}))
    return rollouts


@pytest.mark.parametrize("name", ["pooled", "leave_subtree_out", "mass", "tree_grpo", "turn_level"])
def test_prime_rl_gets_the_advantages_of_our_estimators(name, monkeypatch):
    classes = {"grpo": object}
    stand_in(monkeypatch, "prime_rl.orchestrator.algo", Algorithm=Algorithm, ALGORITHM_CLASSES=classes)
    algorithm = algorithms.named("arpo", **ALGORITHMS[name])
    prime_rl.install(algorithm)
    (tree,) = scored_trees(trees=1)
    _, (wanted,) = expected([tree], algorithm)
    rollouts = rollouts_of(tree)
    # The rollouts of a group come in episodes of any size.
    ours = classes["grpo"](config=None, policy_pool=None)
    # Those that failed, that another model played or that wrote nothing are no samples.
    others = [Rollout([Message([True])], 9.0) for _ in range(3)]
    others[0].has_error, others[1].agent.trainable, others[2].nodes[0].mask = True, False, [False]
    asyncio.run(ours.finalize_group([Episode([*others, *rollouts[:1]]), Episode(rollouts[1:])]))
    assert [rollout.nodes[0].advantages for rollout in others] == [None] * 3
    assert ours.action_loss_type == "rl"
    for rollout, own in zip(rollouts, wanted, strict=True):
        assert all(len(node.advantages or ()) == sum(node.mask) for node in rollout.nodes)
        values = [value for node in rollout.nodes for value in node.advantages or ()]
        np.testing.assert_allclose(values, own, atol=1e-6)


def test_prime_rl_scores_a_group_alone_so_statistics_of_a_batch_are_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.estimator: needs all groups of a step"):
        prime_rl.install("reinforce_pp")


def test_rollouts_without_a_lineage_are_a_flat_group():
    rollouts = [Rollout([Message([False]), Message([True] * 2)], reward) for reward in (0.0, 1.0, 5.0)]
    credit = SampleCredit.of("rloo")
    prime_rl.assign(credit, rollouts)
    assert [rollout.nodes[1].advantages for rollout in rollouts] == [[-3.0] * 2, [-1.5] * 2, [4.5] * 2]
    assert rollouts[0].nodes[0].advantages is None
    rollouts[0].info = {"ramify": "0:3"}
    with pytest.raises(DataError, match="the rollout has 2 sampled tokens"):
        prime_rl.assign(credit, rollouts)


@pytest.mark.parametrize("module", [verl.register, prime_rl.install])
def test_a_missing_package_is_one_sentence(module, monkeypatch):
    monkeypatch.setitem(sys.modules, "verl", None)
    monkeypatch.setitem(sys.modules, "prime_rl", None)
    with pytest.raises(MachineError, match=r"needs (verl|prime-rl): .*nstall"):
        module()
