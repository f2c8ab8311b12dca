"""Private Postgres for tests, demos and benchmarks: Debian's, or the one of the wheel `pgserver`.

It runs on a free local port with its files in a directory, and can be killed, stopped and restarted.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

_SECONDS: Final = 30.0
_OPTIONS: Final = (
    *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200", "-c", "log_min_messages=fatal"),
    *("-c", "shared_buffers=32MB", "-c", "max_wal_size=512MB", "-c", "fsync=on"),
)


def postgres_programs() -> Path | None:
    """Return the directory of Postgres's programs, or None."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4].split(".")[0])
    )
    if found:
        return found[-1].parent
    if (named := shutil.which("postgres")) is not None and shutil.which("initdb") is not None:
        return Path(named).resolve().parent
    try:
        import pgserver
    except ImportError:
        return None
    wheel = Path(str(pgserver.__file__)).parent / "pginstall" / "bin"
    return wheel if (wheel / "postgres").exists() else None


class Postgres:
    """Server, used as a context manager. At the end it is stopped and its files are removed."""

    def __init__(
        self, directory: Path, *, options: Sequence[str] = (), tls: bool = False, everywhere: bool = False
    ) -> None:
        """Prepare a server with additional `options`.

        With `tls` it has a self-signed certificate for localhost. With `everywhere` it listens on all addresses.
        """
        programs = postgres_programs()
        if programs is None:
            raise RuntimeError("There is no Postgres: install Debian's postgresql, or `pip install pgserver`.")
        self._programs = programs
        self._options = (*_OPTIONS, *(("-c", "listen_addresses=*") if everywhere else ()), *options)
        self._tls, self._everywhere = tls, everywhere
        self._data = directory / "postgres"
        self._process: subprocess.Popen[bytes] | None = None
        # Postgres refuses to run as root.
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            import pwd

            users = {known.pw_name: known for known in pwd.getpwall()}
            user = users.get("postgres") or users["nobody"]
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    def url(self, database: str = "postgres", *, user: str = "helmsman", host: str = "127.0.0.1") -> str:
        return f"postgresql://{user}@{host}:{self.port}/{database}"

    @property
    def certificate(self) -> Path:
        """Server's certificate, with TLS."""
        return self._data / "server.crt"

    def __enter__(self) -> Self:
        self._data.mkdir(parents=True)
        if self._as:
            os.chown(self._data, self._as["user"], self._as["group"])
            for parent in self._data.parents:  # directories of a test are private to its user
                if not parent.stat().st_mode & 0o001:
                    parent.chmod(parent.stat().st_mode | 0o001)
        made = subprocess.run(
            [
                *(self._programs / "initdb", "-D", self._data, "-U", "helmsman", "-A", "trust", "--no-sync"),
                *("-E", "UTF8", "--locale=C"),
            ],
            check=False,
            capture_output=True,
            text=True,
            **self._as,
            cwd="/",
            timeout=_SECONDS * 2,
        )
        if made.returncode != 0:
            raise RuntimeError(f"Postgres cannot make its files: {made.stderr}")
        if self._tls:
            self._certify()
        if self._everywhere:
            with (self._data / "pg_hba.conf").open("a", encoding="ascii") as rules:
                rules.write("host all all samehost trust\n")
        self.start()
        return self

    def _certify(self) -> None:
        subprocess.run(
            [
                *(
                    "openssl",
                    "req",
                    "-new",
                    "-x509",
                    "-days",
                    "2",
                    "-nodes",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:prime256v1",
                ),
                *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
                *("-out", self.certificate, "-keyout", self._data / "server.key"),
            ],
            check=True,
            capture_output=True,
            timeout=_SECONDS,
            **self._as,
            umask=0o077,
        )
        with (self._data / "postgresql.conf").open("a", encoding="ascii") as settings:
            settings.write("ssl = on\n")

    def __exit__(self, *exc: object) -> None:
        self.go_on()
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._data, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self._data, "-k", "", "-p", str(self.port), *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._as,
            cwd="/",
            start_new_session=True,
        )
        until = time.monotonic() + _SECONDS
        asking = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(asking, check=False, timeout=_SECONDS).returncode != 0:
            if time.monotonic() > until or self._process.poll() is not None:
                raise RuntimeError("Postgres does not start.")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: in order with `SIGINT`, abruptly with `SIGQUIT`."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(_SECONDS)

    def freeze(self) -> None:
        """Suspend the server, as if the network were gone, until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            for pid in self._processes(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    @staticmethod
    def _processes(server: int) -> list[int]:
        children = Path(f"/proc/{server}/task/{server}/children").read_text(encoding="ascii").split()
        return [server, *map(int, children)]
