"""`Agent`: a policy with tools and limits; it grows trees as `ramify train` does, by the same agent loop."""

import asyncio
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.api.data import as_problems
from ramify.api.policy import Policy
from ramify.api.session import in_thread, run
from ramify.api.tables import (
    Limits,
    Table,
    base_recipe,
    environment_table,
    function_table,
    merged,
    require,
    short,
    tool_tables,
)
from ramify.api.trees import Tree, Trees
from ramify.api.views import Node, Spell, Trajectory
from ramify.config.load import check_recipe
from ramify.config.schema_parts import EnvironmentSection, SandboxSection, Section, ToolsSection
from ramify.config.schema_rollout import RolloutSection
from ramify.core.closing import close_all
from ramify.core.config import Tokens
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Problem
from ramify.core.tree import Tree as CoreTree
from ramify.core.tree import TreeKey
from ramify.obs.metrics import TimingLog
from ramify.runs.configs import RunConfig
from ramify.runs.recorded_trees import require_tokenizer
from ramify.sampler.task import BuiltReward, Task
from ramify.sandbox.kernel import forbid_inspection

if TYPE_CHECKING:
    from ramify.core.protocols import Brancher
    from ramify.rollout.plan import TreeRequest
    from ramify.rollout.settings import AgentParts
    from ramify.sampler.sampler import Sampler


class _WorldTables(Section):
    """The tables of a recipe that say what an agent acts in."""

    tools: ToolsSection = ToolsSection()
    sandbox: SandboxSection = SandboxSection()
    environment: EnvironmentSection | None = None


class _PromptTable(Section):
    """The limit of a prompt."""

    max_prompt_tokens: Tokens


class _RolloutTable(Section):
    """The rollout of a recipe."""

    rollout: RolloutSection


