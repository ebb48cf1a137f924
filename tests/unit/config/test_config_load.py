import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import RootModel

from ramify.algos.branch_arpo import BernoulliConfig, ThresholdConfig
from ramify.algos.branch_rules import FlatConfig
from ramify.algos.losses import GppoSurrogate
from ramify.config import shipped_recipes
from ramify.config.load import check_recipe, command_of, load_recipe, read_toml, resolved
from ramify.config.mistakes import annotations_of, schemas_in
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe
from ramify.core.errors import ConfigError
from ramify.engines.configs import ScriptedEngineConfig
from ramify.rewards.configs import LengthRewardConfig
from train_recipes import RECIPE, load, refusal

SCHEMAS = {
    schema.command: schema
    for schema in (TrainRecipe, SftRecipe, DpoRecipe, EvalRecipe, SynthRecipe, SelfCriticRecipe)
}
TRAIN = (
    RECIPE.replace("m = 3", "m = 4")
    .replace('"threshold"', '{ name = "bernoulli", alpha = 0.4 }')
    .replace("[tools.python]\n", "")
    .replace('"hierarchical"', '"length"')
)
SFT = """\
[model]
path = "models/tiny"
[data]
train = "train.jsonl"
max_tokens = 512
[run]
dir = "runs/a"
[learner]
batch_size = 4
optimizer = { name = "muon", rate = 0.01, betas = [0.8, 0.95] }
"""
EVAL = """\
[model]
path = "models/tiny"
[data]
test = "test.jsonl"
max_prompt_tokens = 512
[run]
dir = "runs/a"
[sampling]
attempts = 4
k = [1, 4]
max_tokens = 256
max_calls = 3
[engine]
name = "scripted"
script = "turns.jsonl"
[tools.python]
[reward]
name = "hierarchical"
"""
RULES = "none, threshold, bernoulli, balanced, random, yoked, shuffled, oracle, quantile, seed_compat_arpo, seed_compat_aepo, file"
RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.toml"))


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(TRAIN)
    return path


def test_a_recipe_with_its_defaults(recipe):
    loaded = load(recipe)
    assert loaded.model.path == Path("models/tiny")
    assert loaded.rollout.branching == BernoulliConfig(name="bernoulli", alpha=0.4)
    assert (loaded.rollout.temperature, loaded.tools.python, loaded.sandbox.min_level) == (1.0, None, 2)


def test_a_recipe_may_begin_with_a_byte_order_mark(recipe):
    recipe.write_text(TRAIN, encoding="utf-8-sig")
    assert load(recipe).rollout.n == 8


# overrides


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("rollout.n=16", lambda r: r.rollout.n, 16),
        ("rollout.temperature=1", lambda r: r.rollout.temperature, 1.0),
        ("learner.optimizer.rate=2.5e-4", lambda r: r.learner.optimizer.rate, 2.5e-4),
        ("learner.optimizer.betas=[0.8, 0.9]", lambda r: r.learner.optimizer.betas, (0.8, 0.9)),
        ("run.deterministic=true", lambda r: r.run.deterministic, True),
        ("run.dir=runs/b-2", lambda r: r.run.dir, Path("runs/b-2")),
        ('run.dir="runs/b c"', lambda r: r.run.dir, Path("runs/b c")),
        ("run.dir='7'", lambda r: r.run.dir, Path("7")),
        ("run.dir=2026-01-31", lambda r: r.run.dir, Path("2026-01-31")),
        ("run.dir=2026-01-31T10:00:00", lambda r: r.run.dir, Path("2026-01-31T10:00:00")),
        ("run.dir=a=b.c", lambda r: r.run.dir, Path("a=b.c")),
        ("run.dir=a # b", lambda r: r.run.dir, Path("a # b")),
        (" run.dir = runs/c ", lambda r: r.run.dir, Path("runs/c")),
        ("algorithm.shared=mass", lambda r: r.algorithm.shared, "mass"),
        ("tools.python.max_output_chars=9", lambda r: r.tools.python.max_output_chars, 9),
        ("tools.python={}", lambda r: r.tools.python.max_output_chars, 4000),
        ("rollout.branching=threshold", lambda r: r.rollout.branching, ThresholdConfig(name="threshold")),
        ("rollout.branching.beta=0.1", lambda r: r.rollout.branching.beta, 0.1),
        ("rollout.branching.beta=-0.1", lambda r: r.rollout.branching.beta, -0.1),
        ("rollout.branching={name='threshold'}", lambda r: r.rollout.branching.name, "threshold"),
    ],
)
def test_overrides(recipe, override, read, value):
    assert read(load(recipe, override)) == value


