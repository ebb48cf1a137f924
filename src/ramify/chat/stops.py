"""Finding stop strings in the bytes of tokens as they are written."""

from collections.abc import Sequence


class StopMatcher:
    """Tells at which token a stop string is completed, on decoded bytes.

    Only a token that holds the last byte of some stop can complete one, so most tokens cost one set look-up.
    """

    def __init__(self, token_bytes: Sequence[bytes], stops: Sequence[str]) -> None:
        self._token_bytes = token_bytes
        self._stops = tuple(stop.encode() for stop in stops)
        self._reach = max(map(len, self._stops), default=0)
        endings = {stop[-1] for stop in self._stops}
        self._candidates = frozenset(
            index for index, data in enumerate(token_bytes) if not endings.isdisjoint(data)
        )

    def completes(self, token_ids: Sequence[int]) -> bool:
        """Whether the last of `token_ids` (one turn, from its start) completes a stop string."""
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
