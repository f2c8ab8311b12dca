"""Runs `helmsman` commands in forks of a process that has imported everything: up to a second less for each of them.

`command` is the command line that a test, or a client it runs, starts instead of `python -m helmsman`: a small program, the
client. It hands its streams, environment and directory to a fork, passes on the signals it gets, and ends as the fork
ends; a client that is killed takes its fork along. `run` does the same without a process in between.

A fork differs from `python -m helmsman` in where its modules come from and in its process id. It is a process and a session
of its own, and measured where the server is: whatever environment the test gives it.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

_MOST = 1024 * 1024
_SECONDS = 60  # limit of every wait, except for the end of a command
_CODE = struct.Struct("i")
_SERVE = "--serve"
_ON_TERMINAL = "--on-its-terminal"
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGWINCH")

_MEASURED_AS = "COVERAGE_PROCESS_CONFIG"
"""The variable by which coverage tells the processes that a measured one starts how to measure themselves."""

OTHER_HUB = "HELMSMAN_TEST_HUB"
"""The variable that names another program to be run as a hub."""

_server: Path | None = None
"""Where commands are taken, while there is a server."""


def command(*arguments: str, on_terminal: bool = False) -> list[str]:
    """The command line of a `helmsman` command. On a terminal, that becomes its own, so that Ctrl-C is a signal."""
    if _server is not None:
        client = [sys.executable, "-P", "-S", "-E", __file__, str(_server)]
        return [*client, *([_ON_TERMINAL] if on_terminal else []), *arguments]
    cold = [sys.executable, "-m", "helmsman", *arguments]
    return [sys.executable, "-c", ON_ITS_TERMINAL, *cold] if on_terminal else cold


ON_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""A new session gets the terminal as its own: a program that becomes another one."""


def server() -> Path | None:
    """Where `run` finds the server, if there is one."""
    return _server


# --- the server ------------------------------------------------------------------------------------------------------


