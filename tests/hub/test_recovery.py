"""A hub that begins finds what went on in supervisors, and holds it to what it was begun under, though nobody asks."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from helmsman import load_settings
from helmsman.agents.supervisor.directory import is_needed
from helmsman.agents.supervisor.records import read_records
from helmsman.base.processes import Process
from helmsman.base.structs import pack, replace, unpack, unpack_if_valid
from helmsman.hub.control import ask_hub
from helmsman.hub.launch import HubConnector
from helmsman.model.options import SessionOptions, TurnLimits
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.steering import recovery
from helmsman.steering.recovery import Recovery, WaitingTasks
from helmsman.steering.shared import Shared
from helmsman.steering.turn_policy import TurnPolicy
from helmsman.steering.turn_recovery import WAITING
from helmsman.store.database import Fence, microseconds
from helmsman.tasks.drafts import draft_task
from helmsman.tasks.model import Task
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import CodexHome, Gate, ScriptedModel, hang, run, say, usage
from helmsman.testing.hubs import hub_pid
from mcp import Client
from tests.clients.server_process import SECONDS
from tests.hub.conftest import Place
from tests.hub_service import hub_service
from tests.mcp.caller import error_of
from tests.turns import requested

KILLABLE = Path(__file__).parents[1] / "live" / "killable_helmsman.py"

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


async def ended(place: Place, session_id: str) -> Task:
    """The only task of a session, once it has ended, as whoever only reads the store sees it."""
    with closing(Registry(place.state_dir / REGISTRY_NAME)) as registry, anyio.fail_after(SECONDS):
        while True:
            (task,) = await anyio.to_thread.run_sync(registry.tasks_of_session, session_id)
            if task.has_ended:
                return task
            await anyio.sleep(0.05)


async def test_a_question_whose_hub_and_client_are_gone_is_refused_in_time(place: Place, model: ScriptedModel) -> None:
    model.on("work", run("touch made.txt"), say("it was refused"))
    hasty = replace(place, env={**place.env, "APPROVAL_TIMEOUT_MS": "3000"})
    async with Client(hasty.on_stdio()) as client:
        started = await client.call_tool("codex_start", {"prompt": "work", "approvalPolicy": "untrusted"})
        session_id = started.structured_content["sessionId"]
        asked = await client.call_tool("codex_wait", {"sessionId": session_id})
        assert asked.structured_content["status"] == "awaiting_approval"
    await place.kill_hub()
    connection = await anyio.to_thread.run_sync(HubConnector(str(place.state_dir)).connection)
    connection.close()
    task = await ended(place, session_id)
    assert (task.status, task.result) == ("completed", "it was refused")
    assert task.timed_out
    assert not (place.directory / "made.txt").exists()


async def test_the_hub_stays_for_what_runs_and_ends_when_nothing_does(place: Place, model: ScriptedModel) -> None:
    gate = Gate()
    model.on("work", say(gate, "at last"))
    brief = replace(place, env={**place.env, "HELMSMAN_HUB_IDLE_MS": "100"})
    async with Client(brief.on_stdio()) as client:
        started = await client.call_tool("codex_start", {"prompt": "work"})
    await model.wait_for_request(1)
    assert ask_hub(place.state_dir, "status") is not None
    gate.release()
    await ended(place, started.structured_content["sessionId"])
    with anyio.fail_after(SECONDS):
        while hub_pid(place.state_dir) is not None:
            await anyio.sleep(0.02)


async def test_a_turn_that_another_process_runs_is_left_to_it(
    place: Place, settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    gate = Gate()
    model.on("ours", say(gate, "done"))
    model.on("orphan", say(gate, "done"))
    ours = replace(settings, state_dir=place.state_dir)
    async with HelmsmanService(ours, env=codex_home.env) as helm:
        session = await helm.start("ours", cwd=folder)
        async with Client(place.on_stdio()) as client:
            orphan = await client.call_tool("codex_start", {"prompt": "orphan"})
            await gate.reached(2)
            await helm.task_writer.write()
            await place.kill_hub()
            with anyio.fail_after(SECONDS):
                while not (ask_hub(place.state_dir, "status") or {}).get("sessionsAtWork"):
                    await anyio.sleep(0.02)
            with closing(Registry(place.state_dir / REGISTRY_NAME)) as registry:
                (followed,) = registry.tasks_of_session(session.id)
            assert followed.owner == Process.me()
            gate.release()
            await ended(place, orphan.structured_content["sessionId"])
        with anyio.fail_after(SECONDS):
            await session.wait(until="end")


async def test_a_turn_of_another_process_is_read_only_and_closed_when_that_is_killed(
    place: Place, codex_binary: Path, model: ScriptedModel
) -> None:
    model.on("job", say("begun", hang()))
    order = {
        "job": 1,
        "settings": {"codex_path": str(codex_binary), "detach": False},
        "cwd": str(place.directory),
        "prompts": ["job"],
    }
    async with (
        await anyio.open_process([sys.executable, str(KILLABLE)], env=place.env, stderr=None) as killable,
        Client(place.on_stdio()) as client,
    ):
        assert killable.stdin is not None
        assert killable.stdout is not None
        lines = BufferedByteReceiveStream(killable.stdout)
        await killable.stdin.send(json.dumps(order).encode() + b"\n")
        with anyio.fail_after(SECONDS):
            pid = json.loads(await lines.receive_until(b"\n", 65536))["pid"]
            while json.loads(await lines.receive_until(b"\n", 65536))["stage"] != "TurnStarted":
                pass
        with closing(Registry(place.state_dir / REGISTRY_NAME)) as registry, anyio.fail_after(SECONDS):
            while (session_id := registry.list()[0][0].session_id) is None:
                await anyio.sleep(0.02)
        shown = await client.call_tool("codex_status", {"sessionId": session_id})
        assert shown.structured_content["status"] == "active"
        assert f"Process {pid} runs this turn" in shown.structured_content["note"]
        for tool, more in (("codex_interrupt", {}), ("codex_say", {"message": "faster", "whenBusy": "steer"})):
            refused = await client.call_tool(tool, {"sessionId": session_id, **more})
            assert error_of(refused)["code"] == "task_not_ours", refused
        os.kill(pid, signal.SIGKILL)
        task = await ended(place, session_id)
        killable.kill()
    assert task.status in ("failed", "canceled")


async def test_a_hub_that_finds_a_running_turn_keeps_its_policy(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, detached_engines: Path
) -> None:
    gate = model.gate()
    model.on("work", run("touch made.txt"), say("done"))
    model.on("think", say(gate, "<proposed_plan>\n1. Make a file.\n</proposed_plan>\n"))
    ours = replace(settings, detach=True, state_dir=detached_engines)
    begun_with = replace(ours, approval_timeout=77.0, allowed_roots=(folder.resolve(),), inactivity_timeout=88.0)
    async with hub_service(begun_with, codex_home.env) as helm:
        session = await helm.start("work", cwd=folder, approval_policy="untrusted", sandbox="workspace-write")
        plan = await helm.extras.plans.start("think", cwd=folder, sandbox="workspace-write")
        with anyio.fail_after(SECONDS):
            await session.wait()
            await gate.reached()
        await helm.task_writer.write()
    begun = datetime.now(UTC) - timedelta(seconds=10)
    (question,) = session.questions
    with closing(sqlite3.connect(detached_engines / REGISTRY_NAME)) as registry, registry:
        of_session = "session = (SELECT number FROM sessions WHERE id = ?) AND kind = 'question_asked'"
        changed = (microseconds(begun), session.id)
        registry.execute(f"UPDATE events SET at = ? WHERE {of_session}", changed)
    async with hub_service(ours, codex_home.env) as helm:
        found = await helm.session(session.id)
        assert isinstance(found.verbs, HelmsmanService)
        assert found.verbs.settings.approval_timeout == 77.0
        assert found.verbs.allowed_roots == begun_with.session_roots
        assert found.state.limits == TurnLimits(inactivity=88.0, on_limit="ask")
        (question,) = found.questions
        assert found.deadlines[question.id].seconds <= 67, "it goes on from when it was asked"
        assert found.state.asked_at[question.id] == begun
        await helm.respond(found.id, question.id, ["deny"])
        planned = await helm.session(plan.id)
        gate.release()
        with anyio.fail_after(SECONDS):
            await found.wait(until="end")
            await planned.wait()
        (question,) = planned.questions
        assert question.prompts[0].key == "plan", "it only plans, whoever follows it"
        await helm.interrupt(planned.id)


async def test_a_task_unclaimed_for_a_week_is_given_up_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a hub that could not read its store when it began."""
    monkeypatch.setattr(recovery, "_RETRY_SECONDS", 0.02)
    options, limits = SessionOptions(cwd=tmp_path), TurnLimits()
    policy = pack(TurnPolicy(3.0, (), limits, environment_fingerprint="of somebody who is away"))
    path, long_ago = tmp_path / "state" / REGISTRY_NAME, datetime.now(UTC) - timedelta(days=8)
    with closing(Registry(path, clock=lambda: long_ago)) as registry:
        _, old = draft_task(requested("old", options), policy=policy)
        old_one, _ = registry.add(replace(old, spec=requested("old", options).packed()))
    with closing(Registry(path)) as registry:
        _, new = draft_task(requested("new", options), policy=policy)
        new = replace(new, spec=requested("new", options).packed())
        new_one, _ = registry.add(new)
    path.rename(tmp_path / "aside")
    path.mkdir()
    async with Shared(path.parent, fence=Fence(1, lambda _: None)) as shared:
        shared.tasks.start_soon(Recovery(shared, WaitingTasks(shared, HelmsmanService)).run)
        with anyio.fail_after(SECONDS):
            while "cannot be looked at yet" not in caplog.text:
                await anyio.sleep(0.02)
        path.rmdir()
        (tmp_path / "aside").rename(path)
        with closing(Registry(path)) as registry:
            with anyio.fail_after(SECONDS):
                while (given_up := registry.get(old_one.id)) is None or given_up.is_running:
                    await anyio.sleep(0.02)
                while (waits := registry.get(new_one.id)) is None or waits.note is None:
                    await anyio.sleep(0.02)
    assert given_up.status == "canceled"
    assert "no client came in 7 days" in (given_up.note or "")
    assert (waits.status, waits.note) == ("pending", WAITING)


