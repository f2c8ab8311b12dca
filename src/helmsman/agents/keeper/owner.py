"""The owner's end of a child on a pipe in a keeper: see `pipe` for what is said."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from helmsman.agents.keeper.leash import Leash

_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 2.0
_READ_BYTES: Final = 256 * 1024


class Owner(NamedTuple):
    """Who opens what is kept: a hub's epoch, and the command that starts its successor. One that is no hub has neither.

    What a worker of a fleet opens is on its `leash`.
    """

    epoch: int = 0
    successor: tuple[str, ...] = ()
    leash: Leash | None = None


class NotOurs(EngineLost):
    """Somebody with a later epoch has been the owner."""


class Said(NamedTuple):
    """A line of the child, with its number."""

    number: int
    line: bytes


class Ended(NamedTuple):
    """How the child has ended."""

    exit_code: int
    stderr: str


class _Line:
    """The connection with a keeper. Unlike anyio's it may be left in the very moment in which something arrives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self, most: int) -> bytes:
        try:
            data = await self._reader.read(most)
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if data:
            return data
        raise anyio.ClosedResourceError if self._writer.is_closing() else anyio.EndOfStream

    async def send(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise anyio.ClosedResourceError
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def close(self) -> None:
        self._writer.close()
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True), suppress(OSError):
            await self._writer.wait_closed()
        self._writer.transport.abort()  # of a keeper that reads nothing any more


class KeptChild:
    """A child that we own until somebody else does. Made by `own_child` only."""

    def __init__(self, stream: _Line, hello: Mapping[str, Any], rest: bytes) -> None:
        self._stream = stream
        self._rest = rest
        self._writing = anyio.Lock()
        self.epoch = int(hello["epoch"])
        self.inputs = int(hello["inputs"])
        """How much the child has been told before us, in numbered inputs."""
        self.answer = str(hello["answer"] or "")
        """What it answered to the greeting it got when it was started."""
        self.ended: Ended | None = None
        self.newer_epoch: int | None = None
        self.is_lost = False
        """Its keeper has gone without a word."""

    async def lines(self) -> AsyncIterator[list[Said]]:
        """What the child says, until it has ended or is ours no more; first what earlier owners have left."""
        parts = [self._rest]
        try:
            while True:
                *frames, tail = b"".join(parts).split(b"\n")
                parts = [tail]
                said = [one for frame in frames if (one := self._read(frame)) is not None]
                if said:
                    yield said
                if self.ended is not None or self.newer_epoch is not None:
                    return
                while b"\n" not in parts[-1]:
                    parts.append(await self._stream.receive(_READ_BYTES))
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self.is_lost = True
        except anyio.ClosedResourceError:
            return

    def _read(self, frame: bytes) -> Said | None:
        kind, rest = frame[:1], frame[1:]
        if kind == b"o":
            number, _, line = rest.partition(b" ")
            return Said(int(number), line)
        if kind == b"x":
            code, _, more = rest.partition(b" ")
            self.ended = Ended(int(code), str(json.loads(more)["stderr"]))
        elif kind == b"r":
            self.newer_epoch = int(rest)
        return None

    async def send(self, line: str, *, answering: int | None = None) -> None:
        """Say something to the child; as the answer to a line that was kept, which is dropped in the same step."""
        async with self._writing:
            self.inputs += 1
            dropped = "" if answering is None else f",{answering}"
            await self._write(f"i{self.inputs}{dropped} {line}\n")

    async def take(self, number: int, *, keep: list[int], drop: list[int]) -> None:
        """All lines up to this one have been dealt with, and only those to keep are said to the next owner."""
        frames = [*(f"k{one}\n" for one in keep), *(f"d{one}\n" for one in drop), f"a{number}\n"]
        async with self._writing:
            await self._write("".join(frames))

    async def end(self) -> None:
        """Have the keeper end the child."""
        async with self._writing:
            await self._write("t\n")

    async def _write(self, frames: str) -> None:
        try:
            with anyio.CancelScope(
                shield=True
            ):  # of half a frame the keeper would make nothing, and of the next one less
                await self._stream.send(frames.encode())
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError) as error:
            raise EngineLost("The keeper of the engine takes nothing any more. Connect again to go on.") from error


@asynccontextmanager
async def own_child(address: Path, *, epoch: int = 0) -> AsyncIterator[KeptChild]:
    """Be the owner of the child that a keeper has at this address, for the length of the block. It goes on without us.

    Raises:
        EngineLost: Nobody is there.
        NotOurs: One with a later epoch has been the owner.
    """
    try:
        with anyio.fail_after(_SECONDS):
            stream = _Line(*await asyncio.open_unix_connection(str(address), limit=_READ_BYTES))
    except OSError as error:
        raise EngineLost(f"No keeper answers at {address}: {error}. Check that one is running.") from error
    try:
        yield await _greeted(stream, address, epoch)
    finally:
        await stream.close()


async def _greeted(stream: _Line, address: Path, epoch: int) -> KeptChild:
    try:
        with anyio.fail_after(_SECONDS):
            await stream.send(b"e%d\n" % epoch)
            data = b""
            while b"\n" not in data:
                data += await stream.receive(_READ_BYTES)
            hello, _, rest = data.partition(b"\n")
            if hello.startswith(b"r"):
                raise NotOurs(f"The engine at {address} belongs to a Helmsman that was started later. Use that one.")
            return KeptChild(stream, json.loads(hello), rest)
    except (OSError, ValueError, LookupError, TypeError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
        reason = str(error) or type(error).__name__
        raise EngineLost(
            f"The keeper at {address} does not let us in: {reason}. Look at `helmsman engines`."
        ) from error
