"""The schema of `[repair]`: Tool-Star's repair tools, in training, evaluation and synthesis."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag, model_validator

from ramify.config.schema_parts import Section
from ramify.config.schema_tools import ToolsSection
from ramify.core.config import Seconds, Temperature, Tokens
from ramify.rollout.configs import (
    BacktracerConfig,
    DebuggerConfig,
    OwnHelperConfig,
    RefinerConfig,
    ServedHelperConfig,
)
from ramify.tools.configs import CacheConfig


def _name(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    return value.get("name", "openai") if isinstance(value, dict) else getattr(value, "name", "openai")


HelperSection = Annotated[
    Annotated[ServedHelperConfig, Tag("openai")] | Annotated[OwnHelperConfig, Tag("file")],
    Discriminator(_name),
]


class RepairSection(Section):
    """Repair tools (arXiv 2505.16410), each with a budget of its own on every trajectory; an absent table is an absent tool.

    `helper` is the model that the debugger and the refiner ask: an OpenAI-compatible endpoint, or a function of the user's
    own; without it they ask the policy itself. An answer has `max_tokens`, and one of a `helper` has `timeout_seconds`, too.
    `cache` records and replays the answers of a `helper`.
    """

    debugger: DebuggerConfig | None = None
    backtracer: BacktracerConfig | None = None
    refiner: RefinerConfig | None = None
    helper: HelperSection | None = None
    max_tokens: Tokens = 1024
    temperature: Temperature = 0.0
    timeout_seconds: Seconds = 60.0
    cache: CacheConfig | None = None

    @property
    def asks(self) -> bool:
        """Whether a helper is asked."""
        return self.debugger is not None or self.refiner is not None

    @model_validator(mode="after")
    def _acting(self) -> "RepairSection":
        if not self.asks:
            if self.backtracer is None:
                raise ValueError("expected debugger, backtracer or refiner")
            for key in ("helper", "max_tokens", "temperature", "timeout_seconds", "cache"):
                if getattr(self, key) != RepairSection.model_fields[key].default:
                    raise ValueError(f"{key}: acts with debugger or refiner only; leave it out")
        if self.helper is None:
            for key in ("timeout_seconds", "cache"):
                if getattr(self, key) != RepairSection.model_fields[key].default:
                    raise ValueError(
                        f"{key}: acts with helper only, the policy's own answers have none; leave it out"
                    )
        return self


def refuse_idle_repairs(
    repair: RepairSection | None, tools: ToolsSection, rewriters: tuple[str, ...], *, has_environment: bool
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
