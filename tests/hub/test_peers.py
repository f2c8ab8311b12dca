"""Who may connect to the hub: the user's own processes, and no command that an agent runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import anyio
import pytest

from helmsman import Helmsman
from helmsman.base.processes import running_process
from helmsman.hub.peer import why_not_served
from helmsman.testing import run, say
from tests.hub.test_start import ping

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.settings import Settings
    from helmsman.testing import CodexHome, ScriptedModel
    from tests.hub.conftest import Place

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")]

SECONDS = 60

PROBE = """
import json, os, socket, sys
address, answer, twice = sys.argv[1:]
if twice == "double-forked":
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
said = b"?"
try:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(address)
        connection.sendall(b"helmsman-control 1\\tstatus\\n")
        said = connection.recv(65536)
except OSError as error:
    said = str(error).encode()
with open(answer + ".new", "wb") as file:
    file.write(said)
os.rename(answer + ".new", answer)
"""


@pytest.mark.parametrize("how", ["simply", "double-forked"])
async def test_a_sandboxed_command_with_network_access_is_refused(
    place: Place, settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, how: str
) -> None:
    (git_repo / "probe.py").write_text(PROBE)
    codex_home.configure(sandbox_workspace_write={"network_access": True})
    address = place.state_dir / "hub.sock"
    probe = [sys.executable, "probe.py", str(address), "answer", how]
    model.on("probe", run(" ".join(probe) + " && sleep 1"), say("done"))
    async with place.started() as server:
        await ping(server)
        ours = await anyio.run_process(probe, cwd=git_repo)
        assert ours.returncode == 0
        assert json.loads(await written(git_repo / "answer"))["pid"] == place.hub
        (git_repo / "answer").unlink()
        async with Helmsman(settings, env=codex_home.env) as helm:
            session = await helm.start("probe", cwd=git_repo, sandbox="workspace-write")
            await session.wait()
            assert await written(git_repo / "answer") in ("", "[Errno 104] Connection reset by peer"), session.items
        log = (place.state_dir / "hub.log").read_text()
        assert "a process was refused: it runs in a" in log


async def written(path: Path) -> str:
    with anyio.fail_after(SECONDS):
        while not path.exists():
            await anyio.sleep(0.02)
    return path.read_text()


def connected_from(program: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A connection that another process has made; it lives until its standard input ends."""
    address = f"\0helmsman-test-{os.getpid()}-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        connecting = f"import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect({address!r}); sys.stdin.read()"
        process = subprocess.Popen([sys.executable, "-c", program % repr(connecting)], stdin=subprocess.PIPE)
        connection, _ = listener.accept()
    return connection, process


ORDINARY = "exec(%s)"
NO_NEW_PRIVILEGES = "import ctypes; assert not ctypes.CDLL(None).prctl(38, 1, 0, 0, 0); exec(%s)"
BELOW = "import subprocess, sys; subprocess.run([sys.executable, '-c', %s])"


@pytest.mark.parametrize(
    ("program", "refused"), [(ORDINARY, None), (NO_NEW_PRIVILEGES, "a sandbox"), (BELOW, "an agent")]
)
def test_a_peer_is_told_by_what_it_is(program: str, refused: str | None) -> None:
    connection, process = connected_from(program)
    keeper = running_process(process.pid)
    keepers = {keeper} if program is BELOW and keeper is not None else set()
    try:
        reason = why_not_served(connection, keepers)
        assert reason is None if refused is None else refused in (reason or "")
    finally:
        process.communicate()
        connection.close()


def test_a_peer_that_has_ended_is_refused() -> None:
    connection, process = connected_from(ORDINARY)
    process.communicate()
    with connection:
        assert why_not_served(connection, set()) is not None
