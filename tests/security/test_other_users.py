"""Another user of the same machine: nothing Helmsman writes is open to others, and nothing of theirs is taken for ours."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import pytest

from helmsman.agents.supervisor.directory import private_directory, socket_path
from helmsman.agents.supervisor.records import read_records
from helmsman.base.structs import replace
from helmsman.errors import HelmsmanError, InvalidSetting
from helmsman.httpd.listening import TOKEN_NAME, http_token
from helmsman.settings import Settings, ensure_state_dir
from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests.hub_service import hub_service

pytestmark = pytest.mark.skipif(os.name != "posix", reason="files have no modes here")

SECONDS = 60
OTHERS = 0o077


@contextmanager
def careless_umask() -> Iterator[None]:
    """What is not made private outright is everybody's."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(state_dir: Path) -> list[str]:
    """What others may touch. Inside a worktree are the files of the repository, behind a directory that is closed."""
    found: list[str] = []
    for folder, folders, files in os.walk(state_dir):
        place = state_dir / folder
        if place == state_dir / "worktrees":
            folders.clear()
            continue
        for name in (*folders, *files):
            path = place / name
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode) or stat.S_ISSOCK(mode):
                assert not place.stat().st_mode & OTHERS  # their own mode means nothing: the directory protects them
            elif mode & OTHERS:
                found.append(f"{path.relative_to(state_dir)} {stat.filemode(mode)}")
    return found


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.usefixtures("snapshots")
async def test_nothing_in_the_state_directory_is_open_to_others(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    detached_engines: Path,
) -> None:
    """After a whole story: a detached engine, a worktree, a rule kept for good, a client set up, a server with its token."""
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    state_dir = settings.state_dir
    state_dir.mkdir()
    state_dir.chmod(0o755)  # as a person may have made it
    with careless_umask():
        async with hub_service(replace(settings, detach=True), codex_home.env) as helm:
            session = await helm.start(
                "touch", cwd=git_repo, worktree=True, sandbox="workspace-write", approval_policy="on-request"
            )
            assert await session.wait(until="attention", timeout=SECONDS)
            (question,) = session.questions
            await session.respond(question.id, "approve_always")
            assert await session.wait(until="end", timeout=SECONDS)
            http_token(state_dir)
            await anyio.to_thread.run_sync(install, codex_home)
            engines = read_records(state_dir)
            assert open_to_others(state_dir) == []
        assert open_to_others(state_dir) == []
    made = {path.name for path in state_dir.iterdir()}
    assert {
        "engines",
        "worktrees",
        "registry.sqlite3",
        "audit.jsonl",
        "rules.toml",
        "client-entries.json",
        TOKEN_NAME,
    } <= made
    (engine,) = engines
    for place in (engine.socket.parent, engine.directory, engine.socket.resolve().parent):
        assert not place.stat().st_mode & OTHERS
    assert not (state_dir / "worktrees").stat().st_mode & OTHERS
    assert (engine.directory / "stderr.log").exists()


def install(home: CodexHome) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "helmsman", "install", "cursor", "--yes"],
        env=home.env,
        cwd=home.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        umask=0,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- what others made is not ours ------------------------------------------------------------------------------------


def test_a_state_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(InvalidSetting, match="Other users can write"):
        ensure_state_dir(tmp_path)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_state_directory_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)
    with pytest.raises(InvalidSetting, match="Other users can write"):
        http_token(tmp_path / "state")
    assert list((tmp_path / "state").iterdir()) == []


def test_a_token_that_others_could_read_is_not_used(tmp_path: Path) -> None:
    state_dir = ensure_state_dir(tmp_path / "state")
    http_token(state_dir)
    (state_dir / TOKEN_NAME).chmod(0o644)
    with pytest.raises(InvalidSetting, match="Others can read"):
        http_token(state_dir)


@pytest.mark.parametrize("trap", ["link", "file", "others"])
def test_a_directory_for_sockets_that_was_there_before_us_is_only_used_if_it_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    """Where addresses are too long, sockets lie under the system's temporary directory: anybody may have been first."""
    runtime, elsewhere = tmp_path / "runtime", tmp_path / "elsewhere"
    elsewhere.mkdir()
    match trap:
        case "link":
            runtime.symlink_to(elsewhere)
        case "file":
            runtime.write_text("", encoding="utf-8")
        case _:
            runtime.mkdir()
            monkeypatch.setattr(os, "geteuid", lambda: runtime.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="does not belong to this user"):
        private_directory(runtime)
    assert list(elsewhere.iterdir()) == []


def test_a_directory_that_others_may_look_into_is_closed(tmp_path: Path) -> None:
    place = tmp_path / "runtime"
    place.mkdir()
    place.chmod(0o777)
    assert stat.S_IMODE(private_directory(place).stat().st_mode) == 0o700


@pytest.mark.anyio
async def test_an_engine_is_not_started_beside_a_socket_directory_of_others(
    settings: Settings, codex_home: CodexHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detached_engines: Path
) -> None:
    long = settings.state_dir / ("x" * 100)
    (tmp_path / "trap").mkdir()
    with tempfile.TemporaryDirectory(prefix="h-") as short:
        runtime = Path(short)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        (runtime / "helmsman").symlink_to(tmp_path / "trap")
        assert socket_path(long / "engines" / "abc").parent == runtime / "helmsman"
        async with hub_service(replace(settings, detach=True, state_dir=long), codex_home.env) as helm:
            with pytest.raises(HelmsmanError):
                await helm.engine()
    assert list((tmp_path / "trap").iterdir()) == []
    assert read_records(long) == []
