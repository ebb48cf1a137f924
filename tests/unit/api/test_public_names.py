"""The table of public names: each can be imported, says what it is, and stands in all three lists of `ramify/__init__.py`."""

import ast
import dataclasses
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import ramify as rf

BLOCKING = ("score", "credit", "evaluate")


def test_the_lists_agree():
    tree = ast.parse(Path(rf.__file__).read_text())
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    names = {alias.asname or alias.name for node in typed.body for alias in node.names}
    assert names == set(rf.__all__) == set(rf._PUBLIC) | set(rf._NAMESPACES)
    with pytest.raises(AttributeError, match="module 'ramify' has no attribute 'Trainor'"):
        rf.Trainor  # noqa: B018


@pytest.mark.parametrize("name", rf.__all__)
def test_a_public_name_has_a_docstring_and_types(name):
    value = getattr(rf, name)
    assert inspect.getdoc(value)
    if isinstance(value, ModuleType):
        assert all(inspect.getdoc(getattr(value, each)) for each in value.__all__)
        return
    if inspect.isfunction(value):
        hints = inspect.get_annotations(value)
        assert hints.keys() == {*inspect.signature(value).parameters, "return"}


@pytest.mark.parametrize(
    "kind", [rf.LoRA, rf.Eval, rf.LocalEngine, rf.tools.Python, rf.rewards.Judge, rf.branching.Bernoulli]
)
def test_settings_show_their_keys(kind):
    keys = inspect.signature(kind).parameters
    assert keys.keys() == {field.name for field in dataclasses.fields(kind) if field.init}
    assert "Within" not in str(keys.values())


def test_blocking_functions_and_methods_have_twins():
    for name in BLOCKING:
        assert inspect.iscoroutinefunction(getattr(rf, f"{name}_async"))
    for kind, names in ((rf.Agent, ("rollout", "chat")), (rf.Policy, ("update",)), (rf.Trainer, ("train",))):
        for name in names:
            assert inspect.iscoroutinefunction(getattr(kind, f"{name}_async"))
            assert not inspect.iscoroutinefunction(getattr(kind, name))
