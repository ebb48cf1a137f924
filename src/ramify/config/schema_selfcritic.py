"""The schema of a self-critic run (`ramify selfcritic`): RL and DPO in turn (Tool-Star, arXiv 2505.16410, section 3.4)."""

from typing import ClassVar

from pydantic import model_validator

from ramify.config.schema_examples import DpoLearnerSection
from ramify.config.schema_parts import Section, refuse_all, refuse_idle_rates
from ramify.config.schema_train import TrainRecipe
from ramify.core.config import PositiveInt, Tokens
from ramify.modeling.configs import AdapterConfig


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
