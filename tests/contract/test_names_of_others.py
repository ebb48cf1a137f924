"""The table of other trainers' names: against the schemas, against its pages, and the hints that it gives."""

import re
import tomllib
from pathlib import Path

import pytest

from ramify.config.load import override_recipe
from ramify.config.mistakes import OtherName, counterpart, dotted_keys, trainers
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe
from ramify.core.errors import ConfigError
from train_recipes import RECIPE

DOCS = Path(__file__).parents[2] / "docs"
KEYS = {
    schema.command: frozenset(dotted_keys(schema))
    for schema in (TrainRecipe, SftRecipe, DpoRecipe, EvalRecipe, SynthRecipe, SelfCriticRecipe)
}
# The scripts of ARPO and AEPO, verl's own and TRL's, as design/reference/coming-from.md lists them, what is close to them, and names of
# LLaMA-Factory, axolotl and OpenRLHF.
SCRIPT_NAMES = """
data.train_files data.val_files data.prompt_key data.train_batch_size data.max_prompt_length data.max_response_length
actor_rollout_ref.model.path actor_rollout_ref.model.enable_gradient_checkpointing actor_rollout_ref.model.use_remove_padding
actor_rollout_ref.actor.optim.lr actor_rollout_ref.actor.ppo_mini_batch_size actor_rollout_ref.actor.use_dynamic_bsz
actor_rollout_ref.actor.ppo_max_token_len_per_gpu actor_rollout_ref.actor.use_kl_loss actor_rollout_ref.actor.kl_loss_coef
actor_rollout_ref.actor.kl_loss_type actor_rollout_ref.actor.fsdp_config.param_offload
actor_rollout_ref.actor.fsdp_config.optimizer_offload actor_rollout_ref.actor.enable_entropy_balanced_clipping
actor_rollout_ref.actor.enable_entropy_balanced_advantage actor_rollout_ref.rollout.n actor_rollout_ref.rollout.initial_rollouts
actor_rollout_ref.rollout.beam_size actor_rollout_ref.rollout.branch_probability actor_rollout_ref.rollout.entropy_weight
actor_rollout_ref.rollout.enable_dynamic_rollouts actor_rollout_ref.rollout.name actor_rollout_ref.rollout.mode
actor_rollout_ref.rollout.gpu_memory_utilization actor_rollout_ref.rollout.tensor_model_parallel_size
actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu actor_rollout_ref.rollout.multi_turn.enable
actor_rollout_ref.rollout.tools.tool_instances.search.params.cache_file
actor_rollout_ref.rollout.tools.tool_instances.search.class_path actor_rollout_ref.ref.fsdp_config.param_offload
reward_model.reward_manager custom_reward_function.path custom_reward_function.name algorithm.adv_estimator
algorithm.kl_ctrl.kl_coef trainer.critic_warmup trainer.logger trainer.project_name trainer.experiment_name trainer.n_gpus_per_node
trainer.nnodes trainer.save_freq trainer.test_freq trainer.val_before_train trainer.total_epochs trainer.default_local_dir
trainer.rollout_data_dir hydra.run.dir train_batch_size rollout_n beam_size entropy_weight initial_rollouts max_response_length
num_generations max_prompt_length max_completion_length per_device_train_batch_size gradient_accumulation_steps generation_batch_size
steps_per_generation num_iterations beta epsilon epsilon_high delta loss_type scale_rewards reward_weights
mask_truncated_completions importance_sampling_level top_entropy_quantile use_vllm vllm_mode vllm_gpu_memory_utilization
vllm_tensor_parallel_size learning_rate num_train_epochs max_steps warmup_ratio warmup_steps lr_scheduler_type weight_decay
max_grad_norm bf16 gradient_checkpointing output_dir save_steps save_total_limit logging_steps report_to run_name eval_steps
eval_strategy log_completions temperature top_p top_k sync_ref_model cutoff_len template finetuning_type lora_target val_size
model_name_or_path stage dataset num_epochs lr max_new_tokens
data.messages_key data.response_key dataset_text_field modules_to_save early_stopping_steps pure_bf16 enable_thinking export_dir
sequence_len sample_packing train_on_inputs roles_to_train val_set_size adapter lora_target_linear chat_template wandb_project
rollout_batch_size micro_train_batch_size actor_learning_rate generate_max_len prompt_max_len eps_clip_low_high
advantage_estimator dynamic_filtering remote_rm_url num_episodes
"""
PARTS = [part for table in trainers().values() for part in table.release]


def page_name(trainer):
    if trainer == "others":
        return "coming-from.md"
    return f"{'from' if trainers()[trainer].release else 'coming-from'}-{trainer.replace('_', '-')}.md"


