"""A command as a thin process: the hub runs it, where everything is imported, and what it says is shown here.

    hello     helmsman-command 1 ⇥ version ⇥ id ⇥ pid ⇥ directory ⇥ argument,… ⇥ NAME=VALUE,… ⇥ terminals ⇥ columns ⇥ lines
              (texts in hex; which of the three streams are terminals is three digits)
    welcome   w ⇥ version ⇥ epoch ⇥ pid      it is being run
              g ⇥ directory                  the settings name another state directory: go to its hub
              s                              run it in a process of its own: this one
              r ⇥ reason                     refused: run it here if it changes nothing
    to us     o<size>⏎ bytes                 for stdout
              e<size>⏎ bytes                 for stderr
              p<size>⏎ text                  for a pager on the terminal
              g<size>⏎ text                  for the pager that the user has for git
              i                              what comes on stdin is wanted
              x<code>                        it has ended
              s                              run it here after all; nothing was done
              h, l                           the hub ends: ask the next
    to hub    what came on stdin, in hex

`--host NAME` before the command has the hub of another machine run it (`helmsman.hub.hosts`); the directory and the
environment are then those there, and a line that breaks is like a hub that ends. The other machine chooses nothing that is
done here: this process chooses the pager, sends stdin only if the user's own words ask for it, and of what it is told a
terminal gets text and colours only.

When a hub ends in between, the next is asked again under the same id, and what was done is not done a second time. When
this process ends, the hub stops what it does for it. Imports next to nothing, for this is what a person waits for.
"""

from __future__ import annotations

import os
import sys
import time

