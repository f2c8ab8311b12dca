"""Two users on one machine, for real: another user looks at everything he can, and gets nothing.

The tests run as root, who can be anybody: the server is root's, the other user is `nobody`.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import anyio.to_thread
import pytest

from helmsman.agents.codex.connection import listeners_uids, open_remote
from helmsman.agents.supervisor.records import read_records
from helmsman.base.structs import replace
from helmsman.cli.dashboard import reads_files, write_redirect
from helmsman.errors import EngineLost
from helmsman.httpd.listening import http_token
from helmsman.settings import Settings
from helmsman.testing import CodexHome
from tests.hub_service import hub_service

SECONDS = 60
NOBODY = 65534
PYTHON = "/usr/bin/python3"
LOOK_AGAIN = 0.05

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user"),
    pytest.mark.skipif(not Path(PYTHON).exists(), reason="there is no Python that another user may run"),
]

LOOK_AT_PROCESSES = """
import json, os
found = []
for name in os.listdir("/proc"):
    if name.isdigit():
        for what in ("cmdline", "environ"):
            try:
                found.append(open(f"/proc/{name}/{what}", "rb").read().decode("utf-8", "replace"))
            except OSError:
                pass
print(json.dumps(found))
"""
READ_FILES = """
import json, os, sys
top, read = sys.argv[1], []
for folder, folders, files in os.walk(top):
    read += [os.path.join(folder, name) for name in folders]
    for name in files:
        try:
            open(os.path.join(folder, name), "rb").read()
            read.append(os.path.join(folder, name))
        except OSError:
            pass
for path in sys.argv[2:]:
    try:
        open(path, "rb").read()
        read.append(path)
    except OSError:
        pass
print(json.dumps(read))
"""
CONNECT = """
import json, socket, sys
def outcome(path):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        return "connected"
    except OSError as error:
        return type(error).__name__
print(json.dumps([outcome(path) for path in sys.argv[1:]]))
"""
LISTEN = """
import json, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
heard = b""
answer = json.dumps({"challenge": "x", "proof": "0" * 64, "code": "x"})
while True:
    client, _ = listener.accept()
    client.settimeout(5)
    try:
        while not heard.endswith(b"}"):
            chunk = client.recv(65536)
            if not chunk:
                break
            heard += chunk
    except OSError:
        pass
    client.sendall(f"HTTP/1.1 200 OK\\r\\nContent-Length: {len(answer)}\\r\\n\\r\\n{answer}".encode())
    client.close()
    print(json.dumps(heard.decode()), flush=True)
