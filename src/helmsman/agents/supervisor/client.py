"""Start a supervised process, send input to it, and read its output from files. See `relay` for the protocol."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

from helmsman.agents.supervisor.directory import (
    AGENT_SOCKET,
    forget,
    has_record,
    make_directory,
    private_directory,
    socket_path,
    try_attach,
    try_own,
)
from helmsman.agents.supervisor.process import surviving_descendants
from helmsman.agents.supervisor.records import ENGINES, read_record
from helmsman.agents.supervisor.relay import OutputReader
from helmsman.base.process_ending import end_processes
from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from helmsman.agents.supervisor.lease_watchdog import ProcessLease
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.agents.supervisor.relay import OutputLine

_SECONDS: Final = 10.0
_ATTACH_SECONDS: Final = 10.0
_ATTACH_POLL: Final = 0.02
_CLOSE_SECONDS: Final = 2.0
_READ_BYTES: Final = 256 * 1024
_NO_EPOCH: Final = -1
"""Epoch of a client that only asks for the current one: every supervisor refuses it, and answers with its epoch."""


class Owner(NamedTuple):
    """Service that starts supervised processes: a hub's epoch, and the command that starts the next hub.

    A service that is not a hub has neither. The processes of a worker of a fleet end with its `lease`.
    """

    epoch: int = 0
    successor: tuple[str, ...] = ()
    lease: ProcessLease | None = None


class NotOurs(EngineLost):
    """Client with a later epoch has taken over."""

    code = EngineLost.code


class Taken(EngineLost):
    """Another process owns the supervised process now."""

    code = EngineLost.code


class Ended(NamedTuple):
    """Exit of the child."""

    exit_code: int
    stderr: str


class _Line:
    """Connection with a supervisor.

    Unlike anyio's, it may be cancelled at the moment in which data arrives. Unlike asyncio's, received data can still
    be read after sending has failed: the last frame of the supervisor says why.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        # Separate locks: a blocked send must not keep frames from being read.
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
                    with suppress(OSError):  # the next frame would be read as the rest of this one
                        self._socket.shutdown(socket.SHUT_WR)
                    raise anyio.BrokenResourceError from error

    async def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes waiting calls, which release the socket before it is closed
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            async with self._receiving, self._sending:
                pass
        self._socket.close()


class SupervisedProcess:
    """Supervised process that this client owns. Created by `attach_to` only."""

    def __init__(self, address: Path, stream: _Line, hello: Mapping[str, Any], rest: bytes) -> None:
        self._address = address
        self._stream = stream
        self._rest = rest
        self._writing = anyio.Lock()
        self._output = OutputReader(Path(hello["output"]))
        self._offset, self._size = int(hello["from"]), int(hello["size"])
        self._read_before, self._open = self._size, frozenset(hello["open"])
        """Output that an earlier owner could read, and the questions in it that wait for an answer."""
        self.process = Path(hello["output"]).parent.name
        """Unique id of the supervised process."""
        self.epoch = int(hello["epoch"])
        self.inputs = int(hello["inputs"])
        """Number of input lines the process has received."""
        self.answer = str(hello["answer"] or "")
        """Its answer to the greeting."""
        self.ended: Ended | None = None
        self.newer_epoch: int | None = None
        self.is_lost = False
        """True if its supervisor is gone, or has closed the connection without another owner."""

    @property
    def input_position(self) -> str:
        """Process and number of input lines it has received, as one value to compare."""
        return f"{self.process} {self.inputs}"

    async def lines(self) -> AsyncIterator[list[OutputLine]]:
        """Yield the output from the committed offset on, until the process has ended or has another owner."""
        try:
            while True:
                async for lines in self._logged(self._size):
                    yield lines
                # Commit before leaving: then the supervisor may remove its files.
                if self.ended is not None:
                    with suppress(EngineLost):
                        await self.commit(self._offset)
                    return
                if self.newer_epoch is not None:
                    return
                await self._receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            # The last frames of a supervisor that was killed may be lost. The log is not.
            async for lines in self._logged(None):
                yield lines
            epoch = await _epoch_at(self._address)
            if epoch is not None and epoch > self.epoch:
                self.newer_epoch = epoch
            else:
                self.is_lost = True
        except anyio.ClosedResourceError:
            return
        # Also if the reader leaves early.
        finally:
            self._output.close()

    async def _logged(self, end: int | None) -> AsyncIterator[list[OutputLine]]:
        """Yield the lines before an offset, or all that are in the log."""
        with suppress(FileNotFoundError):  # the process has ended, and its supervisor could not wait
            while lines := self._output.read(self._offset, end):
                self._offset = lines[-1].end
                yield lines
                # Let other tasks run between batches of a long log.
                await anyio.lowlevel.checkpoint()

    async def _receive(self) -> None:
        """Wait for frames of the supervisor, and read them."""
        while b"\n" not in self._rest:
            # Several frames may arrive together, or half of one.
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

    @property
    def offset(self) -> int:
        """Offset after the output that was read."""
        return self._offset

    def was_answered(self, request_id: int | str, offset: int) -> bool:
        """Return whether the request in the line at an offset has its answer already, or was withdrawn."""
        # An earlier owner has read the line, and its question is no longer open.
        return offset < self._read_before and request_id not in self._open

    async def send(self, line: str) -> None:
        """Send a line to the process."""
        # Numbers and frames must be in the same order.
        async with self._writing:
            self.inputs += 1
            await self._write(f"i{self.inputs} {line}\n")

    async def commit(self, offset: int) -> None:
        """Commit the output before an offset. The next owner reads the rest, and the questions that wait."""
        async with self._writing:
            await self._write(f"a{offset}\n")

    async def end(self) -> None:
        """End the process."""
        async with self._writing:
            await self._write("t\n")

    async def _write(self, frames: str) -> None:
        try:
            with anyio.CancelScope(shield=True):  # half a frame would spoil the next one
                await self._stream.send(frames.encode())
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError) as error:
            raise EngineLost(
                "The supervisor of the engine no longer accepts input. Connect again to continue."
            ) from error


