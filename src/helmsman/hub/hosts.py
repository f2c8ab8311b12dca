"""Other machines by SSH: the list of them, and the connection from a client here to the hub of one of them.

The protocol is the HTTP API that clients use on one machine. The system's `ssh` runs `helmsman hub connect` there
(`helmsman.hub.bridge`), and its two streams are one end of a pair of sockets. All connections to the hub there go over the
other end (`helmsman.hub.channels`), so the code that speaks to a hub does not know where it is. The machines are listed in
the user's own file, never in a project's: a repository must not send a user's work elsewhere.

A lost connection is retried for a while. Calls on it are repeated under the same id, and the hub there does each once.
Imported by thin commands where a host is named, so it imports little.
"""

from __future__ import annotations

import _socket
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING, NamedTuple

from helmsman.base.programs import environment_for, find_program
from helmsman.base.user_directories import config_directory
from helmsman.hub.bridge import GREETING
from helmsman.hub.launch import HubFailed, below_an_agent, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(
    r"ssh://(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]*)@)?"
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?/?"
)
_COMMAND = re.compile(r"~?/[A-Za-z0-9_.+/-]+")
"""Path of the program there. It becomes part of a shell command, so it allows only characters without a
meaning to a shell.
"""
_WORD = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.:-]*")
_HIGHEST_PORT = 65535

_CONNECT_SECONDS = 15
_ALIVE_SECONDS, _ALIVE_COUNT = 10, 3
"""Interval in seconds and number of keepalives without an answer. Then the tunnel is dead: `ssh` ends, and a new one is
tried.
"""
_GREETING_SECONDS = 90.0
"""Timeout of the greeting. The other machine may be busy, and may have to start its hub."""
_PATIENCE_SECONDS = 600.0
"""Seconds for which a lost connection is retried."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_UNWELCOME = 4
"""Number of connections without a word from the hub there, after which the client gives up."""
_END_SECONDS = 2.0
_LEAVE_SECONDS = 0.3
"""Time for `ssh` to exit after its last use. A person waits for it."""
_ROUND_SECONDS = 0.1
_NOISE_BYTES = 64 * 1024
_TOLD_BYTES = 1000
_NOT_FOUND = (126, 127)
_SSH_FAILED = 255


class HostFailed(HubFailed):
    """Hub of another machine cannot be reached. The text says why, and what to do."""


class OtherHost(NamedTuple):
    """Another machine: its name here, its address, and the path of Helmsman there if a shell does not find it."""

    name: str
    address: str
    command: str = ""

    def ssh_command(self, env: Mapping[str, str], state: str = "") -> list[str]:
        """Return the command that connects to its hub. `state` is a state directory that the settings there name."""
        # `ssh` has no terminal to ask on. The user's configuration may forward ports, or name a command to run.
        options = (
            *("BatchMode=yes", f"ConnectTimeout={_CONNECT_SECONDS}", "ClearAllForwardings=yes", "RemoteCommand=none"),
            *(f"ServerAliveInterval={_ALIVE_SECONDS}", f"ServerAliveCountMax={_ALIVE_COUNT}", "LogLevel=ERROR"),
        )
        words = ("-T", *(word for option in options for word in ("-o", option)))
        try:
            directory = os.fsencode(state).hex()
        except UnicodeEncodeError as error:
            raise HostFailed(f"{self.name} names a state directory that cannot be one.") from error
        return self._ssh(env, words, ("hub", "connect", *filter(None, (directory,))))

    def terminal_command(self, arguments: Sequence[str], env: Mapping[str, str]) -> list[str]:
        """Return the command that runs Helmsman there on the terminal here."""
        for argument in arguments:
            if not _WORD.fullmatch(argument):
                raise HostFailed(f"{argument!r} is no name of a session.")
        return self._ssh(env, ("-t", "-o", "RemoteCommand=none"), arguments)

    def _ssh(self, env: Mapping[str, str], options: Sequence[str], arguments: Sequence[str]) -> list[str]:
        parts = _ADDRESS.fullmatch(self.address)
        if parts is None:
            raise HostFailed(f"{self.address} is no address of a host.")
        user, host, port = parts["user"], parts["host"].strip("[]"), parts["port"]
        # Whatever shell a person has there, this is for `sh`; that of a command does not always have what `pip` installs.
        there = " ".join((self.command or "helmsman", *arguments))
        line = f"sh -c 'PATH=\"$PATH:$HOME/.local/bin\"; export PATH; exec {there}'"
        return [
            *(
                _ssh_program(env),
                "-a",
                "-x",
                *options,
            ),  # neither the keys nor the screen of this machine are for the other
            *(("-l", user) if user else ()),
            *(("-p", port) if port else ()),
            # Behind all options, so that no host can be read as one.
            *("--", host, line),
        ]


def _ssh_program(env: Mapping[str, str]) -> str:
    from helmsman.errors import ProgramRefused  # a thin command that only names hosts does not need it

    try:
        found = find_program("ssh", env)
    except ProgramRefused as error:
        raise HostFailed(error.message) from error
    if found is None:
        raise HostFailed("`ssh` cannot be started: there is none on PATH. Install OpenSSH's client.")
    return found


def _for_ssh(env: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment for `ssh`: the same as at a terminal, but without a program that prompts people."""
    ours = {
        name: value for name, value in environment_for(env).items() if not name.startswith(("HELMSMAN_", "SSH_ASKPASS"))
    }
    return {**ours, "SSH_ASKPASS_REQUIRE": "never"}


