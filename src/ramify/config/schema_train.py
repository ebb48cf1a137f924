"""The schema of a reinforcement-learning recipe (`ramify train`, `ramify rollout`), and of a self-critic run (`ramify selfcritic`)."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, model_validator

from ramify.algos.file_parts import FromFile
from ramify.config.schema_algorithm import AlgorithmSection, corrected_in_16_bits
from ramify.config.schema_examples import DpoLearnerSection
from ramify.config.schema_parts import (
    Environments,
    EnvironmentSection,
    RewardSection,
    SandboxSection,
    Section,
    ToolsSection,
    refuse_absent_environment,
    refuse_all,
    refuse_clocks,
    refuse_compat_reward,
    refuse_idle_bonus,
    refuse_idle_rates,
    refuse_idle_repairs,
    refuse_idle_sandbox,
    refuse_tools_beside,
    refuse_two_kinds,
    refuse_unrepeatable,
)
from ramify.config.schema_rollout import RolloutSection
from ramify.core.config import PositiveInt, Tokens
from ramify.data.configs import Columns, DataFiles, Instructions, Weights, refuse_uneven_weights
from ramify.engines.configs import ScriptedEngineConfig, TrainingEngineConfig, VllmEngineConfig
from ramify.learner.configs import OptimizerConfig
from ramify.learner.guard import DEFAULT_GUARD, GuardConfig
from ramify.modeling.configs import AdapterConfig, TrainedModelConfig
from ramify.runs.configs import TrainingLogConfig, TrainingRunConfig
from ramify.sampler.configs import RepairConfig
from ramify.train.configs import EvaluationConfig, PreflightConfig

TrainingEngine = Annotated[
    TrainingEngineConfig | ScriptedEngineConfig | VllmEngineConfig, Field(discriminator="name")
]


def _usable(source: str) -> str:
    if not source.strip() or "\0" in source:
        raise ValueError("expected a file, a folder or hf:org/name")
    return source


class TrainDataSection(Section):
    """Problems to learn from; without `train` the environment brings them, and `run.steps` says how many. Problems whose prompt is longer than `max_prompt_tokens` are dropped and counted.

    So are problems whose question is in `exclude`: files, folders of benchmarks, or data sets of the hub
    ("hf:org/name"). `instructions` is the fixed text in front of each question that has no system message: true is ramify's
    own, about the tools' tags; "from:FILE" that of a data file; a line that ends in .txt or .md a file with it; else it is the text.
    `columns` says which columns of the files ours are, `weights` how often the rows of each of several files come, `limit` uses the
    first rows only.
    """

    train: DataFiles | None = None
    columns: Columns = Field(default_factory=dict)
    weights: Weights = ()
    limit: PositiveInt | None = None
    instructions: Instructions = False
    exclude: Annotated[tuple[Annotated[str, AfterValidator(_usable)], ...], Field(max_length=100)] = ()
    epochs: PositiveInt = 1
    max_prompt_tokens: Tokens


class LearnerSection(Section):
    """One optimiser step per mini-batch of whole problems; a forward pass has about `token_budget` unique tokens.

    Over several processes the weights are split; with `copies` there are so many of them, each split over its share of the
    processes (one for each machine, say, so that only gradients cross the network).
    """

    problems_per_minibatch: PositiveInt
    token_budget: Tokens = 4096
    copies: PositiveInt = 1
    optimizer: OptimizerConfig


class TrainRecipe(Section):
    """A whole reinforcement-learning run."""

    command: ClassVar[str] = "train"
    sets_steps: ClassVar[bool] = True
    """True if `run.steps` may say how long the run is."""

    model: TrainedModelConfig
    data: TrainDataSection
    run: TrainingRunConfig
    log: TrainingLogConfig = TrainingLogConfig()
    rollout: RolloutSection
    engine: TrainingEngine
    tools: ToolsSection = ToolsSection()
    environment: EnvironmentSection | None = None
    environments: Environments = Field(default_factory=dict)
    sandbox: SandboxSection = SandboxSection()
    repair: RepairConfig | None = None
    reward: RewardSection
    algorithm: AlgorithmSection
    learner: LearnerSection
    guard: GuardConfig = DEFAULT_GUARD
    preflight: PreflightConfig = PreflightConfig(enabled=False)
    eval: EvaluationConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _corrected(cls, table: Any) -> Any:  # noqa: ANN401 - any TOML value
        """Weight the samples of an engine in 16 bits, unless the recipe says otherwise."""
        if not isinstance(table, dict):
            return table
        engine, algorithm, model = table.get("engine"), table.get("algorithm"), table.get("model")
        if not (isinstance(engine, dict) and isinstance(algorithm, dict)):
            return table
        own = {"vllm": "bfloat16", "local": model.get("dtype") if isinstance(model, dict) else None}
        if engine.get("dtype", own.get(str(engine.get("name")))) != "bfloat16":
            return table
        return {**table, "algorithm": corrected_in_16_bits(algorithm)}

    @model_validator(mode="after")
    def _consistent(self) -> "TrainRecipe":
        rollout = self.rollout
        refuse_all(
            rollout.refuse_idle_rule,
            lambda: self.algorithm.refuse_idle(rollout, self.engine.has_exact_entropies),
            lambda: refuse_compat_reward(self.model, self.reward),
            lambda: refuse_two_kinds(self.environment, self.environments),
            lambda: refuse_tools_beside(self.tools, self.any_environment),
            lambda: refuse_absent_environment(self.reward, self.any_environment),
            self._has_problems,
            self._tells_right,
            self._evaluates,
            lambda: refuse_idle_bonus(self.reward, self.tools),
            lambda: refuse_idle_rates(self.learner.optimizer, self.model.lora is not None),
            lambda: self.guard.refuse_idle(rollout.n, rollout.max_calls),
            lambda: refuse_idle_sandbox(self.tools, self.sandbox),
            self._repairs,
            lambda: refuse_clocks(self.run, rollout, "rollout"),
            lambda: refuse_unrepeatable(self.run, self.engine.repeats),
        )
        return self

    @property
    def any_environment(self) -> EnvironmentSection | None:
        """The environment, or the first of several."""
        return next(iter(self.environments.values()), self.environment)

    @property
    def functions(self) -> dict[str, FromFile]:
        """The parts of the algorithm that are functions of the user's own, by their keys."""
        parts = {
            "rollout.branching": self.rollout.branching,
            "algorithm.estimator": self.algorithm.estimator,
            "algorithm.loss": self.algorithm.loss,
        }
        return {key: part for key, part in parts.items() if isinstance(part, FromFile)}

    def _has_problems(self) -> None:
        data = self.data
        if data.train is not None:
            refuse_uneven_weights(data.train, data.weights)
            return
        if self.any_environment is None or not self.sets_steps:
            raise ValueError(
                "data.train: expected a file of problems. Only an [environment] of a run can bring its own."
            )
        if self.run.steps is None:
            raise ValueError(
                "run.steps: without data.train nothing says how long the run is. Set the number of steps."
            )
        if data.exclude or data.epochs != 1:
            key = "exclude" if data.exclude else "epochs"
            raise ValueError(f"data.{key}: has no effect without data.train. Remove it.")

    def _tells_right(self) -> None:
        if self.rollout.dynamic_sampling is not None and not self.reward.tells_right:
            raise ValueError(
                f'rollout.dynamic_sampling: needs a reward that tells right from wrong, "{self.reward.name}" does not. '
                "Remove it."
            )

    def _evaluates(self) -> None:
        config = self.eval
        if config is None:
            return
        config.refuse_unsaved(self.run.save_every)
        bounds = {"max_prompt_tokens": "data", "max_tokens": "rollout", "max_calls": "rollout"}
        for key, table in bounds.items():
            most, own = getattr(getattr(self, table), key), getattr(config, key)
            if own is not None and own > most:
                raise ValueError(f"eval.{key}: expected at most {table}.{key} = {most}, got {own}")
        if self.environments:
            raise ValueError("eval: has no effect without [tools] or one [environment]. Remove it.")
        if not self.reward.tells_right:
            raise ValueError(
                f'eval: needs a reward that tells right from wrong, "{self.reward.name}" does not. Remove [eval] or set another reward.'
            )

    def _repairs(self) -> None:
        names = tuple(own.name or own.function for own in self.rollout.rewriters)
        refuse_idle_repairs(self.repair, self.tools, names, has_environment=self.environment is not None)
        if self.repair is not None and self.environments:
            raise ValueError("repair: has no effect without [tools] or one [environment]. Remove it.")


