"""Who answers a question of a real Codex: rules first, then people, and what is remembered of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.agents.codex.connection import AppServer
from helmsman.base.files import file_lock
from helmsman.errors import AnswerInvalid, QuestionNotOpen
from helmsman.model.events import QuestionAsked, QuestionClosed
from helmsman.model.question_text import describe
from helmsman.model.questions import Question
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings, load_settings
from helmsman.testing import CodexHome, ScriptedModel, add, call_tool, patch, request_permissions, run, say, spawn_agent
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.anyio, on_shared_engine]

SECONDS = 30


@pytest.fixture
def asks(folder: Path) -> dict[str, Any]:
    return {"cwd": folder, "sandbox": "workspace-write", "approval_policy": "on-request"}


def with_rules(codex_binary: Path, codex_home: CodexHome, tmp_path: Path, text: str) -> Settings:
    user_file = tmp_path / "user" / "helmsman.toml"
    user_file.parent.mkdir()
    user_file.write_text(text, encoding="utf-8")
    return load_settings({"codex_path": str(codex_binary)}, codex_home.env, tmp_path, user_file=user_file)


async def finished(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    return session


def closings(session: Session) -> list[tuple[str | None, str]]:
    events = session.feed.since(0).events
    return [(event.answer, event.by) for event in events if isinstance(event, QuestionClosed)]


@on_its_own_engine
async def test_a_rule_allows_before_anyone_is_asked(
    codex_binary: Path,
    codex_home: CodexHome,
    model: ScriptedModel,
    tmp_path: Path,
    folder: Path,
    asks: dict[str, Any],
) -> None:
    settings = with_rules(
        codex_binary,
        codex_home,
        tmp_path,
        '[[rules]]\neffect = "allow"\ncommand = ["touch", "made.txt"]\noutside = true\n',
    )
    model.on("go", run("touch made.txt", escalate="please"), say("done"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("go", **asks)
        assert await session.wait(until="attention", timeout=SECONDS)
        assert session.status == "done"
    assert (folder / "made.txt").exists()
    assert [answer for answer, _ in closings(session)] == ["approve"]
    (line,) = (settings.state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    entry = json.loads(line)
    assert (entry["decision"], entry["session"]) == ("approve", session.id)
    assert "touch made.txt" in entry["by"]


@on_its_own_engine
async def test_a_rule_denies_and_a_trick_does_not_pass(
    codex_binary: Path,
    codex_home: CodexHome,
    model: ScriptedModel,
    tmp_path: Path,
    folder: Path,
    asks: dict[str, Any],
) -> None:
    rules = '[[rules]]\neffect = "allow"\ncommand = ["git", "status"]\n[[rules]]\neffect = "deny"\ncommand = ["rm"]\n'
    settings = with_rules(codex_binary, codex_home, tmp_path, rules)
    (folder / "precious").write_text("x", encoding="utf-8")
    model.on("go", run("git status; rm precious", escalate="please"), say("could not"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await finished(await helm.start("go", **asks))
    assert (folder / "precious").exists()
    assert [answer for answer, _ in closings(session)] == ["deny"]


async def test_approving_for_the_session_holds_for_the_session_only(
    helm: HelmsmanService, model: ScriptedModel, asks: dict[str, Any], folder: Path
) -> None:
    model.on("go", run("touch one.txt", escalate="please"), say("done"))
    model.on("again", run("touch one.txt", escalate="please"), say("done"))
    session = await helm.start("go", **asks)
    await session.wait(timeout=SECONDS)
    await session.respond(session.questions[0].id, "approve_session")
    await finished(session)
    await session.say("again")
    assert (await finished(session)).status == "done"
    other = await helm.start("go", **asks)
    await other.wait(timeout=SECONDS)
    assert other.status == "awaiting_approval"
    await other.interrupt()


@on_its_own_engine
async def test_approving_always_makes_a_rule_for_this_place_and_not_for_codex(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, asks: dict[str, Any], folder: Path
) -> None:
    model.on("go", run("touch one.txt", escalate="please"), say("done"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("go", **asks)
        await session.wait(timeout=SECONDS)
        (question,) = session.questions
        assert "approve_always" in question.prompts[0].options
        assert "prefixes" not in question.details  # it leaves the sandbox
        for prefix in ("rm -rf", "touch", "touch one.txt"):
            with pytest.raises(AnswerInvalid):
                await session.respond(question.id, f"approve_always: {prefix}")
        shown = question.details["alwaysRule"]
        assert shown == (
            '[[rules]]\neffect = "allow"\ntext = "/bin/bash -lc \'touch one.txt\'"\n'
            f'directory = "{folder}"\nbelow = false\noutside = true\n\n'
        )
        await session.respond(question.id, "approve_always")
        await finished(session)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        again = await finished(await helm.start("go", **asks))
        assert again.status == "done"
        assert [answer for answer, _ in closings(again)] == ["approve"]
    assert (settings.state_dir / "rules.toml").read_text(encoding="utf-8") == shown
    assert not (codex_home.path / "rules").exists() or not any((codex_home.path / "rules").iterdir())


async def test_always_leaves_no_rule_where_the_answer_came_too_late(
    helm: HelmsmanService, model: ScriptedModel, asks: dict[str, Any]
) -> None:
    model.on("go", run("touch one.txt", escalate="please"), say("done"))
    session = await helm.start("go", **asks)
    await session.wait(timeout=SECONDS)
    (question,) = session.questions
    too_late: list[QuestionNotOpen] = []

    async def respond() -> None:
        try:
            await session.respond(question.id, "approve_always")
        except QuestionNotOpen as error:
            too_late.append(error)

    state_dir = helm.settings.state_dir
    async with anyio.create_task_group() as tasks:
        with file_lock(state_dir / "rules.lock", timeout=SECONDS):
            tasks.start_soon(respond)
            await anyio.sleep(0.2)  # it waits to write the rule
            await session.interrupt()
            await finished(session)
    assert too_late
    assert helm.rules.rules_for(None).rules == ()


@on_its_own_engine
async def test_the_deadline_does_not_deny_what_is_being_approved(
    codex_binary: Path,
    codex_home: CodexHome,
    model: ScriptedModel,
    tmp_path: Path,
    folder: Path,
    asks: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steer = AppServer.steer_turn

    async def slow(self: AppServer, thread_id: str, turn_id: str, text: str) -> Any:
        await anyio.sleep(4)
        return await steer(self, thread_id, turn_id, text)

    monkeypatch.setattr(AppServer, "steer_turn", slow)
    settings = load_settings({"codex_path": str(codex_binary), "approval_timeout_ms": 1000}, codex_home.env, tmp_path)
    model.on("go", run("touch made.txt", escalate="please"), say("done"))
    refused: list[QuestionNotOpen] = []

    async def another(session: Session, question: Question) -> None:
        await anyio.sleep(0.3)
        try:
            await session.respond(question.id, "deny")
        except QuestionNotOpen as error:
            refused.append(error)

    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("go", **asks)
        await session.wait(timeout=SECONDS)
        (question,) = session.questions
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(another, session, question)
            await session.respond(question.id, "approve: for once")
        await finished(session)
    assert refused
    assert (folder / "made.txt").exists()
    assert closings(session) == [("approve", "program")]
    (line,) = (settings.state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["decision"] == "approve"


@on_its_own_engine
async def test_a_patch_in_the_workspace_may_be_allowed_by_one_switch(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, tmp_path: Path, folder: Path
) -> None:
    settings = with_rules(codex_binary, codex_home, tmp_path, "allow_workspace_patches = true\n")
    model.on("go", patch(add("new.txt", "hi\n")), say("done"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("go", cwd=folder, sandbox="workspace-write", approval_policy="untrusted")
        assert await session.wait(timeout=SECONDS)
        assert session.status == "done"
    assert (folder / "new.txt").exists()


@on_its_own_engine
async def test_an_answer_that_does_not_fit_is_asked_for_again(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, asks: dict[str, Any], folder: Path
) -> None:
    model.on("go", run("touch made.txt", escalate="please"), say("done"))
    given = iter(["maybe", "perhaps", "approve"])

    async def handler(_session: Session, _question: Question) -> str:
        return next(given)

    async with HelmsmanService(settings, env=codex_home.env, on_question=handler) as helm:
        await finished(await helm.start("go", **asks))
    assert (folder / "made.txt").exists()


@on_its_own_engine
async def test_a_rule_for_an_mcp_tool_answers_its_approval(
    codex_binary: Path,
    codex_home: CodexHome,
    model: ScriptedModel,
    tmp_path: Path,
    asks: dict[str, Any],
    mcp_server_config: dict[str, Any],
) -> None:
    codex_home.configure(mcp_servers=mcp_server_config)
    settings = with_rules(
        codex_binary,
        codex_home,
        tmp_path,
        '[[rules]]\neffect = "allow"\nmcp = { server = "lab", tool = "write" }\noutside = true\n',
    )
    model.on("go", call_tool("lab", "write", {"text": "note"}), say("done"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("go", **asks)
        assert await session.wait(timeout=SECONDS)
        assert session.status == "done"
    asked = [event for event in session.feed.since(0).events if isinstance(event, QuestionAsked)]
    assert [event.question.details.get("tool") for event in asked] == ["write"]
    assert [answer for answer, _ in closings(session)] == ["accept"]


@on_its_own_engine
async def test_a_request_for_permissions_is_a_question(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, asks: dict[str, Any]
) -> None:
    codex_home.configure(features={"request_permissions_tool": True})
    model.on("go", request_permissions("need the net", network=True, write=["/var/tmp"]), say("thanks"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("go", **asks)
        assert await session.wait(timeout=SECONDS)
        (question,) = session.questions
        assert question.type == "permission_approval"
        assert "network access" in describe(question).text()
        await session.respond(question.id, "approve")
        assert (await finished(session)).result == "thanks"
    assert "enabled" in model.requests[-1].tool_output


async def test_several_questions_are_all_kept_and_answered_in_any_order(
    helm: HelmsmanService, model: ScriptedModel, asks: dict[str, Any], folder: Path
) -> None:
    model.on("one", run("touch one.txt", escalate="please"), say("done"))
    model.on("two", run("touch two.txt", escalate="please"), say("done"))
    sessions = [await helm.start(prompt, **asks) for prompt in ("one", "two")]
    for session in sessions:
        assert await session.wait(timeout=SECONDS)
    first, second = sessions
    await second.respond(second.questions[0].id, "approve")
    await first.respond(first.questions[0].id, "deny")
    for session in sessions:
        assert (await finished(session)).status == "done"
    assert (folder / "two.txt").exists()
    assert not (folder / "one.txt").exists()


@on_its_own_engine
async def test_a_handlers_decision_is_in_the_audit_log(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, asks: dict[str, Any]
) -> None:
    model.on("go", run("touch made.txt", escalate="please"), say("done"))

    async def handler(_session: Session, _question: Question) -> str:
        return "deny: not today"

    async with HelmsmanService(settings, env=codex_home.env, on_question=handler) as helm:
        await finished(await helm.start("go", **asks))
    (line,) = (settings.state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    entry = json.loads(line)
    assert (entry["decision"], entry["by"], entry["reason"]) == ("deny", "handler", "not today")


async def test_an_answer_reaches_codex_even_if_its_caller_is_cancelled(
    helm: HelmsmanService, model: ScriptedModel, asks: dict[str, Any]
) -> None:
    model.on("go", run("touch made.txt", escalate="please"), say("done"))
    session = await helm.start("go", **asks)
    assert await session.wait(timeout=SECONDS)
    with anyio.move_on_after(0):
        await session.respond(session.questions[0].id, "deny: not today")
    assert (await finished(session)).result == "done"


async def test_a_sub_agent_that_asks_when_its_sessions_turn_is_over_is_refused(
    helm: HelmsmanService, model: ScriptedModel, asks: dict[str, Any], folder: Path
) -> None:
    gate = model.gate()
    model.on("parent", spawn_agent("child work"), say("parent done"))
    model.on("child work", [say(gate, "now"), run("touch child.txt", escalate="need it")], say("child done"))
    session = await finished(await helm.start("parent", **asks))
    gate.release()
    with anyio.fail_after(SECONDS):
        await model.wait_for_request(
            lambda request: "child work" in request.last_user_text and bool(request.tool_outputs)
        )
    assert not (folder / "child.txt").exists()
    assert session.status == "done"


async def test_an_always_that_comes_too_late_makes_no_rule(
    helm: HelmsmanService, model: ScriptedModel, folder: Path, asks: dict[str, Any]
) -> None:
    model.on("go", run("touch made.txt", escalate="please"), say("done"))
    session = await helm.start("go", **asks)
    assert await session.wait(timeout=SECONDS)
    (question,) = session.questions
    given: list[str] = []

    async def answer(words: str) -> None:
        try:
            await session.respond(question.id, words)
        except QuestionNotOpen:
            return
        given.append(words)

    async with anyio.create_task_group() as tasks:  # both find it open; one is the first
        tasks.start_soon(answer, "deny")
        tasks.start_soon(answer, "approve_always")
    await finished(session)
    assert given == ["deny"]
    assert [told for told, _ in closings(session)] == ["deny"]
    assert helm.rules.listed(folder) == []
    assert not (folder / "made.txt").exists()
