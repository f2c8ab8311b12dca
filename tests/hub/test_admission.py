"""Who may connect to the hub: the user's own processes, and no command that an agent runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from helmsman.agents.supervisor.records import read_records
from helmsman.base.processes import running_process
from helmsman.hub.admission import why_not_served
from helmsman.testing import ScriptedModel, codex_versions, installed_codex, run, say
from mcp import Client
from tests.hub.conftest import Place

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")]

SECONDS = 60

PROBE = """
import os, socket, sys, time
address, folder = sys.argv[1:]
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
open(folder + "/ready", "w").close()
while not os.path.exists(folder + "/go"):
    time.sleep(0.02)
said = b"?"
try:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(address)
        connection.sendall(b"GET /v1/hub HTTP/1.1\\r\\nHost: hub\\r\\nConnection: close\\r\\n\\r\\n")
        open(folder + "/asked", "w").close()
        said = b""
        while part := connection.recv(65536):
            said += part
        said = said.partition(b"\\r\\n\\r\\n")[2]
except OSError as error:
    said = str(error).encode()
with open(folder + "/answer.new", "wb") as file:
    file.write(said)
os.rename(folder + "/answer.new", folder + "/answer")
"""


@pytest.fixture(params=["newest", "0.93.0"])
def codex_binary(request: pytest.FixtureRequest) -> Path:
    """One that listens on a socket of its own, which keeps commands away, and one that only a supervisor speaks to."""
    found = installed_codex() if request.param == "newest" else codex_versions().get(request.param)
    if found is None:
        pytest.skip(f"There is no Codex of this version ({request.param}): run scripts/fetch_codex.py.")
    return found


async def probed(client: Client, place: Place, model: ScriptedModel, repo: Path) -> str:
    """Start a command with network access that has left its agent, and asks the hub once it may. Return its session."""
    (repo / "probe.py").write_text(PROBE)
    probe = [sys.executable, "probe.py", str(place.state_dir / "hub.sock"), str(repo)]
    model.on("probe", run(f"{' '.join(probe)} && sleep 100"), say("done"))
    (repo / "go").touch()
    await client.list_tools()
    await anyio.run_process(probe, cwd=repo)
    assert json.loads(await written(repo / "answer"))["pid"] == place.hub, "we ourselves are served"
    for name in ("go", "ready", "asked", "answer"):
        (repo / name).unlink()
    network = {"sandbox_workspace_write": {"network_access": True}}
    asked = {"prompt": "probe", "workingDirectory": str(repo), "sandbox": "workspace-write", "config": network}
    started = await client.call_tool("codex_start", asked)
    await written(repo / "ready")
    session_id: str = started.structured_content["sessionId"]
    return session_id


async def test_a_sandboxed_command_with_network_access_is_refused(
    place: Place, model: ScriptedModel, git_repo: Path
) -> None:
    async with Client(place.on_stdio()) as client:
        session_id = await probed(client, place, model, git_repo)
        (git_repo / "go").touch()
        answer = await written(git_repo / "answer")
        if answer != "[Errno 2] No such file or directory":  # commands of a newer Codex do not see the hub's socket
            assert json.loads(answer)["code"] == "not_served"
            assert "a process was refused: it runs in a" in (place.state_dir / "hub.log").read_text()
        await client.call_tool("codex_interrupt", {"sessionId": session_id})


@pytest.mark.parametrize("codex_binary", ["0.93.0"], indirect=True)
async def test_a_command_is_refused_though_its_supervisor_was_killed(
    place: Place, model: ScriptedModel, git_repo: Path
) -> None:
    """The hub is stopped until the command has asked: otherwise it might end the command first."""
    async with Client(place.on_stdio()) as client:
        await probed(client, place, model, git_repo)
        (record,) = read_records(place.state_dir)
        with place.stopped_hub():
            os.kill(record.supervisor.pid, signal.SIGKILL)
            (git_repo / "go").touch()
            await written(git_repo / "asked")
        with anyio.fail_after(SECONDS):
            while "a process was refused" not in (place.state_dir / "hub.log").read_text():
                await anyio.sleep(0.02)
    if (git_repo / "answer").exists():
        assert '"pid"' not in (git_repo / "answer").read_text()


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
def test_a_peer_is_identified_by_what_it_is(program: str, refused: str | None) -> None:
    connection, process = connected_from(program)
    supervisor = running_process(process.pid)
    supervisors = {supervisor} if program is BELOW and supervisor is not None else set()
    try:
        reason = why_not_served(connection, supervisors)
        assert reason is None if refused is None else refused in (reason or "")
    finally:
        process.communicate()
        connection.close()


def test_a_peer_that_has_ended_is_refused() -> None:
    connection, process = connected_from(ORDINARY)
    process.communicate()
    with connection:
        assert why_not_served(connection, set()) is not None