@asynccontextmanager
async def attach(record: ProcessRecord, *, epoch: int, title: str) -> AsyncIterator[SupervisedProcess]:
    """Own a supervised process for the length of the block. It keeps running afterwards, unless its supervisor was killed.

    A client with an `epoch` takes over from a client with a lower one. With 0 the process must have no owner.

    Raises:
        Taken: Another process is the owner.
        NotOurs: A client with a later epoch has been the owner.
        EngineLost: It has ended, or is about to.
    """
    deadline = anyio.current_time() + _ATTACH_SECONDS
    is_lost = False
    try:
        # Owning and attaching are separate locks: others may look at the process, but only one sends input.
        with try_own(record.directory, epoch) as owned:
            if not owned and record.is_supervised:
                raise Taken(f"This {title} is in use by another Helmsman process. Wait until that has ended.")
            while True:
                with try_attach(record.directory) as attached:
                    if attached:
                        async with attach_to(record.socket, epoch=epoch) as process:
                            try:
                                yield process
                            finally:
                                is_lost = process.is_lost
                        return
                # A supervisor that checks whether it may end gives way within moments.
                if not record.is_supervised or anyio.current_time() > deadline:
                    raise EngineLost(f"This {title} has ended. Send the next message to continue from what was saved.")
                await anyio.sleep(_ATTACH_POLL)
    finally:
        # Without a supervisor nothing would end the agent. One that ends by itself removes its record.
        if is_lost or (not record.is_supervised and has_record(record.directory)):
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(record.stop)


