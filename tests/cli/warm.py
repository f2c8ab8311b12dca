"""Runs `helmsman` commands in forks of a process that has imported everything: a third of a second less for each of them.

A fork differs from `python -m helmsman` only in where its modules come from: it is a process and a session of its own, with
the streams, the environment and the directory it is given, and its end is its exit code.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_MOST = 1024 * 1024
_CODE = struct.Struct("i")


def serve(path: str) -> None:
    """Take commands until this process is ended."""
    import helmsman

    for module in pkgutil.walk_packages(helmsman.__path__, "helmsman."):
        if not module.name.startswith(("helmsman.testing", "helmsman.__main__")):
            importlib.import_module(module.name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a fork that waits for a command has ended
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _run_and_tell(connection)


def _run_and_tell(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, ancillary, _, _ = connection.recvmsg(_MOST, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    streams = array.array("i")
    streams.frombytes(ancillary[0][2])
    pid = os.fork()
    if pid == 0:
        connection.close()
        _be(json.loads(data), streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(_CODE.pack(pid))
    _, status = os.waitpid(pid, 0)
    connection.sendall(_CODE.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _be(command: dict[str, Any], streams: Sequence[int]) -> None:
    """Become the command."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(command["directory"])
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
    runpy.run_module("helmsman", run_name="__main__", alter_sys=True)
    sys.exit()  # as every other end of the command, through all that is above: Python then ends as it always does


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
        connection.connect(str(server))
        asked = {"arguments": list(arguments), "env": dict(env), "directory": str(directory)}
        passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
        connection.sendmsg([json.dumps(asked).encode()], [passed])
        (pid,) = _CODE.unpack(connection.recv(_CODE.size))
        try:
            (code,) = _CODE.unpack(connection.recv(_CODE.size))
        except TimeoutError:
            os.killpg(pid, signal.SIGKILL)
            raise
        return int(code)


if __name__ == "__main__":
    serve(sys.argv[1])
