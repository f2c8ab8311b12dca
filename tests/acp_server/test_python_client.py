"""`helmsman acp` under the client of the official Python SDK, on a real Codex."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import acp
import anyio
import pytest
from acp import RequestError, schema

from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from helmsman.testing.hubs import hub_pid
from tests import warm

SECONDS = 60

pytestmark = pytest.mark.anyio


class Editor:
    """Client that records what it is sent, and answers permission requests with `choice`."""

    def __init__(self, choice: str | None = "approve") -> None:
        self.updates: list[Any] = []
        self.requests: list[Any] = []
        self.choice = choice
        self.may_answer: anyio.Event | None = None
        self.changed = anyio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.changed.set()
        self.changed = anyio.Event()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> schema.RequestPermissionResponse:
        self.requests.append((tool_call, options))
        self.changed.set()
        self.changed = anyio.Event()
        if self.choice is None:
            await anyio.sleep_forever()
        if self.may_answer is not None:
            await self.may_answer.wait()
        outcome = schema.AllowedOutcome(outcome="selected", option_id=str(self.choice))
        return schema.RequestPermissionResponse(outcome=outcome)

    async def until(self, found: Any) -> None:
        with anyio.fail_after(SECONDS):
            while not found():
                await self.changed.wait()

    def on_connect(self, conn: Any) -> None: ...

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(one.content.text for one in self.updates if one.session_update == kind)

    def of(self, kind: str) -> list[Any]:
        return [one for one in self.updates if one.session_update == kind]


@pytest.fixture
def environment(codex_home: CodexHome, codex_binary: Path, model: ScriptedModel) -> Mapping[str, str]:
    model.on("make it", run("touch made.txt", escalate="please"), say("It is made"))
    model.on("go on", say("As you say"))
    model.on("hang", hang())
    return {**codex_home.env, "CODEX_CLI_PATH": str(codex_binary)}


@pytest.fixture
def in_hub(environment: Mapping[str, str], detached_engines: Path) -> Mapping[str, str]:
    """Let sessions run in a hub, which several clients share."""
    return {**environment, "HELMSMAN_DETACH": "1", "HELMSMAN_STATE_DIR": str(detached_engines)}


@asynccontextmanager
async def connected(environment: Mapping[str, str], editor: Editor) -> AsyncIterator[Any]:
    client: Any = editor  # it has what the agent calls, not all of the protocol
    command, *rest = warm.command("acp")
    async with acp.spawn_agent_process(client, command, *rest, env=dict(environment), use_unstable_protocol=True) as (
        connection,
        _process,
    ):
        with anyio.fail_after(SECONDS):
            await connection.initialize(
                protocol_version=1, client_info=schema.Implementation(name="test-editor", version="1")
            )
            yield connection


async def test_further_directories_may_be_written_where_the_mode_lets_it_write(
    environment: Mapping[str, str], folder: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    further = tmp_path / "further"
    further.mkdir()
    model.on("write there", run(f"touch {further}/made.txt || echo held"), say("Tried"))
    async with connected(environment, Editor()) as connection:
        for mode, is_made in (("default", False), ("read-only", False), ("auto", True)):
            session = await connection.new_session(
                cwd=str(folder), additional_directories=[str(further)], mcp_servers=[]
            )
            await connection.set_session_mode(session_id=session.session_id, mode_id=mode)
            prompt = [acp.text_block("write there")]
            assert (await connection.prompt(session_id=session.session_id, prompt=prompt)).stop_reason == "end_turn"
            assert (further / "made.txt").exists() == is_made, mode


async def test_a_prompt_runs_a_turn_and_its_approval_is_asked_in_the_editor(
    environment: Mapping[str, str], folder: Path
) -> None:
    editor = Editor()
    async with connected(environment, editor) as connection:
        session = await connection.new_session(cwd=str(folder), mcp_servers=[])
        reply = await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("make it")])
    assert reply.stop_reason == "end_turn"
    assert reply.usage.total_tokens > 0
    assert editor.text() == "It is made"
    assert (folder / "made.txt").exists()
    [(call, options)] = editor.requests
    assert "touch made.txt" in call.content[0].content.text
    assert "reject_once" in [one.kind for one in options]
    commands = [one for one in editor.of("tool_call") if one.kind == "execute"]
    assert commands
    assert "touch made.txt" in commands[0].title


async def test_a_denied_command_does_not_run(environment: Mapping[str, str], folder: Path) -> None:
    editor = Editor("abort")
    async with connected(environment, editor) as connection:
        session = await connection.new_session(cwd=str(folder), mcp_servers=[])
        reply = await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("make it")])
    assert reply.stop_reason == "cancelled"
    assert not (folder / "made.txt").exists()


async def test_cancel_stops_the_turn(environment: Mapping[str, str], folder: Path) -> None:
    editor = Editor()
    async with connected(environment, editor) as connection, anyio.create_task_group() as tasks:
        session = await connection.new_session(cwd=str(folder), mcp_servers=[])
        replies: list[Any] = []

        async def ask() -> None:
            replies.append(await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("hang")]))

        tasks.start_soon(ask)
        await editor.until(lambda: editor.of("user_message_chunk") or editor.of("session_info_update"))
        await connection.cancel(session_id=session.session_id)
    assert replies[0].stop_reason == "cancelled"


async def test_a_session_is_listed_and_loaded_with_its_history_by_the_next_editor(
    environment: Mapping[str, str], folder: Path
) -> None:
    first = Editor()
    async with connected(environment, first) as connection:
        made = await connection.new_session(cwd=str(folder), mcp_servers=[])
        await connection.prompt(session_id=made.session_id, prompt=[acp.text_block("make it")])
    second = Editor()
    async with connected(environment, second) as connection:
        listed = await connection.list_sessions(cwd=str(folder))
        assert [one.title for one in listed.sessions] == ["make it"]
        await connection.load_session(cwd=str(folder), session_id=made.session_id, mcp_servers=[])
        assert "make it" in second.text("user_message_chunk")
        assert "It is made" in second.text()
        await connection.prompt(session_id=made.session_id, prompt=[acp.text_block("go on")])
        assert second.text().endswith("As you say")
        await connection.close_session(session_id=made.session_id)


async def test_an_editor_sees_and_answers_a_turn_that_another_client_began(
    in_hub: Mapping[str, str], folder: Path
) -> None:
    other = Editor(choice=None)
    editor = Editor()
    async with connected(in_hub, other) as beginning, anyio.create_task_group() as tasks:
        made = await beginning.new_session(cwd=str(folder), mcp_servers=[])
        tasks.start_soon(lambda: beginning.prompt(session_id=made.session_id, prompt=[acp.text_block("make it")]))
        await other.until(lambda: other.requests)
        async with connected(in_hub, editor) as connection:
            [listed] = (await connection.list_sessions(cwd=str(folder))).sessions
            await connection.load_session(cwd=str(folder), session_id=listed.session_id, mcp_servers=[])
            await editor.until(lambda: "It is made" in editor.text())
    assert (folder / "made.txt").exists()


async def test_a_turn_and_its_question_continue_in_the_editor_though_the_hub_is_killed(
    in_hub: Mapping[str, str], folder: Path
) -> None:
    editor = Editor()
    editor.may_answer = anyio.Event()
    state_dir = Path(in_hub["HELMSMAN_STATE_DIR"])
    async with connected(in_hub, editor) as connection, anyio.create_task_group() as tasks:
        session = await connection.new_session(cwd=str(folder), mcp_servers=[])
        replies: list[Any] = []

        async def ask() -> None:
            replies.append(await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("make it")]))

        tasks.start_soon(ask)
        await editor.until(lambda: editor.requests)
        pid = hub_pid(state_dir)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            while hub_pid(state_dir) in (None, pid):
                await anyio.sleep(0.02)
        editor.may_answer.set()
    assert [reply.stop_reason for reply in replies] == ["end_turn"]
    assert editor.text() == "It is made"
    assert (folder / "made.txt").exists()
    assert len(editor.requests) == 1


async def test_modes_and_options_are_checked(environment: Mapping[str, str], folder: Path) -> None:
    async with connected(environment, Editor()) as connection:
        session = await connection.new_session(cwd=str(folder), mcp_servers=[])
        assert "read-only" in [mode.id for mode in session.modes.available_modes]
        await connection.set_session_mode(session_id=session.session_id, mode_id="read-only")
        with pytest.raises(RequestError, match="Invalid params"):
            await connection.set_session_mode(session_id=session.session_id, mode_id="yolo")
        with pytest.raises(RequestError, match="Invalid params"):
            await connection.set_config_option(session_id=session.session_id, config_id="model", value="no such model")
        with pytest.raises(RequestError, match="Resource not found"):
            await connection.load_session(cwd=str(folder), session_id="new-unknown", mcp_servers=[])
