"""ramify: entropy-balanced, branching reinforcement learning for tool-using LLM agents.

`import ramify as rf` loads nothing but this table; each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramify import algorithms, branching, rewards, tools
    from ramify.api.agent import Agent
    from ramify.api.bench import bench_credit
    from ramify.api.data import Problems, problems
    from ramify.api.functions import advantage, branching_rule, reward, rewriter, token_loss, tool
    from ramify.api.policy import Policy, Report
    from ramify.api.results import Results, compare, evaluate, evaluate_async
    from ramify.api.runs import Run, open_run
    from ramify.api.scoring import credit, credit_async, score, score_async
    from ramify.api.tables import Learner, Limits, Rollout
    from ramify.api.trainer import DPO, SFT, Trainer
    from ramify.api.trees import Tree, Trees
    from ramify.api.views import Node, Trajectory
    from ramify.config.schema_parts import SandboxSection as Sandbox
    from ramify.core.errors import RamifyError
    from ramify.core.messages import Message, Problem
    from ramify.core.protocols import Environment, Tool
    from ramify.engines.configs import TrainingEngineConfig as LocalEngine
    from ramify.modeling.configs import AdapterConfig as LoRA
    from ramify.train.configs import EvaluationConfig as Eval

__version__ = "0.1.0"

_PUBLIC = {
    "Agent": "api.agent",
    "bench_credit": "api.bench",
    "Problems": "api.data",
    "problems": "api.data",
    "advantage": "api.functions",
    "branching_rule": "api.functions",
    "reward": "api.functions",
    "rewriter": "api.functions",
    "token_loss": "api.functions",
    "tool": "api.functions",
    "Policy": "api.policy",
    "Report": "api.policy",
    "Results": "api.results",
    "compare": "api.results",
    "evaluate": "api.results",
    "evaluate_async": "api.results",
    "Run": "api.runs",
    "open_run": "api.runs",
    "credit": "api.scoring",
    "credit_async": "api.scoring",
    "score": "api.scoring",
    "score_async": "api.scoring",
    "Learner": "api.tables",
    "Limits": "api.tables",
    "Rollout": "api.tables",
    "DPO": "api.trainer",
    "SFT": "api.trainer",
    "Trainer": "api.trainer",
    "Tree": "api.trees",
    "Trees": "api.trees",
    "Node": "api.views",
    "Trajectory": "api.views",
    "RamifyError": "core.errors",
    "Message": "core.messages",
    "Problem": "core.messages",
    "Environment": "core.protocols",
    "Tool": "core.protocols",
    "LocalEngine": "engines.configs.TrainingEngineConfig",
    "LoRA": "modeling.configs.AdapterConfig",
    "Sandbox": "config.schema_parts.SandboxSection",
    "Eval": "train.configs.EvaluationConfig",
}
"""The module of each public name; with a name behind it, that which the object has there."""
_NAMESPACES = ("algorithms", "branching", "rewards", "tools")
"""Packages whose own `__init__` is public; everything else is private."""

__all__ = [
    "DPO",
    "SFT",
    "Agent",
    "Environment",
    "Eval",
    "Learner",
    "Limits",
    "LoRA",
    "LocalEngine",
    "Message",
    "Node",
    "Policy",
    "Problem",
    "Problems",
    "RamifyError",
    "Report",
    "Results",
    "Rollout",
    "Run",
    "Sandbox",
    "Tool",
    "Trainer",
    "Trajectory",
    "Tree",
    "Trees",
    "advantage",
    "algorithms",
    "bench_credit",
    "branching",
    "branching_rule",
    "compare",
    "credit",
    "credit_async",
    "evaluate",
    "evaluate_async",
    "open_run",
    "problems",
    "reward",
    "rewards",
    "rewriter",
    "score",
    "score_async",
    "token_loss",
    "tool",
    "tools",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public object
    """Import a public name when it is first used (PEP 562)."""
    if name in _NAMESPACES:
        return import_module(f"ramify.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ramify' has no attribute {name!r}")
    module, _, own = (
        _PUBLIC[name].rpartition(".") if _PUBLIC[name].count(".") > 1 else (_PUBLIC[name], "", name)
    )
    value = getattr(import_module(f"ramify.{module}"), own)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({"__version__", *__all__})
