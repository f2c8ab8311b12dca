"""Sessions as resources: read by anyone, updates told to whoever asked, in both eras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, add, patch, run, say
from mcp import Client
from tests.mcp.caller import Caller

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


async def text_of(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, types.TextResourceContents)
    return content.text


async def test_a_session_is_a_transcript_and_a_diff(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, mode: Any
) -> None:
    model.on("write", run("echo some output"), patch(add("new.txt", "hello\n")), say("All **done**"))
    async with Client(build_server(helm), mode=mode) as client:
        codex = Caller(client)
        options = {"sandbox": "workspace-write", "approvalPolicy": "never", "workingDirectory": str(git_repo)}
        started = await codex("codex_start", prompt="write", **options)
        session_id = started["sessionId"]
        await codex.until_settled(session_id)
        task = json.loads(await text_of(client, f"codex://tasks/{started['taskId']}"))
        uri = f"codex://sessions/{session_id}"
        transcript = await text_of(client, uri)
        diff = await text_of(client, f"{uri}/diff")
        listing = json.loads(await text_of(client, "codex://sessions"))
        resources = [str(resource.uri) for resource in (await client.list_resources()).resources]
        templates = (await client.list_resource_templates()).resource_templates
    assert "> write" in transcript
    assert "some output" in transcript
    assert "All **done**" in transcript
    assert "+hello" in diff
    assert [row["sessionId"] for row in listing["sessions"]] == [session_id]
    assert resources == ["codex://sessions", uri]
    assert (task["sessionId"], task["status"]) == (session_id, "completed")
    assert [template.uri_template for template in templates] == [
        "codex://sessions/{id}",
        "codex://sessions/{id}/diff",
        "codex://tasks/{id}",
    ]


@pytest.mark.needs_git
async def test_the_diff_of_a_worktree_session_is_all_that_it_changed(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, mode: Any
) -> None:
    model.on("write", run("echo hello > new.txt"), say("done"))
    session = await helm.start("write", cwd=git_repo, worktree=True, sandbox="workspace-write", approval_policy="never")
    assert await session.wait(until="end", timeout=30)
    async with Client(build_server(helm), mode=mode) as client:
        assert "+hello" in await text_of(client, f"codex://sessions/{session.id}/diff")


@pytest.mark.parametrize(
    "uri", ["codex://sessions/nope", "codex://nonsense", "codex://sessions/nope/else", "codex://tasks/nope"]
)
async def test_a_missing_resource_is_an_error(helm: HelmsmanService, mode: Any, uri: str) -> None:
    async with Client(build_server(helm), mode=mode) as client:
        with pytest.raises(MCPError, match=r"no (session|resource|task)"):
            await client.read_resource(uri)


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_a_subscriber_of_the_handshake_era_is_notified(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("go", say("some", gate, "thing"))
    told: list[str] = []
    changed = anyio.Event()

    async def listen(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            told.append(str(message.params.uri))
            changed.set()

    async with Client(build_server(helm), mode="legacy", message_handler=listen) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="go", workingDirectory=str(folder)))["sessionId"]
        uri = f"codex://sessions/{session_id}"
        with anyio.fail_after(20):
            await gate.reached()
            await client.subscribe_resource(uri)
            gate.release()
            await changed.wait()
            assert set(told) == {uri}
            await codex.until_settled(session_id)
            await client.unsubscribe_resource(uri)
            told.clear()
            model.on("more", say("again"))
            await codex("codex_say", sessionId=session_id, message="more")
            await codex.until_settled(session_id)
            await client.subscribe_resource("codex://sessions")
            model.on("last", say("one more"))
            changed = anyio.Event()
            await codex("codex_say", sessionId=session_id, message="last")
            await changed.wait()
            assert set(told) == {"codex://sessions"}


async def test_a_listener_of_2026_is_notified(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    gate = model.gate()
    model.on("go", say("some", gate, "thing"))
    async with Client(build_server(helm)) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="go", workingDirectory=str(folder)))["sessionId"]
        uri = f"codex://sessions/{session_id}"
        with anyio.fail_after(20):
            await gate.reached()
            async with client.listen(resource_subscriptions=[uri]) as events:
                gate.release()
                async for event in events:
                    assert uri in str(event)
                    break