def test_an_override_keeps_what_stands_beside_it(recipe):
    branching = load(recipe, "rollout.branching.beta=0.1").rollout.branching
    assert branching == BernoulliConfig(name="bernoulli", alpha=0.4, beta=0.1)


def test_later_overrides_win_and_build_on_a_short_form(recipe):
    assert load(recipe, "rollout.n=9", "rollout.n=10").rollout.n == 10
    branching = load(recipe, "rollout.branching=bernoulli", "rollout.branching.beta=0.1").rollout.branching
    assert branching == BernoulliConfig(name="bernoulli", beta=0.1)
    recipe.write_text(TRAIN.replace('{ name = "bernoulli", alpha = 0.4 }', '"threshold"'))
    branching = load(recipe, "rollout.branching.min_entropy_delta=0.25").rollout.branching
    assert branching == ThresholdConfig(name="threshold", min_entropy_delta=0.25)


def test_a_rule_takes_no_key_of_another(recipe):
    message = refusal(recipe, "rollout.branching=none", "rollout.branching.beta=0.1")
    assert message == "rollout.branching.beta: unknown key"


def test_a_rule_that_remembers_may_be_in_a_run_that_is_repeated_exactly(recipe):
    loaded = load(recipe, "rollout.branching=seed_compat_arpo", "run.deterministic=true")
    assert loaded.rollout.branching.baseline_never_reset


@pytest.mark.parametrize("override", ["rollout.m=", "rollout.m= "])
def test_an_override_without_a_value_leaves_the_key_out(recipe, override):
    loaded = load(recipe, "rollout.branching=balanced", override)
    assert (loaded.rollout.m, loaded.rollout.branching.name) == (None, "balanced")
    assert load(recipe, override, "rollout.m=3").rollout.m == 3
    assert refusal(recipe, "rollout.n=") == "rollout.n: expected a value, found none"


def test_an_override_without_a_value_makes_no_table(recipe):
    loaded = load(recipe, "model.lora.rank=", "tools.python.preamble=", "eval.limit=")
    assert (loaded.model.lora, loaded.tools.python, loaded.eval) == (None, None, None)
    for override in ("rollout.mm=", "rolout.m=", "rollout.n.x="):
        with pytest.raises(ConfigError, match=rf"^-s {override}: there is no such key to remove$"):
            load(recipe, override)


@pytest.mark.parametrize("override", ["rollout.n", "=3", "", "rollout..n=3", ".n=3"])
def test_an_override_that_is_none(recipe, override):
    with pytest.raises(ConfigError) as caught:
        load(recipe, override)
    assert str(caught.value) == f"-s {' '.join(override.split())}: expected key.name=value"


def test_an_override_below_a_value(recipe):
    with pytest.raises(ConfigError, match=r"^-s rollout.n.x: n is a value, not a table$"):
        load(recipe, "rollout.n.x=1")


def test_an_override_can_not_smuggle_a_second_key(recipe):
    assert load(recipe, "run.dir=1\nseed = 7").run.seed == 0


