"""A cache for tests of what uses one."""

import json
from collections.abc import Awaitable, Callable

from ramify.core.protocols import CacheKey, Json


class KeptAnswers:
    """A `Cache` in a dictionary, by the key as JSON; what fails is not kept. `keys` has all keys."""

    def __init__(self) -> None:
        self.answers: dict[str, Json] = {}
        self.keys: list[CacheKey] = []

    async def fetch(self, key: CacheKey, make: Callable[[], Awaitable[Json]]) -> Json:
        self.keys.append(key)
        name = json.dumps([key.tool, key.provider, dict(key.parameters), key.request], sort_keys=True)
        if name not in self.answers:
            self.answers[name] = json.loads(json.dumps(await make()))
        return self.answers[name]

    async def close(self) -> None:
        pass
