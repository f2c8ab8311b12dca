"""`helmsman hub connect`: the end on this machine of a client on another one, which connects by SSH.

The bridge does not interpret the requests. It finds or starts the hub and registers there, with its own pid, directory and
environment, because those of the client belong to another machine. It reports the name that the hub gave it to the client.
From then on it passes bytes, between the client's channels (`helmsman.hub.channels`) and a connection to the hub for each.
It ends with the hub, and with the client. Like a pipe it imports little.
"""

from __future__ import annotations

import os
import select
import struct
from _socket import MSG_DONTWAIT

from helmsman._version import __version__
from helmsman.hub.control import BRIDGES_PATH, Refused, events
from helmsman.hub.launch import (
    LOCK,
    HubConnector,
    HubFailed,
    NoHub,
    client_environment,
    connect,
    is_newer,
    read,
    start_successor,
    state_directory,
    wanted,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Sequence

GREETING = "helmsman-host 1"
"""First line of this end: with the version, and the name of the bridge in the hub. Output of the shell may precede it."""
FRAME = struct.Struct(">II")
"""Head of a frame: the number of a channel, and the number of bytes that follow."""
FRAME_BYTES = 64 * 1024
_REST_SECONDS = 1.0


def run_bridge(arguments: Sequence[str]) -> int:
    """Connect stdin and stdout with the hub. A state directory may be named, in hex."""
    if not wanted(os.environ):
        return _fail("There can be no hub here: HELMSMAN_DETACH is off.")
    try:
        state = os.fsdecode(bytes.fromhex(arguments[0])) if arguments else state_directory(os.environ)
        hub, name = _registered(HubConnector(state))
    except ValueError:
        return _fail("The name of a state directory is not in hex.")
    except NoHub as error:
        return _fail(f"There can be no hub here: {error}.")
    except (HubFailed, Refused) as error:
        return _fail(str(error))
    _replace_older(state)
    try:
        _write(f"{GREETING}\t{__version__}\t{name}\n".encode())
        _Passing(state, hub).run()
    except OSError:
        return 0  # either end is gone
    return 0


def _fail(why: str) -> int:
    os.write(2, f"{why}\n".encode("utf-8", "backslashreplace"))
    return 1


def _registered(connector: HubConnector) -> tuple[_socket.socket, str]:
    """Register with the hub, for as long as the connection lasts. Return it, and the name of the bridge there."""
    here = {
        "pid": os.getpid(),
        "directory": os.getcwd(),  # noqa: PTH109
        "environment": client_environment(os.environ),
    }
    while True:
        hub = connector.connection()
        for _, name in events(hub, "POST", BRIDGES_PATH, here):
            return hub, name
        hub.close()  # it ended just now


class _Passing:
    """Passes bytes between the channels of the client and connections to the hub."""

    def __init__(self, state: str, hub: _socket.socket) -> None:
        self._state = state
        self._hub = hub
        self._channels: dict[int, _socket.socket] = {}
        self._numbers: dict[int, int] = {}
        """Numbers of the channels, by descriptor."""
        self._newest = 0
        """Newest channel. A request on an older one that is closed is not passed on: the client repeats it on another."""
        self._poll = select.poll()
        self._read = b""

    def run(self) -> None:
        """Pass bytes, until the client or the hub is gone."""
        for descriptor in (0, self._hub.fileno()):
            self._poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == 0:
                    if not self._take():
                        return
                elif descriptor == self._hub.fileno():
                    # This connection holds the registration. All that it shows is whether the hub lives.
                    if not self._hub.recv(FRAME_BYTES):
                        self._pass_rest()
                        return
                elif descriptor in self._numbers:
                    self._pass_back(self._numbers[descriptor])

    def _pass_rest(self) -> None:
        """Pass on the last bytes of a hub that is gone."""
        for number, channel in list(self._channels.items()):
            # With a timeout Python waits before each `recv`, so the rest is read to its end.
            channel.settimeout(_REST_SECONDS)
            while number in self._channels:
                self._pass_back(number)

    def _take(self) -> bool:
        """Read from the client. Return False at the end."""
        chunk = os.read(0, FRAME_BYTES)
        self._read += chunk
        while len(self._read) >= FRAME.size:
            number, length = FRAME.unpack_from(self._read)
            frame = FRAME.size + length
            if len(self._read) < frame:
                break
            data, self._read = self._read[FRAME.size : frame], self._read[frame:]
            self._pass_on(number, data)
        return bool(chunk)

    def _pass_on(self, number: int, data: bytes) -> None:
        channel = self._channels.get(number)
        try:
            if channel is None and data and number > self._newest:
                channel = self._connect(number)
            if channel is not None and data:
                channel.sendall(data)
                return
        except OSError:
            _write(FRAME.pack(number, 0))
        self._forget(number)

    def _connect(self, number: int) -> _socket.socket:
        self._newest = number
        channel = connect(self._state)
        if channel is None:
            raise ConnectionResetError
        self._channels[number], self._numbers[channel.fileno()] = channel, number
        self._poll.register(channel.fileno(), select.POLLIN)
        return channel

    def _pass_back(self, number: int) -> None:
        try:
            data = self._channels[number].recv(FRAME_BYTES, MSG_DONTWAIT)
        except BlockingIOError:
            return  # the bytes were for a channel that had the same descriptor
        except OSError:
            data = b""
        _write(FRAME.pack(number, len(data)) + data)
        if not data:
            self._forget(number)

    def _forget(self, number: int) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            self._poll.unregister(channel.fileno())
            del self._numbers[channel.fileno()]
            channel.close()


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def _replace_older(state: str) -> None:
    """Replace a hub of an older version. Clients on the same machine do that themselves."""
    try:
        version = read(f"{state}/{LOCK}").split()[2].decode()
    except (OSError, IndexError, ValueError):
        return  # a hub that is just being started, by us or by a process as new as we are
    if is_newer(__version__, version):
        start_successor(state)
