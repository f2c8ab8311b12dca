"""One hub for all who come, started by the first, which leaves nothing of itself in it."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.base.processes import running_process
from helmsman.base.structs import replace
from helmsman.hub.control import ask_hub
from helmsman.hub.launch import LOCK, LOG, SOCKET
from helmsman.tasks.registry import REGISTRY_NAME
from helmsman.testing.hubs import end_hub, hub_pid
from mcp import Client
from tests.clients.server_process import ServerProcess
from tests.hub.conftest import Place
from tests.mcp.caller import error_of

SECONDS = 60
PING = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


async def ping(server: ServerProcess) -> dict[str, Any]:
    assert server.process.stdin is not None
    await server.process.stdin.send(PING)
    with anyio.fail_after(SECONDS):
        answer: dict[str, Any] = json.loads(await server.stdout.receive_until(b"\n", 10_000))
    return answer


async def test_many_clients_at_once_start_one_hub(bare_place: Place) -> None:
    pids = set[str]()

    async def connect() -> None:
        async with bare_place.started() as server:
            assert (await ping(server))["result"] == {}
            pids.add((await server.says("helmsman: hub")).split()[2])

    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(connect)
    assert pids == {f"{bare_place.hub},"}


def test_a_hub_inherits_nothing_from_its_starter(bare_place: Place, tmp_path: Path) -> None:
    secret = {"OPENAI_API_KEY": "secret", "PYTHONPATH": str(tmp_path), "CODEX_HOME": str(tmp_path)}
    cold = replace(bare_place, warm=False, env={**bare_place.env, **secret})
    leaked = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leaked, True)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CPU, (60, resource.RLIM_INFINITY))
        os.dup2(leaked, 400)
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    process = subprocess.Popen(
        cold.command(),
        env=cold.env,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=False,
        umask=0o022,
        restore_signals=False,
        preexec_fn=limit,
    )
    os.close(leaked)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(PING)
    process.stdin.flush()
    process.stdout.readline()
    of = Path("/proc", str(bare_place.hub))
    status = dict(line.split(":\t", 1) for line in (of / "status").read_text().splitlines())
    variables = {one.partition(b"=")[0].decode() for one in (of / "environ").read_bytes().split(b"\0") if one}
    assert not variables & {*secret, "HELMSMAN_TEST_ID"}
    assert {"HOME", "PATH"} <= variables
    assert (of / "cwd").readlink() == Path("/")
    assert status["Umask"] == "0077"
    assert os.getsid(bare_place.hub) != os.getsid(0)
    assert os.getpgid(bare_place.hub) not in (os.getpgid(0), process.pid)
    assert int(status["PPid"]) != process.pid
    files: dict[str, str] = {}
    for file in (of / "fd").iterdir():
        with suppress(FileNotFoundError):  # it has closed that one meanwhile
            files[file.name] = str(file.readlink())
    assert files["0"] == files["1"] == "/dev/null"
    assert files["2"].endswith("/hub.log")
    assert str(tmp_path) not in files.values()
    limits = re.findall(
        r"^Max (cpu time|file size|open files) +(\w+) +(\w+)", (of / "limits").read_text(), re.MULTILINE
    )
    assert len(limits) == 3
    assert all(soft == hard for _, soft, hard in limits), limits
    # The client's pipes end with the client, and its caller sees that.
    process.kill()
    assert process.stdout.read() == b""
    assert process.stderr is not None
    process.stderr.read()
    process.wait(SECONDS)
    assert hub_pid(bare_place.state_dir) is not None
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()


LOADED_AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
from helmsman.cli.hub_process import _load_http, _load_pipes
with ThreadPoolExecutor() as threads:
    for one in [threads.submit(load) for load in (_load_http, _load_pipes)]:
        one.result()
"""


def test_a_port_and_a_pipe_that_come_at_once_are_both_served() -> None:
    subprocess.run([sys.executable, "-c", LOADED_AT_ONCE], check=True, timeout=SECONDS)