def test_terms_are_read_as_they_were_written() -> None:
    policy = TurnPolicy(3.5, (Path("/work"),), TurnLimits(first_event=2.0), Path("/home/me/.codex"), "a fingerprint", 7)
    assert unpack(json.loads(json.dumps(pack(policy))), TurnPolicy) == policy
    for nonsense in (None, {}, {"limits": 3}, {**pack(policy), "allowedRoots": None}):
        assert unpack_if_valid(nonsense, TurnPolicy) is None


def test_a_turn_continues_with_the_agents_it_was_begun_with(tmp_path: Path) -> None:
    begun = load_settings({"codex_path": "/its/codex", "claude_path": "/its/claude"}, {"HOME": "/its"}, tmp_path)
    ours = load_settings({"codex_path": "/our/codex"}, {"HOME": "/our"}, tmp_path)
    held = TurnPolicy.of(begun, TurnLimits(), "").settings(ours)
    for name in ("codex_home", "codex_path", "claude_home", "claude_path"):
        assert getattr(held, name) == getattr(begun, name) != getattr(ours, name)
    of_an_earlier_version = TurnPolicy(3.5, (), TurnLimits()).settings(ours)
    assert (of_an_earlier_version.codex_home, of_an_earlier_version.codex_path) == (ours.codex_home, ours.codex_path)