class SelfCriticSection(Section):
    """`cycles` times: `steps` steps of RL, trees for `problems` questions, pairs from these, DPO on the pairs.

    The trees are grown as in RL. A question gives at most `pairs_per_question` pairs.
    """

    cycles: PositiveInt
    steps: PositiveInt
    problems: PositiveInt
    pairs_per_question: PositiveInt = 2


class CycleDpoSection(DpoLearnerSection):
    """DPO within a cycle, as in `ramify dpo`; its reference is the policy with which it begins.

    With `lora` it trains an adapter, which is merged into the model before the next cycle.
    """

    epochs: PositiveInt = 1
    max_tokens: Tokens
    lora: AdapterConfig | None = None


class SelfCriticRecipe(TrainRecipe):
    """A whole self-critic run: a recipe of `ramify train` with two more tables."""

    command: ClassVar[str] = "selfcritic"
    sets_steps: ClassVar[bool] = False

    selfcritic: SelfCriticSection
    dpo: CycleDpoSection

    @model_validator(mode="after")
    def _cycles(self) -> "SelfCriticRecipe":
        refuse_all(
            self._one_length,
            self._one_adapter,
            self._tells_right_in_pairs,
            self._own_servers,
            self._one_environment,
            lambda: refuse_idle_rates(
                self.dpo.optimizer, self.dpo.lora is not None or self.model.lora is not None
            ),
        )
        return self

    def _one_length(self) -> None:
        if self.run.steps is not None:
            raise ValueError("run.steps: selfcritic.steps says how many steps a cycle has. Remove it.")

    def _one_adapter(self) -> None:
        if self.dpo.lora is not None and self.model.lora is not None:
            raise ValueError(
                "dpo.lora: RL trains an adapter (model.lora), and DPO trains it further. Remove it."
            )

    def _tells_right_in_pairs(self) -> None:
        if not self.reward.tells_right:
            raise ValueError(
                f'reward.name: pairs take a reward that tells right from wrong, "{self.reward.name}" does not'
            )

    def _one_environment(self) -> None:
        if self.environments:
            raise ValueError("environments: DPO shows the tools of one only. Use [environment].")

    def _own_servers(self) -> None:
        if self.engine.uses_given_servers:
            raise ValueError(
                "engine.urls: each phase starts servers of its own, with the model of that time; set engine.launch = true in "
                "its place"
            )
