"""What pyproject.toml cannot say: the recipes, which lie beside the package, belong into the wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithRecipes(build_py):
    """Copies recipes/*.toml to ramify/recipes; an editable installation finds them where they are."""

    def run(self) -> None:
        """Build the package."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "ramify", "recipes")
            target.mkdir(parents=True, exist_ok=True)
            for recipe in sorted(Path("recipes").glob("*.toml")):
                shutil.copy(recipe, target)


setup(cmdclass={"build_py": WithRecipes})