async def test_the_cost_limit_of_a_task_holds_without_hub_and_client(place: Place, model: ScriptedModel) -> None:
    """Its supervisor starts the next hub, which stops it."""
    gate = model.gate()
    model.on("spend", [gate, run("true"), usage(2_000_000)], hang())
    async with Client(place.on_stdio("--tools", "router", "--expose-primitives")) as client:
        work = {"task": "spend", "max_cost_usd": 0.5, "working_dir": str(place.directory)}
        await client.call_tool("_codex_local_run", work)
        await gate.reached()
        with closing(Registry(place.state_dir / REGISTRY_NAME)) as registry, anyio.fail_after(SECONDS):
            while (session_id := registry.list()[0][0].session_id) is None:
                await anyio.sleep(0.02)
    await place.kill_hub()
    gate.release()
    task = await ended(place, session_id)
    assert task.status == "canceled"
    assert task.note is not None
    assert task.note.startswith("It was stopped: it has cost")


@pytest.mark.parametrize("spent", ["before the next hub", "under the next hub"])
async def test_a_hub_that_finds_a_running_turn_keeps_its_cost_limit(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, detached_engines: Path, spent: str
) -> None:
    gate, spends = model.gate(), model.gate()
    model.on("spend", [gate, run("true"), usage(2_000_000)], [spends, hang()])
    ours = replace(settings, detach=True, state_dir=detached_engines)
    async with hub_service(ours, codex_home.env) as helm:
        session = await helm.start("spend", cwd=folder, max_cost_usd=0.5)
        with anyio.fail_after(SECONDS):
            await gate.reached()
    if spent == "before the next hub":
        gate.release()
        with anyio.fail_after(SECONDS):
            await spends.reached()
    spends.release()
    async with hub_service(ours, codex_home.env) as helm:
        found = await helm.session(session.id)
        gate.release()
        assert await found.wait(until="end", timeout=SECONDS)
        (task,) = (await helm.tasks.of_sessions([found.id]))[found.id]
    assert task.status == "canceled"
    assert (task.note or "").startswith("It was stopped: it has cost")


async def test_a_stopped_hub_is_not_restarted(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("work", say(gate, "done"))
    async with Client(place.on_stdio()) as client:
        await client.call_tool("codex_start", {"prompt": "work"})
        await gate.reached()
    (record,) = read_records(place.state_dir)
    assert is_needed(record.directory)
    ask_hub(place.state_dir, "stop")
    with anyio.fail_after(SECONDS):
        while hub_pid(place.state_dir) is not None:
            await anyio.sleep(0.02)
    assert not is_needed(record.directory)
    gate.release()
