"""A model answers questions of sessions that its own client opened; all others are answered by people."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest

from helmsman.agents.codex.engine import AppServerEngine
from helmsman.base.clients import HANDED, HTTP, McpClient
from helmsman.base.processes import Process
from helmsman.base.structs import pack, replace, unpack
from helmsman.mcp.server import build_server
from helmsman.model.events import RuleAdded, WorktreeAssigned
from helmsman.model.rules import Rule
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import CodexHome, ScriptedModel, run, say
from mcp import Client
from tests.mcp.caller import Caller
from tests.mcp.test_elicitation import Person
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.anyio, on_shared_engine]

CLAUDE = types.Implementation(name="claude-code", version="2")
CURSOR = types.Implementation(name="cursor", version="1")


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def touches(model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    model.on("hello", say("hi"))


async def _asked(helm: HelmsmanService, folder: Path, **options: Any) -> Any:
    """A session that a person has opened, once it asks."""
    wanted = {"sandbox": "workspace-write", "approval_policy": "on-request", **options}
    session = await helm.start("touch", cwd=folder, **wanted)
    await session.wait(timeout=30)
    return session


async def test_a_model_does_not_answer_for_a_session_that_a_person_opened(
    helm: HelmsmanService, folder: Path, mode: Any
) -> None:
    session = await _asked(helm, folder)
    (question,) = session.questions
    async with Client(build_server(helm), mode=mode, client_info=CLAUDE) as client:
        codex = Caller(client)
        for answer in ("approve", "deny"):
            refused = await codex.error("codex_respond", sessionId=session.id, id=question.id, answers=[answer])
            assert refused["code"] == "not_yours"
            assert f"helmsman session hand {session.id} --to claude-code" in refused["message"]
        waited = await codex("codex_wait", sessionId=session.id, timeoutSec=1)
        assert (waited["status"], waited["pendingQuestion"]["id"]) == ("awaiting_approval", question.id)
        assert "opened by a person" in waited["note"]
        await session.respond(question.id, "approve")
        assert (await codex.until_settled(session.id))["status"] == "done"
    assert (folder / "made.txt").exists()


async def test_a_session_that_a_person_hands_over_is_the_clients_until_it_is_taken_back(
    helm: HelmsmanService, folder: Path
) -> None:
    session = await _asked(helm, folder)
    (question,) = session.questions
    async with (
        Client(build_server(helm), client_info=CLAUDE) as client,
        Client(build_server(helm), client_info=CURSOR) as other,
    ):
        await helm.hand(session.id, "claude-code")
        refused = await Caller(other).error("codex_respond", sessionId=session.id, id=question.id, answers=["approve"])
        assert (refused["code"], "(claude-code)" in refused["message"]) == ("not_yours", True)
        await helm.hand(session.id, None)
        await Caller(client).error("codex_respond", sessionId=session.id, id=question.id, answers=["deny"])
        await helm.hand(session.id, "claude-code")
        await Caller(client)("codex_respond", sessionId=session.id, id=question.id, answers=["deny"])


async def test_two_clients_of_one_name_are_two_until_the_first_has_gone(
    helm: HelmsmanService, asks: dict[str, Any], mode: Any
) -> None:
    async with Client(build_server(helm), mode=mode, client_info=CLAUDE) as other:
        async with Client(build_server(helm), mode=mode, client_info=CLAUDE) as client:
            codex = Caller(client)
            session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
            question = (await codex.until_settled(session_id))["pendingQuestion"]["id"]
            answer = {"sessionId": session_id, "id": question, "answers": ["deny"]}
            assert (await Caller(other).error("codex_respond", **answer))["code"] == "not_yours"
        await Caller(other)("codex_respond", **answer)


async def test_the_owner_of_a_session_outlives_the_process(
    settings: Settings, codex_home: CodexHome, asks: Any
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        async with Client(build_server(helm), client_info=CLAUDE) as client:
            codex = Caller(client)
            session_id = (await codex("codex_start", prompt="hello", **asks))["sessionId"]
            await codex.until_settled(session_id)
        mine = await helm.start("hello", cwd=asks["workingDirectory"])
        await mine.wait(until="end", timeout=30)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        owner = (await helm.session(session_id)).opened_by
        assert owner is not None
        assert (owner.name, owner.process) == ("claude-code", Process.me())
        assert (await helm.session(mine.id)).opened_by is None


async def test_the_owner_is_stored_before_the_agent_gets_the_session(
    helm: HelmsmanService, asks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that is killed in the middle of a start must not leave the session to a person."""
    owners: list[McpClient | None] = []
    run_turn = AppServerEngine.run_turn

    async def observed(engine: AppServerEngine, session_id: str, *args: Any) -> Any:
        with closing(Registry(helm.settings.state_dir / REGISTRY_NAME)) as registry:
            owners.append(registry.owner_of(session_id))
        return await run_turn(engine, session_id, *args)

    monkeypatch.setattr(AppServerEngine, "run_turn", observed)
    async with Client(build_server(helm), client_info=CLAUDE) as client:
        codex = Caller(client)
        await codex.until_settled((await codex("codex_start", prompt="hello", **asks))["sessionId"])
    assert [owner.name for owner in owners if owner is not None] == ["claude-code"]


