"""`Policy`: weights, their optimizer and the count of its updates, which keys every draw."""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ramify.api.session import in_thread
from ramify.api.tables import Learner, algorithm_section, require, short
from ramify.config.load import check_recipe
from ramify.config.other_runs import trained_dialect
from ramify.config.schema_algorithm import AlgorithmSection
from ramify.config.schema_parts import Section
from ramify.config.schema_train import LearnerSection
from ramify.core.config import PositiveInt, Seed, Switch, Threads, Tokens
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Dialect
from ramify.core.outcomes import counted
from ramify.core.rank import Rank
from ramify.engines.configs import EngineConfig, TrainingEngineConfig
from ramify.learner.configs import OptimizerConfig
from ramify.modeling.configs import AdapterConfig, TrainedModelConfig
from ramify.modeling.model_path import fetch_model
from ramify.runs.recorded_trees import require_tokenizer

if TYPE_CHECKING:
    from ramify.api.trees import Trees
    from ramify.assemble.recorded_credit import TreeCredit
    from ramify.chat.tokenizer import ChatTokenizer
    from ramify.learner import update as learners
    from ramify.learner.learning import Learning
    from ramify.learner.parallel import Ranks
    from ramify.learner.report import UpdateReport


_ASIDE = 1_000_000
"""More rollouts than a step has: the attempts of rollouts aside begin here."""


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The record of an update: its metrics, under the names that a run's `metrics.jsonl` has.

    Attributes:
        step: The policy's step after the update.
        metrics: Such as update/loss and update/grad_norm; None where nothing was measured.
    """

    step: int
    metrics: Mapping[str, float | None]

    @property
    def loss(self) -> float | None:
        """The loss of the first mini-batch that had a gradient."""
        return self.metrics.get("update/loss")

    @property
    def grad_norm(self) -> float | None:
        """The norm of its gradient."""
        return self.metrics.get("update/grad_norm")

    @property
    def num_steps(self) -> int:
        """Optimizer steps that changed the weights."""
        return int(self.metrics.get("update/steps") or 0)

    def __repr__(self) -> str:
        return f"Report(step={self.step}, loss={_shown(self.loss)}, grad_norm={_shown(self.grad_norm)}, steps={self.num_steps})"


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


@dataclass(slots=True)
class _Progress:
    """Updates of a policy so far, optimizer steps of the schedule, rollouts since the last update, and rollouts aside."""

    step: int = 0
    optimizer_steps: int = 0
    skipped_in_a_row: int = 0
    attempts: int = 0
    asides: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class _LearnerTable(Section):
    """The keys of `[learner]` that have an effect on a policy."""

    problems_per_minibatch: PositiveInt | None = None
    token_budget: Tokens | None = None


class _PolicyTable(Section):
    """The numbers of a policy."""

    seed: Seed
    threads: Threads | None
    deterministic: Switch
    total_steps: PositiveInt | None
    learner: _LearnerTable


class _EngineTable(Section):
    """The engine of a policy."""

    engine: TrainingEngineConfig


class Policy:
    """A model that acts and learns in this process.

    `step` counts the updates. With the seed it keys every draw, so a loop of `rollout`, `score` and `update` gives the bits of
    the same recipe under `ramify train`; a second rollout within a step has draws of its own.

    Args:
        model: A model's folder, a run's folder, or an id of the Hugging Face hub.
        learner: The optimizer; its rate has no default.
        lora: Train an adapter and keep the model as it is.
        dialect: How the model writes calls and answers; "auto": as the run that trained it taught it, else the papers' tags.
        device: "cpu", "cuda", or "auto".
        dtype: Type that the model computes in; all weights are trained in "float32" only.
        engine: "local", or an object with the number of its slots (`ramify.LocalEngine`).
        seed: Of all draws.
        threads: Of torch; None: torch's own choice.
        deterministic: Give the same bits again.
        total_steps: Optimizer steps of the whole loop, for a rate that falls.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        learner: Learner | None = None,
        lora: AdapterConfig | None = None,
        dialect: Dialect | Literal["auto"] = "auto",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        dtype: Literal["float32", "bfloat16"] = "float32",
        engine: str | EngineConfig = "local",
        seed: int = 0,
        threads: int | None = None,
        deterministic: bool = False,
        total_steps: int | None = None,
    ) -> None:
        """Load the model.

        Raises:
            UserError: The model cannot be read, or a setting is wrong.
        """
        require(model, (str, Path), "Policy: model: expected a folder or the id of a model")
        require(learner or Learner(), Learner, "Policy: learner: expected a ramify.Learner")
        path = Path(model)
        fetch_model(path)
        written: Any = trained_dialect(path) or "tags" if dialect == "auto" else dialect
        self.config = TrainedModelConfig(path=path, dialect=written, device=device, dtype=dtype, lora=lora)
        self.engine = _engine(engine)
        self.seed, self.threads, self.deterministic = seed, threads, deterministic
        self._settings = learner or Learner()
        if idle := sorted(self._settings.others.keys() - _LearnerTable.model_fields.keys()):
            raise ConfigError(f"Learner.{idle[0]}: has no effect on a Policy. Remove it.")
        own = {"seed": seed, "threads": threads, "deterministic": deterministic, "total_steps": total_steps}
        check_recipe(_PolicyTable, {**own, "learner": self._settings.others}, "Policy")
        self._total_steps = total_steps
        self._progress = _Progress()
        self._largest_row = 0
        self._ranks = self._load()

    @property
    def step(self) -> int:
        """Number of updates so far."""
        return self._progress.step

    @property
    def model(self) -> Any:  # noqa: ANN401 - importing transformers' type would load it
        """The transformers model, which engine and learner share."""
        return self._ranks.worker.model

    @cached_property
    def _tokenizer(self) -> "ChatTokenizer":
        from ramify.assemble.model import build_tokenizer

        return build_tokenizer(self.config.folder)

    def __repr__(self) -> str:
        return short(f"Policy({str(self.config.path)!r}, dialect={self.config.dialect!r}, step={self.step})")

    def next_attempt(self, *, is_aside: bool) -> int:
        """Return the number of the next rollout within this step; of one aside (a chat, a what-if), which changes no other's."""
        progress = self._progress
        with progress.lock:
            if is_aside:
                progress.asides += 1
                return _ASIDE + progress.asides
            progress.attempts += 1
            return progress.attempts - 1

    def update(self, trees: "Trees", algorithm: Any = "arpo") -> Report:  # noqa: ANN401 - a name, an object or a table
        """Learn from scored trees; one optimizer step for each `problems_per_minibatch` of them (all, without that key).

        Args:
            trees: With rewards (`ramify.score`).
            algorithm: A name or an object of `ramify.algorithms`.

        Raises:
            UserError: The trees have no rewards or are of another tokenizer, or the algorithm cannot be used.
            TrainingError: The update cannot be made; the message says why.
        """
        from ramify.api.trees import as_trees
        from ramify.train.step import update_metrics

        if "rate" not in self._settings.table:
            raise ConfigError(
                "Policy: its learner has no rate. Make it with learner=ramify.Learner(rate=1e-6) or another rate"
            )
        section, trees = self._corrected(algorithm_section(algorithm)), as_trees(trees, "update")
        if not trees:
            raise DataError("update: there is no tree. Grow some with agent.rollout")
        for tree in trees:
            require_tokenizer(
                f"update: problem {tree.problem.id!r}", tree.core.nodes[0], self._tokenizer.decode
            )
        per_step = self._settings.others.get("problems_per_minibatch") or max(len(trees), 1)
        learning = self._learning(section, trees, per_step)
        self._prepare(learning.learner, trees)
        reports: Sequence[UpdateReport] = learning.update(learning.credit(trees.scored))
        progress = self._progress
        progress.optimizer_steps += math.ceil(len(trees) / per_step)
        progress.skipped_in_a_row = learning.learner.skipped_in_a_row
        with progress.lock:
            progress.step += 1
            progress.attempts = 0
        return Report(progress.step, update_metrics(reports))

    async def update_async(self, trees: "Trees", algorithm: Any = "arpo") -> Report:  # noqa: ANN401
        """As `update`, in a thread."""
        report: Report = await in_thread(self.update, trees, algorithm)
        return report

    def credit(self, trees: "Trees", section: AlgorithmSection) -> "tuple[TreeCredit | None, ...]":
        """Return the credit of each tree, with the values that only the model can compute; None where no trajectory counts."""
        from ramify.assemble.algorithm import build_objective
        from ramify.assemble.recorded_credit import TreeCredit

        section = self._corrected(section)
        objective = build_objective(section)
        learned = self._learning(section, trees, max(len(trees), 1)).credit(trees.scored)
        credited = (TreeCredit.of(tree, objective.credit(tree).credit) for tree in learned)
        # By place: trees of several policies or runs may have one key.
        return tuple(None if counted(scored) is None else next(credited) for scored in trees.scored)

    def save(self, folder: str | Path) -> Path:
        """Write the model, its tokenizer and the state of its optimizer into a new folder, which transformers opens as it is.

        Raises:
            UserError: The folder exists, or cannot be made.
            TrainingError: It cannot be written.
        """
        from ramify.files.durable import make_folder
        from ramify.runs.checkpoint import companion_files, save_checkpoint

        require(folder, (str, Path), "Policy.save: expected a new folder")
        path = Path(folder)
        make_folder("Policy.save", path.parent)
        learner = self._learner(None, 1.0)
        save_checkpoint(
            path, learner, {"step": self.step, "seed": self.seed}, companion_files(self.config.folder)
        )()
        return path

    def _load(self) -> "Ranks":
        from ramify.assemble.model import build_model
        from ramify.assemble.worker import WorkerPlan, keeps_its_base
        from ramify.learner.parallel import Ranks, single_process
        from ramify.modeling.numerics import set_numerics

        set_numerics(self.threads, self.deterministic)
        # A policy that is only rolled out has no use for a rate; `update` asks for it.
        self._optimizer = OptimizerConfig(**{"rate": 1.0, **self._settings.optimizer})
        if (self._optimizer.final_rate < 1 or self._optimizer.warmup_ratio) and self._total_steps is None:
            raise ConfigError("Policy: the rate depends on the length of the loop. Set total_steps.")
        plan = WorkerPlan(
            model=self.config,
            source=self.config.folder,
            context_tokens=1,
            seed=self.seed,
            optimizer=self._optimizer,
            with_reference=False,
        )
        self._plan = plan
        if self.config.dtype != "float32" and not keeps_its_base(self.config):
            if "rate" in self._settings.table:
                raise ConfigError(
                    'Policy: dtype: "bfloat16" trains weights in float32 beside those that compute, which the engine of a policy '
                    "cannot read. Train an adapter (lora=ramify.LoRA()), or use a ramify.Trainer."
                )
            # Nothing is trained, so nothing is kept in float32.
            return single_process(build_model(self.config, 1, self.seed), self._optimizer)
        ranks = Ranks(Rank())
        ranks.build(plan)
        return ranks

    def _corrected(self, section: AlgorithmSection) -> AlgorithmSection:
        """Return the algorithm as a recipe with this type would have it."""
        return section if self.config.dtype == "float32" else section.in_16_bits()

    def _learning(self, section: AlgorithmSection, trees: "Trees", per_step: int) -> "Learning":
        from ramify.assemble.algorithm import apply_algorithm

        if section.truncated == "shape":
            raise ConfigError(
                'algorithm.truncated: "shape" adds a penalty to the reward, which a loop of your own does in its reward. '
                'Set truncated = "train" or "mask"'
            )
        if section.kl is not None and not self._ranks.worker.has_reference:
            plan = replace(self._plan, with_reference=True)
            self._ranks.worker.hold_reference(plan.reference(self._ranks.worker.model, None))
        learning = apply_algorithm(
            section,
            self._learner(section, trees.temperature),
            problems_per_minibatch=per_step,
            minibatches=1,
            temperature=trees.temperature,
        )
        is_fresh = all(scored.tree.key.step == self.step for scored in trees.scored)
        # Trees of other weights differ from these by more than rounding.
        return learning if is_fresh else replace(learning, max_mismatch=None, max_kl=None)

    def _prepare(self, learner: "learners.Learner", trees: "Trees") -> None:
        """Have layers computed again if the largest row of these trees needs it, as a run does before its first step."""
        from ramify.obs.console import RunConsole
        from ramify.train.row_memory import prepare_rows

        sizes = [sum(len(node.token_ids) for node in tree.core.nodes) for tree in trees]
        paths = [
            sum(len(node.token_ids) for node in each.core.nodes)
            for tree in trees
            for each in tree.trajectories
        ]
        longest, budget = max(paths, default=1), learner.token_budget
        row = max(budget, longest) if max(sizes, default=0) <= budget else budget + longest
        if row > self._largest_row:
            self._largest_row = row
            prepare_rows(learner, row, longest, RunConsole())

    def _learner(self, section: AlgorithmSection | None, temperature: float) -> "learners.Learner":
        from ramify.algos.losses import Objective
        from ramify.algos.sft import NegativeLogLikelihood
        from ramify.assemble.algorithm import build_objective
        from ramify.learner.update import Learner as ModelLearner

        learner = ModelLearner(
            self._ranks,
            schedule=self._optimizer,
            total_steps=self._total_steps or 1,
            objective=Objective(NegativeLogLikelihood()) if section is None else build_objective(section),
            temperature=temperature,
            max_grad_norm=self._optimizer.max_grad_norm,
            token_budget=self._settings.others.get(
                "token_budget", LearnerSection.model_fields["token_budget"].default
            ),
        )
        learner.step = self._progress.optimizer_steps
        learner.skipped_in_a_row = self._progress.skipped_in_a_row
        return learner


def _engine(engine: str | EngineConfig) -> TrainingEngineConfig:
    try:
        config = check_recipe(_EngineTable, {"engine": {} if engine == "local" else engine}, "Policy").engine
        if config.weights != "copy":
            return config
    except ConfigError:
        pass
    raise ConfigError(
        'Policy: engine: expected "local" or a LocalEngine that shares the learner\'s weights. Train with other engines '
        "by ramify.Trainer"
    )