def is_name(text: str) -> bool:
    """Return whether the text is a valid name of a host."""
    return _NAME.fullmatch(text) is not None


def checked_host(name: str, address: str, command: str = "") -> OtherHost:
    """Return a machine from a user's description.

    Raises:
        ValueError: The description is invalid; the text names the valid forms.
    """
    if not is_name(name):
        raise ValueError(f"{name!r} is no name for a host. Use letters, digits, dots, dashes and underscores.")
    parts = _ADDRESS.fullmatch(address)
    if parts is None or (parts["port"] and not 0 < int(parts["port"]) <= _HIGHEST_PORT):
        raise ValueError(
            f"{address!r} is no address of a host. Write it as ssh://HOST, ssh://USER@HOST or ssh://USER@HOST:PORT; HOST "
            "can be a name of your ssh configuration."
        )
    if command and not _COMMAND.fullmatch(command):
        raise ValueError(f"{command!r} is no path of a program. Write it as /path/to/helmsman or ~/path/to/helmsman.")
    return OtherHost(name, address.rstrip("/"), command)


# --- which there are --------------------------------------------------------------------------------------------------


def hosts_file(env: Mapping[str, str]) -> str:
    """Return the path of the file with the user's hosts, next to the user's own `helmsman.toml`."""
    return f"{config_directory(env)}/hosts"


def known_hosts(env: Mapping[str, str]) -> dict[str, OtherHost]:
    """Return the user's hosts by name.

    Raises:
        HostFailed: The file cannot be read, or other users could have written it.
    """
    path = hosts_file(env)
    try:
        status = os.stat(path)  # noqa: PTH116
        lines = read(path).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HostFailed(f"{path} cannot be read: {error.strerror}.") from error
    # A user who can write the file decides where work is sent.
    if status.st_mode & 0o022 or status.st_uid != os.geteuid():
        raise HostFailed(f"{path} can be written by others, so it is not used. Make it yours alone: chmod 600 {path}")
    found = {}
    for number, line in enumerate(lines, 1):
        try:
            host = checked_host(*line.split("\t"))
        except (TypeError, ValueError) as error:
            raise HostFailed(f"Line {number} of {path} is not valid. Correct it, or remove it. ({error})") from error
        found[host.name] = host
    return found


def named_host(name: str, env: Mapping[str, str]) -> OtherHost:
    """Return the user's host of this name.

    Raises:
        HostFailed: It does not exist.
    """
    known = known_hosts(env)
    if name not in known:
        which = f"There are: {', '.join(sorted(known))}." if known else "There is none yet."
        raise HostFailed(
            f"There is no host {name!r}. {which} `helmsman config hosts add NAME ssh://USER@HOST` makes one known."
        )
    return known[name]


# --- the way there ----------------------------------------------------------------------------------------------------


