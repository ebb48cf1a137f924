"""A model at a chat endpoint that continues conversations: POST {url}/chat/completions, turn by turn."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramify.chat.conversation import AssistantCall, AssistantTurn, Line, split_thought
from ramify.core.messages import Calls, Problem
from ramify.core.protocols import Json
from ramify.core.records import Finish
from ramify.core.tree import Node, Source
from ramify.engines.openai import bearer
from ramify.engines.openai_chat import chat_message, read_chat_reply
from ramify.net.client import HttpClient
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.servers import Servers
from ramify.study.replayed_world import (
    UnknownOutcomeError,
)

_WRONG_ADDRESS = "Correct --url, which should end with the version, such as /v1, or --model"
_ADVICE = {
    **dict.fromkeys(FailureKind, _WRONG_ADDRESS),
    FailureKind.CONNECTION: "Start the model, or correct --url",
    FailureKind.TIMEOUT: "Lower --max-tokens, or use a faster server",
    FailureKind.TOO_MANY: "The address is right: wait until the service takes requests again, and repeat the command",
    FailureKind.SERVER: "The address is right: look at the server's own messages, and repeat the command",
    FailureKind.TOO_LARGE: "Lower --max-tokens",
}
REQUEST_FAILED = "a request that failed"
"""The beginning of the reason of a trajectory that a failed request ended."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model at a chat endpoint.

    Attributes:
        client: HTTP client for the service.
        servers: Its address.
        model: Name of the model.
        key: Key of the service; None: it needs none.
        max_tokens: Most tokens of a turn.
        temperature: Of the sampling distribution.
    """

    client: HttpClient
    servers: Servers
    model: str
    key: str | None
    max_tokens: int
    temperature: float

    async def write_turn(
        self, lines: Sequence[Line], tools: Sequence[Json], seed: int
    ) -> tuple[AssistantTurn, Finish]:
        """Return the next turn.

        Raises:
            UnknownOutcomeError: The request failed.
            ServiceDownError: The service is down, or refuses the key.
        """
        body: dict[str, Json] = {
            "model": self.model,
            "messages": [chat_message(line, None) for line in lines],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": seed,
            **({"tools": list(tools)} if tools else {}),
        }
        try:
            answer = await self.client.post_json_to(
                self.servers, "/chat/completions", body, headers=bearer(self.key)
            )
            reply = read_chat_reply(answer, (), sent=False)
        except RequestFailedError as error:
            raise UnknownOutcomeError(f"{REQUEST_FAILED}: {error}"[:200]) from None
        return reply.turn, reply.finish


def conversation_of(problem: Problem, nodes: Sequence[Node]) -> list[Line]:
    """Return a path as lines for an endpoint."""
    lines: list[Line] = [*problem.messages]
    for node in nodes[1:]:
        if node.source is Source.POLICY:
            calls = node.turn.calls if isinstance(node.turn, Calls) else ()
            written = split_thought(node.text)
            lines.append(
                replace(
                    written,
                    calls=tuple(AssistantCall(c.id, c.name, json.dumps(dict(c.arguments))) for c in calls),
                )
            )
        else:
            lines += [*node.results, *node.messages]
    return lines


def advice_on(reason: str) -> str:
    """Return what to do about a request that failed for this reason."""
    kind = FailureKind(reason.removeprefix(f"{REQUEST_FAILED}: ").partition(":")[0])
    if kind is FailureKind.CLIENT and not re.search(r"HTTP (404|405|410) ", reason):
        # The service is there, and says what it does not take.
        return "Change what the service refuses, such as --model, --max-tokens or --temperature"
    return _ADVICE[kind]
