"""Which packages load which libraries: the light ones never torch or transformers."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

LIGHT = ("runtime", "files", "core", "chat", "sandbox", "tools", "rewards", "rollout", "data", "obs")


@pytest.mark.parametrize("package", LIGHT)
def test_light_packages_load_neither_torch_nor_transformers(package):
    code = f"""
import importlib, pkgutil, sys
import ramify.{package} as package
found = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
assert found
for name in found:
    importlib.import_module(name)
loaded = {{"torch", "transformers"}} & sys.modules.keys()
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_recipes_are_checked_without_the_libraries_that_run_them():
    code = """
import sys
import ramify.assemble.agent, ramify.config.load, ramify.config.schema_eval, ramify.config.schema_examples
import ramify.config.schema_train, ramify.commands.check_files
loaded = {"torch", "transformers", "tantivy", "pyarrow", "tokenizers"} & sys.modules.keys()
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_training_step_loads_no_adapters_library_and_no_family_that_it_does_not_train():
    code = """
import sys
import ramify.train.rl, ramify.learner.worker, ramify.engines.local
families = [name for name in sys.modules if name.startswith("transformers.models.") and ".modeling_" in name]
assert not families or all(".auto." in name for name in families), families
assert "peft" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_import_ramify_takes_50_ms_and_loads_no_library():
    """On a slow machine, where Python itself takes longer to start, three times as long as that."""
    code = """
import sys, time
before = set(sys.modules)
began = time.process_time()
import ramify as rf
seconds = time.process_time() - began
assert seconds <= max(0.05, 3 * began), (seconds, began)
assert {"Policy", "Agent", "tools", "algorithms"} <= set(dir(rf))
heavy = {"torch", "transformers", "pydantic", "numpy", "rich"} & (sys.modules.keys() - before)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