@asynccontextmanager
async def attach_to(address: Path, *, epoch: int = 0) -> AsyncIterator[SupervisedProcess]:
    """Own the process of the supervisor at this address for the length of the block.

    Raises:
        EngineLost: No supervisor answers there.
        NotOurs: A client with a later epoch has been the owner.
    """
    async with _connected(address) as stream:
        try:
            hello, rest = await _greeted(stream, epoch)
            if hello.startswith(b"r"):
                # Refused for its epoch: a newer hub owns the process.
                raise NotOurs(f"The engine at {address} belongs to a Helmsman that was started later. Use that one.")
            process = SupervisedProcess(address, stream, json.loads(hello), rest)
        except (OSError, ValueError, LookupError, TypeError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
            reason = str(error) or type(error).__name__
            raise EngineLost(
                f"The supervisor at {address} refused the connection: {reason}. Look at `helmsman hub engines`."
            ) from error
        yield process


async def _epoch_at(address: Path) -> int | None:
    """Return the epoch of a supervisor's newest owner, or None if no supervisor answers."""
    try:
        async with _connected(address) as stream:
            refused, _ = await _greeted(stream, _NO_EPOCH)
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
        raise EngineLost(f"No supervisor answers at {address}: {error}. Check that one is running.") from error
    stream = _Line(connected)
    try:
        yield stream
    finally:
        await stream.close()


async def _greeted(stream: _Line, epoch: int) -> tuple[bytes, bytes]:
    """Return the answer of a supervisor, and the bytes that came after it."""
    with anyio.fail_after(_SECONDS):
        await stream.send(b"e%d\n" % epoch)
        data = b""
        while b"\n" not in data:
            data += await stream.receive(_READ_BYTES)
    answer, _, rest = data.partition(b"\n")
    return answer, rest


# --- starting --------------------------------------------------------------------------------------------------------

GREETING_ID: Final = "helmsman"
"""Id of the request that greets a process. Its answer tells the supervisor that the process is ready."""

START_TIMEOUT: Final = 60.0
"""Minimum timeout for a supervisor to report that its child is ready; at least twice that of the child."""


async def start_supervised(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    directory: Path | None,
    state_dir: Path,
    idle: float,
    owner: Owner,
    watcher: str,
    greeting: Sequence[str],
    answer: Sequence[str] = ("id", GREETING_ID),
    about: Mapping[str, Any],
    listens: bool = False,
    for_starter: bool = True,
    ready_seconds: float | None = None,
) -> ProcessRecord:
    """Start an agent with a supervisor, and greet it. Without a `directory` it runs in that of its record.

    Args:
        argv: The command. With `listens`, `{socket}` in it is replaced by the path of the socket it has to listen on.
        watcher: The class that knows what runs in the agent, as `module:Class`.
        greeting: The lines the agent gets first. The first one is a request with the id `GREETING_ID`.
        answer: The names that lead to this id in the answer, and the id.
        about: More fields of the record: `agent` and `place` at least. Without `engine_id` the process is an engine itself.
        listens: The agent speaks WebSocket on a Unix socket. Otherwise it speaks lines on its standard streams.
        for_starter: End the agent if this process dies before it hears that the agent is up.
        ready_seconds: How long the agent may take until it answers the greeting.

    Raises:
        EngineLost: It did not come up. No process is left behind. Details: `exit_code`, `stderr`.
    """
    name = secrets.token_hex(4)
    place = await anyio.to_thread.run_sync(lambda: private_directory(state_dir.resolve() / ENGINES))
    listens_at = socket_path(place / name, AGENT_SOCKET) if listens else None
    order = {
        "argv": [word.replace("{socket}", str(listens_at)) for word in argv] if listens else list(argv),
        "env": dict(env),
        "cwd": str(directory or place / name),
        "idle": idle,
        "watcher": watcher,
        "greeting": list(greeting),
        "answer": list(answer),
        "epoch": owner.epoch,
        "for_starter": for_starter,
        "successor": owner.successor,
        "listens_at": None if listens_at is None else str(listens_at),
        "about": {"engine_id": name, **about},
        **({} if ready_seconds is None else {"ready_seconds": ready_seconds}),
    }
    await start_supervisor(place / name, order, owner.lease)
    record = await anyio.to_thread.run_sync(read_record, place / name)
    if record is None:
        forget(place / name)
        raise EngineLost("It ended immediately. Run `helmsman doctor` to find out why.")
    return record


async def start_supervisor(directory: Path, order: Mapping[str, Any], lease: ProcessLease | None) -> None:
    """Start a supervisor with a directory that does not exist yet; see `process` for the order.

    Raises:
        EngineLost: The agent did not come up. Details: `exit_code`, `stderr`.
    """
    socket = socket_path(directory)
    try:
        make_directory(directory)
        private_directory(socket.parent)
    except OSError as error:
        raise _did_not_start(f"There is no place for its socket: {error}") from error
    said = b""
    order = {**order, "directory": str(directory), "socket": str(socket)}
    with (
        # The pipe of the lease must be inherited, so it exists before the start.
        nullcontext((None, None)) if lease is None else lease.shared() as (descriptor, lease_order),
        anyio.move_on_after(max(START_TIMEOUT, 2 * float(order.get("ready_seconds", 0)))),
    ):
        # Not from the current directory (-P), where a repository could put a module of any name.
        process = await anyio.run_process(
            [sys.executable, "-P", "-m", "helmsman.agents.supervisor.process"],
            input=json.dumps({**order, "lease": lease_order}).encode(),
            stderr=subprocess.PIPE,
            cwd=directory,
            check=False,
            start_new_session=True,
            pass_fds=() if descriptor is None else (descriptor,),
        )
        # The supervisor forks and reports on its standard output; a crash before that is on its standard error.
        said = process.stdout or process.stderr
    try:
        answer = json.loads(said)
    except ValueError:
        answer = {"stderr": said.decode("utf-8", "replace")}
    if answer.get("ready") is True:
        return
    await anyio.to_thread.run_sync(_clear_up, directory)
    code = answer.get("exit_code")
    raise _did_not_start(
        "It did not answer in time" if code is None else f"It exited ({code})", code, answer.get("stderr")
    )


def _did_not_start(reason: str, exit_code: object = None, stderr: object = None) -> EngineLost:
    return EngineLost(f"{reason}. Run `helmsman doctor` to find out why.", exit_code=exit_code, stderr=stderr)


def _clear_up(directory: Path) -> None:
    record = read_record(directory)
    # It never ran, or was killed just after it had started the agent.
    if record is None:
        end_processes(lambda: surviving_descendants(directory))
        forget(directory)
    else:
        record.stop()