def test_a_pipe_imports_next_to_nothing(bare_place: Place) -> None:
    program = (
        "import sys, os; before = set(sys.modules); sys.argv = ['helmsman', 'serve']\n"
        "from helmsman.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "os.write(2, ' '.join(sorted(set(sys.modules) - before)).encode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=PING,
        env=bare_place.env,
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    hub, modules = done.stderr.decode().split("\n")
    assert str(bare_place.hub) in hub
    assert set(modules.split()) - {"coverage"} == {
        *("__future__", "_socket", "fcntl", "itertools", "select"),
        *("helmsman", "helmsman._version", "helmsman.cli", "helmsman.mcp", "helmsman.mcp.pipe"),
        *("helmsman.hub", "helmsman.hub.launch", "helmsman.hub.suspects"),
        *("helmsman.base", "helmsman.base.user_directories"),
    }


async def test_an_unused_hub_ends(bare_place: Place) -> None:
    short = replace(bare_place, env={**bare_place.env, "HELMSMAN_HUB_IDLE_MS": "50"})
    async with short.started() as server:
        await ping(server)
        hub = short.hub
        await anyio.sleep(0.2)
        assert short.hub == hub, "a client is connected"
    with anyio.fail_after(SECONDS):
        while hub_pid(short.state_dir) is not None:
            await anyio.sleep(0.01)


async def test_clients_that_connect_while_a_hub_ends_are_served(bare_place: Place) -> None:
    short = replace(bare_place, env={**bare_place.env, "HELMSMAN_HUB_IDLE_MS": "0"})
    async with anyio.create_task_group() as tasks:

        async def come_and_go() -> None:
            for _ in range(5):
                async with short.started() as server:
                    assert (await ping(server))["result"] == {}

        for _ in range(4):
            tasks.start_soon(come_and_go)


def test_a_hub_that_cannot_start_is_given_up_with_the_end_of_its_log(bare_place: Place) -> None:
    bare_place.state_dir.mkdir(mode=0o700)
    (bare_place.state_dir / "hub.log").write_text("the disk is on fire\n")
    program = (
        "import sys; sys.argv = ['helmsman', 'serve']; from helmsman.hub import launch\n"
        "launch.spawn = lambda *_: None\n"
        "from helmsman.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=bare_place.env, capture_output=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 1
    assert b"does not start" in done.stderr
    assert b"the disk is on fire" in done.stderr


async def test_a_deep_state_directory_is_no_obstacle(bare_place: Place, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-directory-with-a-long-name"] * 6)
    place = replace(bare_place, env={**bare_place.env, "HELMSMAN_STATE_DIR": str(deep)})
    async with place.started() as server:
        assert (await ping(server))["result"] == {}
        status = ask_hub(deep, "status")
        assert status is not None
        assert status["pid"] == place.hub
    end_hub(deep)


async def test_the_users_file_may_name_another_state_directory(bare_place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    config = tmp_path / "home" / ".config" / "helmsman"
    config.mkdir(parents=True)
    (config / "helmsman.toml").write_text(f'state_dir = "{other}"\nhub_idle_ms = 0\n')
    env = {name: value for name, value in bare_place.env.items() if name != "HELMSMAN_STATE_DIR"}
    async with replace(bare_place, env={**env, "HELMSMAN_HUB_IDLE_MS": "0"}).started() as server:
        assert (await ping(server))["result"] == {}
        assert str(other) in await server.says("helmsman: hub")
        assert hub_pid(other) is not None
    with anyio.fail_after(SECONDS):
        while hub_pid(other) or hub_pid(tmp_path / "home/.local/state/helmsman"):
            await anyio.sleep(0.01)


async def test_wrong_settings_end_a_pipe_as_they_end_any_command(bare_place: Place) -> None:
    async with replace(bare_place, env={**bare_place.env, "MAX_SESSIONS": "many"}).started() as server:
        assert await server.ended() == 2
        assert "MAX_SESSIONS" in server.errors[0]


@pytest.mark.parametrize("word", ["0", "off"])
async def test_without_detaching_the_service_is_inside(bare_place: Place, word: str) -> None:
    async with replace(bare_place, env={**bare_place.env, "HELMSMAN_DETACH": word}).started() as server:
        assert (await ping(server))["result"] == {}
        assert hub_pid(bare_place.state_dir) is None


async def test_a_hub_that_was_stopped_and_replaced_ends_when_it_continues(bare_place: Place) -> None:
    """Who can lose the lock without ending is one whose files were removed while it could not look."""
    async with Client(bare_place.on_stdio()):
        first = bare_place.stop_hub()
        for name in (LOCK, SOCKET):
            (bare_place.state_dir / name).rename(bare_place.state_dir / f"{name}.removed")
        async with Client(bare_place.on_stdio()) as other:
            assert bare_place.hub != first
            await other.call_tool("codex_list", {})
            os.kill(first, signal.SIGCONT)
            with anyio.fail_after(SECONDS):
                while running_process(first) is not None:
                    await anyio.sleep(0.02)
            await other.call_tool("codex_list", {})


async def test_the_store_refuses_a_hub_that_was_replaced_and_that_one_ends(bare_place: Place) -> None:
    async with Client(bare_place.on_stdio("--tools", "sessions")) as client:
        first = bare_place.hub
        await client.call_tool("codex_interrupt", {"sessionId": "nobody"})  # what changes something is entered
        epoch = (ask_hub(bare_place.state_dir, "status") or {})["epoch"]
        await client.call_tool("codex_interrupt", {"sessionId": "nobody"})  # from here on there is a store
        with closing(sqlite3.connect(bare_place.state_dir / REGISTRY_NAME)) as connection, connection:
            assert connection.execute("SELECT epoch FROM leases").fetchone() == (epoch,)
            connection.execute("UPDATE leases SET epoch = ?", (epoch + 10**9,))
        answer = await client.call_tool("codex_interrupt", {"sessionId": "nobody"})
        assert error_of(answer)["code"] == "session_not_found"
        assert bare_place.hub != first
        assert (ask_hub(bare_place.state_dir, "status") or {})["epoch"] > epoch + 10**9
    log = (bare_place.state_dir / LOG).read_text(encoding="utf-8")
    assert f"the hub ends: a later one, of epoch {epoch + 10**9}, has taken its place" in log


_FAILING = """
import os, socket, sys
from pathlib import Path
import anyio
from helmsman.base.concurrency import background_tasks
from helmsman.hub.process import Hub

state = Path(sys.argv[1])
listener = socket.socket(socket.AF_UNIX)
listener.bind(str(state / "hub.sock"))
listener.listen()
os.dup2(os.dup(listener.fileno()), 14)
os.dup2(os.open(state / "hub.lock", os.O_RDWR | os.O_CREAT), 3)
os.dup2(14, 4)
print("listens", flush=True)

async def fail():
    raise KeyError("a mistake of ours")

async def main():
    async with background_tasks() as shared:
        async def serve(hub, connection, fields, refused):
            hub.clients[connection] = None
            shared.start_soon(fail)
            await connection.line()
        await Hub(state, lambda: ()).run({"helmsman-test 1": serve}, None)

anyio.run(main)
"""


def test_a_hub_in_which_something_fails_that_all_need_ends_at_once_and_sends_its_clients_to_the_next(
    tmp_path: Path,
) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", _FAILING, str(tmp_path)], stdout=subprocess.PIPE) as hub,
        socket.socket(socket.AF_UNIX) as client,
    ):
        try:
            assert hub.stdout is not None
            assert hub.stdout.readline() == b"listens\n"
            client.settimeout(SECONDS)
            client.connect(str(tmp_path / SOCKET))
            client.sendall(b"helmsman-test 1\n")
            assert client.recv(10) == b"h\n"
            assert hub.wait(SECONDS) == 0
        finally:
            hub.kill()
