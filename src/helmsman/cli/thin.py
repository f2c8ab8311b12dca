"""Thin client for commands: the hub runs the command with its loaded modules, and this process shows the output.

    hello     helmsman-command 1 ⇥ version ⇥ id ⇥ pid ⇥ directory ⇥ argument,… ⇥ NAME=VALUE,… ⇥ terminals ⇥ columns ⇥ lines
              (texts in hex; which of the three streams are terminals is three digits)
    welcome   w ⇥ version ⇥ epoch ⇥ pid      the command runs
              g ⇥ directory                  the settings name another state directory: go to its hub
              s                              run it in this process
              r ⇥ reason                     refused: run it here if it changes nothing
    to client o<size>⏎ bytes                 for stdout
              e<size>⏎ bytes                 for stderr
              p<size>⏎ text                  for a pager on the terminal
              g<size>⏎ text                  for the pager that the user has for git
              i                              request stdin
              x<code>                        the command has ended
              s                              run it here after all; nothing was done
              h, l                           the hub ends: retry with the next
    to hub    stdin, in hex

`--host NAME` before the command runs it in the hub of another machine (`helmsman.hub.hosts`), with its directory and
environment; a broken connection is handled like a hub that ends. The other machine is not trusted: this process selects
the pager, sends stdin only if the user's arguments ask for it, and filters output to text and colours on a terminal.

If a hub ends, the command is retried with the same id on the next, and completed changes are not repeated. If this process
ends, the hub cancels the command. The module imports very little, because its start-up time is what users wait for.
"""

from __future__ import annotations

import os
import sys
import time

from helmsman._version import __version__
from helmsman.cli.command_names import IN_HUB, IN_OTHER_HUB, OF_SESSION, OF_STDIN, command_name
from helmsman.hub.launch import (
    LATER,
    NEXT,
    OF_TERMINAL,
    HubConnector,
    HubFailed,
    NoHub,
    client_environment,
    connect,
    hexed,
    is_newer,
    start_successor,
    state_directory,
    wanted,
)
from helmsman.hub.suspects import GAVE_UP, MAY_BE_DONE, Suspect

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable, Sequence

    from helmsman.base.terminal_text import TerminalFilter
    from helmsman.hub.hosts import SshConnector

PROTOCOL = "helmsman-command 1"
COMPLETION = "_HELMSMAN_COMPLETE"  # variable by which a shell requests completions
CALLED = "HELMSMAN_CALLED"  # tells another machine its name here, so that its texts name commands that work here

_MOST_BYTES = 256 * 1024 * 1024  # maximum size of one frame from another machine
_LONGEST_LINE = 64 * 1024
_MAKES_NO_SENSE = (ValueError, IndexError)  # errors raised for invalid frames of another machine
_SILENT = 5  # hubs that may end without an answer before commands run locally
_WELCOME_SECONDS = 15.0
"""Timeout of the hub's answer.

A hub that is silent for longer is stopped or stuck. It cancels commands of processes that disconnect.
"""
_HOLD_SECONDS = 20.0  # maximum wait before sending the command; the hub closes idle connections after 30 s
_CHUNK = 64 * 1024
_FAILED, _INTERRUPTED = 1, 130
_UTF8 = ("utf-8", "utf8")


class OwnProcess(Exception):
    """Raised if the command must run in this process. `refused` is the hub's reason, if it refused."""

    def __init__(self, refused: str = "") -> None:
        super().__init__(refused)
        self.refused = refused


def with_host(arguments: list[str]) -> list[str]:
    """Return the arguments with `--host` added if a session id includes its machine: `build:3b2d5c8e`."""
    given = arguments[1] if arguments[:1] == ["--host"] and len(arguments) > 1 else ""
    own = arguments[2:] if given else arguments
    name = command_name(own)
    if name not in OF_SESSION:
        return arguments
    words = len(name.split())
    place = next((place for place, one in enumerate(own) if place >= words and not one.startswith("-")), 0)
    name, colon, session = own[place].partition(":")
    if not colon or not session or " " in session or given not in ("", name):
        return arguments
    from helmsman.hub.hosts import HostFailed, known_hosts

    try:
        is_known = name in known_hosts(os.environ)
    except HostFailed:
        is_known = False  # reported when a host is used
    return ["--host", name, *own[:place], session, *own[place + 1 :]] if is_known else arguments


