"""The exec engine on a real Codex."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.exec import open_exec_engine
from helmsman.agents.process_engine import ProcessEngine
from helmsman.errors import (
    EngineStartFailed,
    InvalidInput,
    SessionLocked,
    SessionNotFound,
    Unsupported,
)
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    EngineGone,
    Event,
    Item,
    ItemEnded,
    ItemStarted,
    Notice,
    ProcessStateChanged,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from helmsman.model.options import WRITES, SandboxMode, SessionOptions, TurnInput
from helmsman.testing import CodexHome, ScriptedModel, always, fail, hang, run, say
from tests.engines import resume_turn, start_turn

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="signals are a POSIX thing")]

oldest_and_newest = pytest.mark.matrix(changed_in=[])
"""For what every Codex shows in the stories (`tests/matrix`) already: a turn, and its resumption."""

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
NO_SUCH_SESSION = "0199a213-81c0-7800-8aa1-bbab2a035a53"


@dataclass
class Follower:
    """Collects a session's events, except for states of its process, and lets a test wait for one."""

    events: list[Event] = field(default_factory=list[Event])
    _news: anyio.Event = field(default_factory=anyio.Event)

    def __call__(self, event: Event) -> None:
        if not isinstance(event, ProcessStateChanged):
            self.events.append(event)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, wanted: Callable[[Event], bool]) -> Event:
        with anyio.fail_after(60):
            while True:
                for event in self.events:
                    if wanted(event):
                        return event
                await self._news.wait()

    async def end(self, turn_id: str | None = None) -> TurnEnded:
        ended = await self.until(lambda event: isinstance(event, TurnEnded) and turn_id in (None, event.turn_id))
        assert isinstance(ended, TurnEnded)
        return ended

    def of_type(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def messages(self) -> list[str]:
        items = [event.item for event in self.events if isinstance(event, ItemEnded)]
        return [item.text for item in items if isinstance(item, AgentMessage)]


def is_command(item: Item) -> bool:
    return isinstance(item, CommandExecution)


@asynccontextmanager
async def engine_on(codex_binary: Path, home: CodexHome) -> AsyncIterator[ProcessEngine]:
    binary = await find_codex(explicit=codex_binary, env=home.env)
    async with open_exec_engine(binary, codex_home=home.path, env=home.env) as engine:
        yield engine


@pytest.fixture
async def engine(codex_binary: Path, codex_home: CodexHome) -> AsyncIterator[ProcessEngine]:
    async with engine_on(codex_binary, codex_home) as engine:
        yield engine


async def begin(engine: ProcessEngine, prompt: str, **options: Any) -> tuple[str, Follower]:
    """Start a session and follow it."""
    opened = await start_turn(engine, SessionOptions(**options), TurnInput(text=prompt))
    follower = Follower()
    engine.attach(opened.session_id, follower)
    return opened.session_id, follower


def is_running(pid: int) -> bool:
    """Return whether a process runs; False if it waits to be reaped by its new parent."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text(encoding="utf-8").rpartition(") ")[2][0] != "Z"


async def read_when_written(path: Path) -> str:
    file = anyio.Path(path)
    with anyio.fail_after(30):
        while not await file.exists() or not (content := await file.read_text(encoding="utf-8")).endswith("\n"):
            await anyio.sleep(0.01)
    return content.strip()


# --- turns -----------------------------------------------------------------------------------------------------------


@oldest_and_newest
async def test_a_turn_is_reported_from_beginning_to_end(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path
) -> None:
    # Of a command that is too quick, Codex (0.115, 0.130) now and then misses the output.
    model.on("go", run("echo made > made.txt; sleep 0.3; cat made.txt; sleep 0.3"), say("done"))
    opened = await start_turn(engine, SessionOptions(cwd=git_repo, writes="workspace"), TurnInput(text="go"))
    follower = Follower()
    engine.attach(opened.session_id, follower)
    end = await follower.end()
    assert (opened.directory, opened.sandbox, opened.approval_policy) == (str(git_repo), "workspace-write", "never")
    assert end == TurnEnded(session_id=opened.session_id, turn_id=opened.turn_id, outcome="completed")
    assert follower.events[-1] == end
    told = [event for event in follower.events if not (isinstance(event, ItemEnded) and is_command(event.item))]
    # A busy Codex may exit before it has told the end of a command.
    assert [type(event) for event in told] == [TurnStarted, ItemStarted, ItemEnded, UsageReported, TurnEnded]
    begun = told[1]
    assert isinstance(begun, ItemStarted)
    assert is_command(begun.item)
    for event in follower.of_type(ItemEnded):
        if isinstance(event, ItemEnded) and isinstance(event.item, CommandExecution):
            assert (event.item.exit_code, event.item.output) == (0, "made\n")
    assert follower.messages() == ["done"]


@oldest_and_newest
async def test_a_session_is_resumed_and_its_usage_adds_up(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("first", say("one"))
    model.on("second", run("echo x > made.txt"), say("two"))
    async with engine_on(codex_binary, codex_home) as engine:
        session_id, follower = await begin(engine, "first", cwd=git_repo, writes="workspace")
        await follower.end()
    async with engine_on(codex_binary, codex_home) as engine:
        again = Follower()
        engine.attach(session_id, again)
        opened = await resume_turn(engine, session_id, SessionOptions(writes="nothing"), TurnInput(text="second"))
        await again.end()
    assert (opened.session_id, opened.directory) == (session_id, str(git_repo))
    assert again.messages() == ["two"]
    assert "first" in model.requests[-1].user_texts
    assert not (git_repo / "made.txt").exists(), "the sandbox asked for on resume is the one in force"
    (usage,) = again.of_type(UsageReported)
    assert isinstance(usage, UsageReported)
    assert usage.total is not None
    assert usage.total.input_tokens == 3 * 100, "of the whole session: one request of the first turn, two of this one"
    assert usage.last is None


async def test_the_next_turn_may_begin_the_moment_the_last_has_ended(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path
) -> None:
    model.otherwise(always(say("ok")))
    session_id, follower = await begin(engine, "1", cwd=git_repo)
    for number in range(2, 4):
        await follower.end()
        follower.events.clear()
        await engine.run_turn(session_id, SessionOptions(cwd=git_repo), TurnInput(text=str(number)))
    await follower.end()
    assert model.requests[-1].user_texts == ("1", "2", "3")


async def test_a_session_that_another_process_holds_is_locked(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, engine: ProcessEngine
) -> None:
    model.on("go", hang())
    session_id, _ = await begin(engine, "go", cwd=git_repo)
    with anyio.fail_after(30):
        await model.wait_for_request()
    async with engine_on(codex_binary, codex_home) as other:
        with pytest.raises(SessionLocked):
            await resume_turn(other, session_id, SessionOptions(cwd=git_repo), TurnInput(text="me too"))


async def test_resuming_without_a_turn_runs_nothing(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("go", say("ok"))
    session_id, follower = await begin(engine, "go", cwd=git_repo)
    running = await engine.resume(session_id, SessionOptions())
    end = await follower.end()
    idle = await engine.resume(session_id, SessionOptions())
    assert (running.turn_id, idle.turn_id) == (end.turn_id, None)
    assert idle.directory == str(git_repo)
    assert len(model.requests) == 1


@pytest.mark.parametrize("session_id", [NO_SUCH_SESSION, "no-such-name", "", "--last"])
async def test_an_unknown_session_is_not_found_and_nothing_is_run(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path, session_id: str
) -> None:
    with pytest.raises(SessionNotFound):
        await resume_turn(engine, session_id, SessionOptions(cwd=git_repo), TurnInput(text="go on"))
    assert model.requests == []


# --- what goes in ----------------------------------------------------------------------------------------------------


@pytest.mark.matrix(changed_in=["0.132.0"])
async def test_an_output_schema_is_kept_on_start_and_on_resume(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    model.otherwise(say('{"a": "b"}'))
    turn = TurnInput(text="go", output_schema=SCHEMA)
    opened = await start_turn(engine, SessionOptions(cwd=git_repo), turn)
    follower = Follower()
    engine.attach(opened.session_id, follower)
    await follower.end()
    begun = await engine.run_turn(opened.session_id, SessionOptions(cwd=git_repo), turn)
    await follower.end(begun.turn_id)
    assert [request.output_schema for request in model.requests] == [SCHEMA, SCHEMA]
    with anyio.fail_after(10):  # the file with the schema goes with the process, just after the end of the turn
        while list(scratch.iterdir()):
            await anyio.sleep(0.01)


@oldest_and_newest
async def test_images_are_sent(engine: ProcessEngine, model: ScriptedModel, git_repo: Path, tmp_path: Path) -> None:
    images = (tmp_path / "one.png", tmp_path / "two, with a comma.png")
    for image in images:
        image.write_bytes(PIXEL)
    model.on("look", say("a pixel"))
    opened = await start_turn(engine, SessionOptions(cwd=git_repo), TurnInput(text="look", images=images))
    follower = Follower()
    engine.attach(opened.session_id, follower)
    await follower.end()
    assert len(model.requests[0].images) == 2
    assert model.requests[0].last_user_text.endswith("look")


@pytest.mark.parametrize("prompt", ["--help", "-", "- a list\n- of things", "resume --last", "größe 😀 \x7f"])
async def test_a_prompt_is_never_taken_for_an_option(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path, prompt: str
) -> None:
    model.otherwise(say("ok"))
    _, follower = await begin(engine, prompt, cwd=git_repo)
    assert (await follower.end()).outcome == "completed"
    assert model.requests[0].last_user_text == prompt


async def test_a_prompt_of_a_megabyte_arrives_whole(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path
) -> None:
    model.otherwise(say("ok"))
    prompt = "word " * 200_000
    _, follower = await begin(engine, prompt, cwd=git_repo)
    assert (await follower.end()).outcome == "completed"
    assert len(model.requests[0].last_user_text.strip()) == len(prompt.strip())


async def test_options_reach_codex(engine: ProcessEngine, model: ScriptedModel, git_repo: Path, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    extra.mkdir()
    odd = "quotes \" ' and \\ and\nnewlines, 😀, \x7f, = and {braces}"
    model.on("go", run(f"echo x > {extra}/made.txt"), say("ok"))
    options = SessionOptions(
        cwd=git_repo,
        writes="workspace",
        writable_roots=(extra,),
        model="gpt-5.4",
        base_instructions="BASE " + "x" * 200_000,
        developer_instructions=odd,
        config={
            "model_reasoning_summary": "detailed",
            "features": {"shell_snapshot": False},
            "tool_output_token_limit": 9,
        },
    )
    opened = await start_turn(engine, options, TurnInput(text="go", effort="low"))
    follower = Follower()
    engine.attach(opened.session_id, follower)
    await follower.end()
    request = model.requests[0]
    assert (request.model, request.effort) == ("gpt-5.4", "low")
    assert "BASE xxx" in request.instructions
    assert odd in request.instructions
    assert request.body["reasoning"]["summary"] == "detailed"
    assert (extra / "made.txt").exists()


async def test_a_value_that_codex_does_not_accept_is_reported(engine: ProcessEngine, git_repo: Path) -> None:
    options = SessionOptions(cwd=git_repo, config={"sandbox_mode": "no-such-mode"})
    with pytest.raises(EngineStartFailed, match="no-such-mode") as caught:
        await start_turn(engine, options, TurnInput(text="go"))
    assert caught.value.details["exit_code"] == 1
    assert "no-such-mode" in caught.value.details["stderr"]


async def test_outside_a_repository_codex_works_only_if_told_to(
    engine: ProcessEngine, model: ScriptedModel, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    with pytest.raises(InvalidInput, match="git repository"):
        await start_turn(engine, SessionOptions(cwd=folder), TurnInput(text="go"))
    model.on("go", say("ok"))
    _, follower = await begin(engine, "go", cwd=folder, skip_git_repo_check=True)
    assert (await follower.end()).outcome == "completed"


# --- trust -----------------------------------------------------------------------------------------------------------


@pytest.mark.matrix(changed_in=["0.120.0", "0.130.0"])
@pytest.mark.parametrize("sandbox", ["read-only", "workspace-write", "danger-full-access"])
async def test_a_repository_is_not_trusted_by_working_in_it(
    engine: ProcessEngine, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path, sandbox: Any
) -> None:
    loaded = repository_with_configuration(git_repo, tmp_path)
    model.otherwise(say("ok"))
    session_id, follower = await begin(engine, "go", cwd=git_repo, writes=WRITES[sandbox])
    await follower.end()
    options = SessionOptions(cwd=git_repo, writes=WRITES[sandbox])
    await follower.end((await engine.run_turn(session_id, options, TurnInput(text="again"))).turn_id)
    assert "projects" not in codex_home.config
    assert not loaded.exists()


@pytest.mark.matrix(changed_in=["0.120.0", "0.130.0"])
async def test_a_repository_is_trusted_on_request_and_not_for_good(
    engine: ProcessEngine, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    loaded = repository_with_configuration(git_repo, tmp_path)
    model.otherwise(say("ok"))
    _, follower = await begin(engine, "go", cwd=git_repo, writes="workspace", trust_repository=True)
    await follower.end()
    assert loaded.exists()
    assert "projects" not in codex_home.config


async def test_a_repository_the_user_trusts_stays_trusted(
    engine: ProcessEngine, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    loaded = repository_with_configuration(git_repo, tmp_path)
    codex_home.configure(projects={str(git_repo): {"trust_level": "trusted"}})
    model.otherwise(say("ok"))
    _, follower = await begin(engine, "go", cwd=git_repo, writes="workspace")
    await follower.end()
    assert loaded.exists()


async def test_instructions_that_are_not_read_are_remarked_on(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path
) -> None:
    (git_repo / "AGENTS.md").write_text("Speak softly.", encoding="utf-8")
    model.otherwise(say("ok"))
    expected: list[tuple[SandboxMode, bool]] = [("read-only", True), ("workspace-write", False)]
    for sandbox, read in expected:
        opened = await start_turn(engine, SessionOptions(cwd=git_repo, writes=WRITES[sandbox]), TurnInput(text="go"))
        follower = Follower()
        engine.attach(opened.session_id, follower)
        await follower.end()
        assert ("Speak softly." in str(model.requests[-1].body)) is read
        assert any("AGENTS.md" in note for note in opened.notes) is not read


def repository_with_configuration(git_repo: Path, tmp_path: Path) -> Path:
    """Add a Codex configuration to the repository. The returned file exists once it has been loaded."""
    loaded = tmp_path / "loaded"
    server = f'command = "/bin/sh"\nargs = ["-c", "touch {loaded}"]'
    (git_repo / ".codex").mkdir()
    (git_repo / ".codex" / "config.toml").write_text(f"[mcp_servers.sneaky]\n{server}\n", encoding="utf-8")
    return loaded


# --- how it ends -----------------------------------------------------------------------------------------------------


@oldest_and_newest
async def test_an_interrupt_stops_the_turn_and_its_command(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("go", run("echo $$ > pid; sleep 600"), always(say("never")))
    model.on("again", say("fine"))
    session_id, follower = await begin(engine, "go", cwd=git_repo, writes="anything")
    pid = int(await read_when_written(git_repo / "pid"))
    with anyio.fail_after(30):
        await engine.interrupt(session_id)
    assert follower.of_type(TurnEnded) == [follower.events[-1]]
    assert (await follower.end()).outcome == "interrupted"
    assert not is_running(pid)
    begun = await engine.run_turn(session_id, SessionOptions(cwd=git_repo), TurnInput(text="again"))
    assert (await follower.end(begun.turn_id)).outcome == "completed"


@oldest_and_newest
async def test_a_failed_turn_says_why(engine: ProcessEngine, model: ScriptedModel, git_repo: Path) -> None:
    model.on("go", fail(429, error_type="usage_limit_reached", resets_at=1894706501))
    _, follower = await begin(engine, "go", cwd=git_repo)
    end = await follower.end()
    assert end.outcome == "failed"
    assert end.failure is not None
    assert (end.failure.code, end.failure.retryable) == ("usage_limit_exceeded", False)


async def test_a_retried_request_is_noticed(
    engine: ProcessEngine, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    codex_home.configure(model_providers={"scripted": {"stream_max_retries": 1}})
    model.on("go", fail(503), say("ok"))
    _, follower = await begin(engine, "go", cwd=git_repo)
    assert (await follower.end()).outcome == "completed"
    (notice,) = follower.of_type(Notice)
    assert isinstance(notice, Notice)
    assert notice.kind == "retry"


async def test_waiting_for_the_network_is_noticed_and_can_be_interrupted(
    engine: ProcessEngine, codex_home: CodexHome, git_repo: Path
) -> None:
    codex_home.configure(model_providers={"scripted": {"base_url": "http://127.0.0.1:9/v1", "stream_max_retries": 5}})
    session_id, follower = await begin(engine, "go", cwd=git_repo)
    await follower.until(lambda event: isinstance(event, Notice) and event.kind == "network")
    await engine.interrupt(session_id)
    assert (await follower.end()).outcome == "interrupted"


async def test_a_killed_process_ends_its_turn_and_not_the_engine(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("go", hang())
    model.on("again", say("fine"))
    session_id, follower = await begin(engine, "go", cwd=git_repo)
    with anyio.fail_after(30):
        await model.wait_for_request()
    process = engine._sessions[session_id].process
    assert process is not None
    await anyio.to_thread.run_sync(process.kill)
    end = await follower.end()
    assert end.outcome == "failed"
    assert end.failure is not None
    assert (end.failure.code, end.failure.retryable) == ("engine_lost", True)
    assert "signal 9" in end.failure.message
    assert follower.of_type(TurnEnded) == [end]
    begun = await engine.run_turn(session_id, SessionOptions(cwd=git_repo), TurnInput(text="again"))
    assert (await follower.end(begun.turn_id)).outcome == "completed"


async def test_closing_the_engine_ends_everything_and_tells_everyone(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("go", run("echo $$ > pid; sleep 600"), always(say("never")))
    async with engine_on(codex_binary, codex_home) as engine:
        _, follower = await begin(engine, "go", cwd=git_repo, writes="anything")
        pid = int(await read_when_written(git_repo / "pid"))
    assert not is_running(pid)
    assert (await follower.end()).outcome == "interrupted"
    assert isinstance(follower.events[-1], EngineGone)


async def test_a_start_that_is_cancelled_leaves_nothing(
    engine: ProcessEngine, model: ScriptedModel, git_repo: Path, codex_home: CodexHome
) -> None:
    model.otherwise(hang())
    for delay in (0.0, 0.02, 0.05, 0.1):  # at whatever point of the start this may be
        with anyio.move_on_after(delay):
            await start_turn(engine, SessionOptions(cwd=git_repo), TurnInput(text="go"))
    with anyio.fail_after(30):
        for session in list(engine._sessions.values()):
            await engine.interrupt(session.id)
            await session.gone.wait()  # an interrupted turn is over before its process has ended
    assert [session.process for session in engine._sessions.values() if session.process is not None] == []


# --- what exec cannot do ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["untrusted", "on-request", "on-failure"])
async def test_a_policy_that_asks_is_refused(engine: ProcessEngine, git_repo: Path, policy: Any) -> None:
    with pytest.raises(Unsupported, match=r"cannot ask before it acts\. Use the engine app-server"):
        await start_turn(engine, SessionOptions(cwd=git_repo, config={"approval_policy": policy}), TurnInput(text="go"))


async def test_a_session_needs_a_directory(engine: ProcessEngine) -> None:
    with pytest.raises(InvalidInput, match="directory"):
        await start_turn(engine, SessionOptions(), TurnInput(text="go"))
