"""`helmsman hub connect`: the end on this machine of a client on another one, which connects by SSH.

The bridge does not interpret the messages. It finds or starts the hub, reports that to the client, and adds its own pid,
directory and environment to the client's hello, because those of the client belong to another machine. From then on it
passes bytes. It ends with the hub, and with the connection. Like a pipe it imports next to nothing.
"""

from __future__ import annotations

import _thread
import os

from helmsman._version import __version__
from helmsman.hub.launch import (
    LOCK,
    HubConnector,
    HubFailed,
    NoHub,
    client_environment,
    hexed,
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
"""First line of this end. Output of the shell here may precede it."""
_CHUNK = 64 * 1024


def run_bridge(arguments: Sequence[str]) -> int:
    """Connect stdin and stdout with the hub. A state directory may be named, in hex."""
    if not wanted(os.environ):
        return _fail("There can be no hub here: HELMSMAN_DETACH is off.")
    try:
        state = os.fsdecode(bytes.fromhex(arguments[0])) if arguments else state_directory(os.environ)
        hub = HubConnector(state).connection()
    except ValueError:
        return _fail("The name of a state directory is not in hex.")
    except NoHub as error:
        return _fail(f"There can be no hub here: {error}.")
    except HubFailed as error:
        return _fail(str(error))
    _replace_older(state)
    try:
        _write(f"{GREETING}\t{__version__}\n".encode())
        hello = _hello()
        if hello is not None:
            hub.sendall(hello)
            _thread.start_new_thread(_pass_back, (hub,))
            while chunk := os.read(0, _CHUNK):
                hub.sendall(chunk)
    except OSError:
        return 0  # either end is gone
    return 0


def _fail(why: str) -> int:
    os.write(2, f"{why}\n".encode("utf-8", "backslashreplace"))
    return 1


def _hello() -> bytes | None:
    """Return the client's hello with the place of the bridge here, and the bytes after it; None if the client has left."""
    said = b""
    while b"\n" not in said:
        chunk = os.read(0, _CHUNK)
        if not chunk:
            return None
        said += chunk
    line, _, rest = said.partition(b"\n")
    variables = (f"{name}={value}" for name, value in client_environment(os.environ).items())
    here = "\t".join((str(os.getpid()), hexed((os.getcwd(),)), hexed(variables)))  # noqa: PTH109
    return b"%b\t%b\n%b" % (line, here.encode(), rest)


def _pass_back(hub: _socket.socket) -> None:
    try:
        while chunk := hub.recv(_CHUNK):
            _write(chunk)
    except OSError:
        pass  # either end is gone
    finally:
        os._exit(0)  # the other thread waits for a client that has to see the end of the connection


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