def run(arguments: Sequence[str]) -> int:
    """Run a command in the hub and return its exit code.

    Raises:
        OwnProcess: The command must run here; nothing was done or shown.
    """
    completing = os.environ.get(COMPLETION, "").endswith("_complete")
    if arguments and arguments[0].startswith("--host="):
        arguments = ["--host", arguments[0].removeprefix("--host="), *arguments[1:]]
    if arguments[:1] == ["--host"] and len(arguments) > 1 and not completing:
        return _run_elsewhere(arguments[1], arguments[2:])
    if not (completing or command_name(arguments) in IN_HUB) or not wanted(os.environ) or not _speaks_utf8():
        raise OwnProcess
    try:
        command = _Command(arguments, completing=completing)
    except FileNotFoundError:  # the current directory was removed
        raise OwnProcess from None
    try:
        return command.run()
    except (NoHub, HubFailed, _Silent) as failed:
        if command.was_taken:
            return _fail(f"The hub ended while it worked on this, and no other serves this process. {MAY_BE_DONE}")
        if isinstance(failed, _Silent):
            raise
        if isinstance(failed, NoHub):
            raise OwnProcess from None
        _write(2, f"helmsman: without a hub: {failed}\n".encode())
        raise OwnProcess from None
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        return _FAILED  # the reader closed the pipe (`helmsman list | head`)


def _run_elsewhere(name: str, arguments: Sequence[str]) -> int:
    """Run a command in the hub of another machine. It never falls back to this machine."""
    if command_name(arguments) not in IN_OTHER_HUB or not _speaks_utf8():
        raise OwnProcess
    from helmsman.hub.hosts import HostFailed, SshConnector, named_host

    try:
        way = SshConnector(named_host(name, os.environ), os.environ)
        command = _Command(arguments, completing=False, way=way)
    except HostFailed as failed:
        return _fail(str(failed))
    try:
        return command.run()
    except HostFailed as failed:
        return _fail(str(failed))
    except _Silent:
        return _fail(f"The hub on {name} says nothing. Look at it there: helmsman hub log")
    except OwnProcess as own:
        if own.refused:
            return _fail(f"{name} does nothing for us: {own.refused}.")
        raise
    except _MAKES_NO_SENSE:
        return _fail(f"The hub on {name} gives no answer that can be read. Look at it there: helmsman doctor")
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        return _FAILED
    finally:
        command.close()


def ask_elsewhere(way: SshConnector, arguments: Sequence[str]) -> tuple[int, bytes]:
    """Run a command in the hub of another machine; return its exit code and output.

    Raises:
        HubFailed: The machine is unreachable.
        OwnProcess: The hub refuses.
    """
    command = _Command(arguments, completing=False, way=way)
    written = bytearray()
    command.show = lambda _, data: written.extend(data)
    try:
        return command.run(), bytes(written)
    finally:
        command.close()


def _fail(why: str) -> int:
    from helmsman.base.terminal_text import TerminalFilter  # the text may come from another machine

    _write(2, TerminalFilter.whole(f"Error: {why}\n".encode("utf-8", "backslashreplace")))
    return _FAILED


def _speaks_utf8() -> bool:
    return all(getattr(stream, "encoding", "").lower() in _UTF8 for stream in (sys.stdin, sys.stdout, sys.stderr))


class _Silent(OwnProcess):
    """Raised if no hub answers."""


