"""The schema of `[repair]`: Tool-Star's repair tools, in training, evaluation and synthesis."""

from ramify.config.schema_tools import ToolsSection
from ramify.sampler.configs import RepairConfig


def refuse_idle_repairs(
    repair: RepairConfig | None, tools: ToolsSection, rewriters: tuple[str, ...], *, has_environment: bool
) -> None:
    """Refuse a debugger without programs, and a rewriter of the user's own with the name of a repair tool (ValueError)."""
    if repair is None:
        return
    if repair.debugger is not None and tools.python is None and not has_environment:
        raise ValueError(
            "repair.debugger: corrects programs of [tools.python], which the recipe does not have"
        )
    for name in ("backtracer", "refiner"):
        if getattr(repair, name) is not None and name in rewriters:
            raise ValueError(f"rewriters: {name!r} is the name of a repair tool; give yours another name")