def refusal(*overrides):
    with pytest.raises(ConfigError) as caught:
        override_recipe(TrainRecipe, tomllib.loads(RECIPE), overrides, "r")
    return str(caught.value).removeprefix("r: ")


@pytest.mark.parametrize("trainer", trainers())
def test_a_row_names_keys_that_exist_and_can_be_reached(trainer):
    for row in trainers()[trainer].rows:
        assert any(all(key in keys for key in row.ours) for keys in KEYS.values()), row
        assert row.ours or row.note, row
        # One sentence, so that a message has two.
        assert not row.note or re.fullmatch(r"(?!.*\. )[^.|][^|]*[^.|]\.", row.note), row
        for name in row.theirs:
            assert not any(name in keys for keys in KEYS.values()), row
            path = name.replace("**", "*").replace("*", "anything").split(".")
            answers = [counterpart(path, keys) for keys in KEYS.values()]
            assert row.ours in [answer.ours for answer in answers if answer is not None], row


def test_pages_and_table_have_the_same_rows():
    pages = {}
    for page in [*DOCS.glob("coming-from*.md"), *DOCS.glob("from-*.md")]:
        settings = page.read_text(encoding="utf-8").partition("| theirs |")[2]
        lines = re.findall(r"^\| (`.*?`) \| (.*?) \|(.*) \|$", settings, re.MULTILINE)
        pages[page.name] = [
            OtherName(tuple(re.findall("`(.*?)`", theirs)), tuple(re.findall("`(.*?)`", ours)), note.strip())
            for theirs, ours, note in lines
        ]
    assert pages == {page_name(name): [*table.rows] for name, table in trainers().items()}


def test_a_part_of_a_release_has_a_state_and_its_reason_and_names_keys_that_exist():
    for part in PARTS:
        assert part.state in ("equal", "better", "different", "not here"), part
        assert part.ours != "-" or part.state == "not here", part
        assert part.why or part.state == "equal", part
        # `ramify` commands, links and files are checked by scripts/check_docs.py.
        for word in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", part.ours):
            assert any(word in keys for keys in KEYS.values()), word


def test_the_parts_of_a_release_stand_on_its_page():
    for name, table in trainers().items():
        text = (DOCS / page_name(name)).read_text(encoding="utf-8")
        for part in table.release:
            assert f"| {part.theirs} | {part.ours} | {part.state} |" in text


def test_each_defect_of_the_release_has_its_row_and_its_switch():
    text = (
        (DOCS / "release-defects.md").read_text(encoding="utf-8").partition("## The released arithmetic")[0]
    )
    rows = {row[1]: row[2].split(" | ") for row in re.finditer(r"^\| (B\d+) \| (.*) \|$", text, re.MULTILINE)}
    assert list(rows) == [f"B{number}" for number in range(1, 44)]
    for cells in rows.values():
        assert len(cells) == 4
        assert all(cells)
        for word in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)", cells[-1]):
            assert any(word in keys for keys in KEYS.values()), word


def test_a_page_has_the_text_of_its_trainer():
    for name, table in trainers().items():
        text = (DOCS / page_name(name)).read_text(encoding="utf-8")
        assert text.startswith(f"# Coming from {table.title}\n")
        assert table.intro in text


