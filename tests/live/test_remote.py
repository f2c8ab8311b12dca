"""HELMSMAN_CODEX_REMOTE: a Codex that somebody else has started is used instead of one of our own."""

from __future__ import annotations

import json
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.asyncio.server import ServerConnection, serve

from helmsman import load_settings
from helmsman.agents.child_process import open_child
from helmsman.agents.codex.agent import agent_in_use
from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.codex.processes import codex_environment
from helmsman.base.concurrency import background_tasks
from helmsman.cli.checks import examine
from helmsman.errors import EngineLost, HelmsmanError, InvalidInput, InvalidSetting, Unsupported
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say

pytestmark = pytest.mark.anyio

TOKEN = "a-very-secret-token-of-sufficient-length"


@pytest.fixture
async def listening(codex_binary: Path, codex_home: CodexHome, tmp_path: Path) -> AsyncIterator[Callable[..., str]]:
    """Starts app-servers that listen on a port, and ends them."""
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN, encoding="utf-8")
    async with background_tasks() as tasks:

        async def serve(arguments: list[str]) -> None:
            argv = [str(codex_binary), "app-server", *arguments]
            async with open_child(tasks, argv, env=codex_home.env) as child:
                try:
                    await anyio.sleep_forever()
                finally:
                    child.signal(signal.SIGTERM)  # one that listens does not end with its input

        def start(*, token: bool) -> str:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                url = f"ws://127.0.0.1:{probe.getsockname()[1]}"
            secured = ["--ws-auth", "capability-token", "--ws-token-file", str(token_file)] if token else []
            tasks.start_soon(serve, ["--listen", url, *secured])
            return url

        yield start


def remote(codex_home: CodexHome, tmp_path: Path, url: str, token: str | None = None, **variables: str) -> Settings:
    """Settings under which no Codex could be started here."""
    secret = {} if token is None else {"HELMSMAN_CODEX_REMOTE_TOKEN": token}
    env = {**codex_home.env, "HELMSMAN_CODEX_REMOTE": url, "CODEX_CLI_PATH": "/nowhere/codex", **secret, **variables}
    return load_settings({"state_dir": str(tmp_path / "state")}, env, tmp_path)


async def started(helm: HelmsmanService, prompt: str, repo: Path, **options: Any) -> Any:
    with anyio.fail_after(20):
        while True:  # until it listens
            try:
                return await helm.start(prompt, cwd=repo, **options)
            except EngineLost:
                await anyio.sleep(0.05)


@pytest.mark.parametrize("token", [TOKEN, None], ids=["with a token", "without"])
async def test_a_turn_runs_there_and_its_question_waits_for_the_next(
    codex_home: CodexHome,
    model: ScriptedModel,
    folder: Path,
    tmp_path: Path,
    listening: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    token: str | None,
) -> None:
    caplog.set_level(logging.DEBUG)
    model.on("hello", say("hi"))
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    settings = remote(codex_home, tmp_path, listening(token=token is not None), token)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await started(helm, "hello", folder)
        assert await session.wait(timeout=20)
        assert session.result == "hi"
        left = await helm.start("touch", cwd=folder, sandbox="workspace-write", approval_policy="on-request")
        assert await left.wait(timeout=20)
        (question,) = left.questions
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        found = await helm.session(left.id)
        assert await found.wait(timeout=20)
        assert [one.id for one in found.questions] == [question.id]
        await found.respond(question.id, "approve")
        assert await found.wait(until="end", timeout=20)
        assert found.result == "done"
    assert (folder / "made.txt").exists()
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(settings)


async def test_the_doctor_speaks_of_the_codex_that_is_used(
    codex_home: CodexHome, tmp_path: Path, listening: Callable[..., str]
) -> None:
    settings = remote(codex_home, tmp_path, url := listening(token=False))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        with anyio.fail_after(20):
            while True:  # until it listens
                try:
                    assert (await agent_in_use(helm.settings, helm.environment)).remote == "open"
                    break
                except EngineLost:
                    await anyio.sleep(0.05)
        installed = await helm.installed("codex")
        assert installed is not None
        assert installed.path == url
    checks = {check.name: check for check in (await examine(settings)).checks}
    assert (checks["Codex"].status, checks["Codex"].detail.endswith(f" at {url}")) == ("ok", True)
    assert checks["Handshake"].status == "ok"
    assert "Sandbox" not in checks


