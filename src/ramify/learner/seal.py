"""Messages between ranks that carry the run's secret: an HMAC over what a message is, who sent it to whom, and its content."""

import hashlib
import hmac
import json
from dataclasses import dataclass

from ramify.core.errors import ConfigError, TrainingError
from ramify.core.rank import SECRET_VARIABLE

MAC_BYTES = 32
LEAST_CHARACTERS = 32
"""Of a secret that the user chooses."""
EVERY_RANK = -1
"""The receiver of a message that all ranks read."""


class ForgedError(TrainingError):
    """A message between ranks that does not carry the run's secret."""


@dataclass(frozen=True, slots=True)
class Label:
    """The identity of a message. Each label is used once in a run, so that no message can stand for another.

    Attributes:
        kind: What it says.
        generation: The processes that live now, by a name that rank 0 draws; before they have met, the receiver's own.
        number: The command that it belongs to.
        sender: Number of the rank that wrote it.
        receiver: Number of the rank that it is for, or `EVERY_RANK`.
    """

    kind: str
    generation: str
    sender: int
    receiver: int = EVERY_RANK
    number: int = 0

    @property
    def key(self) -> str:
        """The name of the message in a channel: letters, digits, dots and signs."""
        return f"{self.generation}.{self.kind}.{self.number}.{self.sender}.{self.receiver}"


class Seal:
    """Signs and checks messages of one run."""

    def __init__(self, secret: bytes, run: str) -> None:
        """`run` sets apart runs that share a secret, as far as their launcher names them."""
        self._key = hmac.digest(secret, b"ramify ranks\0" + run.encode(), hashlib.sha256)

    def mac(self, label: Label, content: bytes | bytearray | memoryview) -> bytes:
        """Return the `MAC_BYTES` bytes that go in front of a message."""
        # JSON keeps the fields apart; its length keeps it apart from the content.
        head = json.dumps([label.kind, label.generation, label.number, label.sender, label.receiver]).encode()
        digest = hmac.new(self._key, len(head).to_bytes(8, "little") + head, hashlib.sha256)
        digest.update(content)
        return digest.digest()

    def close(self, label: Label, content: bytes | bytearray) -> bytearray:
        """Return the content with its MAC in front."""
        return bytearray(self.mac(label, content)) + content

    def open(self, label: Label, message: bytes | bytearray | memoryview) -> memoryview:
        """Return the content of a message.

        Raises:
            ForgedError: It is not what the holder of the secret wrote under this label.
        """
        view = memoryview(message).cast("B")
        if len(view) < MAC_BYTES or not hmac.compare_digest(
            self.mac(label, view[MAC_BYTES:]), view[:MAC_BYTES]
        ):
            raise ForgedError(f"a message between ranks ({label.kind}) does not carry the run's secret")
        return view[MAC_BYTES:]


def checked_secret(secret: str | None) -> bytes:
    """Return the secret of ranks on several machines.

    Raises:
        ConfigError: There is none, or it is short.
    """
    if secret is None or len(secret) < LEAST_CHARACTERS:
        problem = "is not set" if secret is None else f"has {len(secret)} characters"
        raise ConfigError(
            f"{SECRET_VARIABLE}: {problem}, and ranks that torchrun did not start on one machine need the same secret of at "
            f"least {LEAST_CHARACTERS} characters. Make one with `openssl rand -hex 32`, and export it on every machine."
        )
    return secret.encode()
