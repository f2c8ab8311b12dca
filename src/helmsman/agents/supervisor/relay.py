"""Pass the owner's input to the agent, and log the agent's output to files (`output_log`), which the owner reads.

    owner → supervisor   e<epoch>             first: become the owner; 0 accepts the current epoch, -1 only asks for it
                         a<offset>            commit: nothing before this offset is needed any more
                         i<n> line            input n, passed on once
                         t                    end the agent
                         ?                    instead of e: what is under way, then disconnect
    supervisor → owner   {"epoch", "inputs", "answer", "output", "from", "size", "open"}
                         +<size>              there is more output, up to this offset
                         x<code> {"stderr": …}    the agent has ended
                         r<epoch>             another client with this later epoch is, or was, the owner

An agent speaks lines on its standard streams, or messages on a WebSocket, of which each is logged as a line. Only whole
frames count: if an owner dies while it sends one, the agent gets nothing of it. An answer reaches the agent and closes its
question in one step: `open` has the ids of the questions that still wait, for an owner that reads their lines again. There
is one owner at a time; the newest wins unless its epoch is older. Output is logged with and without an owner. Frames of the
owner are read even while the agent reads no input, so that the owner can end the agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from helmsman.base.json_values import json_object
from helmsman.base.line_framer import MAX_LINE_BYTES, LineFramer
from helmsman.base.peers import belongs_to_other, why_refused
from helmsman.base.processes import is_marked, parents_of, read_proc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from websockets.client import ClientProtocol

# --- watchers --------------------------------------------------------------------------------------------------------


class Activity(NamedTuple):
    """Active sessions, by the agent's own ids, and sessions that wait for an answer."""

    working: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class Watcher(Protocol):
    """Knows what runs in an agent, from its input and output. The order to the supervisor names the class: `module:Class`.

    It is created before the agent starts, so its module imports little.
    """

    @property
    def open(self) -> Mapping[int | str, int]:
        """Requests of the agent without an answer, by their ids, each with the offset of its line."""
        ...

    def on_output(self, line: bytes, offset: int) -> None:
        """Handle a line from the agent."""
        ...

    def on_input(self, line: bytes) -> None:
        """Handle a line to the agent."""
        ...

    def activity(self) -> Activity:
        """Return what runs."""
        ...

    def interrupt(self) -> Sequence[bytes]:
        """Return the lines that make the agent stop what runs."""
        ...


class SessionWatcher:
    """Watcher of an agent that has one session. Each agent says how its lines are read."""

    def __init__(self) -> None:
        self.session = "session"
        self.is_running = False
        self.open: dict[int | str, int] = {}

    def activity(self) -> Activity:
        if not self.is_running:
            return Activity()
        return Activity(waiting=(self.session,)) if self.open else Activity(working=(self.session,))


def is_answer(message: object, awaited: Sequence[str]) -> bool:
    """Return whether a message answers a greeting. `awaited` has the names that lead to the request id, and the id."""
    *names, last, request_id = awaited
    for name in names:
        message = message.get(name) if isinstance(message, dict) else None
    # A request with the same id is no answer.
    return isinstance(message, dict) and message.get(last) == request_id and "method" not in message


def read_line(line: bytes) -> dict[str, Any]:
    """Return a line as a JSON object, or an empty one if it is none."""
    return json_object(line) or {}


# --- the output log --------------------------------------------------------------------------------------------------
# Output is an append-only file of lines, in segments named after the offset of their first byte. The supervisor
# appends. The owner reads from the committed offset, and commits an offset before which nothing is needed. A segment
# without an uncommitted line is removed.
#
# The output is on disk before secrets are redacted: files are 0600, in a directory of this user alone, and are removed
# with the process.


SEGMENT_BYTES: Final = 16 * 1024 * 1024
UNCOMMITTED_BYTES: Final = 256 * 1024 * 1024
"""Amount of uncommitted output at which the supervisor stops reading, so that the child blocks."""

_LOG_READ_BYTES: Final = 256 * 1024


class OutputLine(NamedTuple):
    """Line of the child, without its end, and the offset of its first byte."""

    offset: int
    line: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.line) + 1


