"""The stories every supported Codex is told; what one cannot do is an error that says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import ClientTool, run_step
from helmsman.agents.codex.features import Feature, Version
from helmsman.base.structs import replace
from helmsman.errors import HelmsmanError, Unsupported
from helmsman.model.events import CommandExecution
from helmsman.model.question_text import question_as_dict
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, add, call, hang, patch, run, say
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.matrix, pytest.mark.anyio, on_shared_engine]

SECONDS = 60
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


async def finished(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    return session


@pytest.fixture
def writes(folder: Path) -> dict[str, Any]:
    return {"cwd": folder, "sandbox": "workspace-write", "approval_policy": "on-request"}


async def exit_codes(session: Session) -> list[int | None]:
    """Those of the commands, of which Codex 0.130 to 0.145 may tell after the end of the turn."""
    with anyio.fail_after(SECONDS):
        while None in (codes := [item.exit_code for item in session.items if isinstance(item, CommandExecution)]):
            await anyio.sleep(0.01)
    return codes


@on_its_own_engine
async def test_start(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    verdict: object,
) -> None:
    model.on("go", run("echo made > made.txt"), say("Hel", "lo"))
    before = codex_home.config_path.read_bytes()
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await finished(
            await helm.start("go", cwd=git_repo, sandbox="workspace-write", approval_policy="on-request")
        )
        assert await exit_codes(session) == [0]
    assert (session.status, session.result) == ("done", "Hello")
    assert session.usage.input_tokens > 0
    assert (git_repo / "made.txt").exists()
    assert b"trust_level" not in codex_home.config_path.read_bytes().replace(before, b"")


@on_its_own_engine
async def test_resume_after_the_process_died(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, verdict: object
) -> None:
    model.on("first", say("one"))
    model.on("hang", hang())
    model.on("again", say("back"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await finished(await helm.start("first", cwd=folder))
        await session.say("hang")
        await model.wait_for_request(2)
        engine: Any = await helm.engine()
        engine._peer._transport.child.kill()
        assert (await finished(session)).status == "error"
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        again = await finished(await helm.say(session.id, "again"))
    assert again.result == "back"
    assert "first" in model.requests[-1].user_texts


async def test_steer(
    helm: HelmsmanService,
    model: ScriptedModel,
    folder: Path,
    codex_version: tuple[int, int, int],
    verdict: Any,
) -> None:
    gate = model.gate()
    model.on("work", [say("hm", gate), run("true")], say("done"))
    session = await helm.start("work", cwd=folder, approval_policy="never")
    await gate.reached()
    if Feature.STEER.is_in(Version(*codex_version)):
        await session.steer("hurry")
    else:
        with pytest.raises(Unsupported, match="take a message in the middle of a turn") as caught:
            await session.steer("hurry")
        verdict.refused(caught.value)
    gate.release()
    await finished(session)
    if verdict.refusal is None:
        assert "hurry" in model.requests[-1].user_texts


async def test_interrupt(
    helm: HelmsmanService,
    model: ScriptedModel,
    writes: dict[str, Any],
    folder: Path,
    verdict: object,
) -> None:
    model.on("sleep", run("echo $$ > pid; exec sleep 600"), say("never"))
    model.on("again", say("fine"))
    session = await helm.start("sleep", **writes)
    with anyio.fail_after(SECONDS):
        while not (folder / "pid").exists() or not (folder / "pid").read_text(encoding="utf-8").strip():
            await anyio.sleep(0.02)
    await session.interrupt()
    assert session.status == "interrupted"
    pid = (folder / "pid").read_text(encoding="utf-8").strip()
    with anyio.fail_after(5):
        while is_sleeping(pid):
            await anyio.sleep(0.02)
    await session.say("again")
    assert (await finished(session)).result == "fine"


def is_sleeping(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:  # noqa: PTH123
            return "sleep" in file.read()
    except OSError:
        return False


@pytest.mark.parametrize("choice", ["approve", "deny", "abort"])
async def test_command_approval(
    helm: HelmsmanService,
    model: ScriptedModel,
    writes: dict[str, Any],
    folder: Path,
    choice: str,
    verdict: object,
) -> None:
    model.on("touch", run("touch made.txt", escalate="need it"), say("after"))
    session = await helm.start("touch", **writes)
    assert await session.wait(timeout=SECONDS)
    (question,) = session.questions
    assert question.type == "command_approval"
    assert "touch made.txt" in question.details["command"]
    assert question.details["reason"] == "need it"
    await session.respond(question.id, choice)
    await finished(session)
    assert session.status == ("interrupted" if choice == "abort" else "done")
    assert (folder / "made.txt").exists() == (choice == "approve")


async def test_refusal_with_a_reason(
    helm: HelmsmanService,
    model: ScriptedModel,
    writes: dict[str, Any],
    folder: Path,
    codex_version: tuple[int, int, int],
    verdict: Any,
) -> None:
    model.on("touch", run("touch made.txt", escalate="need it"), say("I see"))
    session = await helm.start("touch", **writes)
    assert await session.wait(timeout=SECONDS)
    await session.respond(session.questions[0].id, "deny: that is production")
    assert (await finished(session)).result == "I see"
    assert not (folder / "made.txt").exists()
    told = any("that is production" in text for text in model.requests[-1].user_texts)
    assert told is Feature.STEER.is_in(Version(*codex_version))
    if not told:
        verdict.refusal = "The command is refused; the reason does not reach the model: this Codex cannot be steered."


async def test_patch_approval_with_its_diff(
    helm: HelmsmanService, model: ScriptedModel, folder: Path, verdict: object
) -> None:
    model.on("patch", patch(add("new.txt", "hello\nworld\n")), say("ok"))
    session = await helm.start("patch", cwd=folder, sandbox="read-only", approval_policy="on-request")
    assert await session.wait(timeout=SECONDS)
    (question,) = session.questions
    assert question.type == "patch_approval"
    assert "+++ b/" in question.details["diff"]
    assert "+hello\n+world\n" in question.details["diff"]
    (part,) = question_as_dict(question)["questions"]
    assert "new.txt  +2 -0" in part["question"]  # for clients that show only the text
    await session.respond(question.id, "approve")
    assert (await finished(session)).status == "done"
    assert (folder / "new.txt").read_text(encoding="utf-8") == "hello\nworld\n"


async def test_functions_of_the_program(
    helm: HelmsmanService,
    model: ScriptedModel,
    git_repo: Path,
    codex_version: tuple[int, int, int],
    verdict: object,
) -> None:
    async def look_up(arguments: Mapping[str, Any]) -> str:
        if arguments["key"] == "unknown":
            raise KeyError("no such key")
        return f"the value of {arguments['key']}"

    schema = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
    tool = ClientTool(name="look_up", description="Looks a key up.", input_schema=schema, run=look_up)
    port, unknown = (call("look_up", {"key": key}) for key in ("port", "unknown"))
    model.on("look", port, unknown, say("ok"))
    session = await helm.start("look", cwd=git_repo, sandbox="read-only", tools=[tool])
    assert (await finished(session)).status == "done"
    told = [output for request in model.requests for output in request.tool_outputs]
    assert any("the value of port" in output for output in told)
    assert any("KeyError: 'no such key'" in output for output in told)
    if Version(*codex_version) > Version(0, 93, 0):
        calls = [item for item in session.items if item.type == "dynamic_tool_call"]
        assert [item.status for item in calls] == ["completed", "failed"]


@on_its_own_engine
async def test_output_schema(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, verdict: object
) -> None:
    model.on("add", say('{"answer": 42}'))
    result = await run_step("add", output_schema=SCHEMA, settings=settings, env=codex_home.env, cwd=folder)
    assert result.output == {"answer": 42}
    assert model.requests[-1].output_schema == SCHEMA


async def test_on_failure_approval_policy(
    helm: HelmsmanService, model: ScriptedModel, folder: Path, verdict: Any
) -> None:
    model.on("hello", say("hi"))
    session = await finished(await helm.start("hello", cwd=folder, approval_policy="on-failure"))
    if session.notes:
        assert session.state.approval_policy == "on-request"
        verdict.refusal = session.notes[0]
    else:
        assert session.state.approval_policy == "on-failure"


@on_its_own_engine
async def test_exec_turn(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, verdict: object
) -> None:
    model.on("go", run("echo made > made.txt"), say("done"))
    async with HelmsmanService(replace(settings, engine="exec"), env=codex_home.env) as helm:
        session = await finished(await helm.start("go", cwd=git_repo, sandbox="workspace-write"))
    assert (session.status, session.result) == ("done", "done")
    assert (git_repo / "made.txt").exists()


@on_its_own_engine
async def test_exec_resume(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, verdict: object
) -> None:
    model.on("one", say("first"))
    model.on("two", run("echo made > made.txt"), say("second"))
    async with HelmsmanService(replace(settings, engine="exec"), env=codex_home.env) as helm:
        session = await finished(await helm.start("one", cwd=git_repo, sandbox="workspace-write"))
    async with HelmsmanService(replace(settings, engine="exec"), env=codex_home.env) as helm:
        again = await finished(await helm.say(session.id, "two", sandbox="workspace-write"))
    assert again.result == "second"
    assert (git_repo / "made.txt").exists()
    assert "one" in model.requests[-1].user_texts


@on_its_own_engine
async def test_listing(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, verdict: object
) -> None:
    model.otherwise(say("ok"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        ours = await finished(await helm.start("made by the app-server", cwd=git_repo))
        async with HelmsmanService(replace(settings, engine="exec"), env=codex_home.env) as other:
            execs = await finished(await other.start("made by exec", cwd=git_repo))
        found, _ = await helm.list(directory=git_repo)
    assert {(info.session_id, info.first_prompt) for info in found} == {
        (ours.id, "made by the app-server"),
        (execs.id, "made by exec"),
    }


@on_its_own_engine
async def test_policy_is_not_wider_after_resume_and_fork(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, verdict: object
) -> None:
    model.otherwise(say("ok"))
    another = replace(settings, state_dir=settings.state_dir / "another")  # one of whose callers we know nothing
    async with HelmsmanService(another, env=codex_home.env) as helm:
        wide = {"sandbox": "danger-full-access", "approval_policy": "never"}
        session = await finished(await helm.start("go", cwd=folder, **wide))  # type: ignore[arg-type]
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        again = await finished(await helm.say(session.id, "again"))
        assert (again.state.sandbox, again.state.approval_policy) == ("read-only", "on-request")
        engine = await helm.engine()
        fork = await engine.fork(session.id, again.options)
        assert (fork.sandbox, fork.approval_policy) == ("read-only", "on-request")


async def test_unknown_session(helm: HelmsmanService, model: ScriptedModel, folder: Path, verdict: Any) -> None:
    for unknown in ("0199a0f2-0000-7000-8000-000000000000", "nonsense"):
        with pytest.raises(HelmsmanError) as caught:
            await helm.say(unknown, "x")
        assert caught.value.code == "session_not_found"
