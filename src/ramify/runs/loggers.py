"""TensorBoard, Weights & Biases, trackio and MLflow: who can follow a run, and trajectories as they show them.

Each package is imported with the first step. All of them work without a network. Only the environment (`WANDB_MODE`, `TRACKIO_SPACE_ID`, `MLFLOW_TRACKING_URI`) sends
anything to a service, and only from there come the keys. A step that is done again after a resume is logged again.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import astuple, dataclass
from importlib.util import find_spec
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from ramify.core.errors import ConfigError
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source, Trajectory
from ramify.net.secrets import read_optional_key, shown
from ramify.rewards.extract import answer_of
from ramify.runs.configs import LogConfig, LoggerName

LoggedTrees: TypeAlias = Mapping[str, "Sequence[LoggedTrajectory]"]
"""Trajectories by the name under which they are logged: "trees", "eval/trees"."""

_ROLES: Mapping[Source, str] = {Source.POLICY: "assistant", Source.TOOL: "tool"}


@dataclass(frozen=True, slots=True)
class LoggedTrajectory:
    """A trajectory of a tree.

    Attributes:
        problem: Id of the problem.
        prompt: Its last message.
        answer: The final answer; "" if there is none.
        reward: Value of its reward.
        turns: Turns that the policy wrote.
        messages: Role and text of all messages, those of the problem first.
    """

    problem: str
    prompt: str
    answer: str
    reward: float
    turns: int
    messages: tuple[tuple[str, str], ...]


def logged_trajectories(trees: Sequence[ScoredTree]) -> tuple[LoggedTrajectory, ...]:
    """Return all trajectories of the trees, in order."""
    return tuple(
        _logged(trajectory, reward)
        for scored in trees
        for trajectory, reward in zip(scored.tree.trajectories, scored.rewards, strict=True)
    )


def _logged(trajectory: Trajectory, reward: Reward) -> LoggedTrajectory:
    problem = trajectory.problem
    prompt = [(message.role, message.text) for message in problem.messages]
    nodes = [node for node in trajectory.nodes if node.source is not Source.PROMPT]
    # A turn that branches is several nodes.
    runs = groupby(nodes, lambda node: _ROLES.get(node.source, "user"))
    spoken = [(role, "".join(node.text for node in run)) for role, run in runs]
    return LoggedTrajectory(
        problem=problem.id,
        prompt=_clean(prompt[-1][1]) if prompt else "",
        answer=_clean(answer_of(trajectory)),
        reward=reward.value,
        turns=sum(role == "assistant" for role, _ in spoken),
        messages=tuple((role, _clean(text)) for role, text in (*prompt, *spoken)),
    )


def _clean(text: str) -> str:
    return shown(text, keep="\n")


_PROJECT = "ramify"
_PACKAGES: Mapping[LoggerName, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
}


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """The run that a logger follows: its folder, the random name by which it is known again, and its recipe."""

    folder: Path
    name: str
    recipe: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The end of the folder's path, for people: "cycle-01/rl"."""
        return "/".join(self.folder.absolute().parts[-2:])


class Logger(Protocol):
    """Follows a run. Whatever it raises ends its work and not the run."""

    def step(self, step: int, metrics: Mapping[str, float], trees: LoggedTrees) -> None:
        """Log the metrics of a step, and its trajectories where there is a view for them."""
        ...

    def close(self, note: str, *, succeeded: bool) -> None:
        """Finish, with what there is to say about the whole run ("" for nothing)."""
        ...


Opener: TypeAlias = Callable[[LoggedRun, int], Logger]
"""Opens the logger of a run, a new one or one that goes on, at a step."""


class TensorBoard:
    """Event files in RUN/tensorboard; steps from the first one on replace those of the session before."""

    def __init__(self, run: LoggedRun, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(run.folder / "tensorboard", purge_step=first_step)
        # Markdown: an indented block is shown as it is.
        lines = json.dumps(run.recipe, indent=2).splitlines()
        self._writer.add_text("recipe", "\n".join(f"    {line}" for line in lines), first_step)

    def step(self, step: int, metrics: Mapping[str, float], trees: LoggedTrees) -> None:
        """Write the metrics to the disk."""
        del trees
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, note: str, *, succeeded: bool) -> None:
        """Write the note."""
        del succeeded
        self._writer.add_text("note", note)
        self._writer.close()


