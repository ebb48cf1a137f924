"""Which of several processes this one is, as torchrun tells it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ramify.core.errors import ConfigError

SECRET_VARIABLE = "RAMIFY_SECRET"
"""The environment variable with the secret that processes on several machines share."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of several.

    Attributes:
        number: 0 <= number < size; rank 0 runs the loop and is the only one that speaks.
        size: Number of processes.
        local: Its number on its machine.
        local_size: Number of processes on its machine; 0: the launcher does not say.
        is_supervised: True if torchrun started it.
    """

    number: int = 0
    size: int = 1
    local: int = 0
    local_size: int = 0
    is_supervised: bool = False

    @property
    def on_one_machine(self) -> bool:
        """True if torchrun started all of them on this machine."""
        return self.is_supervised and self.local_size == self.size


_VARIABLES = {
    "number": "RANK",
    "size": "WORLD_SIZE",
    "local": "LOCAL_RANK",
    "local_size": "LOCAL_WORLD_SIZE",
}


def launched(environ: Mapping[str, str]) -> Rank:
    """Return the rank of this process, from the variables that torchrun sets; without them the only one.

    Raises:
        ConfigError: The variables are no numbers, or contradict each other.
    """
    if "WORLD_SIZE" not in environ or "RANK" not in environ:
        return Rank()
    variables = {key: environ[name] for key, name in _VARIABLES.items() if name in environ}
    if not all(re.fullmatch(r"[0-9]{1,9}", value) for value in variables.values()):
        listing = ", ".join(f"{_VARIABLES[key]}={value[:20]}" for key, value in variables.items())
        raise ConfigError(f"{listing}: expected whole numbers, as torchrun sets them")
    values = {key: int(value) for key, value in variables.items()}
    if values["number"] >= values["size"]:
        raise ConfigError(
            f"RANK={values['number']}: expected a number below WORLD_SIZE={values['size']}, as torchrun sets them"
        )
    return Rank(**values, is_supervised="TORCHELASTIC_RUN_ID" in environ)
