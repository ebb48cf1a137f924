"""Files of users that import a module of ramify by the name that it had."""

import importlib.util
import re
from pathlib import Path

import pytest

from ramify.core.errors import ConfigError
from ramify.files.user_code import load_function

CHANGELOG = Path(__file__).parents[3] / "CHANGELOG.md"
ROWS = re.findall(r"^  \| `(ramify\.[\w.]+)` \| `(ramify\.[\w.]+)` \|$", CHANGELOG.read_text(), re.MULTILINE)


def test_an_import_of_a_module_that_has_moved_names_its_new_home(tmp_path):
    assert len(ROWS) > 10
    file = tmp_path / "own.py"
    for old, new in ROWS:
        assert importlib.util.find_spec(new) is not None
        package, _, module = old.rpartition(".")
        for line in (f"from {old} import anything", f"from {package} import {module}"):
            file.write_text(f"import os\n{line}\n")
            with pytest.raises(ConfigError, match=rf"own.py, line 2: .* Import it from {re.escape(new)}\.$"):
                load_function(file, "anything")