# mistakes


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.nn=3", "rollout.nn: unknown key, did you mean n?"),
        ("rolout.n=3", "rolout: unknown key, did you mean rollout?"),
        ("zzz=3", "zzz: unknown key"),
        ("rollout.branching.betta=1", "rollout.branching.betta: unknown key, did you mean beta?"),
        ("rollout.branching.min_entropy_delta=1", "rollout.branching.min_entropy_delta: unknown key"),
        ("tools.search.corpos=a", "tools.search.corpos: unknown key, did you mean corpus?"),
        ("tools.shell={}", "tools.shell: unknown key"),
        ("engine.slot=3", "engine.slot: unknown key, did you mean slots?"),
        ("engine.script=a", "engine.script: unknown key"),
        ("learner.optimizer.lr=1", "learner.optimizer.lr: unknown key, did you mean rate?"),
        ("learner.learning_rate=1", "learner.learning_rate: unknown key, did you mean learner.optimizer.rate?"),
        ("run.epochs=2", "run.epochs: unknown key, did you mean data.epochs?"),
        ("rollout.group_size=4", "rollout.group_size: unknown key, did you mean n?"),
        ("rollout.n=four", "rollout.n: expected a valid integer, got 'four'"),
        ('rollout.n="4"', "rollout.n: expected a valid integer, got '4'"),
        ("rollout.n=true", "rollout.n: expected a valid integer, got True"),
        ("rollout.n=4.5", "rollout.n: expected a valid integer, got 4.5"),
        ("rollout.n=0", "rollout.n: expected a number greater than or equal to 1, got 0"),
        ("rollout.max_calls=-1", "rollout.max_calls: expected a number greater than or equal to 0, got -1"),
        ("rollout.n=[8]", "rollout.n: expected a valid integer, got [8]"),
        ("run.dir=7", "run.dir: expected a path, got 7"),
        ("run.dir.x=7", "run.dir: expected a path, got a table"),
        ("model=tiny", "model: expected a table, got 'tiny'"),
        ("rollout=7", "rollout: expected a table, got 7"),
        ("tools.search=[]", "tools.search: expected a table, got []"),
        ("learner.optimizer.rate=inf", "learner.optimizer.rate: expected a finite number, got inf"),
        ("learner.optimizer.betas=[0.9, 1.5]", "learner.optimizer.betas.1: expected a number less than 1, got 1.5"),
        ("rollout.temperature=nan", "rollout.temperature: expected a finite number, got nan"),
        ("model.dtype=half", "model.dtype: expected 'float32' or 'bfloat16', got 'half'"),
        ("rollout.branching.name=foo", f"rollout.branching.name: expected one of {RULES}, got 'foo'"),
        ("rollout.branching=foo", f"rollout.branching.name: expected one of {RULES}, got 'foo'"),
        ("rollout.branching={}", f"rollout.branching.name: expected one of {RULES}, found none"),
        ("rollout.branching=3", "rollout.branching: expected a table, got 3"),
        ("rollout.branching.alpha=2", "rollout.branching.alpha: expected a number less than or equal to 1, got 2"),
        ("engine={}", "engine.name: expected one of local, scripted, vllm, found none"),
        ("engine.name=sglang", "engine.name: expected one of local, scripted, vllm, got 'sglang'"),
        ("engine.name=3", "engine.name: expected one of local, scripted, vllm, got 3"),
        ("engine={name='scripted'}", "engine.script: expected a value, found none"),
        ("tools.search_of={gaia={provider='bing'}}", "tools.search_of.gaia.provider: expected one of local, dense, retriever, brightdata, serper, searxng, got 'bing'"),
        ("tools.search_of={local={provider='local'}}", "tools.search_of.local.corpus: expected a value, found none"),
        ("tools.search_of={gaia={corpus='p.jsonl', hedge_seconds=1}}", "tools.search_of.gaia.hedge_seconds: that of [tools.search] holds. Remove it."),
        ("environments={game={type='gym'}}", "environments.game.type: expected one of own, mcp, openenv, got 'gym'"),
        ("environments={game={pth='a', function='A'}}", "environments.game.pth: unknown key, did you mean path?"),
        ("rollout.m=9", "rollout.m: expected at most n = 8, got 9"),
        ("rollout.n=2", "rollout.m: expected at most n = 2, got 4"),
        ("rollout.temperature=0", "rollout.temperature: training samples, so it must be above 0"),
        ("rollout.temperature=1e-300", "rollout.temperature: expected 0 (greedy) or at least 0.001, got 1e-300"),
        ("algorithm.kl={place='loss', estimator='k2', coefficient=0}", "algorithm.kl.coefficient: expected a number greater than 0, got 0"),
        ("run.deterministic=0", "run.deterministic: expected true or false, got 0"),
        (
            "algorithm.estimator.name=ppo",
            "algorithm.estimator.name: expected one of group, reinforce_pp, tree_grpo, node_value, turn_level, file, got 'ppo'",
        ),
        ("algorithm.loss.clip=0.2", "algorithm.loss.clip: unknown key, did you mean clip_low?"),
        ("reward.bonus=0.2", "reward.bonus: unknown key"),
        ('rollout.branching="foo\\nbar"', Rf"rollout.branching.name: expected one of {RULES}, got 'foo\nbar'"),
        ("learner.optimizer.betas=[0.9]", "learner.optimizer.betas.1: expected a value, found none"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_file_and_key(recipe, override, message):
    assert refusal(recipe, override) == message


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("m = 4\n", "rollout.m: expected a value, found none"),
        ('[model]\npath = "models/tiny"\n', "model: expected a value, found none"),
        ('corpus = "passages.jsonl"\n', "tools.search.corpus: expected a value, found none"),
    ],
)
def test_a_missing_key(recipe, removed, message):
    assert removed in TRAIN
    assert refusal(recipe, text=TRAIN.replace(removed, "")) == message