"""
FAKE_BROWSER = """#!/bin/sh
# Stays as long as it may, as a browser does: others have all the time they want.
echo "$1" > {folder}/opened
while [ ! -e {folder}/close ]; do sleep 0.1; done
"""


def as_nobody(script: str, *arguments: str) -> list[str]:
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", PYTHON, "-c", script, *arguments]


def tell(script: str, *arguments: str) -> Any:
    """What the other user finds."""
    done = subprocess.run(
        as_nobody(script, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
        check=True,
        cwd="/",
    )
    return json.loads(done.stdout)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory whose parents everybody may enter, as those of a home directory often are."""
    folder = Path(tempfile.mkdtemp(prefix="helmsman-users-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def env(codex_binary: Path, reachable: Path) -> dict[str, str]:
    """A home of its own, below a directory that others may enter."""
    (reachable / "codex").mkdir()
    home = {"HOME": str(reachable), "CODEX_HOME": str(reachable / "codex"), "CODEX_CLI_PATH": str(codex_binary)}
    return {"PATH": os.environ["PATH"], **home, "HELMSMAN_STATE_DIR": str(reachable / "state")}


def dashboard(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "helmsman", "dashboard", *arguments]


@contextmanager
def dashboard_on_a_desktop(env: dict[str, str], folder: Path) -> Iterator[tuple[str, str]]:
    """`helmsman dashboard` as a person starts it, with a browser that opens; the page's address and the printed code."""
    browser = folder / "browser"
    browser.write_text(FAKE_BROWSER.format(folder=folder), encoding="utf-8")
    browser.chmod(0o755)
    desktop = {"DISPLAY": ":0", "BROWSER": f"{browser} %s"}
    master, slave = pty.openpty()
    with closing(os.fdopen(master, "rb", buffering=0)), os.fdopen(slave, "rb", buffering=0) as terminal:
        running = subprocess.Popen(
            dashboard("--port", "0"),
            env={**env, **desktop},
            cwd=folder,
            stdin=terminal,
            stderr=terminal,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert running.stdout is not None
            page, code = (running.stdout.readline().decode().strip() for _ in range(2))
            yield page, code.removeprefix("Code: ").partition(" ")[0]
        finally:
            (folder / "close").touch()
            running.communicate(timeout=SECONDS)
            subprocess.run(dashboard("stop"), env=env, cwd=folder, timeout=SECONDS, check=True, capture_output=True)


def log_in(page: str, code: str) -> int:
    headers = {"Content-Type": "application/json", "X-Helmsman": "1"}
    request = Request(f"{page}api/login", json.dumps({"code": code}).encode(), headers)
    with urlopen(request, timeout=SECONDS) as answer:
        return int(answer.status)


def until_there(path: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            if text := path.read_text(encoding="utf-8"):
                return text.strip()
        time.sleep(LOOK_AGAIN)
    raise AssertionError(path)


def test_no_other_user_finds_the_way_in_while_the_browser_opens(env: dict[str, str], reachable: Path) -> None:
    with dashboard_on_a_desktop(env, reachable) as (page, code):
        opened = until_there(reachable / "opened")
        file = Path(opened.removeprefix("file://"))
        seen = tell(LOOK_AT_PROCESSES)
        assert any(opened in text for text in seen), "he sees the browser and what it was given"
        assert not any(code in text for text in seen)
        assert not any(http_token(reachable / "state") in text for text in seen)
        assert tell(READ_FILES, str(reachable / "state"), str(file)) == []
        content = file.read_text(encoding="utf-8")
        assert oct(file.stat().st_mode & 0o777) == "0o600"
        assert f"{page}#login={code}" in content, "the browser, which is the user's own, gets there by it"
        found = re.search(r"#login=([0-9A-Z-]+)", content)
        assert found is not None
        assert log_in(page, found[1]) == 200
        (reachable / "close").touch()
        deadline = time.monotonic() + SECONDS
        while file.exists():
            assert time.monotonic() < deadline, "the file goes once the code was used"
            time.sleep(LOOK_AGAIN)


def test_a_file_that_was_never_used_goes_with_the_next_one(reachable: Path) -> None:
    old = write_redirect("http://127.0.0.1:1/", "AAAA", reachable / "state")
    kept = write_redirect("http://127.0.0.1:1/", "BBBB", reachable / "state")
    os.utime(old, (1e9, 1e9))
    newest = write_redirect("http://127.0.0.1:1/", "CCCC", reachable / "state")
    assert {*(reachable / "state").iterdir()} == {kept, newest}


@pytest.mark.parametrize(
    ("variables", "told", "reads"),
    [
        ({}, "firefox.desktop", True),
        ({}, "firefox_firefox.desktop", False),
        ({"WSL_DISTRO_NAME": "Debian"}, "firefox.desktop", False),
        ({"BROWSER": "x"}, "firefox_firefox.desktop", True),
    ],
)
def test_a_browser_that_cannot_read_the_file_is_not_given_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str, reads: bool
) -> None:
    settings = tmp_path / "xdg-settings"
    settings.write_text(f"#!/bin/sh\necho {told}\n", encoding="utf-8")
    settings.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("BROWSER", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert reads_files() is reads


@contextmanager
def thief() -> Iterator[tuple[int, Callable[[], Any]]]:
    """The other user listens on a port: which, and what he was told by the next client."""
    with subprocess.Popen(as_nobody(LISTEN), stdout=subprocess.PIPE, cwd="/", start_new_session=True) as listening:
        assert listening.stdout is not None
        heard = listening.stdout
        try:
            yield int(heard.readline()), lambda: json.loads(heard.readline())
        finally:
            listening.kill()


def test_the_token_is_not_sent_to_a_program_that_took_the_port_first(env: dict[str, str], reachable: Path) -> None:
    token = http_token(reachable / "state")
    with thief() as (port, told):
        said = ""
        for arguments in (("--port", str(port)), ("--server", f"http://127.0.0.1:{port}")):
            done = subprocess.run(
                dashboard("--no-open", *arguments),
                env=env,
                cwd=reachable,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                timeout=SECONDS,
                check=False,
            )
            assert done.returncode == 2, done.stderr
            said = done.stderr
        assert "Nothing secret was sent" in said
        heard = told()
    assert heard.startswith("POST /api/proof HTTP/1.1")
    assert list(json.loads(heard.partition("\r\n\r\n")[2])) == ["nonce"]
    assert token not in heard


LISTEN_AS_HUB = """
import os, socket, sys
os.umask(0)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print(flush=True)
heard = True
while heard:
    client, _ = listener.accept()
    heard = not client.recv(65536)
print("somebody has said something", flush=True)
"""


def test_a_program_that_listens_in_place_of_the_hub_gets_no_data(env: dict[str, str], reachable: Path) -> None:
    state = reachable / "taken"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)
    with subprocess.Popen(as_nobody(LISTEN_AS_HUB, str(state / "hub.sock")), stdout=subprocess.PIPE, cwd="/") as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"\n"
            done = subprocess.run(
                [sys.executable, "-m", "helmsman", "run", "hello"],
                env={**env, "HELMSMAN_STATE_DIR": str(state), "HELMSMAN_DETACH": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                timeout=SECONDS,
                check=False,
            )
            assert other.poll() is None, "nobody has said anything to it"
            assert f"Other users can write to the state directory {state}" in done.stderr
        finally:
            other.kill()


@pytest.mark.anyio
async def test_an_engine_whose_port_another_user_has_taken_is_not_sent_the_token() -> None:
    with thief() as (port, told):
        assert listeners_uids(port) == {NOBODY}
        with pytest.raises(EngineLost, match="belongs to another user"):
            async with open_remote(f"ws://127.0.0.1:{port}", token="the-engines-token"):
                pass
        assert await anyio.to_thread.run_sync(told) == ""


@asynccontextmanager
async def stopped_engines(state_dir: Path) -> AsyncIterator[None]:
    yield
    for engine in read_records(state_dir):
        await anyio.to_thread.run_sync(engine.stop)


@pytest.mark.anyio
async def test_no_other_user_reads_the_state_or_reaches_an_engine(
    settings: Settings, codex_home: CodexHome, reachable: Path
) -> None:
    state_dir = reachable / "state"
    async with (
        stopped_engines(state_dir),
        hub_service(replace(settings, detach=True, state_dir=state_dir), codex_home.env) as helm,
    ):
        await helm.engine()
        http_token(state_dir)
        (engine,) = read_records(state_dir)
        assert {path.name for path in state_dir.iterdir()} >= {"engines", "http-token"}
        paths = [str(path) for path in state_dir.rglob("*") if path.is_file()]
        assert await anyio.to_thread.run_sync(tell, READ_FILES, str(state_dir), *paths) == []
        sockets = sorted({str(engine.socket), str(engine.socket.resolve())})
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(sockets[0])
        outcomes = await anyio.to_thread.run_sync(tell, CONNECT, *sockets)
        assert set(outcomes) == {"PermissionError"}