class OutputLog:
    """Supervisor's side: appends lines, and tracks which of them are still needed."""

    def __init__(
        self, directory: Path, segment_bytes: int = SEGMENT_BYTES, uncommitted_bytes: int = UNCOMMITTED_BYTES
    ) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._uncommitted_bytes = uncommitted_bytes
        self._unwritten = bytearray()
        self._starts: list[int] = []
        self._file = -1
        self._written = 0
        self.size = 0
        """Offset after the last whole line in the file."""
        self.committed = 0

    @property
    def end(self) -> int:
        """Offset of the next line."""
        return self._written + len(self._unwritten)

    @property
    def is_blocked(self) -> bool:
        """True if the child must wait: the disk is full, or its output is not being read."""
        return bool(self._unwritten) or self.size - self.committed >= self._uncommitted_bytes

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines.

        Raises:
            OSError: The disk is full. `flush` writes the rest once there is space.
        """
        # Lines are kept even if the disk is full, and written by the next flush.
        self._unwritten += b"".join(line + b"\n" for line in lines)
        self.flush()

    def flush(self) -> None:
        """Write what `append` could not write.

        Raises:
            OSError: The disk is still full.
        """
        while self._unwritten:
            # A segment begins with a whole line, so that it can be removed as a whole.
            if not self._starts or (self._written == self.size and self.size - self._starts[-1] >= self._segment_bytes):
                self._begin_segment()
            count = os.write(self._file, self._unwritten)
            self._written += count
            # Readers see only whole lines, so the size counts up to the last one.
            whole = self._unwritten.rfind(b"\n", 0, count) + 1
            if whole:
                self.size = self._written - count + whole
            del self._unwritten[:count]

    def _begin_segment(self) -> None:
        path = self.directory / str(self.size)
        # Opened before the old one is closed: a failure leaves the log usable.
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file = opened
        self._starts.append(self.size)

    def commit(self, offset: int) -> None:
        """Mark everything before this offset as no longer needed."""
        # Never backwards, and never beyond the written data.
        self.committed = max(self.committed, min(offset, self.size))
        self._remove_segments()

    def _remove_segments(self) -> None:
        """Remove the segments that hold no line for the next owner, except the one that is written to."""
        # The newest segment is still written to.
        for start, end in zip(self._starts[:-1], self._starts[1:], strict=True):
            if end <= self.committed:
                with contextlib.suppress(OSError):
                    (self.directory / str(start)).unlink()
                self._starts.remove(start)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class OutputReader:
    """Owner's side: reads whole lines from any uncommitted offset."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = -1
        self._start = 0

    def read(self, offset: int, end: int | None) -> list[OutputLine]:
        """Return some whole lines from an offset on; none where there are none before `end`, or before the end of the log.

        Raises:
            OSError: The log cannot be read.
        """
        if end is not None and offset >= end:
            return []
        if self._file < 0:
            self._open(offset)
        data = self._read_lines(offset)
        if not data and self._open(offset):  # the segment has ended
            data = self._read_lines(offset)
        lines: list[OutputLine] = []
        for line in data.split(b"\n")[:-1]:
            lines.append(OutputLine(offset, line))
            offset = lines[-1].end
        return lines

    def _read_lines(self, offset: int) -> bytes:
        """Return whole lines of the open segment, as bytes."""
        if self._file < 0 or offset < self._start:
            return b""
        data, size = b"", _LOG_READ_BYTES
        # A line may be longer than one read.
        while len(part := os.pread(self._file, size, offset - self._start + len(data))) > 0:
            data += part
            if (end := data.rfind(b"\n") + 1) > 0:
                return data[:end]
            size = len(data)  # a long line: fewer and longer reads
        return b""

    def _open(self, offset: int) -> bool:
        """Open the segment that has an offset; whether it is another one than before."""
        # Segments begin where the one before ends, so the last start before the offset has it.
        starts = [start for path in self._directory.iterdir() if (start := int(path.name)) <= offset]
        if not starts or (self._file >= 0 and max(starts) == self._start):
            return False
        opened = os.open(self._directory / str(max(starts)), os.O_RDONLY)
        self.close()
        self._file, self._start = opened, max(starts)
        return True

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# --- how an agent separates its messages -----------------------------------------------------------------------------

_CONNECT_SECONDS: Final = 10.0
_HANDSHAKE_BYTES: Final = 64 * 1024


class LineFraming:
    """Framing with one message per line."""

    ends_with_connection = False
    """True if the agent is useless once its output is closed. One on standard streams ends anyway."""

    def __init__(self) -> None:
        self._lines = LineFramer(drops_long=True)

    def decode(self, data: bytes) -> list[bytes]:
        """Return the messages that these bytes complete, each without a line break."""
        return self._lines.feed(data)

    def encode(self, line: bytes) -> bytes:
        """Return a message as bytes."""
        return line + b"\n"

    def reply(self) -> bytes:
        """Return the bytes that the protocol itself has to send after `decode`."""
        return b""