def test_a_misspelt_key_comes_before_the_missing_one_that_it_was_meant_for(recipe):
    message = refusal(recipe, text=TRAIN.replace("max_calls", "max_cals"))
    assert message == "rollout.max_cals: unknown key, did you mean max_calls?"


def test_ten_mistakes_are_told_at_once_each_with_its_key(recipe):
    wrong = {
        'path = "models/tiny"': 'name_or_path = "models/tiny"',
        "max_prompt_tokens = 512": "max_prompt_tokens = 0",
        'dir = "runs/a"': "dir = 7",
        "n = 8": 'n = "eight"',
        "max_calls = 3": "max_cals = 3",
        "alpha = 0.4": "alpha = 4",
        'name = "local"': 'name = "sglang"',
        'corpus = "passages.jsonl"': "",
        'estimator = { name = "group" }': 'estimator = { name = "ppo" }',
        "rate = 1e-3": "lr = 1e-3",
    }
    text = TRAIN
    for right, mistake in wrong.items():
        assert right in text
        text = text.replace(right, mistake)
    message = refusal(recipe, text=text)
    for number, part in enumerate(
        (
            "10 mistakes: (1) model.name_or_path: unknown key, did you mean path?",
            "rollout.max_cals: unknown key, did you mean max_calls?",
            "learner.optimizer.lr: unknown key, did you mean rate?",
            "data.max_prompt_tokens: expected a number greater than or equal to 1, got 0",
            "run.dir: expected a path, got 7",
            "rollout.n: expected a valid integer, got 'eight'",
            "rollout.branching.alpha: expected a number less than or equal to 1, got 4",
            "engine.name: expected one of local, scripted, vllm, got 'sglang'",
            "tools.search.corpus: expected a value, found none",
            "algorithm.estimator.name: expected one of group",
        ),
        1,
    ):
        assert f"({number}) {part.partition(') ')[2] if number == 1 else part}" in message


def test_checks_of_several_sections_are_told_together(recipe):
    message = refusal(
        recipe,
        "rollout.m=8",
        "learner.optimizer={name='muon', rate=1e-3, vector_rate=1e-3}",
        "model.lora={rank=1, alpha=2}",
        "sandbox.min_level=1",
    )
    assert message.startswith("3 mistakes: (1) ")
    for key in (
        'rollout.branching: "bernoulli" can never branch',
        "learner.optimizer.vector_rate",
        "sandbox: only",
    ):
        assert key in message


def test_a_value_that_fits_none_of_several_types_is_one_mistake(recipe):
    message = refusal(recipe, "model.lora={rank=4, alpha=8, targets=3}")
    assert message.startswith("model.lora.targets: expected ")
    assert "mistakes" not in message


def test_wrong_entries_do_not_make_a_list_too_short(recipe):
    engine = "engine={name='vllm', launch=true, gpus=[0, 1]}"
    assert refusal(recipe, engine).startswith("2 mistakes: (1) engine.gpus.0: expected a valid string")


def test_keys_with_line_breaks_do_not_break_the_line(recipe):
    assert "unknown key" in refusal(recipe, text='"a\\nb" = 1\n' + TRAIN)