async def test_a_wrong_token_is_refused_and_not_shown(
    codex_home: CodexHome, model: ScriptedModel, folder: Path, tmp_path: Path, listening: Callable[..., str]
) -> None:
    url = listening(token=True)
    model.on("hello", say("hi"))
    async with HelmsmanService(remote(codex_home, tmp_path, url, TOKEN), env=codex_home.env) as helm:
        assert await (await started(helm, "hello", folder)).wait(timeout=20)
    for wrong in ("another-secret-0123456789", None):
        async with HelmsmanService(remote(codex_home, tmp_path, url, wrong), env=codex_home.env) as helm:
            with pytest.raises(HelmsmanError, match="Check the token") as caught:
                await helm.start("hello", cwd=folder)
            assert str(wrong) not in str(caught.value)


async def test_commands_that_could_reach_an_engine_without_a_token_are_refused_the_network(
    codex_home: CodexHome, folder: Path, tmp_path: Path, listening: Callable[..., str]
) -> None:
    settings = remote(codex_home, tmp_path, listening(token=False))
    network = {"sandbox_workspace_write.network_access": True}
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        with pytest.raises(InvalidInput, match="token"):
            await started(helm, "hello", folder, sandbox="workspace-write", config=network)


@pytest.mark.parametrize(("remote", "guarded"), [("with token", True), ("open", False)])
async def test_a_remote_engine_is_guarded_by_its_token(remote: Any, guarded: bool, tmp_path: Path) -> None:
    codex = CodexBinary(path=tmp_path / "codex", version=Version.parse("0.166.0"), remote=remote)
    assert codex.can(Feature.GUARDED_SOCKET) is guarded


async def test_a_codex_that_is_too_old_is_refused_with_words(
    codex_home: CodexHome, folder: Path, tmp_path: Path
) -> None:
    async def old(connection: ServerConnection) -> None:
        async for message in connection:
            asked = json.loads(message)
            if "id" in asked:
                await connection.send(json.dumps({"id": asked["id"], "result": {"userAgent": "helmsman/0.115.0 (x)"}}))

    async with serve(old, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        settings = remote(codex_home, tmp_path, f"ws://127.0.0.1:{port}")
        async with HelmsmanService(settings, env=codex_home.env) as helm:
            with pytest.raises(Unsupported, match=r"0\.115\.0.*0\.130\.0 and newer can"):
                await helm.start("hello", cwd=folder)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:1", "not the address of an engine"),
        ("ws://", "not the address of an engine"),
        ("nonsense", "not the address of an engine"),
        ("ws:///path", "not the address of an engine"),
        ("ws://127.0.0.1:notaport", "not the address of an engine"),
        ("ws://engine.example:4000", "unencrypted"),
        ("wss://user:secret@engine.example", "may hold no secret"),
        ("wss://engine.example?token=secret", "may hold no secret"),
    ],
)
async def test_an_address_that_is_none_is_refused_at_the_start(
    codex_home: CodexHome, tmp_path: Path, url: str, why: str
) -> None:
    with pytest.raises(InvalidSetting, match=why) as caught:
        remote(codex_home, tmp_path, url)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "variables", "why"),
    [
        ("wss://engine.example:4000", {}, "only used with a token"),
        ("ws://127.0.0.1:1", {"HELMSMAN_ALLOWED_ROOTS": "/tmp"}, "Allowed roots"),
        ("ws://127.0.0.1:1", {"HELMSMAN_ENGINE": "exec"}, "The engine exec"),
    ],
)
async def test_options_that_conflict_with_a_remote_engine_are_refused(
    codex_home: CodexHome, tmp_path: Path, url: str, variables: dict[str, str], why: str
) -> None:
    async with HelmsmanService(remote(codex_home, tmp_path, url, **variables), env=codex_home.env) as helm:
        with pytest.raises(InvalidSetting, match=why):
            await helm.start("hello", cwd=tmp_path)


async def test_a_projects_file_can_set_neither_the_address_nor_the_token(codex_home: CodexHome, tmp_path: Path) -> None:
    file = tmp_path / "helmsman.toml"
    file.write_text('codex_remote = "wss://evil.example"\n', encoding="utf-8")
    settings = load_settings({}, codex_home.env, tmp_path)
    assert settings.codex_remote is None
    assert any("codex_remote" in said for said in settings.ignored)
    file.write_text('codex_remote_token = "x"\n', encoding="utf-8")
    with pytest.raises(InvalidSetting, match="unknown key"):
        load_settings({}, codex_home.env, tmp_path)


async def test_a_codex_of_our_own_is_not_given_the_token(codex_home: CodexHome, tmp_path: Path) -> None:
    codex = CodexBinary(path=tmp_path / "codex", version=Version.parse("0.166.0"))
    env = {"HELMSMAN_CODEX_REMOTE_TOKEN": TOKEN, "HOME": "/home/me"}
    assert TOKEN not in codex_environment(codex, codex_home.path, env).values()
