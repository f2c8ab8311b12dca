"""Tests of bugs that fuzzing (`make fuzz`) and the soak (`make soak`) have found."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

from helmsman.agents.codex.engine import AppServerEngine
from helmsman.agents.supervisor.records import read_records
from helmsman.base.redaction import redact
from helmsman.base.structs import replace
from helmsman.errors import SessionIdle
from helmsman.model.options import TurnLimits
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, always, hang, run, say
from helmsman.testing.binaries import VersionNumbers
from tests.hub_service import hub_service

SECONDS = 30
DETACHED = pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")


def signal_engine(state_dir: Path, number: signal.Signals) -> None:
    (record,) = read_records(state_dir)
    os.kill(record.child.pid, number)


@DETACHED
@pytest.mark.anyio
async def test_a_session_whose_engine_was_killed_has_failed_for_later_clients_too(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, detached_engines: Path
) -> None:
    """Codex records no end of such a turn, and it was shown as done."""
    model.on("work", say("Hm", hang()))
    detached = replace(settings, detach=True)
    async with hub_service(detached, codex_home.env) as helm:
        session = await helm.start("work", cwd=git_repo)
        signal_engine(detached_engines, signal.SIGKILL)
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.error is not None
        told = (session.status, session.error.code)
    assert told == ("error", "engine_lost")
    async with hub_service(detached, codex_home.env) as later:
        read = await later.session(session.id)
        assert read.error is not None
        assert (read.status, read.error.code) == told


@DETACHED
@pytest.mark.anyio
async def test_an_unobserved_failure_is_still_a_failure(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, detached_engines: Path
) -> None:
    model.on("work", say("Hm", hang()))
    detached = replace(settings, detach=True)
    async with hub_service(detached, codex_home.env) as helm:
        session = await helm.start("work", cwd=git_repo)
    signal_engine(detached_engines, signal.SIGKILL)
    with anyio.fail_after(SECONDS):
        while read_records(detached_engines):
            await anyio.sleep(0.02)
    async with hub_service(detached, codex_home.env) as later:
        read = await later.session(session.id)
        assert read.error is not None
        assert (read.status, read.error.code) == ("error", "engine_lost")


@pytest.mark.anyio
async def test_later_clients_learn_that_a_turn_timed_out(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    """Codex records only that it was interrupted."""
    model.on("hang", hang())
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("hang", cwd=git_repo, limits=TurnLimits(first_event=0.2))
        assert await session.wait(until="end", timeout=SECONDS)
    async with HelmsmanService(settings, env=codex_home.env) as later:
        read = await later.session(session.id)
        assert read.error is not None
        assert (read.status, read.error.code, read.error.retryable) == ("error", "turn_timed_out", True)


@pytest.mark.anyio
async def test_messages_that_were_queued_behind_a_turn_that_timed_out_hide_nothing(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("hang", hang())
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("hang", cwd=git_repo, limits=TurnLimits(first_event=2))
        await helm.say(session.id, "never", when_busy="queue")
        assert await session.wait(until="end", timeout=SECONDS)
        assert [(await helm.tasks.get(task)).status for task in session.task_ids] == ["failed", "canceled"]
    async with HelmsmanService(settings, env=codex_home.env) as later:
        read = await later.session(session.id)
        assert read.error is not None
        assert (read.status, read.error.code) == ("error", "turn_timed_out")


@pytest.mark.anyio
async def test_a_message_for_a_turn_that_has_just_ended_says_that_none_is_running(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    """Codex had ended the turn, and the news of it had not come yet."""
    model.on("work", say("Done."))
    session = await helm.start("work", cwd=git_repo)
    assert await session.wait(until="end", timeout=SECONDS)
    engine = await helm.engine()
    assert isinstance(engine, AppServerEngine)
    with pytest.raises(SessionIdle):
        await engine.api.steer_turn(session.id, str(session.state.turn_id), "more")


@DETACHED
@pytest.mark.anyio
@pytest.mark.parametrize("victim", ["engine", "supervisor"])
async def test_a_session_started_while_its_engine_ends_runs_in_another(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    detached_engines: Path,
    codex_version: VersionNumbers,
    victim: str,
) -> None:
    """Codex that was told to end, or has lost its supervisor, refuses work while a turn runs in it: starts failed."""
    if codex_version < (0, 155, 0):
        pytest.skip("This Codex does not refuse work while it ends.")
    model.on("work", run("touch made.txt", escalate="please"), say("Made."))
    model.otherwise(always(say("Done.")))
    async with hub_service(replace(settings, detach=True), codex_home.env) as helm:
        asking = await helm.start("work", cwd=git_repo, sandbox="workspace-write", approval_policy="on-request")
        assert await asking.wait(until="attention", timeout=SECONDS)
        (question,) = asking.questions  # it holds up the end
        ending, (record,) = asking.engine, read_records(detached_engines)
        if victim == "engine":
            os.kill(record.child.pid, signal.SIGTERM)
        else:
            os.kill(record.supervisor.pid, signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            while (session := await helm.start("more", cwd=git_repo)).engine is ending:
                assert await session.wait(until="end")
        assert await session.wait(until="end", timeout=SECONDS)
        assert (session.status, session.result) == ("done", "Done.")
        if victim == "supervisor":  # without it, the engine ends with what runs in it
            assert await asking.wait(until="end", timeout=SECONDS)
            assert asking.status == "error"
            return
        await asking.respond(question.id, "deny")  # the other one's work continues there
        assert await asking.wait(until="end", timeout=SECONDS)
        # Codex may hang up before it has reported the end: its own record counts.
        assert (asking.status, asking.result) == ("done", "Made."), asking.error
        assert (await helm.tasks.get(asking.task_ids[-1])).status == "completed"


@pytest.mark.parametrize(
    "text",
    [
        'Set-Cookie: session="S3CRET"; Path=/',
        'Authorization: Digest username="joe", response="S3CRET"',
        '{"header": "Cookie: session=\\"S3CRET\\"; a=b"}',
        "x-auth-token: Bearer 1234S3CRET5678",
        'token: password: "S3CRET"',
    ],
)
def test_a_secret_in_quotes_or_behind_two_names_is_redacted(text: str) -> None:
    assert "S3CRET" not in redact(text)


def test_text_beside_a_redacted_header_stays() -> None:
    shown = redact('{"authorization":"Basic abc=","user":"joe"} curl -H \'Authorization: Basic abc==\' -d "data"')
    assert '"user":"joe"' in shown
    assert '-d "data"' in shown
    assert "abc" not in shown