@pytest.mark.parametrize(
    "text",
    ["[model", "n = ", "a = 1\na = 2", "\x00", "name = 'a\n'", "n = " + 5000 * "1", "n = " + 100_000 * "["],
    ids=range(7),
)
def test_what_is_no_toml(recipe, text):
    assert refusal(recipe, text=text).startswith("expected TOML: ")
    if text.startswith("n = ") and len(text) > 9:
        message = refusal(recipe, f"rollout.n={text[4:]}", text=TRAIN)
        assert message.startswith(f"rollout.n: expected a valid integer, got '{text[4:7]}")


@pytest.mark.parametrize("name", ["sft.yaml", "sft.yml", "run_arpo.sh"])
def test_a_file_of_another_trainer_is_told_where_its_keys_are(tmp_path, name):
    (tmp_path / name).write_text("stage: sft\nlearning_rate: 1e-5\n")
    with pytest.raises(
        ConfigError, match=r"expected TOML: .*coming-from\.md has the keys of other trainers$"
    ):
        read_toml(tmp_path / name)


def test_the_recipe_of_an_older_version(tmp_path):
    old = tmp_path / "recipe.json"
    old.write_text("{}")
    with pytest.raises(ConfigError, match=r"recipe\.json: expected a recipe in TOML; .* cannot be resumed"):
        read_toml(old)


def test_a_shipped_recipe_that_is_misspelt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="found none, did you mean arpo_reasoning_7b"):
        read_toml(Path("arpo_resoning_7b"))


def test_the_folder_of_a_run_is_no_recipe(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(ConfigError, match=r"found a folder; the recipe of its run is .*recipe\.toml"):
        read_toml(tmp_path)


@pytest.mark.parametrize("wanted", list(SCHEMAS.values()), ids=list(SCHEMAS))
@pytest.mark.parametrize(
    ("shipped", "command"),
    [
        ("quickstart_rl", "train"),
        ("quickstart_sft", "sft"),
        ("dpo_toolstar_7b", "dpo"),
        ("quickstart_eval", "eval"),
        ("toolstar_synth", "synth"),
        ("toolstar_selfcritic", "selfcritic"),
    ],
)
def test_a_recipe_of_another_command_names_it(wanted, shipped, command):
    path = shipped_recipes() / f"{shipped}.toml"
    if command == wanted.command:
        assert isinstance(load_recipe(wanted, path, []), wanted)
        return
    message = f"{path}: a recipe for ramify {command}, expected one for ramify {wanted.command}"
    if (wanted, command) == (DpoRecipe, "sft"):
        message = f"{path}: learner.beta: expected a value, found none"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_recipe(wanted, path, [])


def test_what_is_no_text(recipe):
    recipe.write_bytes(b"a = '\xff'")
    assert refusal(recipe).startswith("expected TOML: ")


def test_an_empty_recipe(recipe):
    message = refusal(recipe, text="")
    assert message.startswith(
        "8 mistakes: (1) model: expected a value, found none (2) data: expected a value"
    )


def test_a_missing_file_a_folder_and_a_file_as_folder(recipe, tmp_path):
    for path in (tmp_path / "none.toml", tmp_path, recipe / "below.toml"):
        with pytest.raises(ConfigError) as caught:
            read_toml(path)
        assert str(caught.value).startswith(f"{path}: expected a recipe file")
        assert "\n" not in str(caught.value)


def test_the_name_stands_for_the_file():
    with pytest.raises(ConfigError, match=r"^settings of the quick start: 4 mistakes: \(1\) model: expected"):
        check_recipe(SftRecipe, {}, "settings of the quick start")


# round trips


def schemas_below(schema):
    yield schema
    for annotation in annotations_of(schema).values():
        for below in schemas_in(annotation):
            yield from schemas_below(below)


@pytest.mark.parametrize("recipe_schema", [TrainRecipe, SftRecipe, DpoRecipe, EvalRecipe])
def test_no_value_is_what_a_key_that_is_left_out_means(recipe_schema):
    """TOML has no word for it, so that such keys are left out of a resolved recipe."""
    for schema in schemas_below(recipe_schema):
        for name, field in (getattr(schema, "model_fields", None) or schema.__dataclass_fields__).items():
            if type(None) in get_args(annotations_of(schema).get(name)):
                assert field.default is None, (schema, name)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (TrainRecipe, TRAIN),
        (TrainRecipe, TRAIN.replace('{ name = "bernoulli", alpha = 0.4 }', '"none"').replace("m = 4\n", "")),
        (
            TrainRecipe,
            TRAIN.replace('{ name = "bernoulli", alpha = 0.4 }', '"balanced"').replace("m = 4\n", ""),
        ),
        (TrainRecipe, TRAIN.replace('{ name = "bernoulli"', '{ name = "threshold", beta = 0.2, tau = 0.5')),
        (SftRecipe, SFT),
        (EvalRecipe, EVAL),
    ],
    ids=["train", "flat", "balanced", "threshold", "sft", "eval"],
)
def test_a_resolved_recipe_is_the_recipe(tmp_path, schema, text):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    loaded = load_recipe(schema, path, ())
    table = tomllib.loads(resolved(loaded))
    assert check_recipe(schema, table, "again") == loaded
    assert resolved(check_recipe(schema, table, "again")) == resolved(loaded)


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_shipped_recipes_load_and_survive(path):
    (command,) = {*re.findall("eval|sft|dpo|synth|selfcritic", path.stem)} or {"train"}
    assert command_of(read_toml(path)) == command
    schema = SCHEMAS[command]
    loaded = load_recipe(schema, path, ())
    assert check_recipe(schema, tomllib.loads(resolved(loaded)), "again") == loaded


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if "[rollout]" in path.read_text()], ids=lambda path: path.stem
)
def test_a_papers_recipe_can_be_tried_small(path):
    schema = SCHEMAS[command_of(read_toml(path))]
    for size in (1, 8):
        loaded = load_recipe(schema, path, [f"rollout.problems_per_step={size}"])
        assert loaded.rollout.problems_per_step == size