async def test_a_message_gets_no_permission_that_a_person_gave(helm: HelmsmanService, folder: Path) -> None:
    full = await _asked(helm, folder, sandbox="danger-full-access", approval_policy="never")
    lasting = await helm.start("hello", cwd=folder, sandbox="workspace-write", approval_policy="on-request")
    plain = await helm.start("hello", cwd=folder, sandbox="workspace-write", approval_policy="on-request")
    for session in (full, lasting, plain):
        await session.wait(until="end", timeout=30)
    lasting.apply(RuleAdded(session_id=lasting.id, rule=Rule(effect="allow", command=("make",))))
    settings = replace(helm.settings, tools=("sessions", "agents", "extras", "router"))
    helm.settings = settings
    async with Client(build_server(helm), client_info=CLAUDE) as client:
        codex = Caller(client)
        for session in (full, lasting):
            for tool, more in (
                ("codex_say", {"message": "go"}),
                ("codex_say", {"message": "go", "whenBusy": "queue"}),
                ("agent_say", {"message": "go", "agent": "claude"}),
                ("codex_fork", {"message": "go"}),
                ("codex_compact", {}),
                ("codex_goal", {"goal": "go"}),
            ):
                refused = await codex.error(tool, sessionId=session.id, **more)
                assert refused["code"] == "not_yours", tool
        for tool, more in (("codex_apply", {}), ("codex_discard", {}), ("codex_rollback", {})):
            assert (await codex.error(tool, sessionId=plain.id, **more))["code"] == "not_yours", tool
        await codex("codex_say", sessionId=plain.id, message="hello")
        await codex.until_settled(plain.id)
        assert plain.opened_by is None
        forked = (await codex("codex_fork", sessionId=plain.id))["sessionId"]
        assert helm.sessions[forked].opened_by is not None


async def test_while_a_form_is_open_the_agent_waits_and_cannot_answer(
    helm: HelmsmanService, asks: dict[str, Any], folder: Path, mode: Any
) -> None:
    answered = anyio.Event()

    async def person(context: Any, params: Any) -> types.ElicitResult:
        await answered.wait()
        return types.ElicitResult(action="accept", content={"decision": "approve"})

    async with Client(build_server(helm), mode=mode, elicitation_callback=person, client_info=CLAUDE) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(codex.until_settled, session_id)
            session = helm.sessions[session_id]
            with anyio.fail_after(30):
                while not session.questions or not session.has_form(session.questions[0].id):
                    await session.feed.changed()
            (question,) = session.questions
            refused = await codex.error("codex_respond", sessionId=session_id, id=question.id, answers=["approve"])
            assert (refused["code"], "A person is answering question" in refused["message"]) == ("not_yours", True)
            status = await codex("codex_status", sessionId=session_id)
            assert "in a form" in status["note"]
            answered.set()
        assert (await codex.until_settled(session_id))["status"] == "done"
    assert (folder / "made.txt").exists()


