"""The helper model of the repair tools. Its input is quoted as data; its failures raise `UnhelpfulError`."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from ramify.chat.data_messages import data_message
from ramify.core.draws import stream
from ramify.core.messages import Message
from ramify.core.protocols import Cache, CacheKey, ChatModel, Json
from ramify.net.failures import FailureKind, RequestFailedError

_CHARS_PER_TOKEN = 16
"""More characters than a token has."""


class UnhelpfulError(Exception):
    """The helper gave nothing that can be used; the message is a reason of a few words."""


@dataclass(frozen=True, slots=True)
class Helper:
    """Asks a chat model, in time. Whoever creates `model` and `cache` closes them.

    Attributes:
        model: The model.
        cache: Records and replays its answers; None: each request reaches the model.
        max_tokens: Most tokens of an answer.
        temperature: Sampling temperature.
        seconds: Deadline of an answer; None: there is none, as the model is ours.
        seed: The mark around the data is a hash of this and of the data, so no data can hold it.
    """

    model: ChatModel
    cache: Cache | None
    max_tokens: int
    temperature: float
    seconds: float | None
    seed: int

    async def ask(self, task: str, instructions: str, data: Mapping[str, Json]) -> str:
        """Return the answer's text, not blank.

        Args:
            task: Name of the request; answers are recorded under it.
            instructions: What to do; `{mark}` stands for the mark around the data.
            data: What it is about, written by whoever.

        Raises:
            UnhelpfulError: There was no answer in time, or none with a text.
            ServiceDownError: The model's service is down, or refuses the key.
        """
        try:
            answer = await self._answer(task, instructions, data)
        except RequestFailedError as failed:
            raise UnhelpfulError(failed.kind.value) from None
        if not answer.strip():
            raise UnhelpfulError("blank")
        # A user-defined function has no limit of its own, and its answer is parsed and encoded.
        if len(answer) > _CHARS_PER_TOKEN * self.max_tokens:
            raise UnhelpfulError("too long")
        return answer

    async def _answer(self, task: str, instructions: str, data: Mapping[str, Json]) -> str:
        request = json.dumps(data, ensure_ascii=False, sort_keys=True)
        mark = f"{stream(self.seed, task, request):016x}"
        messages = (Message.of("system", instructions.format(mark=mark)), data_message(data, mark))

        async def make() -> str:
            try:
                async with asyncio.timeout(self.seconds):
                    return await self.model.complete(
                        messages, max_tokens=self.max_tokens, temperature=self.temperature
                    )
            except TimeoutError:
                # A cassette records it too.
                raise RequestFailedError(FailureKind.TIMEOUT, f"{self.model.name} did not answer") from None

        if self.cache is None:
            return await make()
        parameters: dict[str, Json] = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "instructions": instructions,
        }
        answer = await self.cache.fetch(CacheKey(task, self.model.name, parameters, request), make)
        return answer if isinstance(answer, str) else ""