def start(path: Path) -> subprocess.Popen[bytes]:
    """Start a server, for all workers of a run. It imports everything once it is asked for the first time.

    It ends with this process, however that ends: nobody else holds the other end of its input.
    """
    import subprocess

    from helmsman.testing.binaries import installed_codex

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        return subprocess.Popen(
            [sys.executable, "-P", __file__, _SERVE, str(listener.fileno()), str(installed_codex() or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )


def use(path: Path) -> None:
    """Let the server there run the commands of this process, and the hubs it starts."""
    from helmsman.hub import launch

    global _server
    _server = path
    launch.spawn = partial(_spawn_hub, str(path))


def _serve(listener: socket.socket, codex: str) -> None:
    """Take commands until whoever started this process is gone."""
    import select

    imported = False
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        if not imported:
            _import_everything(codex)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a fork that waits for a command has ended
            imported = True
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                _run_and_tell(connection)


def _import_everything(codex: str) -> None:
    import gc
    import importlib
    import pkgutil
    from pathlib import Path

    import anyio

    import helmsman
    from helmsman.agents.codex.binary import find_codex

    for module in pkgutil.walk_packages(helmsman.__path__, "helmsman."):
        if not module.name.startswith(("helmsman.testing", "helmsman.__main__")):
            importlib.import_module(module.name)
    if codex:  # it is asked what it can do once, and not by every fork
        anyio.run(partial(find_codex, explicit=Path(codex)))
    if _MEASURED_AS in os.environ:
        import coverage

        if (measuring := coverage.Coverage.current()) is not None:  # what modules do when imported is done here
            measuring.stop()
            measuring.save()
    gc.freeze()


def _run_and_tell(connection: socket.socket) -> None:
    import threading

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.settimeout(_SECONDS)
    data, ancillary, _, _ = connection.recvmsg(_MOST, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if not ancillary:
        os._exit(0)  # the client was killed before it sent its request
    connection.settimeout(None)
    streams = array.array("i")
    streams.frombytes(ancillary[0][2])
    if "hub" in (asked := json.loads(data)):
        connection.close()
        _be_hub(asked, streams)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _be(asked, streams)
    for stream in streams:
        os.close(stream)
    with contextlib.suppress(OSError):  # a client that is gone already: its command is ended below
        connection.sendall(_CODE.pack(pid))

    def pass_signals_on() -> None:
        with contextlib.suppress(ConnectionResetError):  # a client that was killed before it had read all
            while number := connection.recv(1):
                os.kill(pid, number[0])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    threading.Thread(target=pass_signals_on, daemon=True).start()
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # whoever asked is gone
        connection.sendall(_CODE.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _be(command: dict[str, Any], streams: Sequence[int]) -> None:
    """Become the command."""
    import runpy

    from helmsman.hub import launch

    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    launch.spawn = partial(_spawn_hub, command["server"])
    if command["on_terminal"]:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(command["directory"])
    measured_as = os.environ.get(_MEASURED_AS)
    os.environ.clear()
    os.environ.update(command["env"])
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        for number, mode, errors in (
            (0, "r", "surrogateescape"),
            (1, "w", "surrogateescape"),
            (2, "w", "backslashreplace"),
        )
    )
    sys.argv = ["helmsman", *command["arguments"]]
    if measured_as is not None:
        _measure(measured_as)
    try:
        runpy.run_module("helmsman", run_name="__main__", alter_sys=True)
        code: object = None
    except SystemExit as ended:
        code = ended.code
    if isinstance(code, int | None):
        _end(code or 0)
    sys.exit(code)  # type: ignore[arg-type]


def _spawn_hub(server: str, state: str, lock: int, listener: int, log: int, *words: str) -> None:
    """What `helmsman.hub.launch.spawn` does, in a fork."""
    from helmsman.hub.launch import environment

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(server)
        asked = {"hub": state, "words": words, "env": environment(state, os.environ)}
        passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [log, lock, listener]))
        connection.sendmsg([json.dumps(asked).encode()], [passed])
        connection.recv(1)  # it has been heard


def _be_hub(asked: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Become a hub: with its descriptors where it looks for them, its environment, and its own program from there on."""
    import fcntl
    import runpy

    from helmsman.cli import hub_process

    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    high = [fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in (nothing, nothing, *descriptors)]
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number)
    if (measured_as := os.environ.get(_MEASURED_AS)) is not None:
        # The hub is a fork of this process.
        os.register_at_fork(after_in_child=partial(_measure, measured_as))
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["hub_process", asked["hub"], *asked["words"]]
    try:
        if (program := os.environ.pop(OTHER_HUB, None)) is not None:
            runpy.run_path(program, run_name="__main__")
        hub_process.main()
    finally:
        os._exit(1)


def _measure(measured_as: str) -> None:
    """Measure this process to its end, also where that is sudden: hubs and workers take nothing apart.

    Its environment is as it was, so that what it starts is measured where the test wants that.
    """
    import coverage

    before = os.environ.get(_MEASURED_AS)
    os.environ[_MEASURED_AS] = measured_as
    measuring, started, end = coverage.process_startup(force=True), os.getpid(), os._exit
    if before is None:
        del os.environ[_MEASURED_AS]

    def end_measured(status: int) -> NoReturn:
        if measuring is not None and os.getpid() == started:
            measuring.stop()
            measuring.save()
        end(status)

    os._exit = end_measured


def _end(code: int) -> None:
    """End as Python does, but for its last step: taking apart what was imported costs more than most commands."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


# --- who asks --------------------------------------------------------------------------------------------------------


def run(
    server: Path,
    arguments: Sequence[str],
    env: Mapping[str, str],
    directory: Path,
    streams: Sequence[int],
    *,
    seconds: float,
) -> int:
    """Run a command with these streams to its end; its exit code. Blocks, and ends it when its time is up."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        _ask(connection, str(server), arguments, env, str(directory), streams)
        (code,) = _CODE.unpack(connection.recv(_CODE.size))
        return int(code)


def _ask(
    connection: socket.socket,
    server: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    directory: str,
    streams: Sequence[int],
    *,
    on_terminal: bool = False,
) -> int:
    """Start a command; return its process id."""
    connection.connect(server)
    asked = {"arguments": list(arguments), "env": dict(env), "directory": directory, "on_terminal": on_terminal}
    asked["server"] = server
    passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
    connection.sendmsg([json.dumps(asked).encode()], [passed])
    (pid,) = _CODE.unpack(connection.recv(_CODE.size))
    return int(pid)


def _client(server: str, arguments: Sequence[str]) -> None:
    on_terminal = arguments[:1] == [_ON_TERMINAL]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        numbers = [getattr(signal, name) for name in _PASSED_ON]
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # until there is somebody to pass them on to
        _ask(
            connection,
            server,
            arguments[on_terminal:],
            os.environ,
            os.getcwd(),  # noqa: PTH109 -- importing pathlib costs as much as all the rest
            (0, 1, 2),
            on_terminal=on_terminal,
        )
        connection.settimeout(None)
        for number in numbers:
            signal.signal(number, lambda number, _frame: connection.sendall(bytes([number])))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # the fork alone holds them open
            os.dup2(nothing, stream)
        (code,) = _CODE.unpack(connection.recv(_CODE.size))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == _SERVE:
        _serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3])
    else:
        _client(sys.argv[1], sys.argv[2:])