class _Hub:
    """Connection to a hub, read by lines and frames. Reads return None at its end."""

    def __init__(self, connection: _socket.socket) -> None:
        connection.settimeout(_WELCOME_SECONDS)
        self._connection = connection
        self._read = b""

    def wait_for_ever(self) -> None:
        """Remove the timeout: the command has started."""
        self._connection.settimeout(None)

    def speaks_within(self, seconds: float) -> bool:
        """Return whether the hub sends something or disconnects before it has received anything."""
        import select

        return bool(select.select([self._connection], [], [], seconds)[0])

    def send(self, line: bytes) -> None:
        try:
            self._connection.sendall(line)
        except OSError:
            return  # the hub has ended; the next read shows it

    def line(self) -> bytes | None:
        while b"\n" not in self._read:
            if len(self._read) > _LONGEST_LINE or not self._more():
                return None
        line, _, self._read = self._read.partition(b"\n")
        return line

    def exactly(self, size: int) -> bytes | None:
        """Read this many bytes and the end of the line."""
        parts, missing = [self._read], size + 1 - len(self._read)
        while missing > 0:
            self._read = b""
            if not self._more():
                return None
            parts.append(self._read)
            missing -= len(self._read)
        whole = b"".join(parts)
        self._read = whole[size + 1 :]
        return whole[:size]

    def _more(self) -> bool:
        try:
            chunk = self._connection.recv(_CHUNK)
        except TimeoutError:
            self._connection.close()
            raise _Silent from None
        except OSError:
            chunk = b""
        self._read += chunk
        return bool(chunk)

    def close(self) -> None:
        self._connection.close()


