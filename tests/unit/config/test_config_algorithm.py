"""A flag that cannot act is an error at start; a recipe's algorithm becomes the objects that its names say."""

import pytest

from ramify.algos.aepo import EntropyAwareAdvantage, StopGradientClip
from ramify.algos.estimators import NodeValue, TreeGrpo
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.algos.kl import EntropyBonus, KlInReward, KlPenalty
from ramify.algos.losses import CispoSurrogate, GppoSurrogate, GspoSurrogate
from ramify.algos.reinforce_pp import ReinforcePlusPlus
from ramify.assemble.algorithm import annotation_request, build_estimator, build_objective, build_shaping
from ramify.learner.learning import AnnotationRequest
from ramify.rewards.trajectory_rewards import LengthReward, OverlongReward
from train_recipes import load, refusal

FLAT = ("rollout.branching=none", "rollout.m=")
GSPO = ("algorithm.loss.name=gspo", "algorithm.aggregation=sequence_mean")
SCRIPTED = ("engine.name=scripted", "engine.script=turns.toml")


def algorithm(recipe, *settings):
    return load(recipe, *(f"algorithm.{setting}" for setting in settings)).algorithm


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # the algorithm by itself
        (["algorithm.fixed_length=9"], "algorithm.fixed_length: has no effect without aggregation = "),
        (["algorithm.aggregation=fixed_length"], "algorithm.fixed_length: expected a value with aggregation"),
        (["algorithm.overlong_margin=9"], 'algorithm.overlong_margin: has no effect without truncated = "shape"'),
        (["algorithm.truncated=shape"], 'algorithm.overlong_margin: expected a value with truncated = "shape"'),
        (
            ["algorithm.correction={level='token', kind='mask'}"],
            'algorithm.correction: with old = "behavior" the weight old / behavior is 1',
        ),
        (
            ["algorithm.old=recompute", "algorithm.correction={level='token', kind='truncate', floor=0.5}"],
            'algorithm.correction.floor: has no effect without kind = "mask"',
        ),
        (["algorithm.max_mismatch_kl=0.1"], 'algorithm.max_mismatch_kl: has no effect without old = "recompute"'),
        (
            ["algorithm.old=recompute", "algorithm.max_mismatch=0.1"],
            'algorithm.max_mismatch: has no effect without old = "behavior"',
        ),
        (
            ["algorithm.kl={place='loss', estimator='k1', coefficient=0.1}"],
            'algorithm.kl.estimator: "k1" in the loss has no gradient in expectation',
        ),
        (
            ["algorithm.kl={place='reward', estimator='k3', coefficient=0.1}"],
            'algorithm.kl.estimator: expected "k1" with place = "reward", got \'k3\'',
        ),
        (
            ["algorithm.estimator={name='node_value'}", "algorithm.advantage=hard"],
            'algorithm.advantage: estimator "node_value" gives all trajectories through a token the same',
        ),
        (
            ["algorithm.loss={name='cispo', clip_high=4.0}", "algorithm.advantage=hard"],
            'algorithm.advantage: loss "cispo" clips both signs alike',
        ),
        # a ratio of whole trajectories
        (["algorithm.loss.name=gspo"], 'algorithm.aggregation: expected "sequence_mean" with loss "gspo"'),
        ([*GSPO, "algorithm.shared=split"], 'algorithm.shared: expected "repeat" or "mass" with loss "gspo"'),
        ([*GSPO, "algorithm.advantage=hard"], 'algorithm.advantage: expected "soft" with loss "gspo"'),
        ([*GSPO, "algorithm.entropy_advantage={}"], "algorithm.entropy_advantage: expected none with loss"),
        (
            [*GSPO, "algorithm.old=recompute", "algorithm.correction={level='token', kind='mask'}"],
            'algorithm.correction.level: expected "sequence" with loss "gspo"',
        ),
        (
            [*GSPO, "algorithm.estimator={name='node_value'}"],
            'algorithm.estimator.name: expected "group" or "tree_grpo" with loss "gspo"',
        ),
        (
            [*GSPO, "algorithm.estimator.baseline=leave_subtree_out"],
            'algorithm.estimator.baseline: expected "pooled" with loss "gspo"',
        ),
        # against the rollout
        ([*FLAT, "algorithm.shared=mass"], "algorithm.shared: no trajectory of this rollout branches"),
        ([*FLAT, "algorithm.advantage=hard"], "algorithm.advantage: no trajectory of this rollout branches"),
        (
            [*FLAT, "algorithm.estimator={name='tree_grpo'}"],
            "algorithm.estimator.name: no trajectory of this rollout branches",
        ),
        (["rollout.m=8"], 'rollout.branching: "threshold" can never branch with m = n = 8'),
        (["rollout.max_calls=0"], 'rollout.branching: "threshold" can never branch with max_calls = 0'),
        (["rollout.branching={name='random', rate=0.0}"], 'rollout.branching: "random" branches with probability 0'),
        (
            ["rollout.branching={name='bernoulli', alpha=0.0, beta=0.0}"],
            'rollout.branching: "bernoulli" branches with probability 0',
        ),
        (
            ["rollout.m=1", "algorithm.estimator={name='tree_grpo'}"],
            'algorithm.estimator.name: "tree_grpo" with rollout.m = 1',
        ),
        (
            [
                "algorithm.old=recompute",
                "algorithm.correction={level='token', kind='mask', cap=1.0, floor=1.0}",
            ],
            "algorithm.correction.floor: expected a number below cap",
        ),
        (
            [
                "algorithm.advantage=hard",
                "algorithm.loss={name='cispo', clip_high=0.3}",
                "algorithm.old=recompute",
                "algorithm.correction={level='token', kind='truncate'}",
            ],
            'algorithm.advantage: loss "cispo" clips both signs alike',
        ),
        # the guard, and an adapter
        (
            [
                "guard.max_zero_variance=0.9",
                "rollout.n=1",
                *FLAT,
                "algorithm.estimator={name='reinforce_pp'}",
            ],
            "guard.max_zero_variance: groups of one trajectory never vary",
        ),
        (
            ["guard.max_invalid_calls=0.5", "rollout.max_calls=0", *FLAT],
            "guard.max_invalid_calls: rollout.max_calls = 0 allows no calls",
        ),
        (
            [
                "model.lora={rank=4, alpha=8.0}",
                "learner.optimizer={name='muon', rate=1e-3, vector_rate=1e-3}",
            ],
            "learner.optimizer.vector_rate: an adapter has matrices only",
        ),
        ([*FLAT, "rollout.n=1"], 'rollout.n: expected at least 2 with estimator "group"'),
        (
            [*FLAT, "rollout.n=1", "algorithm.estimator={name='reinforce_pp', group_mean=true}"],
            'rollout.n: expected at least 2 with estimator "reinforce_pp"',
        ),
        (
            ["algorithm.truncated=shape", "algorithm.overlong_margin=257"],
            "algorithm.overlong_margin: expected at most rollout.max_tokens = 256, got 257",
        ),
        (
            [*SCRIPTED, "algorithm.entropy_advantage={}"],
            'algorithm.entropy_advantage.source: this engine gives no exact entropies; set it to "annotate"',
        ),
        # around the algorithm
        (
            ["rollout.dynamic_sampling={}", "reward.name=length"],
            "rollout.dynamic_sampling: needs a reward that tells right from wrong",
        ),
        (
            [*FLAT, "rollout.n=1", "rollout.dynamic_sampling={}"],
            "rollout.dynamic_sampling: one trajectory cannot be both right and wrong",
        ),
        (["reward.name=length", "reward.system=arpo"], "reward.system: unknown key"),
        (["model.dialect=hermes", "reward.name=compat", "reward.system=arpo"], 'reward.name: "compat" reads tags only'),
        (["tools.python=", "sandbox.min_level=3"], "sandbox: only [tools.python] uses it"),
        (['tools.python.packages=["scipy"]', "tools.python.environment=env"], "tools.python.packages: has no effect with environment"),
        (["sandbox.url=http://a", "sandbox.level=2", "tools.python.environment=env"], "tools.python.environment: has no effect with sandbox.url"),
        (
            ["tools.python=", "reward.bonus=0.2"],
            "reward.bonus: has no effect without both [tools.search] and [tools.python]",
        ),
        (["learner.optimizer.vector_rate=0.1"], 'learner.optimizer.vector_rate: has no effect without name = "muon"'),
        (["learner.optimizer.embedding_rate=0.1"], 'learner.optimizer.embedding_rate: has no effect without name = "muon"'),
        (["learner.optimizer.warmup_steps=3", "learner.optimizer.warmup_ratio=0.1"], "learner.optimizer.warmup_ratio: expected this or"),
        (["learner.optimizer.decay_from=0.5"], "learner.optimizer.decay_from: has no effect without final_rate below 1"),
        (["learner.optimizer.decay=cosine"], "learner.optimizer.decay: has no effect without final_rate below 1"),
    ],
)  # fmt: skip
def test_what_cannot_act_is_refused_by_name(recipe, overrides, message):
    assert refusal(recipe, *overrides).startswith(message)


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.aggregation=fixed_length", "algorithm.fixed_length=9"],
        ["algorithm.truncated=shape", "algorithm.overlong_margin=256"],
        ["algorithm.old=recompute", "algorithm.correction={level='token', kind='mask', floor=0.5}"],
        ["algorithm.max_mismatch=0.1"],
        [
            "algorithm.loss={name='cispo', clip_high=4.0}",
            "algorithm.advantage=hard",
            "algorithm.aggregation=sequence_mean",
        ],
        [*GSPO, "algorithm.shared=mass"],
        [*FLAT, "algorithm.estimator.baseline=leave_subtree_out"],
        [*FLAT, "rollout.n=1", "algorithm.estimator={name='reinforce_pp'}"],
        [*SCRIPTED, "algorithm.entropy_advantage={source='annotate'}"],
        ["tools.python=", "reward.bonus=0"],
        ["tools.python="],
        ["rollout.dynamic_sampling={max_attempts=1}"],
        ["learner.optimizer.name=muon", "learner.optimizer.vector_rate=0.1"],
        ["learner.optimizer.decay_from=0.5", "learner.optimizer.final_rate=0.1"],
        ["learner.optimizer.decay=cosine", "learner.optimizer.final_rate=0.1"],
    ],
)
def test_what_can_act_is_taken(recipe, overrides):
    assert load(recipe, *overrides) != load(recipe)