class Agent:
    """A policy that acts.

    Args:
        policy: The weights.
        tools: Functions, classes, and objects of `ramify.tools`; or one of these.
        environment: A class, or an object of `ramify.tools`, in place of tools.
        limits: Limits of a trajectory; those that it leaves out are the ones of the recipe below a `Trainer`.
        instructions: The fixed text in front of each question, as `data.instructions` of a recipe.
        rewriters: Functions that have a trajectory go on from elsewhere.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        tools: Any = (),  # noqa: ANN401 - one tool or several
        environment: Any = None,  # noqa: ANN401 - a class or a Config
        limits: Limits | None = None,
        instructions: bool | str = False,
        rewriters: Sequence[Any] = (),
    ) -> None:
        """Open the tools, and the engine on the policy's weights.

        Raises:
            UserError: A tool cannot be used, or the machine lacks what it needs.
        """
        require(policy, Policy, "Agent: policy: expected a ramify.Policy")
        require(limits or Limits(), Limits, "Agent: limits: expected ramify.Limits")
        require(rewriters, list | tuple, "Agent: rewriters: expected a list of functions")
        if not isinstance(instructions, bool):
            require(instructions, str, "Agent: instructions: expected a text, a file, True or False")
        self.policy = policy
        base = base_recipe()
        keys = {"max_prompt_tokens": base["data"]["max_prompt_tokens"], **base["rollout"]}
        if policy.deterministic:
            keys |= {"trajectory_seconds": None, "step_seconds": None}
        keys = merged({key: keys[key] for key in Limits.keys & keys.keys()}, limits.table if limits else {})
        prompt = check_recipe(
            _PromptTable, {"max_prompt_tokens": keys.pop("max_prompt_tokens", None)}, "Agent"
        )
        self._prompt_tokens = prompt.max_prompt_tokens
        self._limits: Table = keys
        self._instructions = instructions
        self._branchers: dict[str, Brancher] = {}
        self._publishing = asyncio.Lock()
        self._version: int | None = None
        self._closed = False
        world = tool_tables(tools)
        if environment is None and not world["tools"]:
            raise ConfigError(
                "Agent: expected tools or an environment. Name one, such as tools=ramify.tools.Python()"
            )
        tables = world | {"environment": environment_table(environment)}
        self._parts = run(self._open(check_recipe(_WorldTables, merged({}, tables), "Agent"), rewriters))

    async def _open(self, world: _WorldTables, rewriters: Sequence[Any]) -> "AgentParts":
        from ramify.assemble.tools import build_tools

        if world.tools.python is not None:
            # As on the command line: no program of the model may read this process, which holds keys and computes rewards.
            forbid_inspection()
        self._toolbox = await asyncio.to_thread(build_tools, world.tools, world.sandbox, world.environment)
        try:
            return self._built(rewriters)
        except BaseException:
            await self._toolbox.close()
            raise

    def _built(self, rewriters: Sequence[Any]) -> "AgentParts":
        from ramify.algos.branch_rules import FlatBrancher
        from ramify.assemble.agent import build_agent
        from ramify.assemble.model import build_tokenizer, require_positions
        from ramify.chat.renderers import renderer_for

        policy = self.policy
        folder = policy.config.folder
        self._renderer = renderer_for(policy.config.dialect, build_tokenizer(folder, computes=True))
        self._renderer.check_tools(self._toolbox.specs)
        section = self._rollout({"n": 1, "branching": "none"})
        context_tokens = self._prompt_tokens + section.max_tokens
        require_positions(
            policy.config.path, int(policy.model.config.max_position_embeddings), context_tokens
        )
        return build_agent(
            engine=policy.engine,
            run=RunConfig(dir=Path(), seed=policy.seed, deterministic=policy.deterministic),
            toolbox=self._toolbox,
            renderer=self._renderer,
            model=lambda: policy.model,
            context_tokens=context_tokens,
            brancher=FlatBrancher(probe_tokens=0),
            limits=section.of_trees(1),
            events=TimingLog(),
            rewriters=tuple(map(_rewriter, rewriters)),
        )

    def rollout(
        self,
        problems: Any = None,  # noqa: ANN401 - problems, rows or texts
        n: int = 16,
        m: int | None = None,
        branching: Any = None,  # noqa: ANN401 - a name, an object or a function
        *,
        start: Node | None = None,
        branch_at: str = "before_probe",
        all_entropies: bool = False,
        _is_aside: bool = False,
    ) -> Trees:
        """Grow one tree for each problem, with n trajectories, of which m start from the prompt.

        The draws are those of the policy's step; a second rollout within a step has others. What goes on from a node has draws
        of its own, and changes those of no other rollout.

        Args:
            problems: Problems, rows or texts.
            n: Trajectories of a tree.
            m: Those that start from the prompt; the rest branch. None: all n.
            branching: A name, an object of `ramify.branching`, or a function of a candidate that returns a probability; None:
                ARPO's rule, where m is set.
            start: Go on from this node of an earlier tree in place of a problem.
            branch_at: Where branches start, as `rollout.branch_at` of a recipe.
            all_entropies: Keep the entropy of each token, as AEPO's advantages need it.

        Raises:
            UserError: The problems or the rule cannot be used.
            KeyboardInterrupt: Ctrl-C.
        """
        if (problems is None) == (start is None):
            raise ConfigError("rollout: expected problems, or start = a node of a tree")
        require(start, Node | None, 'rollout: start: expected a node of a tree, such as tree["0"]')
        rule = branching if branching is not None else "none" if m is None else "bernoulli"
        table = {"n": n, "m": m, "branching": function_table(rule), "branch_at": branch_at}
        section = self._rollout({key: value for key, value in table.items() if value is not None})
        try:
            section.refuse_idle_rule()
        except ValueError as error:
            raise ConfigError(f"rollout: {error}") from None
        requests = self._requests(() if problems is None else as_problems(problems), start, _is_aside)
        timing = TimingLog()
        parts = replace(
            self._parts,
            events=timing,
            brancher=self._brancher(section),
            limits=section.of_trees(n),
            branch_at=section.branch_at,
            all_entropies=all_entropies,
        )
        grown = run(self._grow(parts, requests))
        _report_failures(timing, grown)
        if _is_aside or start is not None:
            self.end_aside()
        return Trees(
            Tree(core, spell=self._renderer.decode, temperature=section.temperature) for core in grown
        )

    async def rollout_async(self, *args: Any, **keywords: Any) -> Trees:  # noqa: ANN401 - those of rollout
        """As `rollout`, in a thread."""
        trees: Trees = await in_thread(self.rollout, *args, **keywords)
        return trees

    def chat(self, text: str) -> Trajectory:
        """Answer one question; returns the whole trajectory, of which `answer` is the final answer.

        Raises:
            UserError: The question cannot be used.
        """
        return self.rollout([text], n=1, _is_aside=True)[0].trajectories[0]

    async def chat_async(self, text: str) -> Trajectory:
        """As `chat`, in a thread."""
        trajectory: Trajectory = await in_thread(self.chat, text)
        return trajectory

    @property
    def spell(self) -> Spell:
        """Returns the text of token ids."""
        return self._renderer.decode

    def attempter(self, problems: Sequence[Problem], reward: BuiltReward) -> "Sampler":
        """Return a sampler of single attempts at problems, which shares the engine and the tools."""
        from ramify.algos.branch_rules import FlatBrancher
        from ramify.sampler.sampler import Sampler, Scoring

        timing, shown = TimingLog(), self._shown(problems)
        task = Task(shown, self._toolbox, self._renderer, self._parts.engine.info().context_tokens, reward)
        limits = replace(self._parts.limits, n=1)
        parts = replace(self._parts, brancher=FlatBrancher(probe_tokens=0), limits=limits, events=timing)
        return Sampler(task, parts, timing, Scoring(reward.fn, timing))

    def close(self) -> None:
        """Stop the tools and the engine; nothing can be grown afterwards. A second call does nothing."""
        if not self._closed:
            self._closed = True
            run(close_all((self._parts.engine, self._toolbox)))

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        tools = ", ".join(spec.name for spec in self._toolbox.specs)
        return short(f"Agent({self.policy!r}, tools: {tools})")

    def _rollout(self, table: Table) -> RolloutSection:
        whole = {"problems_per_step": 1, **self._limits, **table}
        return check_recipe(_RolloutTable, {"rollout": whole}, "Agent").rollout

    def _brancher(self, section: RolloutSection) -> "Brancher":
        """Return the rule of these settings, the same each time: some remember what they saw."""
        from ramify.algos.file_parts import FileRule
        from ramify.assemble.agent import build_brancher

        key = repr((section.branching, section.m, section.n))
        # A function remembers nothing here, and that of a file may be another one since.
        if key not in self._branchers or isinstance(section.branching, FileRule):
            self._branchers[key] = build_brancher(section, self._renderer.tokenizer.vocab_size)
        return self._branchers[key]

    def _requests(
        self, problems: Sequence[Problem], start: Node | None, is_aside: bool
    ) -> "tuple[TreeRequest, ...]":
        from ramify.rollout.plan import request_from, step_requests

        policy = self.policy
        attempt = policy.next_attempt(is_aside=is_aside or start is not None)
        if start is not None:
            request = request_from(start.tree, start.id)
            require_tokenizer("rollout: start", request.above[0], self.spell)
            return (replace(request, key=TreeKey(policy.step, request.key.slot, attempt)),)
        return step_requests(self._shown(problems), policy.step, attempt=attempt)

    def _shown(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """Return problems with the instructions in front."""
        from ramify.data.prompts import read_prompt_texts

        texts = read_prompt_texts(
            "instructions", self._instructions, self._renderer, self.policy.config.dialect
        )
        return texts.in_front(problems, tuple(spec.name for spec in self._toolbox.specs))

    def end_aside(self) -> None:
        """Have the next rollout of a deterministic loop find the engine's cache as one without this look aside does: empty."""
        if self.policy.deterministic:
            self._version = None

    async def publish(self) -> None:
        """Have the engine use the policy's weights as they are now."""
        step = self.policy.step
        async with self._publishing:
            if self._version != step:
                await self._parts.engine.load_weights(step)
                self._version = step

    async def _grow(self, parts: "AgentParts", requests: "Sequence[TreeRequest]") -> tuple[CoreTree, ...]:
        from ramify.rollout.grow import grow_requests

        await self.publish()

        async def whole(tree: CoreTree, _: float) -> CoreTree:
            return tree

        return await grow_requests(parts, requests, whole)


def _report_failures(timing: TimingLog, grown: Sequence[CoreTree]) -> None:
    """Warn of problems that failed.

    Raises:
        DataError: No problem worked.
    """
    if timing.failed_problems and all(tree.has_failed for tree in grown):
        raise DataError(
            f"rollout: none of {len(grown)} problems worked; the first: {timing.failed_problems[0]}"
        )
    for note in timing.failure_notes():
        warnings.warn(f"rollout: {note}", RuntimeWarning, stacklevel=3)


def _rewriter(function: Any) -> Any:  # noqa: ANN401 - a function of the user's own
    from ramify.api.tables import own_table
    from ramify.rollout.configs import RewriterConfig
    from ramify.rollout.rewriting import load_rewriter

    return load_rewriter(RewriterConfig(**own_table(function)))[0]