class WandB:
    """A run whose id is the run's name, offline in ./wandb (`WANDB_DIR`) unless `WANDB_MODE` says otherwise."""

    def __init__(self, run: LoggedRun, first_step: int) -> None:
        del first_step
        read_optional_key("WANDB_API_KEY")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=run.name,
            name=run.title,
            config=dict(run.recipe),
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(
                console="off", silent=mode != "online", save_code=False, disable_git=True
            ),
        )
        self._table = wandb.Table
        # W&B's own count of steps cannot go back, as it must where steps are done again.
        self._run.define_metric("*", step_metric="step")

    def step(self, step: int, metrics: Mapping[str, float], trees: LoggedTrees) -> None:
        """Log a row, with a table of the trajectories."""
        columns = ["problem", "prompt", "answer", "reward", "turns", "messages"]
        tables = {
            name: self._table(columns=columns, data=[[*astuple(each)[:-1], _dialogue(each)] for each in rows])
            for name, rows in trees.items()
        }
        self._run.log({"step": step, **metrics, **tables})

    def close(self, note: str, *, succeeded: bool) -> None:
        """Finish the run with the note in its summary."""
        self._run.summary["note"] = note
        self._run.finish(exit_code=0 if succeeded else 1)


class Trackio:
    """A run in trackio's own folder on this machine (`TRACKIO_DIR`), which it knows by title and name."""

    def __init__(self, run: LoggedRun, first_step: int) -> None:
        del first_step
        read_optional_key("HF_TOKEN")
        read_optional_key("TRACKIO_WRITE_TOKEN")
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", _PROJECT)
        # It prints what it does.
        with redirect_stdout(StringIO()):
            self._run = trackio.init(
                project,
                name=f"{run.title}-{run.name}",
                config=dict(run.recipe),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self._finish, self._trace = trackio.finish, trackio.Trace

    def step(self, step: int, metrics: Mapping[str, float], trees: LoggedTrees) -> None:
        """Log a row, with a trace for each trajectory; a thread of trackio's writes it."""
        traces = {name: [self._traced(each) for each in rows] for name, rows in trees.items()}
        self._run.log({**metrics, **traces}, step=step)

    def _traced(self, logged: LoggedTrajectory) -> Any:  # noqa: ANN401 - of a package without types
        own = {"problem": logged.problem, "answer": logged.answer}
        messages = [{"role": role, "content": text} for role, text in logged.messages]
        return self._trace(messages, {**own, "reward": logged.reward, "turns": logged.turns})

    def close(self, note: str, *, succeeded: bool) -> None:
        """Wait until everything is written; trackio has no place for a note."""
        del note, succeeded
        with redirect_stdout(StringIO()):
            self._finish()


class MLflow:
    """A run in RUN/mlflow (SQLite) or at `MLFLOW_TRACKING_URI`, found again by the tag `ramify.run`."""

    def __init__(self, run: LoggedRun, first_step: int) -> None:
        del first_step
        read_optional_key("MLFLOW_TRACKING_TOKEN")
        read_optional_key("MLFLOW_TRACKING_PASSWORD")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # Training waits for it, and its own limits come to a quarter of an hour.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        # It tells each table that it makes.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        own = run.folder / "mlflow"
        server, files = os.environ.get("MLFLOW_TRACKING_URI"), None
        if server is None:
            own.mkdir(exist_ok=True)
            server, files = f"sqlite:///{own.absolute() / 'mlflow.db'}", (own / "files").absolute().as_uri()
        self._client, self._metric = MlflowClient(tracking_uri=server), Metric
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        experiment = self._client.get_experiment_by_name(project)
        folder = experiment.experiment_id if experiment else self._client.create_experiment(project, files)
        runs = self._client.search_runs([folder], f"tags.`ramify.run` = '{run.name}'")
        tags = {"ramify.run": run.name}
        known = runs[0] if runs else self._client.create_run(folder, run_name=run.title, tags=tags)
        self._id = known.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        self._client.log_dict(self._id, dict(run.recipe), "recipe.json")

    def step(self, step: int, metrics: Mapping[str, float], trees: LoggedTrees) -> None:
        """Log the metrics with the time of now, in milliseconds."""
        del trees
        now = int(time.time() * 1000)
        rows = [self._metric(_mlflow_name(name), value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, rows)

    def close(self, note: str, *, succeeded: bool) -> None:
        """End the run, with the note as its description."""
        self._client.set_tag(self._id, "mlflow.note.content", note)
        self._client.set_terminated(self._id, "FINISHED" if succeeded else "FAILED")


def _mlflow_name(name: str) -> str:
    """Return the name of a metric with the characters that MLflow takes; it refuses a whole step for one other."""
    return re.sub(r"[^\w.\- /]", "_", name.replace("@", "_at_"))


def _dialogue(logged: LoggedTrajectory) -> str:
    return "\n\n".join(f"[{role}]\n{text}" for role, text in logged.messages)


LOGGERS: Mapping[LoggerName, Opener] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
    "mlflow": MLflow,
}


def require_loggers(config: LogConfig) -> None:
    """Check that the packages of the loggers are installed; imports none.

    Raises:
        ConfigError: One is missing; says what to install.
    """
    for name in config.to:
        if missing := [package for package in _PACKAGES[name] if find_spec(package) is None]:
            raise ConfigError(
                f'log.to: "{name}" needs packages that are not installed: {", ".join(missing)}. '
                f"Run pip install 'ramify-rl[{name}]'."
            )
