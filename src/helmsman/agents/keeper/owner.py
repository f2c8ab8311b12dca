"""The owner's end of a child on a pipe in a keeper: see `pipe` for what is said."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import anyio.lowlevel

from helmsman.agents.keeper.output_log import OutputReader
from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from helmsman.agents.keeper.leash import Leash
    from helmsman.agents.keeper.output_log import OutputLine

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
        self._output = OutputReader(Path(hello["output"]))
        self._offset, self._size = int(hello["from"]), int(hello["size"])
        self._kept, self._dropped = [int(one) for one in hello["kept"]], frozenset(hello["dropped"])
        self.process = Path(hello["output"]).parent.name
        """The id of the supervised process, which no other has."""
        self.epoch = int(hello["epoch"])
        self.inputs = int(hello["inputs"])
        """How much the child has been told before us, in numbered inputs."""
        self.answer = str(hello["answer"] or "")
        """What it answered to the greeting it got when it was started."""
        self.ended: Ended | None = None
        self.newer_epoch: int | None = None
        self.is_lost = False
        """Its keeper has gone without a word, or has let go of us for nobody else."""

    async def lines(self) -> AsyncIterator[list[OutputLine]]:
        """Yield the output, until the child has ended or has another owner. It begins with the lines that were kept."""
        try:
            if kept := self._kept_lines():
                yield kept
            while True:
                async for lines in self._logged(self._size):
                    yield lines
                if self.ended is not None or self.newer_epoch is not None:
                    return
                await self._receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            # A supervisor that is killed says nothing, and what it said last may be lost. What it has logged is not.
            async for lines in self._logged(None):
                yield lines
            epoch = await _epoch_at(self._address)
            if epoch is not None and epoch > self.epoch:
                self.newer_epoch = epoch
            else:
                self.is_lost = True
        except anyio.ClosedResourceError:
            return
        finally:
            self._output.close()

    def _kept_lines(self) -> list[OutputLine]:
        with suppress(FileNotFoundError):  # as below
            return [self._output.line_at(offset) for offset in self._kept]
        return []

    async def _logged(self, end: int | None) -> AsyncIterator[list[OutputLine]]:
        """Yield the lines before an offset, or all that are in the log."""
        with suppress(FileNotFoundError):  # the child has ended, and its supervisor could not wait for us
            while lines := self._output.read(self._offset, end):
                self._offset = lines[-1].end
                if wanted := [line for line in lines if line.offset not in self._dropped]:
                    yield wanted
                await anyio.lowlevel.checkpoint()

    async def _receive(self) -> None:
        """Wait for frames of the supervisor, and read them."""
        while b"\n" not in self._rest:
            self._rest += await self._stream.receive(_READ_BYTES)
        *frames, self._rest = self._rest.split(b"\n")
        for frame in frames:
            self._read_frame(frame)

    def _read_frame(self, frame: bytes) -> None:
        kind, rest = frame[:1], frame[1:]
        if kind == b"+":
            self._size = int(rest)
        elif kind == b"x":
            code, _, more = rest.partition(b" ")
            self.ended = Ended(int(code), str(json.loads(more)["stderr"]))
        elif kind == b"r":
            self.newer_epoch = int(rest)

    async def send(self, line: str, *, answering: int | None = None) -> None:
        """Send a line to the child. As the answer to the question at an offset it drops that question in the same step."""
        async with self._writing:
            self.inputs += 1
            dropped = "" if answering is None else f",{answering}"
            await self._write(f"i{self.inputs}{dropped} {line}\n")

    async def commit(self, offset: int, *, keep: list[int], drop: list[int]) -> None:
        """Commit the output before an offset. Of that, the next owner reads only the lines that are kept."""
        frames = [*(f"k{one}\n" for one in keep), *(f"d{one}\n" for one in drop), f"a{offset}\n"]
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
