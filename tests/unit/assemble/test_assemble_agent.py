"""The repair tools of a recipe: what its keys set, and who is asked first."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter

from ramify.algos.branch_rules import FlatBrancher
from ramify.assemble.agent import build_agent, build_repairs, open_repairs
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.records import TokenUsage
from ramify.engines.chat_models import PolicyChat
from ramify.engines.configs import ScriptedEngineConfig
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.rollout.configs import RolloutLimits
from ramify.rollout.tool_set import ToolSet
from ramify.runs.configs import RunConfig
from ramify.sampler.configs import RepairConfig
from ramify.sampler.task import RepairKit, Toolbox

HELPER = {"name": "file", "path": "helper.py", "function": "helper"}
LIMITS = RolloutLimits(n=1, max_tokens=100, max_calls=1, temperature=0.0)


@dataclass
class Keeps:
    """A helper that keeps with what it was asked."""

    requests: list = field(default_factory=list)
    name = "keeps"
    usage = TokenUsage(3, 2, 1)

    async def complete(self, messages, *, max_tokens, temperature):
        self.requests.append((max_tokens, temperature))
        return "so"


def built(folder, model=None, **table):
    tokenizer = ChatTokenizer(folder)
    engine = ScriptedEngine(tokenizer, lambda context, seed: ScriptedTurn("42", ends=True))
    kit = RepairKit(TypeAdapter(RepairConfig).validate_python(table), model, None)
    environment, rewriters = build_repairs(kit, ToolSet({}), engine, TagRenderer(tokenizer), LIMITS, 5)
    return kit, environment, rewriters


def test_the_helper_is_asked_as_the_recipe_says(tokenizer_folder):
    model = Keeps()
    table = {"helper": HELPER, "max_tokens": 77, "temperature": 0.3, "timeout_seconds": 9.0}
    kit, environment, (refiner,) = built(tokenizer_folder, model, debugger={}, refiner={}, **table)
    for helper in (environment.helper, refiner.helper):
        assert asyncio.run(helper.ask("task", "do it {mark}", {})) == "so"
        assert (helper.seconds, helper.seed) == (9.0, 5)
    assert model.requests == [(77, 0.3)] * 2
    assert kit.usage == TokenUsage(3, 2, 1)


def test_budgets_and_the_agents_temperature(tokenizer_folder):
    _, environment, (backtracer, refiner) = built(
        tokenizer_folder,
        debugger={"calls": 2},
        backtracer={"calls": 3},
        refiner={"calls": 4, "at_tokens": 50},
        temperature=0.7,
    )
    assert (environment.calls, backtracer.budget, refiner.budget, refiner.at_tokens) == (2, 3, 4, 50)
    assert backtracer.temperature == LIMITS.temperature


def test_the_policy_as_helper_has_no_clock_and_its_answers_are_counted(tokenizer_folder):
    kit, environment, _ = built(tokenizer_folder, debugger={})
    assert isinstance(environment.helper.model, PolicyChat)
    assert environment.helper.seconds is None
    asyncio.run(environment.helper.ask("task", "do it {mark}", {}))
    assert kit.usage.answers == 1
    assert kit.usage.prompt_tokens > 1


def test_the_backtracer_alone_asks_nobody(tokenizer_folder):
    kit, _, _ = built(tokenizer_folder, backtracer={})
    assert kit.usage is None


def test_a_function_of_another_file_is_another_helper(tmp_path):
    names = []
    for file, text in (("a.py", "return ''"), ("b.py", "return ''"), ("a.py", "return 'x'")):
        path = tmp_path / file
        path.write_text(f"def helper(messages, word=''):\n    {text}\n")
        for args in ({}, {"word": "x"}):
            table = {"debugger": {}, "helper": {**HELPER, "path": path, "args": args}}
            names.append(open_repairs(TypeAdapter(RepairConfig).validate_python(table)).model.name)
    assert len(set(names)) == 6


def test_the_users_own_rewriters_are_asked_after_the_repair_tools(tokenizer_folder, tmp_path):
    script = tmp_path / "script.toml"
    script.write_text("[[turns]]\nafter = 0\ntext = 'a'\nentropies = [0.1]\n")
    own = SimpleNamespace(name="own", budget=1)
    table = {"backtracer": {}, "refiner": {}}
    agent = build_agent(
        engine=ScriptedEngineConfig(name="scripted", script=script),
        run=RunConfig(dir=tmp_path),
        toolbox=Toolbox(ToolSet({})),
        renderer=TagRenderer(ChatTokenizer(tokenizer_folder)),
        model=None,
        context_tokens=100,
        brancher=FlatBrancher(probe_tokens=0),
        limits=LIMITS,
        events=None,
        rewriters=(own,),
        repairs=RepairKit(TypeAdapter(RepairConfig).validate_python(table), None, None),
    )
    assert [rewriter.name for rewriter in agent.rewriters] == ["backtracer", "refiner", "own"]


@pytest.mark.parametrize("key", [{"cache": {"path": "c"}}, {"timeout_seconds": 5.0}])
def test_the_policys_answers_have_no_cache_and_no_clock(key):
    with pytest.raises(ValueError, match="has no effect without helper") as refused:
        TypeAdapter(RepairConfig).validate_python({"debugger": {}, **key})
    assert next(iter(key)) in str(refused.value)
    TypeAdapter(RepairConfig).validate_python({"debugger": {}, "helper": HELPER, **key})