async def test_a_wait_while_a_form_is_open_lasts_as_long_as_it_was_to(
    helm: HelmsmanService, asks: dict[str, Any]
) -> None:
    async with Client(build_server(helm), mode="legacy", elicitation_callback=Person("thinks")) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        began = anyio.current_time()
        waited = await codex("codex_wait", sessionId=session_id, timeoutSec=3)
        assert anyio.current_time() - began >= 3
        assert waited["status"] == "awaiting_approval"
        assert "A person is answering this question in a form" in waited["note"]


@on_its_own_engine
async def test_the_users_own_settings_let_agents_answer(
    settings: Settings, codex_home: CodexHome, folder: Path
) -> None:
    settings = replace(settings, clients_share_sessions=True, agents_answer_first=True)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await _asked(helm, folder)
        (question,) = session.questions
        async with Client(build_server(helm), mode="legacy", elicitation_callback=Person("thinks")) as client:
            close = session.open_form(question.id)
            await Caller(client)("codex_respond", sessionId=session.id, id=question.id, answers=["deny"])
            close()


def test_a_name_alone_makes_no_client_another() -> None:
    gone, here = Process(4_000_000, "never"), Process.me()
    owner = McpClient("pipe-1", "claude-code", "/work", here)
    assert owner.is_same_as(owner)
    assert not McpClient("pipe-2", "claude-code", "/work", here).is_same_as(owner)
    ended = McpClient("pipe-1", "claude-code", "/work", gone)
    assert McpClient("pipe-2", "claude-code", "/work", here).is_same_as(ended)
    assert not McpClient("pipe-2", "claude-code", "/other", here).is_same_as(ended)
    assert not McpClient("pipe-2", "cursor", "/work", here).is_same_as(ended)
    assert not McpClient(HTTP, "claude-code").is_same_as(ended)
    assert not McpClient(HTTP, "cursor").is_same_as(McpClient(HTTP, "claude-code"))
    assert McpClient(HTTP, "claude-code").is_same_as(McpClient(HTTP, "claude-code"))
    assert McpClient(HTTP, "claude-code").is_same_as(McpClient(HANDED, "claude-code"))
    assert unpack(pack(owner), McpClient) == owner


async def test_a_fork_does_not_make_a_persons_worktree_the_clients(
    helm: HelmsmanService, git_repo: Path, model: ScriptedModel
) -> None:
    model.on("write", run("echo theirs > made.txt"), say("done"))
    options = {"sandbox": "workspace-write", "approval_policy": "never"}
    session = await helm.start("write", cwd=git_repo, worktree=True, **options)  # type: ignore[arg-type]
    await session.wait(until="end", timeout=30)
    assert session.worktree is not None
    tree = session.worktree.path
    helm.settings = replace(helm.settings, tools=("sessions", "agents", "extras"))
    async with Client(build_server(helm), client_info=CLAUDE) as client:
        codex = Caller(client)
        fork = (await codex("codex_fork", sessionId=session.id))["sessionId"]
        beside = await codex("codex_start", prompt="hello", workingDirectory=str(tree), sandbox="read-only")
        await codex.until_settled(beside["sessionId"])
        digest = (await codex("codex_diff", sessionId=fork))["digest"]
        for own in (fork, beside["sessionId"]):
            # As a session of an earlier process is given it by its place.
            helm.sessions[own].apply(WorktreeAssigned(session_id=own, worktree=session.worktree))
            for tool, more in (("codex_apply", {"digest": digest}), ("codex_discard", {})):
                refused = await codex.error(tool, sessionId=own, **more)
                assert refused["code"] == "not_yours", tool
        assert not (git_repo / "made.txt").exists()
        assert (tree / "made.txt").exists()
        await helm.hand(session.id, "claude-code")
        await codex("codex_apply", sessionId=fork, digest=digest)
    assert (git_repo / "made.txt").exists()
