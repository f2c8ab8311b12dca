"""A child on a pipe, and the one who owns it for the time being: numbered lines both ways.

    owner → keeper   e<epoch>             first: be the owner; 0 is "whoever comes next", -1 only asks for the epoch
                     a<n>                 taken, up to line n
                     k<n>, d<n>           keep line n for the next owner too (said before it is taken); drop it again
                     i<n>[,<kept>] line   to the child, once, whoever sends it again; drops a kept question in the same step
                     t                    end the child
                     ?                    instead of e: what is under way, and good-bye
    keeper → owner   {"epoch": …, "next": …, "inputs": …, "kept": […], "answer": …}    then the kept lines and all not taken
                     o<n> line            the child has said this
                     w<n>                 input n is with the child
                     x<code> {"stderr": …}    the child has ended
                     r<epoch>             you are not the owner: there is, or was, one with this later epoch

Only whole frames count: of an owner that dies in the middle of one nothing reaches the child. One owner at a time, and the
newest wins, unless it has an older epoch. A child goes on talking when there is no owner: see `backlog`. An owner is always
heard, however much the child has yet to read: what it says next may be that the child is to end, or nothing, as it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.keeper.backlog import Backlog
from helmsman.base.line_framer import LineFramer
from helmsman.base.peers import why_refused
from helmsman.base.processes import is_marked, parents_of, read_proc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from helmsman.agents.keeper.watcher import Watcher

_READ_BYTES: Final = 256 * 1024
_UNSENT_BYTES: Final = 256 * 1024


class _Connection:
    """Somebody who has connected: the owner, or one who has yet to say so."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.lines = LineFramer(drops_long=True)
        self.unsent = bytearray()


