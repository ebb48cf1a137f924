"""Detects stop strings in the bytes of tokens as they are sampled."""

from collections.abc import Sequence

from ramify.core.errors import ConfigError


class StopMatcher:
    """Detects the token that completes a stop string, on decoded bytes.

    Only a token that contains the last byte of a stop string can complete one, so most tokens cost one set look-up.
    """

    def __init__(self, token_bytes: Sequence[bytes], stops: Sequence[str]) -> None:
        """Prepare to detect `stops`.

        Args:
            token_bytes: Bytes of each token, by id. [V]
            stops: The stop strings.

        Raises:
            ConfigError: A stop string is empty, or no sequence of tokens spells it.
        """
        for stop in stops:
            if not _can_be_written(stop.encode(), token_bytes):
                raise ConfigError(
                    f"stop string {stop!r}: no tokens of this tokenizer spell it, so a turn would never end at it"
                )
        self._token_bytes = token_bytes
        self._stops = tuple(stop.encode() for stop in stops)
        self._reach = max(map(len, self._stops), default=0)
        endings = {stop[-1] for stop in self._stops}
        self._candidates = frozenset(
            index for index, data in enumerate(token_bytes) if not endings.isdisjoint(data)
        )

    def completes(self, token_ids: Sequence[int]) -> bool:
        """Return True if the last of `token_ids` (one turn, from its start) completes a stop string."""
        last = token_ids[-1]
        if last not in self._candidates:
            return False
        tail = self._token_bytes[last]
        fresh = len(tail)
        for index in reversed(token_ids[:-1]):
            if len(tail) >= fresh + self._reach - 1:
                break
            tail = (self._token_bytes[index] if index < len(self._token_bytes) else b"") + tail
        return any(tail.find(stop, max(0, len(tail) - fresh - len(stop) + 1)) >= 0 for stop in self._stops)


def _can_be_written(stop: bytes, token_bytes: Sequence[bytes]) -> bool:
    """Return True if some sequence of tokens contains `stop`; the first and the last token may extend beyond it."""
    if not stop:
        return False
    whole = set(token_bytes)
    size = len(stop)
    reached = {0}
    for start in range(size):
        if start in reached:
            reached |= {end for end in range(start + 1, size + 1) if stop[start:end] in whole}
    if size in reached:
        return True
    # Rare: the stop string begins or ends inside a longer token.
    if any(stop in data for data in whole):
        return True
    reached |= {end for end in range(1, size) if any(data.endswith(stop[:end]) for data in whole)}
    for start in range(1, size):
        if start in reached:
            reached |= {end for end in range(start + 1, size) if stop[start:end] in whole}
    return any(start and any(data.startswith(stop[start:]) for data in whole) for start in reached)
