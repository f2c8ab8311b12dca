"""`helmsman serve` as a pipe: lines between a client's standard streams and the hub, which holds the MCP session.

The pipe does not parse MCP. It numbers the client's lines. The hub says which lines to forget, and which to repeat to
every later hub. When the hub is gone, the pipe starts or finds the next one and repeats the kept and the unanswered
lines; the client's connection stays open. Only a call that kills hubs is given up (`helmsman.hub.suspects`). Pipes live for
weeks, so every later hub must support this protocol:

    hello     helmsman-pipe 1 ⇥ version ⇥ pipe ⇥ pid ⇥ directory ⇥ flag,flag… ⇥ NAME=VALUE,… ⇥ open form,…   (values in hex)
    welcome   w ⇥ 1 ⇥ version ⇥ epoch ⇥ pid      served
              g ⇥ directory                      the settings name another state directory: go to its hub
              s ⇥ reason                         no hub for this one: the service runs inside its own process
              x ⇥ code ⇥ text                    say this and end
    to hub    m<seq> line           said for the first time
              M<seq> line           again: no hub has answered it
              K<seq> line ⇥ answer  kept; the answer that the client received, empty if it received none
    to pipe   r<seq> line           the answer, for the client; forget
              a<seq>                forget
              k<seq> [line]         keep; the line, if any, is for the client
              d<seq>                drop what was kept
              t<seq> id             a tool is at work on this request (k: it only waits)
              q<id> line            a request for the client, open until z<id>
              n line                for the client
              h                     go to the next hub
              l                     go to the next hub when there is something to say

It imports very little and needs no cleanup: any signal may end it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` would import `enum`
import os
import select
import sys
import time

from helmsman._version import __version__
from helmsman.hub.launch import (
    LOG,
    PIPES,
    HubConnector,
    HubFailed,
    NoHub,
    client_environment,
    hexed,
    is_newer,
    start_successor,
    state_directory,
    wanted,
)
from helmsman.hub.suspects import GAVE_UP, Suspect, note_death

# Cheaper than `typing.TYPE_CHECKING`, which imports typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Sequence

PROTOCOL = "helmsman-pipe 1"

_CHUNK = 64 * 1024
_PIPE_BUF = 4096
"""Bytes that a writable pipe takes without blocking. The nonblocking flag is shared by all processes that use the pipe."""
_BACKLOG = 1024 * 1024
"""Limit of bytes that wait for one side. Above it, the other side is not read."""
_LAST_WORDS_MS = 2000
"""Time for the hub to send its remaining lines after the client has closed its end."""
_CHOICES = {"--transport": ("stdio",), "--engine": ("auto", "app-server", "exec")}
_CHOICES |= dict.fromkeys(("--tools", "-m", "--model", "--profile", "-c", "--config"), ())
"""Options with a value, and the values supported here. The command line parses and reports anything else."""


class _ServeInside(Exception):
    """Raised if no hub serves this pipe."""


class _Ended(Exception):
    """Raised when the pipe has finished."""


def run_pipe(flags: Sequence[str]) -> int | None:
    """Serve a client on standard input and output; the exit code, or None if the service is to run inside this process."""
    # Without poll (Windows) the service runs inside this process.
    if not (wanted(os.environ) and _understood(flags) and hasattr(select, "poll")):
        return None
    try:
        # Python's own handler would print a traceback on Ctrl-C.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        _Pipe(flags).run()
    except (_ServeInside, NoHub) as reason:
        sys.stderr.write(f"helmsman: without a hub: {reason}\n")
        sys.stderr.flush()
        return None
    except HubFailed as failed:
        sys.stderr.write(f"Error: {failed}\n")
        return 1
    except _Ended as ended:
        return ended.args[0] if ended.args else 0
    return 0


def _understood(flags: Sequence[str]) -> bool:
    """Return whether these are flags of a server on standard input and output."""
    words = iter(flags)
    for word in words:
        name, equals, value = named(word)
        if name in _CHOICES:
            value = value if equals else next(words, "")
            if not value or (_CHOICES[name] and value not in _CHOICES[name]):
                return False
        elif word != "--expose-primitives":
            return False
    return True


def named(word: str) -> tuple[str, str, str]:
    """Split a flag and its value in one word, if present: `--model=o3`, `-mo3`."""
    if word.startswith("--"):
        return word.partition("=")
    return word[:2], word[2:3] and "=", word[2:]


class _Pipe:
    def __init__(self, flags: Sequence[str]) -> None:
        self._flags = flags
        # The hub knows a pipe by it after a reconnect.
        self._id = os.urandom(16).hex()
        self._directory = os.getcwd()  # noqa: PTH109 - pathlib costs more than the whole pipe
        self._connector = HubConnector(state_directory(os.environ), PIPES)
        self._hub: _socket.socket | None = None
        self._hub_number = -1
        self._count = 0
        self._waiting: dict[int, bytes] = {}
        self._kept: dict[int, tuple[bytes, bytes]] = {}
        self._forms: dict[bytes, None] = {}
        self._taken: dict[int, bytes] = {}
        """Calls that the hub works on, with their ids as the client knows them."""
        self._suspects: dict[int, Suspect] = {}
        self._from_client = bytearray()
        self._from_hub = bytearray()
        self._to_client = bytearray()
        self._to_hub = bytearray()
        self._client_left = False
        self._introduced = False
        self._outdated = ""
        """Pid of an older hub that a hub of this version replaced."""
        self._silent_hubs = 0
        """Number of consecutive hubs that welcomed the pipe and sent nothing more."""
        self._poll = select.poll()
        self._polled: set[int] = set()

    def run(self) -> None:
        self._connect()
        while True:
            self._look()

    # --- the hub -----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect to a hub, and repeat the kept and the unanswered lines."""
        while True:
            hub = self._connector.connection()
            try:
                hub.sendall(self._hello())
                welcome = self._welcome(hub)
            except OSError:
                welcome = []
            if welcome:
                break
            # Tried again: a hub may end between its start and its welcome.
            hub.close()
        self._connector.welcomed()
        self._hub, self._hub_number = hub, hub.fileno()
        hub.setblocking(False)
        self._introduce(welcome)
        for seq, (line, answer) in self._kept.items():
            self._to_hub += b"K%d %b\t%b\n" % (seq, line, answer)
        holds = not any(_CANCELS in line for line in self._waiting.values())  # a cancel must find its call
        for seq, line in self._waiting.items():
            suspect = self._suspects.get(seq)
            # Held back, so that the next death of a hub shows whether this call is the cause.
            if not (holds and suspect is not None and suspect.hold_back()):
                self._to_hub += b"M%d %b\n" % (seq, line)

    def _hello(self) -> bytes:
        fields = (
            PROTOCOL,
            __version__,
            self._id,
            str(os.getpid()),
            hexed((self._directory,)),
            hexed(self._flags),
            hexed(f"{name}={value}" for name, value in client_environment(os.environ).items()),
            ",".join(form.hex() for form in self._forms),
        )
        return "\t".join(fields).encode() + b"\n"

    def _welcome(self, hub: _socket.socket) -> list[str]:
        """Return the fields of the hub's welcome, or nothing if the hub ended first."""
        poll = select.poll()
        poll.register(hub, select.POLLIN)
        # Without events, only the end of the client is reported.
        poll.register(1, 0)
        said = b""
        while not said.endswith(b"\n"):
            if any(number == 1 for number, _ in poll.poll()):
                raise _Ended  # the client has gone
            byte = hub.recv(1)  # one byte at a time, because the rest is read later
            if not byte:
                return []
            said += byte
        kind, *fields = said.decode().rstrip("\n").split("\t")
        if kind == "w":
            return fields
        text = bytes.fromhex(fields[-1]).decode("utf-8", "surrogateescape")
        if kind == "g":
            self._connector = HubConnector(text, PIPES)
            return []
        if kind == "s" and not self._introduced:
            raise _ServeInside(text)
        sys.stderr.write(f"{text}\n")
        raise _Ended(int(fields[0]) if kind == "x" else 1)

    def _introduce(self, welcome: list[str]) -> None:
        # Later versions may append fields.
        _, version, _, pid, *_ = welcome
        # A newer client starts a hub of its own version, which takes over from an older one.
        if is_newer(__version__, version) and pid != self._outdated:
            self._outdated = pid  # once: if ours does not come up, the older one serves us as well
            start_successor(self._connector.state)
        if not self._introduced:
            where = f"state directory {self._connector.state}, log {self._connector.state}/{LOG}"
            sys.stderr.write(f"helmsman: hub {pid}, version {version}, {where}\n")
            sys.stderr.flush()
        self._introduced = True

    def _lose_hub(self, *, said: bytes = b"") -> None:
        if self._hub is not None:
            self._poll_forget(self._hub_number)
            self._hub.close()
        self._hub, self._hub_number = None, -1
        self._from_hub.clear()
        self._to_hub.clear()
        # A hub that says goodbye has not died of a call.
        if said:
            for suspect in self._suspects.values():
                suspect.take_back()
        else:
            self._judge()
        self._taken.clear()
        # Nothing is owed to a client that has gone.
        if self._client_left:
            raise _Ended
        # `l`: without an open request, connect only when the client says something, so that idle pipes start no hub.
        if said != b"l" or self._waiting:
            # Hubs that end at once must not be started in a tight loop.
            time.sleep(min(0.05 * self._silent_hubs, 1))
            self._silent_hubs += 1
            self._connect()

    def _judge(self) -> None:
        """Note what the death of a hub says about the calls in flight, and give up the one that kills hubs.

        Only calls that wait for their answer are suspects: one that is kept has shown that a hub survives it.
        """
        note_death(self._suspects.values())
        for seq, request_id in list(self._taken.items()):
            if (suspect := self._suspects.get(seq)) is not None and suspect.is_guilty:
                self._forget(seq)
                self._to_client += _GAVE_UP % request_id

    def _release(self, *, all_of_them: bool = False) -> float | None:
        """Send the lines whose delay has passed. Return the seconds until the next one is due, if any."""
        left = None
        for seq, suspect in self._suspects.items():
            if suspect.held_until is None:
                continue
            seconds = 0.0 if all_of_them else suspect.held_until - time.monotonic()
            if seconds <= 0:
                suspect.release()
                self._to_hub += b"M%d %b\n" % (seq, self._waiting[seq])
            else:
                left = seconds if left is None else min(left, seconds)
        return left

    def _forget(self, seq: int) -> None:
        self._waiting.pop(seq, None)
        self._kept.pop(seq, None)
        self._suspects.pop(seq, None)
        self._taken.pop(seq, None)

    def _on_frame(self, frame: bytes) -> None:
        # It said something, so it is a hub that works.
        self._silent_hubs = 0
        kind, rest = frame[:1], frame[1:]
        if kind == b"n":
            self._to_client += rest[1:] + b"\n"
        elif kind == b"q":
            form, _, line = rest.partition(b" ")
            self._forms[form] = None
            self._to_client += line + b"\n"
        elif kind == b"z":
            self._forms.pop(rest, None)
        elif kind == b"e":
            sys.stderr.write(bytes.fromhex(rest.decode("ascii")).decode("utf-8", "backslashreplace"))
            sys.stderr.flush()
        elif kind == b"h" or kind == b"l":
            self._lose_hub(said=kind)
        else:
            number, _, line = rest.partition(b" ")
            seq = int(number)
            if kind == b"t":
                self._taken[seq] = line
                # A call that is kept only waits, and is no suspect.
                if seq in self._waiting:
                    self._suspects.setdefault(seq, Suspect()).take()
                return
            if kind == b"k" and (seq in self._waiting or seq in self._kept):
                # A kept line may be kept again, with a newer answer.
                known = self._waiting.pop(seq, b"") or self._kept[seq][0]
                self._kept[seq] = known, line
                self._taken.pop(seq, None)
                self._suspects.pop(seq, None)
            elif kind in (b"r", b"a", b"d"):
                self._forget(seq)
            if line:
                self._to_client += line + b"\n"

    # --- both sides --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Wait until something can be read or written, and do that."""
        held = None if self._hub is None or not self._suspects else self._release()
        # Backpressure: a side that does not read stops the other from being read.
        hears_client = not self._client_left and len(self._to_hub) < _BACKLOG
        self._poll_for(0, select.POLLIN if hears_client else None)
        # Registered even without events, so that the end of the client is noticed.
        self._poll_for(1, select.POLLOUT if self._to_client else 0)
        if self._hub is not None:
            reading = select.POLLIN if len(self._to_client) < _BACKLOG else 0
            self._poll_for(self._hub_number, reading | (select.POLLOUT if self._to_hub else 0))
        # Rounded up: poll would return just before the time, again and again.
        pause = None if held is None else int(1000 * held) + 1
        events = dict(self._poll.poll(_LAST_WORDS_MS if self._client_left else pause))
        if self._client_left and not events:
            raise _Ended
        if (event := events.get(1, 0)) and not (event & select.POLLOUT and self._write_to_client()):
            raise _Ended  # the client does not read
        # Reading goes first: an end of the stream must be seen before writing to it.
        if self._hub is not None and (event := events.get(self._hub_number, 0)):
            if event & ~select.POLLOUT:
                self._read_from_hub()
            else:
                self._write_to_hub()
        if 0 in events:
            self._read_from_client()

    def _poll_for(self, number: int, events: int | None) -> None:
        if events is None:
            self._poll_forget(number)
        else:
            self._polled.add(number)
            self._poll.register(number, events)

    def _poll_forget(self, number: int) -> None:
        if number in self._polled:
            self._polled.discard(number)
            self._poll.unregister(number)

    def _write_to_client(self) -> bool:
        try:
            # At most PIPE_BUF bytes: a larger write to a pipe blocks, although poll said that it is writable.
            del self._to_client[: os.write(1, self._to_client[:_PIPE_BUF])]
        except BrokenPipeError:
            return False
        return True

    def _write_to_hub(self) -> None:
        assert self._hub is not None
        try:
            del self._to_hub[: self._hub.send(self._to_hub[:_CHUNK])]
        except BlockingIOError:
            return
        except OSError:
            self._lose_hub()

    def _read_from_hub(self) -> None:
        assert self._hub is not None
        try:
            chunk = self._hub.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._lose_hub()
            return
        self._from_hub += chunk
        hub = self._hub
        if b"\n" in chunk:
            *frames, rest = bytes(self._from_hub).split(b"\n")
            self._from_hub = bytearray(rest)
            for frame in frames:
                # The frame before may have ended this hub.
                if self._hub is not hub:
                    return
                self._on_frame(frame)

    def _read_from_client(self) -> None:
        chunk = os.read(0, _CHUNK)
        if not chunk:
            # The last answers may still come, for `_LAST_WORDS_MS`.
            self._client_left = True
            if self._hub is None:
                raise _Ended
            self._poll_forget(0)
            self._hub_shutdown()
            return
        self._from_client += chunk
        if b"\n" not in chunk:
            return
        *lines, rest = bytes(self._from_client).split(b"\n")
        self._from_client = bytearray(rest)
        # A line is the reason to look for a hub.
        if self._hub is None:
            self._connect()
        for line in lines:
            self._count += 1
            # A cancellation must not overtake the call that it cancels.
            if self._suspects and _CANCELS in line:
                self._release(all_of_them=True)
            # Stored before it is sent: if the hub dies now, the next one gets it.
            self._waiting[self._count] = line
            self._to_hub += b"m%d %b\n" % (self._count, line)

    def _hub_shutdown(self) -> None:
        """Send the remaining lines to the hub, and then the end of the stream."""
        assert self._hub is not None
        try:
            # The client is gone, so waiting holds up nothing.
            self._hub.setblocking(True)
            self._hub.sendall(self._to_hub)
            self._hub.shutdown(1)
            self._hub.setblocking(False)
        except OSError:
            raise _Ended from None
        self._to_hub.clear()


# Found by its text, because parsing each line would cost more than passing it on.
_CANCELS = b"notifications/cancelled"
_GAVE_UP = b'{"jsonrpc":"2.0","id":%%b,"error":{"code":-32603,"message":"%b"}}\n' % GAVE_UP.encode()