def test_no_name_of_the_scripts_is_unanswered():
    for name in SCRIPT_NAMES.split():
        message = refusal(f"{name}=1")
        assert message.startswith(f"{name}: unknown key")
        assert message != f"{name}: unknown key"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor_rollout_ref.rollout.n=16", "did you mean rollout.n? Both count trajectories of a problem."),
        ("data.train_batch_size=128", "did you mean rollout.problems_per_step? Both count problems."),
        ("trainer.total_epochs=2", "did you mean data.epochs?"),
        ("num_generations=8", "did you mean rollout.n? Both count completions of a problem."),
        ("rollout.num_generations=8", "did you mean n? Both count completions of a problem."),
        ("PPO_MINI_BATCH_SIZE=16", "did you mean learner.problems_per_minibatch? Both count problems, not trajectories."),
        ("optim.lr=1", "did you mean learner.optimizer.rate?"),
        # Names that nearest words led astray.
        ("rollout.beta=0.04", "did you mean algorithm.kl.coefficient? It weighs the KL towards the start; 0, TRL's default, is no algorithm.kl table."),
        ("run.eval_steps=5", "did you mean eval.every? Use a multiple of run.save_every, because each evaluation gets a checkpoint."),
        ("run.eval_every=5", "did you mean eval.every?"),
        ("data.max_response_length=4096", "did you mean rollout.max_tokens? Results of tools count in both."),
        ("rollout.beam_size=2", "did you mean rollout.branching.children? Subtract 1: a beam counts the parent, so beam_size = 2 is children = 1."),
        ("rollout.entropy_weight=0.2", "did you mean rollout.branching.beta? Convert the unit: theirs weighs a sum over 20 tokens divided by ln V, ours a mean in nats, so 0.2 is 0.335."),
        ("system=a", "did you mean data.instructions? A row's own system message stays."),
        ("algorithm.gamma=1", 'did you mean algorithm.estimator.discount? Only the estimator "turn_level" discounts, by turns.'),
        # Units and defaults that differ.
        ("steps_per_generation=8", "did you mean rollout.problems_per_step? It is learner.problems_per_minibatch times steps_per_generation, divided by gradient_accumulation_steps."),
        ("algorithm.adv_estimator=rloo", 'did you mean algorithm.estimator.name? grpo is "group", rloo that with scale = "none" and baseline = "leave_subtree_out", reinforce_plus_plus "reinforce_pp", its _baseline that with group_mean = true; others do not exist.'),
        ("optim.lr_warmup_steps=10", "did you mean learner.optimizer.warmup_steps? Ours counts optimizer steps, verl's RL rollouts: multiply by the mini-batches of a rollout; leave it out for -1."),
        ("max_completion_length=512", "did you mean rollout.max_tokens? Results of tools count in both."),
        # Keys with two of ours.
        ("actor_rollout_ref.actor.clip_ratio=0.2", "did you mean algorithm.loss.clip_low and algorithm.loss.clip_high? Set both to it."),
        ("algorithm.loss.epsilon=0.2", "did you mean clip_low and clip_high? Set both to it unless epsilon_high is set."),
    ],
)  # fmt: skip
def test_a_name_of_another_trainer_is_answered_with_ours(override, message):
    assert refusal(override) == f"{override.partition('=')[0]}: unknown key, {message}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("critic.model.path=a", "There is no critic: advantages come from groups of trajectories."),
        (
            "reward_model.max_length=9",
            "There is no reward model: a model that judges is an endpoint in [reward.judge].",
        ),
        ("num_iterations=2", "Each rollout is trained on once."),
        ("trainer.nnodes=2", "Use torchrun's flags --nnodes and --nproc-per-node."),
        ("trainer=ppo", "The command says it: ramify train, sft or dpo."),
        ("trainer.no_such=1", "docs/coming-from-verl.md lists the settings of verl that have a counterpart."),
        ("cutoff_len=9", "In other recipes it is data.max_tokens."),
    ],
)
def test_a_name_without_a_counterpart_says_why(override, message):
    assert refusal(override) == f"{override.partition('=')[0]}: unknown key. {message}"


def test_a_table_of_another_trainer_is_answered_key_by_key():
    message = refusal("trainer.total_epochs=2", "trainer.save_freq=5", "trainer.no_such=1")
    assert message == (
        "3 mistakes: (1) trainer.total_epochs: unknown key, did you mean data.epochs? "
        "(2) trainer.save_freq: unknown key, did you mean run.save_every? Both count steps. "
        "(3) trainer.no_such: unknown key. docs/coming-from-verl.md lists the settings of verl that have a counterpart."
    )


def test_a_misspelt_table_of_ours_is_one_mistake():
    assert refusal("rolout={n=3, temperature=1}") == "rolout: unknown key, did you mean rollout?"


def test_keys_of_an_unknown_table_are_answered_by_their_single_words():
    message = refusal("training={learning_rate=1, zzz=3}")
    assert message == (
        "2 mistakes: (1) training.learning_rate: unknown key, did you mean learner.optimizer.rate? "
        "(2) training.zzz: unknown key"
    )


def test_the_same_name_is_answered_by_what_the_recipe_can_have():
    answers = {command: counterpart(["beta"], keys) for command, keys in KEYS.items()}
    assert answers["train"].ours == ("algorithm.kl.coefficient",)
    assert answers["dpo"].ours == ("learner.beta",)
    assert counterpart(["loss_type"], KEYS["dpo"]).ours == ("learner.loss",)
    assert counterpart(["data", "train_batch_size"], KEYS["sft"]).ours == ("learner.batch_size",)
    assert counterpart(["learner", "beta"], KEYS["dpo"]) is None
    assert counterpart(["rollout", "n"], KEYS["eval"]) is None


def test_a_name_of_a_few_tables_is_answered_with_all_of_them():
    assert refusal("run.max_tokens=4") == (
        "run.max_tokens: unknown key, did you mean eval.max_tokens, repair.max_tokens or rollout.max_tokens?"
    )
