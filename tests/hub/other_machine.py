"""Another machine, as far as this one can be two: a home, a state directory and a Codex of its own, reached by SSH.

Where `sshd` is installed it is a real one on loopback, with keys of its own. Most machines that run tests have none, and
installing one needs root. There a stand-in for the `ssh` program hands its streams to a server that runs the command with
the other machine's environment, and ends it when `ssh` is gone: all but the encryption is as it would be.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import warm

NAME = "build"
_SECONDS = 20
_STAND_IN = """
import array, os, socket, sys
if sys.argv[-2] != {name!r}:
    sys.exit(print("ssh: Could not resolve hostname", sys.argv[-2], file=sys.stderr) or 255)
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
streams = array.array("i", [0, 1, 2])
server.sendmsg([sys.argv[-1].encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
nothing = os.open(os.devnull, os.O_RDWR)
os.dup2(nothing, 0), os.dup2(nothing, 1)
sys.exit(int(server.recv(10) or b"255"))
"""


@dataclass(frozen=True)
class OtherMachine:
    """How a process on this machine finds the other: what to add to its environment."""

    env: Mapping[str, str]
    is_real: bool


@contextlib.contextmanager
def other_machine(directory: Path, env: Mapping[str, str]) -> Iterator[OtherMachine]:
    """`env` is the environment there; `directory` is for what is needed to get there, and for this machine's home."""
    home, programs, here = directory / "there", directory / "programs", directory / "here"
    (home / ".local" / "bin").mkdir(parents=True)
    programs.mkdir(parents=True)
    here.mkdir()
    helmsman = home / ".local" / "bin" / "helmsman"
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items() if name != "HOME")
    _write_program(helmsman, f'#!/bin/sh\n{variables}exec {shlex.join(warm.command())} "$@"\n')
    there = {"HOME": str(home), "PATH": os.defpath}
    sshd = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/local/sbin")
    is_real = sshd is not None and _may_run()
    reached = _sshd(str(sshd), directory, programs, there) if is_real else _stand_in(directory, programs, there)
    with reached:
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        yield OtherMachine({"HOME": str(here), "XDG_CONFIG_HOME": "", "PATH": path}, is_real)


def _may_run() -> bool:
    """An sshd of root's needs a user of its own, which its package makes, and a directory, which its service makes."""
    if os.geteuid() != 0:
        return True
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam("sshd")) and os.path.isdir("/run/sshd")  # noqa: PTH112
    return False


def _write_program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@contextlib.contextmanager
def _sshd(sshd: str, directory: Path, programs: Path, env: Mapping[str, str]) -> Iterator[None]:
    keys = directory / "keys"
    keys.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True, timeout=_SECONDS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = " ".join(f"{name}={value}" for name, value in env.items())
    server = f"""
        Port {port}
        ListenAddress 127.0.0.1
        HostKey {keys}/host
        AuthorizedKeysFile {keys}/user.pub
        PidFile none
        StrictModes no
        UsePAM no
        PermitRootLogin yes
        SetEnv {variables}
    """
    (keys / "sshd_config").write_text(server, encoding="utf-8")
    key = (keys / "host.pub").read_text(encoding="utf-8")
    (keys / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}", encoding="utf-8")
    client = f"""
        Host {NAME}
        HostName 127.0.0.1
        Port {port}
        IdentityFile {keys}/user
        IdentitiesOnly yes
        UserKnownHostsFile {keys}/known_hosts
    """
    (keys / "config").write_text(client, encoding="utf-8")
    _write_program(programs / "ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {keys}/config "$@"\n')
    command = [sshd, "-D", "-e", "-f", str(keys / "sshd_config")]
    log = directory / "sshd.log"
    with log.open("wb") as errors, subprocess.Popen(command, stderr=errors, start_new_session=True) as process:
        try:
            until = time.monotonic() + _SECONDS
            while "Server listening" not in log.read_text(encoding="utf-8"):
                assert process.poll() is None, log.read_text(encoding="utf-8")
                assert time.monotonic() < until
                time.sleep(0.01)
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def _stand_in(directory: Path, programs: Path, env: Mapping[str, str]) -> Iterator[None]:
    address = directory / "ssh.sock"
    program = _STAND_IN.format(name=NAME, address=str(address))
    _write_program(programs / "ssh", f"#!{sys.executable} -IS\n{program}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        serving: list[threading.Thread] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    serving.append(threading.Thread(target=_run, args=(connection, env)))
                    serving[-1].start()

        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(_SECONDS)
            for one in serving:
                one.join(_SECONDS)


def _run(connection: socket.socket, env: Mapping[str, str]) -> None:
    """Run a command for an `ssh`, until either has ended."""
    with connection:
        line, streams, _, _ = socket.recv_fds(connection, 64 * 1024, 3)
        process = subprocess.Popen(
            ["sh", "-c", line.decode()],
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            env=env,
            cwd=env["HOME"],
            start_new_session=True,
        )
        for one in streams:
            os.close(one)

        def end_with_ssh() -> None:
            with contextlib.suppress(OSError):
                if not connection.recv(1):
                    os.killpg(process.pid, signal.SIGKILL)

        watching = threading.Thread(target=end_with_ssh)
        watching.start()
        code = process.wait()
        with contextlib.suppress(OSError):
            connection.send(str(code).encode())
            connection.shutdown(socket.SHUT_RDWR)
        watching.join(_SECONDS)
