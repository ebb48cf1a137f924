"""What engines' Configs say about them; nobody but the builder asks of which class one is."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

import ramify
from ramify.assemble.task import group_size, script_identity
from ramify.assemble.worker import build_engine_model
from ramify.config.schema_eval import refuse_rewriting_chats
from ramify.core.errors import ConfigError
from ramify.engines.configs import (
    EngineConfig,
    GpuTurns,
    LocalEngineConfig,
    OpenAIEngineConfig,
    TrainingEngineConfig,
    VllmEngineConfig,
)
from ramify.runs.configs import RunConfig

SOURCES = Path(ramify.__file__).parent
BUILDER = SOURCES / "assemble" / "agent.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEngineConfig(EngineConfig):
    """An engine that nobody here knows."""

    name: Literal["new"] = "new"


def classes_that_are_asked_for(file):
    """Yields the engines' classes whose instances a file looks for, in `isinstance` or `match`."""
    for node in ast.walk(ast.parse(file.read_text())):
        is_asked = (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        )
        looked_for = node.args[1] if is_asked else node.cls if isinstance(node, ast.MatchClass) else None
        if looked_for is not None:
            names = [name.id for name in ast.walk(looked_for) if isinstance(name, ast.Name)]
            yield from (name for name in names if name.endswith("EngineConfig"))


def test_only_the_builder_asks_for_the_class_of_an_engine():
    asking = {file for file in SOURCES.rglob("*.py") if any(classes_that_are_asked_for(file))}
    assert asking == {BUILDER}
    assert len(set(classes_that_are_asked_for(BUILDER))) == 4


def test_an_engine_that_overrides_nothing_passes_every_check():
    engine, model = NewEngineConfig(), object()
    engine.refuse_model(Path("folder"), hands_over=True)
    refuse_rewriting_chats(engine, ("a rewriter",), None, hints=True)
    assert build_engine_model(engine, model, pytest.fail) is model
    assert script_identity(engine) is None
    assert group_size(RunConfig(dir="run", deterministic=True), engine) is None
    assert (engine.loads_weights, engine.gpu_turns, engine.service_key, engine.served_dtype) == (
        False,
        None,
        None,
        None,
    )


def test_what_engines_say_of_themselves():
    started = VllmEngineConfig(name="vllm", launch=True, dtype="float32")
    addressed = VllmEngineConfig(name="vllm", urls=("http://localhost:1",), key_variable="MY_KEY")
    chat = OpenAIEngineConfig(name="openai", url="http://a", model="m", api="chat", key_variable="MY_KEY")
    assert LocalEngineConfig(name="local").loads_weights
    assert (started.loads_weights, addressed.loads_weights, chat.loads_weights) == (True, False, False)
    assert (started.uses_given_servers, addressed.uses_given_servers, chat.uses_given_servers) == (
        False,
        True,
        True,
    )
    assert (addressed.service_key, chat.service_key, started.served_dtype) == ("MY_KEY", "MY_KEY", "float32")
    assert (addressed.continues_turns, chat.continues_turns) == (True, False)
    assert TrainingEngineConfig(name="local", weights="copy").learner_weights == "copy"
    assert (LocalEngineConfig(name="local").learner_weights, started.learner_weights) == (None, None)


@pytest.mark.parametrize(
    ("flags", "share"),
    [
        ((), 0.9),
        (("--gpu-memory-utilization", "0.6"), 0.6),
        (("--enforce-eager", "--gpu-memory-utilization=0.55"), 0.55),
    ],
)
def test_the_share_of_a_gpu_that_a_server_takes(flags, share):
    settings = {"name": "vllm", "launch": True, "flags": flags}
    split = {**settings, "flags": (*flags, "--tensor-parallel-size", "2"), "gpus": ("0,1",)}
    assert VllmEngineConfig(**split, sleep=True).gpu_turns == GpuTurns(share, 2)
    assert VllmEngineConfig(**settings).gpu_turns is None


def test_a_server_with_whole_copies_on_its_gpus_holds_all_weights_on_each():
    flags = ("-dp", "2", "--pipeline_parallel_size=2")
    engine = VllmEngineConfig(name="vllm", launch=True, gpus=("0,1,2,3",), flags=flags)
    assert engine.server_gpus == GpuTurns(0.9, 2)


@pytest.mark.parametrize(
    ("gpus", "flags", "expected"),
    [
        (("0", "1", "0"), (), "gpus: GPU 0 is of two servers"),
        (("0,1", "1,2"), ("-tp", "2"), "gpus: GPU 1 is of two servers"),
        (("0,0",), ("--tensor-parallel-size", "2"), 'expected numbers of different GPUs, such as "0,1", got "0,0"'),
        (("0,",), (), 'got "0,"'),
        (("0,1",), (), 'gpus: "0,1" has 2 GPUs and flags split a server over 1'),
        (("0",), ("--tensor-parallel-size=4",), 'gpus: "0" has 1 GPUs and flags split a server over 4'),
        (("0",), ("-tp", "many"), "split a server over 0"),
    ],
)  # fmt: skip
def test_gpus_that_two_servers_would_have_or_none_would_use_are_refused(gpus, flags, expected):
    with pytest.raises(ConfigError, match=re.escape(expected)):
        VllmEngineConfig(name="vllm", launch=True, gpus=gpus, flags=flags)


def test_a_quantised_server_is_not_compared_by_checksums():
    settings = {"name": "vllm", "launch": True, "flags": ("--quantization", "fp8")}
    assert VllmEngineConfig(**settings).weights == "folder"
    with pytest.raises(ConfigError, match="a quantised server hides small steps"):
        VllmEngineConfig(**settings, weights="nccl")


def test_servers_refuse_an_adapter_that_no_learner_hands_over(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    engine = VllmEngineConfig(name="vllm", launch=True)
    engine.refuse_model(tmp_path, hands_over=True)
    with pytest.raises(ConfigError, match="Merge it first"):
        engine.refuse_model(tmp_path, hands_over=False)
