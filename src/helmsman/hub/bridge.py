"""`helmsman hub connect`: the end on this machine of a door that is on another one, which came by SSH.

It knows nothing of what is said. It finds or starts the hub, tells the door so, adds to the door's hello where it stands
(its own pid, directory and environment: the door's are another machine's), and from then on passes bytes. It ends with the
hub, and with the line. Like a pipe it imports next to nothing.
"""

from __future__ import annotations

import _thread
import os

from helmsman._version import __version__
from helmsman.hub.launch import (
    LOCK,
    HubFailed,
    NoHub,
    Way,
    door_environment,
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
"""How this end begins. Before it may come whatever the shell here says."""
_CHUNK = 64 * 1024


def run_bridge(arguments: Sequence[str]) -> int:
    """Connect stdin and stdout with the hub. A state directory may be named, in hex."""
    if not wanted(os.environ):
        return _fail("There can be no hub here: HELMSMAN_DETACH is off.")
    try:
        state = os.fsdecode(bytes.fromhex(arguments[0])) if arguments else state_directory(os.environ)
        hub = Way(state).connection()
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
    """What the door says of itself, with where it stands here, and what came behind it; None where it left."""
    said = b""
    while b"\n" not in said:
        chunk = os.read(0, _CHUNK)
        if not chunk:
            return None
        said += chunk
    line, _, rest = said.partition(b"\n")
    variables = (f"{name}={value}" for name, value in door_environment(os.environ).items())
    here = "\t".join((str(os.getpid()), hexed((os.getcwd(),)), hexed(variables)))  # noqa: PTH109
    return b"%b\t%b\n%b" % (line, here.encode(), rest)


def _pass_back(hub: _socket.socket) -> None:
    try:
        while chunk := hub.recv(_CHUNK):
            _write(chunk)
    except OSError:
        pass  # either end is gone
    finally:
        os._exit(0)  # the other thread waits for a door that has to hear of it


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def _replace_older(state: str) -> None:
    """A hub of an older version makes way for ours. Doors do that themselves where they are on the same machine."""
    try:
        version = read(f"{state}/{LOCK}").split()[2].decode()
    except (OSError, IndexError, ValueError):
        return  # one that is just being started, by us or by somebody as new
    if is_newer(__version__, version):
        start_successor(state)
