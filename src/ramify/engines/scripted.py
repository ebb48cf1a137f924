"""An engine that plays given turns with given delays: for tests, scheduling benchmarks and dry runs.

Its output depends only on the request (the context's text and the seed), so it is as stateless as a model. Every
token has probability 1: logprobs are 0.
"""

import asyncio
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from ramify.chat.stops import StopMatcher
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.draws import uniform
from ramify.core.errors import ConfigError, EngineError
from ramify.core.records import Completion, EngineInfo, Finish, Floats, Request
from ramify.core.tree import Entropy, Trajectory


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One turn: its text, the entropies of its first tokens (the last one repeats) and the time that a token takes.

    An entropy is a number or a pair (lower, upper), as from an engine that sees only the most likely tokens.
    `ends` says whether the end-of-turn token follows the text (as after an answer). `token_ids` are played in place of the text,
    its end-of-turn token included; empty: the text is encoded.
    """

    text: str
    entropies: tuple[float | tuple[float, float], ...] = (0.0,)
    seconds_per_token: float = 0.0
    ends: bool = False
    token_ids: tuple[int, ...] = ()


Script = Callable[[str, int], ScriptedTurn]
"""(text of the context before the turn, seed of the request) -> the turn."""


@dataclass(frozen=True, slots=True)
class TurnTable:
    """The script of a file: turns by the number of tool results so far; the last ones are repeated for ever.

    `result_end` is the text at the end of each result (`ChatRenderer.result_end`). A prompt may explain it, so the context begins
    behind the prompt.
    """

    turns: tuple[tuple[ScriptedTurn, ...], ...]
    result_end: str

    def __call__(self, context: str, seed: int) -> ScriptedTurn:
        """Return one of the turns that may come next, drawn with the request's seed."""
        choices = self.turns[min(context.count(self.result_end), len(self.turns) - 1)]
        return choices[int(uniform(seed) * len(choices))]

    @property
    def exact_entropy(self) -> bool:
        """Return True if every entropy is a number."""
        turns = (turn for choices in self.turns for turn in choices)
        return not any(isinstance(entropy, tuple) for turn in turns for entropy in turn.entropies)


class ScriptedEngine:
    """Implements `core.protocols.Engine`."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        script: Script,
        context_tokens: int = 1 << 20,
        exact_entropy: bool = True,
        shows_prompt: bool = True,
    ) -> None:
        """Play `script`.

        Args:
            tokenizer: Of the model that it stands for.
            script: The turns.
            context_tokens: Most tokens of a sequence.
            exact_entropy: All of its entropies are numbers.
            shows_prompt: The script gets the prompt too, not only what follows it.
        """
        self._tokenizer = tokenizer
        self._script = script
        self._context_tokens = context_tokens
        self._exact_entropy = exact_entropy
        self._shows_prompt = shows_prompt
        self._version = 0
        self._matcher = cache(partial(StopMatcher, tokenizer.token_bytes))

    async def generate(self, request: Request) -> Completion:
        """Play the next tokens of the turn that the request is in."""
        start = len(request.token_ids) - request.stop_context
        begin = 0 if self._shows_prompt or request.path is None else _prompt_tokens(request.path)
        turn = self._script(self._tokenizer.decode(request.token_ids[begin:start]), request.seed)
        end = (self._tokenizer.eos_id,) if turn.ends else ()
        ids = turn.token_ids or self._tokenizer.encode(turn.text) + end
        matcher = self._matcher(request.stops)
        written: list[int] = []
        finish = Finish.LENGTH
        for index, token in enumerate(ids[request.stop_context :], start=request.stop_context):
            written.append(token)
            if token in self._tokenizer.eos_ids:
                finish = Finish.EOS
            elif matcher.completes(ids[: index + 1]):
                finish = Finish.STOP
            if finish is not Finish.LENGTH or len(written) == request.max_new_tokens:
                break
        else:
            written.append(self._tokenizer.eos_id)
            finish = Finish.EOS
        await asyncio.sleep(turn.seconds_per_token * len(written))
        count = min(len(written), request.entropy_first_k)
        places = range(request.stop_context, request.stop_context + count)
        entropies = tuple(_entropy(turn.entropies[min(i, len(turn.entropies) - 1)]) for i in places)
        logprobs = (0.0,) * len(written)
        return Completion(tuple(written), logprobs, entropies, finish, ((self._version, len(written)),))

    async def score(self, token_ids: Sequence[int]) -> Floats:  # noqa: ARG002
        """Always fails, because a script has no probabilities of tokens that it does not write.

        Raises:
            EngineError: Always.
        """
        raise EngineError("engine 'scripted' cannot score tokens. Use another engine.")

    async def load_weights(self, version: int) -> None:
        """Take the version number; a script has no weights."""
        self._version = version

    async def sleep(self) -> None:
        """Do nothing: a script has no memory."""

    def info(self) -> EngineInfo:
        """Return the engine's capabilities; a script has no limit on sequences."""
        return EngineInfo(
            "scripted",
            self._tokenizer.vocab_size,
            self._context_tokens,
            1 << 20,
            self._exact_entropy,
            self._version,
            self._tokenizer.fingerprint,
        )

    async def close(self) -> None:
        """Do nothing, as it holds nothing."""


def _prompt_tokens(path: Trajectory) -> int:
    """Return the number of tokens of the prompt with which the path's last context begins."""
    (_, size), *_ = path.contexts[-1].parts
    return size


def load_script(path: Path, result_end: str) -> TurnTable:
    """Read a script file: TOML tables `[[turns]]` with `after` (tool results so far), `text`, `entropies`, `ends`, `ids`.

    `ids` are the turn's tokens, in place of those of its text. An entropy is a number or a pair [lower, upper]; without the key
    all are 0. Of the turns with the same `after`, one is drawn with the request's seed. Beyond the last `after`, the turns of the
    last one are played.

    Raises:
        ConfigError: The file is missing or not of this form, or an `after` from 0 up to the last one has no turn.
    """
    turns: dict[int, list[ScriptedTurn]] = {}
    try:
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["turns"]:
            entropies = tuple(map(_parse_entropy, table.get("entropies", [0.0])))
            if not isinstance(table["text"], str) or not entropies:
                raise ValueError("text must be a string, entropies a list that is not empty")
            ids = tuple(map(int, table.get("ids", ())))
            turn = ScriptedTurn(table["text"], entropies, ends=bool(table.get("ends", False)), token_ids=ids)
            turns.setdefault(int(table["after"]), []).append(turn)
    except FileNotFoundError:
        raise ConfigError(f"{path}: expected a script file, found none") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: expected [[turns]] tables with after, text, entropies: {error}") from None
    if not turns or sorted(turns) != list(range(len(turns))):
        raise ConfigError(
            f"{path}: expected turns for after = 0, 1, ... without a gap, found {sorted(turns)}"
        )

    return TurnTable(tuple(tuple(turns[after]) for after in range(len(turns))), result_end)


def _parse_entropy(entropy: object) -> float | tuple[float, float]:
    match entropy:
        case int() | float():
            return float(entropy)
        case [int() | float() as lower, int() | float() as upper] if lower <= upper:
            return float(lower), float(upper)
    raise ValueError(f"an entropy must be a number or a pair [lower, upper], not {entropy!r}")


def _entropy(scripted: float | tuple[float, float]) -> Entropy:
    return Entropy(*scripted) if isinstance(scripted, tuple) else Entropy(scripted, scripted)