class Pipe:
    """The keeper's side. Everything in it is called from the keeper's one loop, and nothing blocks."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        watcher: Watcher,
        address: Path,
        spill: Path,
        *,
        epoch: int,
        file_bytes: int,
        log: Callable[[bytes], None],
        end: Callable[[], None],
    ) -> None:
        self._selector = selector
        self._watcher = watcher
        self._log = log
        self._end = end
        self._backlog = Backlog(spill, file_bytes)
        self._from_child = LineFramer(drops_long=True)
        self._stdin = self._stdout = -1
        self._unwritten: deque[tuple[int, memoryview]] = deque()
        self._epoch = epoch
        self._inputs = 0
        self._owner: _Connection | None = None
        self._callers: set[_Connection] = set()
        self.answer: str | None = None
        """What the child answered to its greeting."""
        self._awaited: Any = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        address.chmod(0o600)
        self._listener.listen(64)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())

    @property
    def has_owner(self) -> bool:
        return self._owner is not None

    # --- the child ---------------------------------------------------------------------------------------------------

    def begin(self, stdin: int, stdout: int, greeting: list[str], awaited: Any) -> None:
        """Talk to a child that has just been started: greet it, and know its answer by the id `awaited`."""
        self._stdin, self._stdout, self._awaited = stdin, stdout, awaited
        for descriptor in (stdin, stdout):
            os.set_blocking(descriptor, False)
        self._selector.register(stdout, selectors.EVENT_READ, lambda _: self.read_child())
        for line in greeting:
            self.send_to_child(line.encode())

    def send_to_child(self, line: bytes, number: int = 0) -> None:
        """Say something to the child. Input of an owner has a number, and the owner hears when the child has it."""
        if self._stdin < 0:  # it is being ended
            return
        self._watcher.on_input(line)
        self._unwritten.append((number, memoryview(line + b"\n")))
        self._write_child()

    def _write_child(self) -> None:
        while self._unwritten:
            number, data = self._unwritten[0]
            try:
                written = os.write(self._stdin, data)
            except BlockingIOError:
                break
            except OSError:  # it reads no more, and has probably ended
                self._unwritten.clear()
                break
            if written < len(data):
                self._unwritten[0] = (number, data[written:])
                continue
            self._unwritten.popleft()
            if number and self._owner is not None:
                self._send(self._owner, b"w%d\n" % number)
        self._want(self._stdin, selectors.EVENT_WRITE, bool(self._unwritten), lambda _: self._write_child())

    def read_child(self) -> bool:
        """Take in what the child has said; False when it has closed its output, or there is nothing now."""
        try:
            data = os.read(self._stdout, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._want(self._stdout, selectors.EVENT_READ, False, None)
            return False
        for line in self._from_child.feed(data):
            self._on_output(line)
        if self._backlog.is_full:
            self._want(self._stdout, selectors.EVENT_READ, False, None)
        self._send_more()
        return True

    def _on_output(self, line: bytes) -> None:
        self._watcher.on_output(line)
        if self._awaited is not None and self._is_awaited(line):
            self._awaited = None
            self.answer = line.decode("utf-8", "replace")
            return
        try:
            self._backlog.add(line)
        except OSError as error:
            self._log(f"keeper: a line was lost, as it could not be written down: {error}\n".encode())

    def _is_awaited(self, line: bytes) -> bool:
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(line)
            if isinstance(message, dict) and isinstance(message.get("response"), dict):
                return bool(
                    message["response"].get("request_id") == self._awaited
                )  # Claude Code's spelling of an answer
            return isinstance(message, dict) and message.get("id") == self._awaited and "method" not in message
        return False

    def close_input(self) -> None:
        """Tell the child that nothing more will come."""
        if self._stdin >= 0:
            self._want(self._stdin, selectors.EVENT_WRITE, False, None)
            with contextlib.suppress(OSError):
                os.close(self._stdin)
            self._stdin = -1

    def ended(self, code: int | None, stderr: str) -> None:
        """The child has ended: the owner is told, after all it has said."""
        while self.read_child():
            pass
        if self._owner is not None:
            self._send_more(everything=True)
            self._send(self._owner, b"x%d %s\n" % (code or 0, json.dumps({"stderr": stderr}).encode()))

    @property
    def has_told_all(self) -> bool:
        return self._owner is None or not self._owner.unsent

    def close(self) -> None:
        for connection in [*self._callers, *([self._owner] if self._owner else ())]:
            self._disconnect(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
        self._backlog.close()

    # --- whoever connects --------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            made, _ = self._listener.accept()
            refused = why_refused(made, _why_below_an_agent)
            if refused is not None:
                self._log(f"keeper: somebody was not let in: {refused}\n".encode())
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
                if connection is self._owner:
                    self._send_more()
            if events & selectors.EVENT_READ:
                data = connection.socket.recv(_READ_BYTES)
                if not data:
                    self._disconnect(connection)
                    return
                for line in connection.lines.feed(data):
                    self._handle_frame(connection, line)
        except BlockingIOError:
            return
        except (OSError, ValueError):  # gone, or not one of us
            self._disconnect(connection)

    def _handle_frame(self, connection: _Connection, frame: bytes) -> None:
        if connection is not self._owner:
            self._greet(connection, frame)
            return
        order, rest = frame[:1], frame[1:]
        if order == b"a":
            self._backlog.take(int(rest))
            if not self._backlog.is_full:
                self._want(self._stdout, selectors.EVENT_READ, self._stdout >= 0, lambda _: self.read_child())
        elif order == b"k":
            self._backlog.keep(int(rest))
        elif order == b"d":
            self._backlog.drop(int(rest))
        elif order == b"i":
            numbers, _, line = rest.partition(b" ")
            number, _, question = numbers.partition(b",")
            self._input(int(number), int(question) if question else None, line)
        elif order == b"t":
            self._end()

    def _input(self, number: int, question: int | None, line: bytes) -> None:
        if number <= self._inputs:
            if self._owner is not None:
                self._send(self._owner, b"w%d\n" % number)  # sent again by an owner that did not hear of it
            return
        self._inputs = number
        if question is not None:
            self._backlog.drop(question)
        self.send_to_child(line, number)

    def _greet(self, connection: _Connection, frame: bytes) -> None:
        if frame == b"?" and connection in self._callers:
            self._send(connection, json.dumps(self._watcher.activity()).encode() + b"\n")
            self._disconnect(connection)
            return
        if frame[:1] != b"e" or connection not in self._callers:
            self._disconnect(connection)
            return
        epoch = int(frame[1:]) or self._epoch
        if epoch < self._epoch:
            self._send(connection, b"r%d\n" % self._epoch)
            self._disconnect(connection)
            return
        if self._owner is not None:
            self._send(self._owner, b"r%d\n" % epoch)
            self._disconnect(self._owner)
        self._epoch, self._owner = epoch, connection
        self._callers.discard(connection)
        self._backlog.rewind()
        hello = {
            "epoch": epoch,
            "next": self._backlog.last + 1,
            "inputs": self._inputs,
            "kept": sorted(self._backlog.kept),
            "answer": self.answer,
        }
        kept = [b"o%d %s\n" % one for one in sorted(self._backlog.kept.items())]
        self._send(connection, json.dumps(hello).encode() + b"\n" + b"".join(kept))
        self._send_more()

    def _send_more(self, *, everything: bool = False) -> None:
        owner = self._owner
        while owner is not None and owner is self._owner:
            following = None
            while everything or len(owner.unsent) < _UNSENT_BYTES:
                following = self._backlog.next()
                if following is None:
                    break
                owner.unsent += b"o%d %s\n" % following
            self._flush(owner)
            if owner.unsent or following is None:
                return

    def _send(self, connection: _Connection, data: bytes) -> None:
        connection.unsent += data
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        """Send what can be sent now. That somebody is gone is noticed where it is read from."""
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
        """Be called, or not any more, when something can be read or written."""
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


def _why_below_an_agent(pid: int) -> str | None:
    """Return why a command of an agent is refused: it would answer the questions of its own session, or of another's.

    A Helmsman that runs inside an agent has keepers, too. They have the agent's mark, and refuse only what is below them.
    """
    line = parents_of(pid)
    if os.getpid() in line or (not is_marked(os.getpid()) and any(is_marked(one) or _is_keeper(one) for one in line)):
        return "it was started by an agent of Helmsman's own"
    return None


def _is_keeper(pid: int) -> bool:
    return b"helmsman.agents.keeper.process" in read_proc(f"/proc/{pid}/cmdline").split(b"\0")