class _Command:
    def __init__(self, arguments: Sequence[str], *, completing: bool, way: SshConnector | None = None) -> None:
        self._completing = completing
        self._takes_stdin = way is None or ("-" in arguments and command_name(arguments) in OF_STDIN)
        self._elsewhere = way
        self._connector = HubConnector(state_directory(os.environ)) if way is None else way
        self._outdated = ""
        self._epoch = ""
        self._suspect = Suspect()
        self._said_goodbye = False
        # when the connection to another machine broke; its next hub shows whether the previous one died
        self._lost_at: float | None = None
        self._stdin: bytes | None = None
        self._has_shown = False
        self.show: Callable[[int, bytes], None] | None = None  # receives the output instead of stdout and stderr
        self._terminals: dict[int, TerminalFilter] = {} if way is None else _terminal_filters()
        columns, lines = _terminal_size()
        self._hello = "\t".join(
            (
                PROTOCOL,
                __version__,
                os.urandom(16).hex(),
                str(os.getpid()),
                hexed((os.getcwd(),)) if way is None else "",  # noqa: PTH109 - pathlib costs more than all of this
                hexed(arguments),
                hexed(f"{name}={value}" for name, value in self._environment().items()),
                "".join("1" if os.isatty(number) else "0" for number in (0, 1, 2)),
                str(columns),
                str(lines),
            )
        ).encode()

    def _environment(self) -> dict[str, str]:
        if self._elsewhere is None:
            return client_environment(os.environ)
        terminal = {name: value for name, value in os.environ.items() if name in OF_TERMINAL}
        return {**terminal, CALLED: self._elsewhere.host.name}

    def close(self) -> None:
        if self._elsewhere is not None:
            self._elsewhere.close()

    def run(self) -> int:
        while not self._suspect.is_guilty:
            hub = self._welcomed()
            self._suspect.take()
            try:
                code = self._show(hub)
            finally:
                hub.close()
                for number, terminal in self._terminals.items():
                    _write(number, terminal.finish())
            if code is not None:
                return code
            if self._has_shown:
                return self._give_up(f"The hub ended in the middle of its answer. {MAY_BE_DONE}")
            if self._said_goodbye:
                self._suspect.take_back()
            elif self._elsewhere is None:
                self._suspect.note_death(alone=True)
            else:
                self._lost_at = time.monotonic()
        return self._give_up(GAVE_UP)

    def _give_up(self, why: str) -> int:
        if not self._completing:
            _write(2, f"Error: {why}\n".encode())
        return _FAILED

    def _welcomed(self) -> _Hub:
        """Return a hub that runs the command.

        If a hub has begun, the command must not run here: wait for the next hub as long as `HubConnector` finds one.
        """
        silent = 0
        while silent < _SILENT or (self.was_taken and self._elsewhere is None):
            silent += 1
            hub = self._held_hub()
            if hub is None:
                self._suspect.clear()
                continue
            hub.send(self._hello + b"\n")
            said = hub.line()
            if said is None:
                hub.close()
                continue
            kind, *fields = said.decode().split("\t")
            if kind == "w":
                hub.wait_for_ever()
                self._connector.welcomed()
                self._note_epoch(fields[1])
                self._replace_older(*fields)
                return hub
            hub.close()
            if kind != "g":
                raise OwnProcess(bytes.fromhex(fields[0]).decode() if kind == "r" else "")
            state = os.fsdecode(bytes.fromhex(fields[0]))
            if self._elsewhere is None:
                self._connector = HubConnector(state)
            else:
                self._connector = self._elsewhere = self._elsewhere.to_state(state)
        raise _Silent

    def _held_hub(self) -> _Hub | None:
        """Return a hub after holding the command back for the required time, or None if the hub died in that time."""
        deadline = time.monotonic() + (self._suspect.hold if self._suspect.hold_back() else 0)
        while True:
            hub = _Hub(self._connection())
            left = deadline - time.monotonic()
            if left > 0 and hub.speaks_within(min(left, _HOLD_SECONDS)):
                hub.close()
                return None
            if left <= _HOLD_SECONDS:
                self._suspect.release()
                return hub
            hub.close()

    def _note_epoch(self, epoch: str) -> None:
        if self._lost_at is not None:
            if epoch == self._epoch:
                self._suspect.take_back()
            else:
                self._suspect.note_death(alone=True, at=self._lost_at)
        self._epoch, self._lost_at = epoch, None

    @property
    def was_taken(self) -> bool:
        """Return whether a hub has begun the command."""
        return bool(self._epoch)

    def _connection(self) -> _socket.socket:
        if not self._completing or not isinstance(self._connector, HubConnector):
            return self._connector.connection()
        found = connect(self._connector.state)  # a key press must not start a hub
        if found is None:
            raise OwnProcess
        return found

    def _replace_older(self, version: str, _epoch: str, pid: str, *_: str) -> None:
        if not isinstance(self._connector, HubConnector):
            return  # the remote bridge handles this
        if is_newer(__version__, version) and pid != self._outdated and not self._completing:
            self._outdated = pid  # only once: if our version does not start, the older hub serves us
            start_successor(self._connector.state)

    def _show(self, hub: _Hub) -> int | None:
        """Show the command's output; return its exit code, or None if the hub ended first."""
        self._said_goodbye = False
        while (frame := hub.line()) is not None:
            kind, rest = frame[:1], frame[1:]
            if kind in (b"o", b"e", b"p", b"g"):
                size = int(rest)
                is_too_much = self._elsewhere is not None and not 0 <= size <= _MOST_BYTES
                said = None if is_too_much else hub.exactly(size)
                if said is None:
                    return None
                self._has_shown = True
                self._show_piece(kind, said)
            elif kind == b"i":
                if not self._takes_stdin:
                    return self._give_up("The other machine asks for input, which this command does not take.")
                if self._stdin is None:
                    self._stdin = _all_of_stdin()
                hub.send(self._stdin.hex().encode() + b"\n")
            elif kind == b"x":
                return int(rest)
            elif kind == b"s":
                raise OwnProcess
            else:
                self._said_goodbye = kind in (NEXT, LATER)
                return None
        return None

    def _show_piece(self, kind: bytes, said: bytes) -> None:
        number = 2 if kind == b"e" else 1
        if self.show is not None:
            self.show(number, said)
            return
        if (terminal := self._terminals.get(number)) is not None:
            said = terminal.feed(said) if kind in (b"o", b"e") else terminal.whole(said)
        if kind in (b"o", b"e") or not _page(kind, said):
            _write(number, said)


def _terminal_filters() -> dict[int, TerminalFilter]:
    """Return a filter for each output stream that is a terminal. Files and programs receive the exact bytes."""
    from helmsman.base.terminal_text import TerminalFilter  # only another machine is untrusted

    return {number: TerminalFilter() for number in (1, 2) if os.isatty(number)}


def _terminal_size() -> tuple[int, int]:
    for number in (0, 1, 2):
        try:
            return os.get_terminal_size(number)
        except OSError:
            continue
    return 0, 0


def _all_of_stdin() -> bytes:
    parts = []
    while part := os.read(0, _CHUNK):
        parts.append(part)
    return b"".join(parts)


def _write(number: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(number, rest) :]
        except BlockingIOError:  # another process made the stream non-blocking; wait until it is writable
            import select

            select.select([], [number], [])


def _page(kind: bytes, text: bytes) -> bool:
    """Show a text in the user's pager; return whether that worked."""
    from helmsman.base.pager import page, page_as_git

    return (page if kind == b"p" else page_as_git)(text.decode("utf-8", "replace"))
