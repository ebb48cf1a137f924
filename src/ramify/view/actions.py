"""Commands to copy: what a user can do with a tree. The page puts ids for {node}, {leaf} and {other}."""

import shlex

from ramify.obs.trace import TracedTree
from ramify.view.folders import RunPlace, TraceSource, is_file


def commands_for(run: RunPlace, source: TraceSource, row: int, traced: TracedTree) -> list[dict[str, str]]:
    """Return the commands for a tree, each with a name and a template for a shell."""
    here = f"#step={source.step}&tree={row}/{{node}}"
    commands = [("open here", f"ramify view {_quoted(f'{run.folder}')} --serve   # {here}")]
    if is_file(run.recipe) and source.path.parent.name == "trees" and source.step:
        start = f"{run.folder}:{source.step}:{traced.tree.key.slot}/"
        again = f"{run.folder.name}-again"
        commands.append(
            (
                "grow again from here",
                f"ramify rollout {_quoted(f'{run.recipe}')} --from {_quoted(start)}{{node}} -s run.dir={_quoted(again)}",
            )
        )
    return [{"name": name, "template": template} for name, template in commands]


def _quoted(text: str) -> str:
    """Return a text for a shell, in which braces stay for the page."""
    return shlex.quote(text)
