"""Signed messages between ranks: short ones in a channel, objects from process to process, and how ranks meet.

torchrun may keep one store over restarts, with what dead processes wrote, and each of its agents counts restarts for itself. So
a rank says hello with a name that nobody had before; rank 0 answers that name with the generation, a name of its own, and both
are part of what is signed. A message of an earlier generation, or of another run, is no message.
"""

import json
import secrets
import struct
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from ramify.core.errors import ConfigError, UserError
from ramify.core.rank import SECRET_VARIABLE, Rank
from ramify.learner.channel import MEETING, Channel
from ramify.learner.seal import EVERY_RANK, MAC_BYTES, ForgedError, Label, Seal
from ramify.learner.wire import decode, encode

LOOK_SECONDS = 0.1
FORGED_SECONDS = 10.0
"""A message that is wrong for so long ends the run: its place may be taken for good."""
_SIZE = struct.Struct("<Q")


class Post:
    """The messages of one generation, as one rank writes and reads them."""

    def __init__(self, channel: Channel, seal: Seal, generation: str = MEETING) -> None:
        self._channel, self._seal, self.generation = channel, seal, generation
        self.wrong: dict[str, float] = {}
        """When a message that does not carry the secret was first seen, by its key."""

    def send(self, kind: str, content: bytes = b"", *, sender: int = 0, number: int = 0) -> None:
        """Leave a message for all ranks."""
        label = Label(kind, self.generation, sender, number=number)
        self._channel.put(label.key, bytes(self._seal.close(label, content)))

    def send_first(self, kind: str, content: bytes) -> None:
        """Leave a message of any rank, unless there is one of that kind."""
        label = Label(kind, self.generation, EVERY_RANK)
        self._channel.put_first(label.key, bytes(self._seal.close(label, content)))

    def read(self, kind: str, *, sender: int = 0, number: int = 0) -> bytes | None:
        """Return a message; one that does not carry the secret is none.

        Raises:
            ForgedError: Such a message has been there for `FORGED_SECONDS`.
        """
        return self._read(Label(kind, self.generation, sender, number=number))

    def wait(
        self, kind: str, *, sender: int = 0, number: int = 0, seconds: float = LOOK_SECONDS
    ) -> bytes | None:
        """Return a message as soon as it is there, or None after some seconds. See `read`."""
        label = Label(kind, self.generation, sender, number=number)
        self._channel.wait(label.key, seconds)
        content = self._read(label)
        if content is None and label.key in self.wrong:
            # The channel does not wait for a message that replaces one.
            time.sleep(LOOK_SECONDS)
        return content

    def delete(self, kind: str, *, number: int = 0) -> None:
        """Delete a message of rank 0."""
        self._channel.delete(Label(kind, self.generation, 0, number=number).key)

    def clone(self) -> "Post":
        """Return the same for another thread."""
        return Post(self._channel.clone(), self._seal, self.generation)

    def of(self, generation: str) -> "Post":
        """Return the same for another generation."""
        return Post(self._channel, self._seal, generation)

    def join_collectives(self, rank: Rank, **settings: Any) -> None:  # noqa: ANN401 - of init_process_group
        """Make the process group of the generation."""
        store = self._channel.collectives(self._seal, self.generation, rank.size)
        dist.init_process_group(store=store, rank=rank.number, world_size=rank.size, **settings)

    def start_object(self, receiver: int, number: int, value: Any) -> "list[tuple[dist.Work, bytearray]]":  # noqa: ANN401
        """Begin to send an object from rank 0; its memory is in use until the work is done."""
        return self._start(Label("arguments", self.generation, 0, receiver, number), value)

    def send_answer(self, sender: int, number: int, value: Any) -> None:  # noqa: ANN401
        """Send an object to rank 0."""
        finish(self._start(Label("answer", self.generation, sender, 0, number), value))

    def receive_object(self, receiver: int, number: int) -> Any:  # noqa: ANN401
        """Return the object that rank 0 sends.

        Raises:
            ForgedError: It does not carry the secret.
        """
        return self._receive(Label("arguments", self.generation, 0, receiver, number))

    def receive_answer(self, sender: int, number: int) -> Any:  # noqa: ANN401
        """Return the object that another rank sends to rank 0.

        Raises:
            ForgedError: It does not carry the secret.
        """
        return self._receive(Label("answer", self.generation, sender, 0, number))

    def _start(self, label: Label, value: Any) -> "list[tuple[dist.Work, bytearray]]":  # noqa: ANN401
        body = self._seal.close(label, encode(value))
        head = self._seal.close(_head(label), _SIZE.pack(len(body)))
        works = []
        for part in (head, body):
            work = dist.isend(torch.frombuffer(part, dtype=torch.uint8), label.receiver)
            assert work is not None
            works.append((work, part))
        return works

    def _receive(self, label: Label) -> Any:  # noqa: ANN401
        # The size is checked before it is believed.
        (size,) = _SIZE.unpack(self._seal.open(_head(label), _received(MAC_BYTES + _SIZE.size, label.sender)))
        return decode(self._seal.open(label, _received(size, label.sender)))

    def _read(self, label: Label) -> bytes | None:
        message = self._channel.get(label.key)
        try:
            content = None if message is None else bytes(self._seal.open(label, message))
        except ForgedError:
            since = self.wrong.setdefault(label.key, time.monotonic())
            if time.monotonic() - since > FORGED_SECONDS and self.generation != MEETING:
                raise ForgedError(
                    f"the ranks' store: its message {label.kind!r} does not carry the run's secret. Close the port to others, "
                    f"and give all ranks the same {SECRET_VARIABLE}."
                ) from None
            return None
        self.wrong.pop(label.key, None)
        return content

    def say_hello(self, rank: Rank, patience: float) -> "Post | None":
        """Meet rank 0 as another rank; returns the messages of the generation, or None where rank 0 does not answer."""
        name = secrets.token_hex(16)
        self.send("hello", name.encode(), sender=rank.number)
        answers, until = self.of(name), time.monotonic() + patience
        while time.monotonic() < until:
            generation = answers.wait("invitation", seconds=1.0)
            if generation is not None:
                return self.of(generation.decode())
        return None

    def meet_all(self, rank: Rank, must_match: Mapping[str, str], patience: float) -> "Post":
        """Wait as rank 0 until all others have joined, and compare what must be the same; returns the generation's messages.

        Raises:
            UserError: A rank is missing or differs, or cannot read the recipe.
        """
        joined, names = self.of(secrets.token_hex(16)), dict[int, bytes]()
        until = time.monotonic() + patience
        for number in range(1, rank.size):
            while (content := joined.read("joined", sender=number)) is None:
                if time.monotonic() > until:
                    raise ConfigError(self._missing(number, rank, patience))
                self._answer_hellos(rank, joined.generation, names)
                time.sleep(LOOK_SECONDS)
            _require_match(number, must_match, json.loads(content))
        return joined

    def _answer_hellos(self, rank: Rank, generation: str, names: dict[int, bytes]) -> None:
        for number in range(1, rank.size):
            name = self.read("hello", sender=number)
            if name is not None and names.get(number) != name:
                self.of(name.decode()).send("invitation", generation.encode())
                names[number] = name

    def _missing(self, number: int, rank: Rank, patience: float) -> str:
        text = f"rank {number} of {rank.size} did not join within {patience:.0f} s"
        if Label("hello", self.generation, number).key in self.wrong:
            return f"{text}: what speaks in its name has another secret. Give all ranks the same {SECRET_VARIABLE}"
        return f"{text}. Start it, or check why it ended"


def finish(works: "list[tuple[dist.Work, bytearray]]") -> None:
    """Wait until objects have been sent."""
    for work, _ in works:
        work.wait()


def _head(label: Label) -> Label:
    return replace(label, kind=f"size of {label.kind}")


def _received(size: int, sender: int) -> bytearray:
    message = bytearray(size)
    dist.recv(torch.frombuffer(message, dtype=torch.uint8), sender)
    return message


def _require_match(number: int, must_match: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    if "mistake" in theirs:
        raise UserError(f"rank {number}: {theirs['mistake']}")
    for name, value in must_match.items():
        if theirs.get(name) != value:
            raise ConfigError(
                f"rank {number} has another {name} than rank 0 ({theirs.get(name)}, {value}). Give all ranks the same"
            )