class WebSocketFraming:
    """Framing with one message per text message of a WebSocket. Created by `connect_websocket` only."""

    ends_with_connection = True

    def __init__(self, protocol: ClientProtocol) -> None:
        self._protocol = protocol
        self._parts: list[bytes] = []
        self._messages: list[bytes] = []

    def decode(self, data: bytes) -> list[bytes]:
        self.receive(data)
        messages, self._messages = self._messages, []
        return messages

    def receive(self, data: bytes) -> None:
        from websockets.frames import DATA_OPCODES, Frame

        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
                self._parts.append(bytes(event.data))
                if event.fin:
                    whole = b"".join(self._parts)
                    self._messages.append(whole.replace(b"\n", b" "))  # white space between JSON values
                    self._parts.clear()

    def encode(self, line: bytes) -> bytes:
        self._protocol.send_text(line)
        return self.reply()

    def reply(self) -> bytes:
        return b"".join(self._protocol.data_to_send())


Framing = LineFraming | WebSocketFraming


def connect_websocket(path: Path) -> tuple[WebSocketFraming, socket.socket]:
    """Connect to an agent that listens. Blocks for a bounded time.

    Raises:
        OSError: The agent does not answer, refuses, or belongs to another user.
    """
    from websockets.client import ClientProtocol
    from websockets.protocol import State
    from websockets.uri import parse_uri

    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect(str(path))
        _require_own(connection, path)
        # The library's own limit would drop large messages.
        protocol = ClientProtocol(parse_uri("ws://localhost/"), max_size=MAX_LINE_BYTES)
        protocol.send_request(protocol.connect())
        framing = WebSocketFraming(protocol)
        connection.sendall(framing.reply())
        # The handshake may come in pieces.
        while protocol.state is State.CONNECTING and (data := connection.recv(_HANDSHAKE_BYTES)):
            framing.receive(data)
        _require_open(protocol, path)
    except BaseException:
        connection.close()
        raise
    return framing, connection


def _require_own(connection: socket.socket, path: Path) -> None:
    if belongs_to_other(connection):  # it would read all input and could answer anything
        raise PermissionError(f"the socket at {path} belongs to another user")


def _require_open(protocol: ClientProtocol, path: Path) -> None:
    from websockets.protocol import State

    if protocol.state is not State.OPEN:
        raise ConnectionError(f"the agent refused the connection at {path}: {protocol.handshake_exc}")


# --- the relay -------------------------------------------------------------------------------------------------------

_READ_BYTES: Final = 256 * 1024
_UNSENT_BYTES: Final = 256 * 1024