# from names to objects


@pytest.mark.parametrize(
    ("setting", "built"),
    [
        ("{name='group'}", GroupRelative("repeat", scale="std", baseline="pooled")),
        (
            "{name='group', scale='none', baseline='leave_subtree_out'}",
            GroupRelative("repeat", scale="none", baseline="leave_subtree_out"),
        ),
        ("{name='tree_grpo'}", TreeGrpo("repeat")),
        ("{name='node_value'}", NodeValue("repeat")),
        ("{name='reinforce_pp'}", ReinforcePlusPlus("repeat", group_mean=False, kl_coefficient=0.0)),
        (
            "{name='reinforce_pp', group_mean=true}",
            ReinforcePlusPlus("repeat", group_mean=True, kl_coefficient=0.0),
        ),
    ],
)
def test_estimators(recipe, setting, built):
    chosen = f"estimator={setting}"
    assert build_estimator(algorithm(recipe, chosen)) == built
    penalty = "kl={place='reward', estimator='k1', coefficient=0.5}"
    penalised = build_estimator(algorithm(recipe, chosen, penalty))
    if isinstance(built, ReinforcePlusPlus):
        assert penalised == ReinforcePlusPlus("repeat", group_mean=built.group_mean, kl_coefficient=0.5)
    else:
        assert penalised == KlInReward(built, 0.5)
    aware = build_estimator(algorithm(recipe, chosen, "entropy_advantage={weight=0.3, source='annotate'}"))
    assert aware == EntropyAwareAdvantage(built, "repeat", 0.3, "annotate")