class SshConnector:
    """Connector to the hub of another machine, like `helmsman.hub.launch.HubConnector` for this one. Close it."""

    def __init__(
        self, host: OtherHost, env: Mapping[str, str], state: str = "", *, is_for_client_of_hub: bool = False
    ) -> None:
        """`env` is the environment of the caller. The clients of a hub were checked when it let them in."""
        self.host = host
        self.version = ""
        """Version of Helmsman there, once it has answered."""
        self.bridge = ""
        """Name of the bridge in the hub there."""
        self._env = env
        self._state = state
        self._is_for_client_of_hub = is_for_client_of_hub
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._is_known = False
        """True once Helmsman has answered there.

        Then the configuration works, and a lost connection is worth a retry.
        """
        self._unwelcome = 0
        self._closed = threading.Event()
        self._connecting = threading.Lock()

    def to_state(self, state: str) -> SshConnector:
        """Return the connector to the hub of another state directory there."""
        self.close()
        there = SshConnector(self.host, self._env, state, is_for_client_of_hub=self._is_for_client_of_hub)
        there._unwelcome = self._unwelcome  # a hub that always names another one is not followed for ever
        return there

    def connection(self) -> _socket.socket:
        """Return a connection to the hub there, which is started if none runs. Any earlier connection is closed.

        Raises:
            HostFailed: It cannot be reached.
        """
        if not self._is_for_client_of_hub and below_an_agent(os.getpid()):
            raise HostFailed("This was started by an agent of Helmsman's own, which may not have work done elsewhere.")
        self._unwelcome += 1
        if self._unwelcome > _UNWELCOME:
            said = self._said()
            raise HostFailed(f"The hub on {self.host.name} ends again and again. Look at its log there. {said}".strip())
        until = time.monotonic() + (_PATIENCE_SECONDS if self._is_known else 0)
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                with self._connecting:
                    return self._try()
            except HostFailed:
                if time.monotonic() > until or self._closed.wait(pause):
                    raise
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def welcomed(self) -> None:
        """Record that the connected hub works."""
        self._unwelcome = 0

    def give_up(self) -> None:
        """Stop reconnecting. Waiting callers get an error."""
        self._closed.set()

    def close(self) -> None:
        """End `ssh`, also one that another thread is just connecting with. Blocks, for some seconds at most."""
        self.give_up()
        while not self._connecting.acquire(timeout=_ROUND_SECONDS):
            if (child := self._child) is not None:
                child.terminate()
        try:
            self._end(_LEAVE_SECONDS)
            self._forget_errors()
        finally:
            self._connecting.release()

    def _try(self) -> _socket.socket:
        if self._closed.is_set():
            raise HostFailed("It was closed.")
        self._end()
        self._forget_errors()
        command = self.host.ssh_command(self._env, self._state)
        # A pipe that is read only after a failure could fill, and block `ssh`.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read when it has failed
        ours, theirs = _socket.socketpair()
        try:
            self._child = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                env=_for_ssh(self._env),
                start_new_session=True,  # Ctrl-C is for us, and we end it; and there is no terminal to ask on
            )
        except OSError as error:
            ours.close()
            raise HostFailed(f"`ssh` cannot be started: {error.strerror}. Install OpenSSH's client.") from error
        finally:
            theirs.close()
        try:
            self._read_greeting(ours)
        except BaseException:
            ours.close()
            raise
        return ours

    def _read_greeting(self, connection: _socket.socket) -> None:
        until = time.monotonic() + _GREETING_SECONDS
        said = b""
        while not (said.endswith(b"\n") and said.splitlines()[-1].startswith(GREETING.encode())):
            try:
                connection.settimeout(max(until - time.monotonic(), 0.001))
                chunk = connection.recv(_NOISE_BYTES)
            except TimeoutError:
                chunk = b""
            said += chunk
            if not chunk or len(said) > _NOISE_BYTES:
                raise HostFailed(self._why_not())
        connection.settimeout(None)
        self._is_known = True
        _, version, bridge, *_ = [*said.splitlines()[-1].decode("utf-8", "replace").split("\t"), "", ""]
        self.version, self.bridge = version if _WORD.fullmatch(version) else "?", bridge

    def _why_not(self) -> str:
        """Return why the other end sent no greeting, with advice."""
        name, where = self.host.name, self.host.address
        self._end()
        code, said = self._code, self._said()
        if code == _SSH_FAILED:
            advice = f"Log in there once by hand, until it asks nothing: ssh {where}"
            return f"{name} ({where}) cannot be reached: {said or 'ssh says nothing.'} {advice}"
        if code in _NOT_FOUND:
            advice = (
                "Install it there (pipx install codex-helmsman), or say where it is: "
                f"helmsman config hosts add {name} {where}"
            )
            return f"There is no `{self.host.command or 'helmsman'}` on {name}. {advice} --command /path/to/helmsman"
        advice = "Look there with `helmsman doctor`; it has to be as new as this one."
        return f"Helmsman on {name} does not answer: {said or 'it says nothing.'} {advice}"

    _code: int | None = None

    def _said(self) -> str:
        """Return the end of the error output of `ssh` or of Helmsman there."""
        if self._errors is None:
            return ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - _TOLD_BYTES, 0))
        text = " ".join(self._errors.read().decode("utf-8", "replace").split())
        # Text of another machine must not control the terminal here.
        return "".join(one if one.isprintable() else "?" for one in text)

    def _forget_errors(self) -> None:
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _end(self, patience: float = _END_SECONDS) -> None:
        """End the `ssh` process. It exits when its input closes, unless the connection is dead."""
        child, self._child = self._child, None
        if child is None:
            return
        # Number 0 sends nothing: the process gets time to exit on its own.
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._code = child.wait(patience)
                return
            patience = _END_SECONDS