class _Connection:
    """Connected client: the owner, or one that has not yet sent a request."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.lines = LineFramer(drops_long=True)
        self.unsent = bytearray()


class Relay:
    """Supervisor's side. All methods are called from the supervisor's loop, and none blocks."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        watcher: Watcher,
        address: Path,
        output: Path,
        *,
        epoch: int,
        segment_bytes: int = SEGMENT_BYTES,
        uncommitted_bytes: int = UNCOMMITTED_BYTES,
        log: Callable[[bytes], None],
        end: Callable[[], None],
    ) -> None:
        self._selector = selector
        self._watcher = watcher
        self._log = log
        self._end = end
        self._output = OutputLog(output, segment_bytes, uncommitted_bytes)
        self._announced = 0
        self._has_failed = False
        self._framing: Framing = LineFraming()
        self._stdin = self._stdout = -1
        self._has_closed_output = False
        self._unwritten: deque[memoryview] = deque()
        self._epoch = epoch
        self._inputs = 0
        self._owner: _Connection | None = None
        self._callers: set[_Connection] = set()
        self.answer: str | None = None
        """The answer of the agent to its greeting."""
        self._awaited: Sequence[str] = ()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        # Between these two calls others could connect, but `why_refused` checks every client.
        address.chmod(0o600)
        self._listener.listen(64)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())

    @property
    def has_owner(self) -> bool:
        return self._owner is not None

    # --- the agent ---------------------------------------------------------------------------------------------------

    def begin(self, framing: Framing, stdin: int, stdout: int, greeting: list[str], awaited: Sequence[str]) -> None:
        """Talk to an agent that was just started: greet it, and recognise its answer (`is_answer`)."""
        self._framing, self._stdin, self._stdout, self._awaited = framing, stdin, stdout, awaited
        # One loop serves everything, so nothing may block.
        for descriptor in (stdin, stdout):
            os.set_blocking(descriptor, False)
        self._selector.register(stdout, selectors.EVENT_READ, lambda _: self.read_child())
        for line in greeting:
            self.send_to_child(line.encode())

    def send_to_child(self, line: bytes) -> None:
        """Send a line to the agent."""
        if self._stdin < 0:  # it is being ended
            return
        # Before it is written: the answer may come immediately.
        self._watcher.on_input(line)
        self._unwritten.append(memoryview(self._framing.encode(line)))
        self._write_child()

    def _write_child(self) -> None:
        while self._unwritten:
            data = self._unwritten[0]
            try:
                written = os.write(self._stdin, data)
            except BlockingIOError:
                break
            except OSError:  # it reads no more, and has probably ended
                self._unwritten.clear()
                break
            # The pipe is full. The rest is written when the agent has read.
            if written < len(data):
                self._unwritten[0] = data[written:]
                continue
            self._unwritten.popleft()
        self._want(self._stdin, selectors.EVENT_WRITE, bool(self._unwritten), lambda _: self._write_child())

    def read_child(self) -> bool:
        """Read output of the agent. Return False if it has closed its output, or has written none."""
        try:
            data = os.read(self._stdout, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._want(self._stdout, selectors.EVENT_READ, False, None)
            self._has_closed_output = True
            # An agent on a socket is useless without its connection, but would not end.
            if self._framing.ends_with_connection:
                self._end()
            return False
        lines = self._framing.decode(data)
        # Pings and closing frames of the protocol itself.
        if reply := self._framing.reply():
            self._unwritten.append(memoryview(reply))
            self._write_child()
        offset, wanted = self._output.end, list[bytes]()
        for line in lines:
            # Each owner gets the greeting's answer in its hello, so it is not logged as output.
            if not self._is_greeting_answer(line):
                self._watcher.on_output(line, offset)
                offset += len(line) + 1
                wanted.append(line)
        self._log_output(wanted)
        return True

    def _log_output(self, lines: Sequence[bytes]) -> None:
        try:
            self._output.append(lines)
            self._has_failed = False
        except OSError as error:  # the agent waits, and nothing is lost: see `retry`
            if not self._has_failed:
                self._log(f"supervisor: cannot write the output: {error}\n".encode())
            self._has_failed = True
        # A full disk, or an owner that does not read, stops reading: the agent then blocks.
        self._read_child_if_possible()
        self._announce()

    def retry(self) -> None:
        """Write the output for which there was no space."""
        if self._has_failed:
            self._log_output(())

    def _read_child_if_possible(self) -> None:
        self._want(self._stdout, selectors.EVENT_READ, not self._output.is_blocked, lambda _: self.read_child())

    def _is_greeting_answer(self, line: bytes) -> bool:
        if not self._awaited or not is_answer(read_line(line), self._awaited):
            return False
        self._awaited = ()
        self.answer = line.decode("utf-8", "replace")
        return True

    def close_input(self) -> None:
        """Close the input of the agent."""
        if self._stdin >= 0:
            self._want(self._stdin, selectors.EVENT_WRITE, False, None)
            with contextlib.suppress(OSError):
                os.close(self._stdin)
            self._stdin = -1

    def ended(self, code: int | None, stderr: str) -> None:
        """Log the rest of the output, and tell the owner that the agent has ended."""
        # Output that is still in the pipe is written before the end is reported.
        while self.read_child():
            pass
        self.retry()
        if self._owner is not None:
            self._send(self._owner, b"+%d\n" % self._output.size)
            self._send(self._owner, b"x%d %s\n" % (code or 0, json.dumps({"stderr": stderr}).encode()))

    @property
    def has_delivered_all(self) -> bool:
        """True if the files may be removed: no owner needs to read more."""
        owner = self._owner
        # Files may be removed only after the owner has read everything.
        return owner is None or (not owner.unsent and self._output.committed == self._output.size)

    def close(self) -> None:
        for connection in [*self._callers, *([self._owner] if self._owner else ())]:
            self._disconnect(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
        self._output.close()

    # --- clients -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            made, _ = self._listener.accept()
            # Before anything is read: a command could otherwise answer its own question.
            refused = why_refused(made, _why_refused_descendant)
            if refused is not None:
                self._log(f"supervisor: refused a connection: {refused}\n".encode())
                made.close()
                return
            made.setblocking(False)
            connection = _Connection(made)
            self._callers.add(connection)
            self._selector.register(made, selectors.EVENT_READ, lambda events: self._serve(connection, events))

    def _serve(self, connection: _Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
                self._announce()
            if events & selectors.EVENT_READ:
                data = connection.socket.recv(_READ_BYTES)
                if not data:
                    self._disconnect(connection)
                    return
                for line in connection.lines.feed(data):
                    self._handle_frame(connection, line)
        except BlockingIOError:
            return
        except (OSError, ValueError):  # gone, or not one of our clients
            self._disconnect(connection)

    def _handle_frame(self, connection: _Connection, frame: bytes) -> None:
        if connection is not self._owner:
            self._greet(connection, frame)
            return
        order, rest = frame[:1], frame[1:]
        if order == b"a":
            self._commit(int(rest))
            if not self._has_closed_output:
                self._read_child_if_possible()
        elif order == b"i":
            number, _, line = rest.partition(b" ")
            # An owner repeats input if it does not know whether that has arrived.
            if int(number) > self._inputs:
                self._inputs = int(number)
                self.send_to_child(line)
        elif order == b"t":
            self._end()

    def _commit(self, offset: int) -> None:
        """Commit the output before an offset, except for questions that wait: the next owner reads these again."""
        # Once the agent has ended no question needs an answer, so nothing is held back.
        waiting = () if self._has_closed_output else self._watcher.open.values()
        self._output.commit(min((offset, *waiting)))

    def _greet(self, connection: _Connection, frame: bytes) -> None:
        if frame == b"?" and connection in self._callers:
            self._send(connection, json.dumps(self._watcher.activity()).encode() + b"\n")
            self._disconnect(connection)
            return
        if frame[:1] != b"e" or connection not in self._callers:
            self._disconnect(connection)
            return
        # 0 accepts the current epoch, for clients that are no hub.
        epoch = int(frame[1:]) or self._epoch
        if epoch < self._epoch:
            self._send(connection, b"r%d\n" % self._epoch)
            self._disconnect(connection)
            return
        # The newest owner wins; the other one learns the newer epoch.
        if self._owner is not None:
            self._send(self._owner, b"r%d\n" % epoch)
            self._disconnect(self._owner)
        self._epoch, self._owner = epoch, connection
        self._callers.discard(connection)
        # The hello names the size, so nothing needs to be announced up to here.
        self._announced = self._output.size
        hello = {
            "epoch": epoch,
            "inputs": self._inputs,
            "answer": self.answer,
            "output": str(self._output.directory),
            "from": self._output.committed,
            "size": self._output.size,
            "open": list(self._watcher.open),
        }
        self._send(connection, json.dumps(hello).encode() + b"\n")

    def _announce(self) -> None:
        """Announce more output to the owner. A slow owner is notified after it has read the previous frames."""
        # One announcement at a time: a slow owner reads all new output together.
        if self._owner is not None and not self._owner.unsent and self._announced < self._output.size:
            self._announced = self._output.size
            self._send(self._owner, b"+%d\n" % self._announced)

    def _send(self, connection: _Connection, data: bytes) -> None:
        connection.unsent += data
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        """Send as much as possible now. A closed connection is noticed when it is read."""
        with contextlib.suppress(OSError):
            while connection.unsent:
                sent = connection.socket.send(connection.unsent[:_UNSENT_BYTES])
                del connection.unsent[:sent]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._want(connection.socket, events, True, lambda what: self._serve(connection, what))

    def _disconnect(self, connection: _Connection) -> None:
        if connection is self._owner:
            self._owner = None
        self._callers.discard(connection)
        self._want(connection.socket, 0, False, None)
        connection.socket.close()

    def _want(self, what: Any, events: int, wanted: bool, callback: Callable[[int], object] | None) -> None:
        """Call `callback` when a descriptor is ready, or stop doing so."""
        try:
            key = self._selector.get_key(what)
        except (KeyError, ValueError):
            if wanted:
                self._selector.register(what, events, callback)
            return
        if not wanted:
            self._selector.unregister(what)
        elif key.events != events:
            self._selector.modify(what, events, callback)


def _why_refused_descendant(pid: int) -> str | None:
    """Return why to refuse a client that an agent started: it could answer the questions of its own session.

    A Helmsman that runs inside an agent has supervisors too. They carry the agent's mark, and refuse only their
    descendants.
    """
    line = parents_of(pid)
    # A Helmsman inside an agent has the same mark as the agent, so the mark cannot decide there.
    if os.getpid() in line or (
        not is_marked(os.getpid()) and any(is_marked(one) or _is_supervisor(one) for one in line)
    ):
        return "it was started by an agent of Helmsman's own"
    return None


def _is_supervisor(pid: int) -> bool:
    return b"helmsman.agents.supervisor.process" in read_proc(f"/proc/{pid}/cmdline").split(b"\0")