@pytest.mark.parametrize(
    ("setting", "built"),
    [
        ("{name='clip'}", ClippedSurrogate(0.2, 0.2, None)),
        ("{name='clip', clip_high=0.28, dual_clip=3.0}", ClippedSurrogate(0.2, 0.28, 3.0)),
        ("{name='aepo_clip', dual_clip=3.0}", StopGradientClip(0.2, 0.2, 3.0)),
        ("{name='gppo', clip_low=0.1}", GppoSurrogate(0.1, 0.2)),
        ("{name='cispo', clip_high=4.0}", CispoSurrogate(clip_low=None, clip_high=4.0)),
        ("{name='cispo', clip_low=0.5, clip_high=4.0}", CispoSurrogate(clip_low=0.5, clip_high=4.0)),
    ],
)
def test_losses(recipe, setting, built):
    objective = build_objective(algorithm(recipe, f"loss={setting}"))
    assert (objective.surrogate, objective.penalties) == (built, ())
    assert objective.sequence_loss is None


def test_a_loss_on_whole_paths(recipe):
    objective = build_objective(algorithm(recipe, "loss={name='gspo'}", "aggregation=sequence_mean"))
    assert objective.sequence_loss == GspoSurrogate(3e-4, 4e-4)
    assert objective.token_losses == ()


def test_penalties(recipe):
    settings = ("kl={place='loss', estimator='k3_ratio', coefficient=0.1}", "entropy_bonus=0.01")
    section = algorithm(recipe, *settings)
    assert build_objective(section).penalties == (KlPenalty("k3_ratio", 0.1), EntropyBonus(0.01))
    assert build_objective(algorithm(recipe)).penalties == ()