from helmsman._version import __version__
from helmsman.hub.launch import (
    LATER,
    NEXT,
    OF_TERMINAL,
    HubFailed,
    NoHub,
    Way,
    connect,
    door_environment,
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
    from helmsman.hub.hosts import HostWay

PROTOCOL = "helmsman-command 1"
COMPLETION = "_HELMSMAN_COMPLETE"
"""The variable by which a shell asks what can follow."""
CALLED = "HELMSMAN_CALLED"
"""The variable by which another machine learns what it is called here: its texts name commands for who reads them."""

_COMMANDS = frozenset(
    (
        *("say", "status", "questions", "respond", "steer", "interrupt", "rules"),
        *("list", "fork", "rewind", "rollback", "compact", "goal", "rename", "hand", "archive", "unarchive"),
        *("diff", "discard", "worktrees", "tasks", "schedule", "notify", "models", "account", "usage"),
    )
)
"""What a hub runs. All others need a terminal or a process of their own; `apply` makes files as the person would."""
_ELSEWHERE = _COMMANDS | {"agents"}
"""What the hub of another machine runs. What more can be done there is done by asking it (`helmsman.cli.app`)."""
_OF_SESSION = frozenset(
    (
        *("status", "watch", "say", "steer", "interrupt", "respond", "attach", "diff", "apply", "discard"),
        *("fork", "rewind", "rollback", "compact", "goal", "rename", "hand", "archive", "unarchive"),
    )
)
"""What is done with one session, which is named first."""
_OF_STDIN = frozenset(("say", "steer", "schedule", "tasks"))
"""What takes a text from stdin, where an argument is `-`."""
_MOST_BYTES = 256 * 1024 * 1024
"""Another machine may send so much in one piece."""
_LONGEST_LINE = 64 * 1024
_MAKES_NO_SENSE = (ValueError, IndexError)
"""What is raised where another machine does not keep to the protocol."""
_SILENT = 5
"""So many may end without a word. Then hubs know nothing of commands, or do not live."""
_WELCOME_SECONDS = 15.0
"""A hub that says nothing for so long is stopped, or stuck. It does nothing for a process that has left."""
_HOLD_SECONDS = 20.0
"""So long a hub may wait for the command on one connection; after 30 s it closes it."""
_CHUNK = 64 * 1024
_FAILED, _INTERRUPTED = 1, 130
_UTF8 = ("utf-8", "utf8")


class OwnProcess(Exception):
    """The command is to run in this process. `refused` says why the hub does nothing for it, where that is the reason."""

    def __init__(self, refused: str = "") -> None:
        super().__init__(refused)
        self.refused = refused


def with_host(arguments: list[str]) -> list[str]:
    """The arguments, with `--host` where a session is called by its machine, too: `build:3b2d5c8e`."""
    given = arguments[1] if arguments[:1] == ["--host"] and len(arguments) > 1 else ""
    own = arguments[2:] if given else arguments
    if not _OF_SESSION.intersection(own[:1]):
        return arguments
    place = next((place for place, one in enumerate(own) if place and not one.startswith("-")), 0)
    name, colon, session = own[place].partition(":")
    if not colon or not session or given not in ("", name):
        return arguments
    from helmsman.hub.hosts import HostFailed, known_hosts

    try:
        is_known = name in known_hosts(os.environ)
    except HostFailed:
        is_known = False  # it is said when a host is asked for
    return ["--host", name, *own[:place], session, *own[place + 1 :]] if is_known else arguments


def run(arguments: Sequence[str]) -> int:
    """Have the hub run a command; its exit code.

    Raises:
        OwnProcess: It is to run here; nothing was done and nothing shown.
    """
    completing = os.environ.get(COMPLETION, "").endswith("_complete")
    if arguments and arguments[0].startswith("--host="):
        arguments = ["--host", arguments[0].removeprefix("--host="), *arguments[1:]]
    if arguments[:1] == ["--host"] and len(arguments) > 1 and not completing:
        return _run_elsewhere(arguments[1], arguments[2:])
    if not (completing or _COMMANDS.intersection(arguments[:1])) or not wanted(os.environ) or not _speaks_utf8():
        raise OwnProcess
    try:
        command = _Command(arguments, completing=completing)
    except FileNotFoundError:  # the directory we are in
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
        return _FAILED  # whoever read our output has had enough (`helmsman list | head`)


def _run_elsewhere(name: str, arguments: Sequence[str]) -> int:
    """Have the hub of another machine run a command. Nothing is ever done here in its place."""
    if not _ELSEWHERE.intersection(arguments[:1]) or not _speaks_utf8():
        raise OwnProcess
    from helmsman.hub.hosts import HostFailed, HostWay, named_host

    try:
        way = HostWay(named_host(name, os.environ), os.environ)
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


def ask_elsewhere(way: HostWay, arguments: Sequence[str]) -> tuple[int, bytes]:
    """Have the hub of another machine run a command; its exit code, and what it wrote.

    Raises:
        HubFailed: It cannot be reached.
        OwnProcess: It does nothing for us.
    """
    command = _Command(arguments, completing=False, way=way)
    written = bytearray()
    command.show = lambda _, data: written.extend(data)
    try:
        return command.run(), bytes(written)
    finally:
        command.close()


def _fail(why: str) -> int:
    from helmsman.base.terminal_text import TerminalFilter  # another machine may have said why

    _write(2, TerminalFilter.whole(f"Error: {why}\n".encode("utf-8", "backslashreplace")))
    return _FAILED


def _speaks_utf8() -> bool:
    return all(getattr(stream, "encoding", "").lower() in _UTF8 for stream in (sys.stdin, sys.stdout, sys.stderr))


class _Silent(OwnProcess):
    """No hub says a word."""


class _Hub:
    """A connection to a hub, read in lines and pieces. Where it has ended there is None."""

    def __init__(self, connection: _socket.socket) -> None:
        connection.settimeout(_WELCOME_SECONDS)
        self._connection = connection
        self._read = b""

    def wait_for_ever(self) -> None:
        """It has begun, and takes as long as it takes."""
        self._connection.settimeout(None)

    def speaks_within(self, seconds: float) -> bool:
        """Return whether the hub says something, or ends, before it was told anything."""
        import select

        return bool(select.select([self._connection], [], [], seconds)[0])

    def send(self, line: bytes) -> None:
        try:
            self._connection.sendall(line)
        except OSError:
            return  # it has ended, as reading will show

    def line(self) -> bytes | None:
        while b"\n" not in self._read:
            if len(self._read) > _LONGEST_LINE or not self._more():
                return None
        line, _, self._read = self._read.partition(b"\n")
        return line

    def exactly(self, size: int) -> bytes | None:
        """So many bytes, and the end of the line behind them."""
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
    def __init__(self, arguments: Sequence[str], *, completing: bool, way: HostWay | None = None) -> None:
        self._completing = completing
        self._takes_stdin = way is None or ("-" in arguments and arguments[0] in _OF_STDIN)
        self._elsewhere = way
        self._way = Way(state_directory(os.environ)) if way is None else way
        self._outdated = ""
        self._epoch = ""
        self._suspect = Suspect()
        self._said_goodbye = False
        self._lost_at: float | None = None
        """When the line to another machine broke. Its next hub shows whether the one before has died."""
        self._stdin: bytes | None = None
        self._has_shown = False
        self.show: Callable[[int, bytes], None] | None = None
        """What takes the output instead of stdout and stderr."""
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
            return door_environment(os.environ)
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

        Where a hub has begun on it, it must not run here: the next hub is awaited for as long as `Way` finds any.
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
                self._way.welcomed()
                self._note_epoch(fields[1])
                self._replace_older(*fields)
                return hub
            hub.close()
            if kind != "g":
                raise OwnProcess(bytes.fromhex(fields[0]).decode() if kind == "r" else "")
            state = os.fsdecode(bytes.fromhex(fields[0]))
            if self._elsewhere is None:
                self._way = Way(state)
            else:
                self._way = self._elsewhere = self._elsewhere.to_state(state)
        raise _Silent

    def _held_hub(self) -> _Hub | None:
        """Return a hub from which the command was held back for as long as it must be; None where it died meanwhile."""
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
        """Whether a hub has begun on the command."""
        return bool(self._epoch)

    def _connection(self) -> _socket.socket:
        if not self._completing or not isinstance(self._way, Way):
            return self._way.connection()
        found = connect(self._way.state)  # a key press starts no hub
        if found is None:
            raise OwnProcess
        return found

    def _replace_older(self, version: str, _epoch: str, pid: str, *_: str) -> None:
        if not isinstance(self._way, Way):
            return  # the bridge there sees to that
        if is_newer(__version__, version) and pid != self._outdated and not self._completing:
            self._outdated = pid  # once: if ours does not come up, the older one serves us as well
            start_successor(self._way.state)

    def _show(self, hub: _Hub) -> int | None:
        """Show what the command says; its exit code, or None if the hub has ended before it."""
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
    """Return a filter for each stream of ours that is a terminal; a file or a program gets the exact bytes."""
    from helmsman.base.terminal_text import TerminalFilter  # only another machine is not trusted

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
        except BlockingIOError:  # somebody who shares it does not want to wait, so we do
            import select

            select.select([], [number], [])


def _page(kind: bytes, text: bytes) -> bool:
    """Show a text by the user's pager; whether it was shown."""
    from helmsman.base.pager import page, page_as_git

    return (page if kind == b"p" else page_as_git)(text.decode("utf-8", "replace"))