def test_another_name_drops_what_only_the_old_form_knows(recipe):
    recipe.write_text(TRAIN.replace('name = "local"', 'name = "local"\nslots = 7'))
    assert load(recipe, "engine.name=local").engine.slots == 7
    engine = load(recipe, "engine.name=scripted", "engine.script=turns.toml").engine
    assert engine == ScriptedEngineConfig(name="scripted", script=Path("turns.toml"))
    branching = load(recipe, "rollout.branching.name=none", "rollout.m=8").rollout.branching
    assert branching == FlatConfig(name="none")
    recipe.write_text(TRAIN.replace('name = "length"', 'name = "compat"\nsystem = "arpo"'))
    assert load(recipe, "reward.name=compat").reward.system == "arpo"
    assert load(recipe, "reward.name=length").reward == LengthRewardConfig()
    two_steps = TRAIN.replace("problems_per_minibatch = 2", "problems_per_minibatch = 1")
    recipe.write_text(two_steps.replace('name = "clip"', 'name = "clip", dual_clip = 3.0'))
    assert load(recipe, "algorithm.loss.name=gppo").algorithm.loss == GppoSurrogate()
    recipe.write_text(TRAIN.replace('name = "local"', 'name = "local"\nslotz = 7'))
    assert refusal(recipe, "engine.name=scripted", "engine.script=turns.toml") == "engine.slotz: unknown key"


# writing

TABLE = {
    "name": 'a "b" \\ c\nd\te\x7f\x00 \u00e9\U0001f600',
    "empty": {},
    "numbers": [1, -2, 0.5, 1e-6, 1e22, 2**53],
    "switches": {"on": True, "off": False},
    "deep": {"below": {"x": 1}, "y": 2},
    "lists": {"none": [], "nested": [[1, 2], []], "mixed": [1, {"a": "b", "c d": [{}]}]},
    "tools": [{"name": "a", "args": {"k": [1]}}, {"name": "b", "args": {}}],
    "odd key.with dots": {"k\n": 1},
}


def written(table):
    return resolved(RootModel[dict[str, Any]](table))


def test_what_is_written_is_read_again():
    assert tomllib.loads(written(TABLE)) == TABLE


def test_a_key_without_a_value_is_left_out():
    assert written({"a": None, "b": {"c": None}}) == "[b]\n"
    assert tomllib.loads(written({"a": [1, {"b": None}]})) == {"a": [1, {}]}


@pytest.mark.parametrize("value", [float("1e-300"), 1e308, 123456789.123456789, 0.1 + 0.2])
def test_numbers_keep_every_digit(value):
    assert tomllib.loads(written({"x": value})) == {"x": value}
