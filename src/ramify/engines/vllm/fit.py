"""Checks that a server is the one that the recipe describes."""

import re
from dataclasses import dataclass

from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import ConfigError
from ramify.engines.vllm.server import TESTED, ServerInfo, VllmServer

_PROBE = "Paris, 12 plus 30 is 42; <search> caf\u00e9 \u4e2d\u6587 (x < y)"
"""A text on which our tokenizer and the server's are compared."""
_SHORT_NUMBER = re.compile(r"[0-9]{1,6}")
"""int() refuses text of thousands of digits."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a server has to be.

    Attributes:
        model: Name of the model to ask for; None: the only one that it serves.
        tokenizer: The tokenizer of the recipe's model.
        context_tokens: Tokens that a sequence may have.
        dtype: In which it computes.
        logprobs: Logprobs that are asked for with a token.
        takes_weights: It gets new weights.
        sleeps: It hands back its memory between rollouts.
    """

    model: str | None
    tokenizer: ChatTokenizer
    context_tokens: int
    dtype: str
    logprobs: int
    takes_weights: bool
    sleeps: bool = False

    async def look(self, server: VllmServer) -> ServerInfo:
        """Return what the server says about itself.

        Raises:
            ConfigError: It is not what it has to be; says which flag or key to change.
            RequestFailedError: It does not answer, or not as vLLM does.
        """
        info = await server.look(self.model)
        for is_wrong, message in self._findings(info):
            if is_wrong:
                raise ConfigError(message.replace("{url}", server.url))
        if await server.encode(_PROBE) != self.tokenizer.encode(_PROBE):
            raise ConfigError(
                f"engine: {server.url} has another tokenizer than model.path; serve the model of the recipe"
            )
        return info

    def _findings(self, info: ServerInfo) -> tuple[tuple[bool, str], ...]:
        """Return pairs of a test and the message for a server that fails it."""
        most = info.max_logprobs
        return (
            (
                info.context_tokens < self.context_tokens,
                f"engine: {{url}} takes {info.context_tokens} tokens, prompt and response may have {self.context_tokens}; "
                "start it with a larger --max-model-len, or lower the limits",
            ),
            (
                info.dtype not in (None, self.dtype),
                f"engine.dtype: {{url}} computes in {info.dtype}, the recipe says {self.dtype}; change one of them",
            ),
            (
                info.logprobs_mode not in (None, "processed_logprobs"),
                f"engine: {{url}} reports {info.logprobs_mode}, which leave out the temperature. Start it with "
                "--logprobs-mode processed_logprobs",
            ),
            (
                most is not None and 0 <= most < self.logprobs,
                f"engine.top_k: {{url}} returns at most {most} logprobs, {self.logprobs} are needed. Start it with "
                f"--max-logprobs {self.logprobs}",
            ),
            (
                info.splits_prompts_on_cpu,
                "engine: {url} runs on a CPU, where vLLM crashes on chunked prefill. Start it with "
                "--no-enable-chunked-prefill (engine.flags)",
            ),
            (
                self.takes_weights and not info.label,
                "engine: {url} takes no new weights. Start it with VLLM_SERVER_DEV_MODE=1 in its environment",
            ),
            (
                self.sleeps and info.can_sleep is False,
                # vLLM answers /sleep all the same, and keeps its memory.
                "engine.sleep: {url} cannot sleep. Start it with --enable-sleep-mode, or set sleep = false.",
            ),
        )


def release_note(url: str, version: str) -> str | None:
    """Return a line about a release that was not tested; None for those that were."""
    release = tuple(int(part) for part in version.split(".")[:2] if _SHORT_NUMBER.fullmatch(part))
    if TESTED[0] <= release <= TESTED[1]:
        return None
    oldest, newest = (".".join(map(str, end)) for end in TESTED)
    releases = oldest if oldest == newest else f"{oldest} to {newest}"
    return f"engine 'vllm': {url} is vLLM {version}; ramify is tested with {releases}"
