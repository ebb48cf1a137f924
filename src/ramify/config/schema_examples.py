"""The schemas of recipes that learn from examples: demonstrations (`ramify sft`) and pairs (`ramify dpo`)."""

from typing import ClassVar, Literal

from pydantic import model_validator

from ramify.algos.dpo import DpoLoss, OrpoLoss, PreferenceLoss, SimPoLoss
from ramify.config.schema_eval import EvalRecipe, SamplingSection, dev_data
from ramify.config.schema_parts import (
    EnvironmentSection,
    RewardSection,
    SandboxSection,
    Section,
    ToolsSection,
    refuse_all,
    refuse_idle_rates,
    refuse_tools_beside,
)
from ramify.core.config import PositiveInt, PositiveWeight, Tokens, Weight
from ramify.data.configs import ExampleDataConfig, refuse_uneven_weights
from ramify.engines.configs import TrainingEngineConfig
from ramify.learner.configs import OptimizerConfig
from ramify.modeling.configs import TrainedModelConfig
from ramify.runs.configs import TrainingLogConfig, TrainingRunConfig
from ramify.sampler.configs import RepairConfig
from ramify.train.configs import DECODING_KEYS, EvaluationConfig

_EVALUATED = ("engine", "sandbox", "repair", "reward")


class SftLearnerSection(Section):
    """Examples per optimiser step; rows of about `token_budget` tokens; `copies` of weights that are split, as in RL."""

    batch_size: PositiveInt
    token_budget: Tokens = 8192
    copies: PositiveInt = 1
    optimizer: OptimizerConfig


class DpoLearnerSection(SftLearnerSection):
    """Pairs per optimiser step, and their loss: DPO with `beta`, which keeps the policy near its start, or one without a reference model.

    SimPO compares means over tokens, scaled by `beta`, and asks for a `margin` (the paper's gamma). ORPO is the likelihood of
    the chosen side and `beta` (the paper's lambda) times the log odds ratio.
    """

    loss: Literal["dpo", "simpo", "orpo"] = "dpo"
    beta: PositiveWeight
    margin: Weight | None = None

    @model_validator(mode="after")
    def _margin_is_of_simpo(self) -> "DpoLearnerSection":
        if (self.margin is None) == (self.loss == "simpo"):
            advice = "Set it, such as beta / 2" if self.margin is None else "Remove it"
            raise ValueError(f'margin: goes with loss = "simpo". {advice}')
        return self

    @property
    def preference_loss(self) -> PreferenceLoss:
        """The loss."""
        match self.loss:
            case "dpo":
                return DpoLoss(self.beta)
            case "simpo":
                return SimPoLoss(self.beta, self.margin or 0.0)
            case "orpo":
                return OrpoLoss(self.beta)


class SftRecipe(Section):
    """A whole supervised run. `engine`, `sandbox`, `repair` and `reward` are those of its evaluations, as in `ramify eval`."""

    command: ClassVar[str] = "sft"

    model: TrainedModelConfig
    data: ExampleDataConfig
    run: TrainingRunConfig
    log: TrainingLogConfig = TrainingLogConfig()
    learner: SftLearnerSection
    tools: ToolsSection = ToolsSection()
    environment: EnvironmentSection | None = None
    eval: EvaluationConfig | None = None
    engine: TrainingEngineConfig | None = None
    sandbox: SandboxSection | None = None
    repair: RepairConfig | None = None
    reward: RewardSection | None = None

    @model_validator(mode="after")
    def _acting(self) -> "SftRecipe":
        refuse_all(
            lambda: refuse_tools_beside(self.tools, self.environment),
            lambda: refuse_uneven_weights(self.data.train, self.data.weights),
            lambda: refuse_idle_rates(self.learner.optimizer, self.model.lora is not None),
            self._evaluates,
        )
        return self

    def _evaluates(self) -> None:
        config = self.eval
        if config is None:
            if idle := [key for key in _EVALUATED if getattr(self, key) is not None]:
                raise ValueError(f"{idle[0]}: has no effect without [eval]. Remove it.")
            return
        missing = [f"[{key}]" for key in ("engine", "reward") if getattr(self, key) is None]
        limits = ("max_prompt_tokens", "max_tokens", "max_calls")
        missing += [f"eval.{key}" for key in limits if getattr(config, key) is None]
        if missing:
            raise ValueError(f"eval: attempts need {', '.join(missing)} too. Add what is missing.")
        config.refuse_unsaved(self.run.save_every)
        if (evaluation := self.evaluation) is not None:
            evaluation.refuse_inconsistent()

    @property
    def evaluation(self) -> EvalRecipe | None:
        """The recipe of `ramify eval` that [eval] stands for, with the run's own model; None without [eval]."""
        config = self.eval
        if config is None:
            return None
        assert config.max_prompt_tokens is not None
        limits = ("attempts", "temperature", "max_tokens", "max_calls", "max_result_chars", *DECODING_KEYS)
        own = {key: value for key in limits if (value := getattr(config, key)) is not None}
        # Its sections have been checked one by one.
        return EvalRecipe.model_construct(
            model=self.model,
            data=dev_data(config, config.max_prompt_tokens, self.data.instructions),
            run=self.run,
            sampling=SamplingSection(**own),
            engine=self.engine,
            tools=self.tools,
            environment=self.environment,
            sandbox=self.sandbox or SandboxSection(),
            repair=self.repair,
            reward=self.reward,
        )


class DpoRecipe(SftRecipe):
    """A whole run on preference pairs; the reference of DPO is the model that the run starts from."""

    command: ClassVar[str] = "dpo"

    learner: DpoLearnerSection
