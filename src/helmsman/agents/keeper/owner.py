"""The owner's end of a child on a pipe in a keeper: see `pipe` for what is said."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from helmsman.agents.keeper.leash import Leash

KEPT_BYTES: Final = 4 * 1024 * 1024
"""So much of a turn is kept for the next owner, and of a longer one its end."""

_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 2.0
_READ_BYTES: Final = 256 * 1024
_NOBODY: Final = -1
"""The epoch of one who only asks: every keeper refuses it, and says whose epoch it has."""


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
    """The connection with a keeper.

    Unlike anyio's it may be left in the very moment in which something arrives. Unlike asyncio's, what has arrived can still
    be read when nothing can be sent any more: the keeper's last word says why.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._receiving, self._sending = anyio.Lock(), anyio.Lock()
        self._is_closed = False

    async def receive(self, most: int) -> bytes:
        async with self._receiving:
            while not self._is_closed:
                try:
                    data = self._socket.recv(most)
                except BlockingIOError:
                    await anyio.wait_readable(self._socket)
                except OSError as error:
                    raise anyio.BrokenResourceError from error
                else:
                    if data:
                        return data
                    break
        raise anyio.ClosedResourceError if self._is_closed else anyio.EndOfStream

    async def send(self, data: bytes) -> None:
        async with self._sending:
            left = memoryview(data)
            while left:
                if self._is_closed:
                    raise anyio.ClosedResourceError
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._socket)
                except OSError as error:
                    with suppress(OSError):  # what came next would be taken for the rest of this
                        self._socket.shutdown(socket.SHUT_WR)
                    raise anyio.BrokenResourceError from error

    async def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever waits is woken, and lets go of it before it is closed
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            async with self._receiving, self._sending:
                pass
        self._socket.close()


class KeptChild:
    """A child that we own until somebody else does. Made by `own_child` only."""

    def __init__(self, address: Path, stream: _Line, hello: Mapping[str, Any], rest: bytes) -> None:
        self._address = address
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
        """Its keeper has gone without a word, or has let go of us for nobody else."""

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
            # A keeper that dies says nothing, and of what it says to one who is slow to read the end is lost.
            epoch = await _epoch_at(self._address)
            if epoch is not None and epoch > self.epoch:
                self.newer_epoch = epoch
            else:
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
    async with _connected(address) as stream:
        try:
            hello, rest = await _greeted(stream, epoch)
            if hello.startswith(b"r"):
                raise NotOurs(f"The engine at {address} belongs to a Helmsman that was started later. Use that one.")
            child = KeptChild(address, stream, json.loads(hello), rest)
        except (OSError, ValueError, LookupError, TypeError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
            reason = str(error) or type(error).__name__
            raise EngineLost(
                f"The keeper at {address} does not let us in: {reason}. Look at `helmsman engines`."
            ) from error
        yield child


async def _epoch_at(address: Path) -> int | None:
    """Of the newest owner that a keeper has had; None where no keeper answers."""
    try:
        async with _connected(address) as stream:
            refused, _ = await _greeted(stream, _NOBODY)
            return int(refused.removeprefix(b"r"))
    except (EngineLost, OSError, ValueError, anyio.EndOfStream, anyio.BrokenResourceError):
        return None


@asynccontextmanager
async def _connected(address: Path) -> AsyncIterator[_Line]:
    connected = socket.socket(socket.AF_UNIX)
    connected.setblocking(False)
    try:
        with anyio.fail_after(_SECONDS):
            await asyncio.get_running_loop().sock_connect(connected, str(address))
    except BaseException as error:
        connected.close()
        if not isinstance(error, OSError):
            raise
        raise EngineLost(f"No keeper answers at {address}: {error}. Check that one is running.") from error
    stream = _Line(connected)
    try:
        yield stream
    finally:
        await stream.close()


async def _greeted(stream: _Line, epoch: int) -> tuple[bytes, bytes]:
    """What a keeper answers, and what of the rest has come with it."""
    with anyio.fail_after(_SECONDS):
        await stream.send(b"e%d\n" % epoch)
        data = b""
        while b"\n" not in data:
            data += await stream.receive(_READ_BYTES)
    answer, _, rest = data.partition(b"\n")
    return answer, rest