def test_weightings_corrections_and_shaping(recipe):
    section = algorithm(
        recipe, "shared=split", "advantage=hard", "aggregation=fixed_length", "fixed_length=7"
    )
    weighting = build_objective(section).weighting
    assert (weighting.shared, weighting.sharing, weighting.fixed_length) == ("split", "hard", 7)
    settings = ("old=recompute", "correction={level='sequence', kind='truncate', cap=3.0}")
    correction = algorithm(recipe, *settings).correction
    assert (correction.level, correction.kind, correction.cap, correction.floor) == (
        "sequence",
        "truncate",
        3.0,
        None,
    )
    plain = LengthReward()
    assert build_shaping(section, plain, 256) is plain
    shaped = build_shaping(algorithm(recipe, "truncated=shape", "overlong_margin=9"), plain, 256)
    assert shaped == OverlongReward(plain, 256, 9)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ((), AnnotationRequest()),
        (("entropy_advantage={}",), AnnotationRequest()),
        (("entropy_advantage={source='annotate'}",), AnnotationRequest(entropies=True)),
        (("old=recompute",), AnnotationRequest(old="recompute")),
        (("kl={place='loss', estimator='k2', coefficient=0.1}",), AnnotationRequest(ref_logprobs=True)),
        (("kl={place='reward', estimator='k1', coefficient=0.1}",), AnnotationRequest(ref_logprobs=True)),
    ],
)
def test_nothing_is_annotated_that_nobody_asks_for(recipe, settings, wanted):
    assert annotation_request(algorithm(recipe, *settings)) == wanted


BEHAVIOR = ["engine.name=vllm", "engine.launch=true"]


@pytest.mark.parametrize(
    ("settings", "old", "level"),
    [
        ([], "recompute", "token"),
        (["engine.dtype=float32"], "behavior", None),
        (["algorithm.old=behavior"], "behavior", None),
        (["algorithm.correction={level='token', kind='mask'}"], "recompute", "token"),
    ],
)
def test_an_engine_in_16_bits_is_corrected_by_default(recipe, settings, old, level):
    algorithm = load(recipe, *BEHAVIOR, *settings).algorithm
    assert algorithm.old == old
    assert (algorithm.correction and algorithm.correction.level) == level


# what one optimizer step a rollout leaves


def notes(recipe, *overrides):
    loaded = load(recipe, *overrides)
    return loaded.algorithm.note_idle(
        loaded.rollout.problems_per_step,
        loaded.learner.problems_per_minibatch,
        loaded.engine.name == "local",
    )


ONCE = "learner.problems_per_minibatch=4"
WHY = "note: with one optimizer step a rollout (learner.problems_per_minibatch = 4) the ratio is 1: "
CLIPS = ("algorithm.loss.clip_low=0.1", "algorithm.loss.clip_high=0.3")
RECOMPUTE = "algorithm.old=recompute"
CORRECTED = "algorithm.correction={level='token', kind='truncate'}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*CLIPS], "algorithm.loss.clip_low and algorithm.loss.clip_high do not act"),
        (["algorithm.loss.clip_high=0.3"], "algorithm.loss.clip_high does not act"),
        (["algorithm.loss={name='gppo'}"], 'algorithm.loss.name = "gppo" does not act'),
        (["algorithm.loss.dual_clip=3.0"], "algorithm.loss.dual_clip does not act"),
        (["algorithm.advantage=hard"], 'algorithm.advantage = "hard" does not act'),
        ([RECOMPUTE], 'algorithm.old = "recompute" does not act'),
        ([CLIPS[0], RECOMPUTE], 'algorithm.loss.clip_low and algorithm.old = "recompute" do not act'),
        ([CLIPS[0], RECOMPUTE, CORRECTED], "algorithm.loss.clip_low does not act"),
        ([CLIPS[0], RECOMPUTE, *SCRIPTED], "algorithm.loss.clip_low does not act"),
    ],
)
def test_what_papers_set_is_noted_and_taken(recipe, overrides, message):
    assert notes(recipe, ONCE, *overrides) == (WHY + message,)


@pytest.mark.parametrize(
    "overrides",
    [
        [*CLIPS, RECOMPUTE],
        [ONCE],
        [ONCE, RECOMPUTE, CORRECTED],
        # To the logprobs of a script the ratio is anything.
        [ONCE, *CLIPS, *SCRIPTED],
        [ONCE, RECOMPUTE, *SCRIPTED],
    ],
)
def test_nothing_is_noted_where_all_acts(recipe, overrides):
    assert notes(recipe, *overrides) == ()
