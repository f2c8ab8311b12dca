"""A fleet through the front ends of a machine that runs no work: library, command line and MCP, each by its own hub."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from helmsman import Helmsman
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, SessionIdle
from helmsman.fleet.owned_task import OwnedTask
from helmsman.fleet.queue import hand_over_tasks
from helmsman.mcp.server import offered_tools
from helmsman.model.events import QuestionAsked, TurnRequested
from helmsman.model.options import Placement, TurnLimits
from helmsman.model.questions import Question
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import load_settings
from helmsman.store.log import NewEvent
from helmsman.testing import ScriptedModel, hang, run, say
from tests import warm
from tests.fleet.conftest import Fleet
from tests.fleet.test_orders import QUESTION

pytestmark = pytest.mark.anyio
SECONDS = 60
ASKING: Any = {"sandbox": "workspace-write", "approval_policy": "untrusted"}
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    + "1f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)
FULL: Any = {"sandbox": "danger-full-access", "approval_policy": "never"}


def client_env(fleet: Fleet, name: str = "laptop") -> dict[str, str]:
    """Return the environment of a machine with its own home and state directory, and the address of the fleet."""
    home = fleet.templates.new_home(fleet.binary, fleet.folder / name)
    return {**home.env, "HELMSMAN_FLEET_URL": fleet.url, "HELMSMAN_DETACH": "1", "HELMSMAN_HUB_IDLE_MS": "0"}


async def helmsman(env: dict[str, str], *arguments: str, codes: tuple[int, ...] = (0,), cwd: Path | None = None) -> str:
    def call() -> str:
        done = subprocess.run(
            warm.command(*arguments), env=env, cwd=cwd, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout

    return await anyio.to_thread.run_sync(call)


async def test_a_session_of_a_fleet_is_begun_answered_gone_on_with_and_looked_at_from_any_machine(
    fleet: Fleet, model: ScriptedModel
) -> None:
    await fleet.worker("one", "--label", "big")
    model.on("work", run("touch made"), say("done"))
    model.on("and placed", say("there"))
    model.on("and then", say("more"))
    env = client_env(fleet)
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        session = await helm.start("work", cwd=fleet.directory, placement=Placement(priority=5), **ASKING)
        with anyio.fail_after(SECONDS):
            assert await session.wait(until="attention")
        assert session.status == "awaiting_approval", fleet.logs()

        other = client_env(fleet, "desktop")
        asked = json.loads(await helmsman(other, "respond", "--json", codes=(5,)))["sessions"]
        assert [one["sessionId"] for one in asked] == [session.id]
        await helmsman(other, "respond", session.id, asked[0]["questions"][0]["id"], "approve")
        with anyio.fail_after(SECONDS):
            assert await session.wait(until="end")
        assert (session.status, session.result) == ("done", "done"), fleet.logs()
        assert [file.path for file in (await helm.extras.changes.diff(session.id)).diff.files] == ["made"]

        again = await helm.say(session.id, "and then")
        with anyio.fail_after(SECONDS):
            assert await again.wait(until="end")
        assert again.result == "more"

        listed = json.loads(await helmsman(other, "tasks", "list", "--json"))["tasks"]
        assert [(one["mode"], one["status"]) for one in listed] == [("fleet", "completed")] * 2
        sessions = json.loads(await helmsman(other, "list", "--json"))["sessions"]
        assert [(one["sessionId"], one["status"], one["directory"]) for one in sessions] == [
            (session.id, "done", str(fleet.directory))
        ]
        placed = (
            "--machine",
            "one",
            "--label",
            "big",
            "--priority",
            "3",
            "--deadline",
            "600",
            "--on-machine-loss",
            "fail",
        )
        assert await helmsman(other, "run", "and placed", *placed, "-C", str(fleet.directory)) == "there\n"
        facts = (await helm.tasks.list(origin="fleet"))[0][0].placement
        assert (facts["host"], facts["labels"], facts["priority"], "deadline" in facts) == ("one", ["big"], 3, True)
        refused = await helmsman(
            other, "start", "x", "--machine", "two", "-C", str(fleet.directory), "--json", codes=(1,)
        )
        assert "Those there are: one" in json.loads(refused)["error"]["message"]

        status = json.loads(await helmsman(other, "fleet", "status", "--json"))
        assert [(one["name"], one["isAlive"]) for one in status["machines"]] == [("one", True)]
        assert (await helm.extras.fleet() or {})["machines"][0]["name"] == "one"
        await helmsman(other, "fleet", "doctor")
        report = await helm.extras.usage.report(group_by="session")
        assert report.total.turns == 3
        turns = await helm.history(session.id)
        assert [len(turn.items) > 0 for turn in turns] == [True, True]


async def test_where_and_when_is_said_only_where_there_is_a_fleet(tmp_path: Path) -> None:
    def start_takes(url: str | None) -> set[str]:
        settings = load_settings({"fleet_url": url, "tools": ("sessions",)}, {}, tmp_path)
        tool = next(tool for tool in offered_tools(HelmsmanService(settings, env={}))[0] if tool.name == "codex_start")
        return set(tool.listed().input_schema["properties"])

    more = start_takes("postgresql://me@db.example/fleet") - start_takes(None)
    assert more == {"machine", "labels", "priority", "delaySec", "deadlineSec", "onMachineLoss", "inPlace"}
    env = {"HELMSMAN_STATE_DIR": str(tmp_path / "state"), "HELMSMAN_DETACH": "0"}
    async with HelmsmanService(load_settings({}, env, tmp_path), env=env) as helm:
        with pytest.raises(InvalidInput, match="are for a fleet"):
            await helm.start("x", cwd=tmp_path, placement=Placement(machine="one"))


def test_no_program_without_a_fleet_imports_its_modules() -> None:
    front_ends = ("service", "cli.app", "cli.hub_process", "cli.rendering", "httpd.programs", "mcp.server", "web.api")
    look = f"import sys, {', '.join(f'helmsman.{one}' for one in front_ends)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=SECONDS, check=True)
    fleets = ("helmsman.fleet", "psycopg")
    assert [one for one in done.stdout.split() if one.startswith(fleets)] == []


@pytest.mark.rare
def test_the_demo_ends_with_all_tasks_done_and_none_twice(codex_binary: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.demo_fleet", "--tasks", "8", "--codex", str(codex_binary)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 of 8 done" in done.stdout


@pytest.mark.rare
async def test_running_tasks_are_stopped_and_waiting_ones_never_start(fleet: Fleet, model: ScriptedModel) -> None:
    await fleet.worker("one")
    model.on("work", run("sleep 60"), say("never"))
    env = client_env(fleet)
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        session = await helm.start("work", cwd=fleet.directory, **FULL)
        for _ in range(3):
            assert await helm.say(session.id, "never", when_busy="queue") is session
        await fleet.until(await fleet.client.get(session.task_ids[0]), "working")
        await helm.interrupt(session.id)
        assert session.status == "interrupted"
        tasks, _ = await helm.tasks.list(origin="fleet")
        assert [task.status for task in tasks] == ["canceled"] * 4
        results = await helm.tasks.results(tasks[0])
        assert results.task.id == tasks[0].id


@pytest.mark.rare
async def test_a_turn_of_a_fleet_that_is_silent_for_too_long_is_stopped_and_the_next_one_too(
    fleet: Fleet, model: ScriptedModel
) -> None:
    await fleet.worker("one")
    model.on("work", hang())
    env = client_env(fleet)
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        session = await helm.start("work", cwd=fleet.directory, limits=TurnLimits(1.5, 1.5), **FULL)
        for more in (False, True):
            with anyio.fail_after(SECONDS):
                assert await session.wait(until="end")
            assert (session.status, session.error and session.error.code) == ("error", "turn_timed_out"), fleet.logs()
            if not more:
                await helm.say(session.id, "work")


@pytest.mark.rare
async def test_images_travel_and_a_message_goes_into_the_turn_of_another_machine(
    fleet: Fleet, model: ScriptedModel, tmp_path: Path
) -> None:
    await fleet.worker("one")
    model.on("look at this", run("sleep 3"), say("seen"))
    picture, large = tmp_path / "one.png", tmp_path / "large.png"
    picture.write_bytes(PNG)
    large.write_bytes(PNG + bytes(8 * 1024 * 1024))
    env = client_env(fleet)
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        with pytest.raises(InvalidInput, match=r"large.png .* larger than 8 MiB"):
            await helm.start("x", images=[large], cwd=fleet.directory)
        session = await helm.start("look at this", images=[picture], cwd=fleet.directory, **FULL)
        await model.wait_for_request()
        await helm.steer(session.id, "and hurry")
        with anyio.fail_after(SECONDS):
            assert await session.wait(until="end")
        assert (session.status, session.result) == ("done", "seen"), fleet.logs()
        with pytest.raises(SessionIdle):
            await helm.steer(session.id, "too late")
        assert len(session.task_ids) == 1
    first, last = model.requests[0], model.requests[-1]
    assert "data:image/png" in json.dumps(first.body)
    assert "and hurry" in json.dumps(last.body)
    state = Path(fleet.workers["one"].home.env["HELMSMAN_STATE_DIR"])
    assert [*state.rglob("*.png")] == []


async def asked(session: Session) -> Question:
    """Return the question whether to carry a plan out."""
    with anyio.fail_after(SECONDS):
        assert await session.wait(until="attention")
    [question] = session.questions
    assert (question.prompts[0].options, question.details["verified"]) == (("approve", "revise", "stop"), True)
    return question


async def test_a_plan_is_approved_from_any_machine_before_the_fleet_carries_it_out(
    fleet: Fleet, model: ScriptedModel
) -> None:
    """The machine is killed while the plan waits for the approval. Started again, it plans again and asks again."""
    await fleet.worker("one")
    planned = run("touch made"), say("I have looked.\n<proposed_plan>\n# Plan\n1. Make a file.\n</proposed_plan>\n")
    model.on("Make a file", *planned, *planned)
    model.on("The plan is approved", run("touch made"), say("made it"))
    env = client_env(fleet)
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        writes: Any = {"sandbox": "workspace-write", "approval_policy": "never"}
        session = await helm.extras.plans.start("Make a file", cwd=fleet.directory, **writes)
        first = await asked(session)
        fleet.workers["one"].kill()
        await fleet.workers["one"].ended()
        await fleet.worker("one")
        with anyio.fail_after(SECONDS):
            while first.id in session.state.questions:
                await session.feed.changed()
        question = await asked(session)
        assert (await helm.extras.changes.diff(session.id)).diff.files == ()
        await helmsman(client_env(fleet, "desktop"), "respond", session.id, question.id, "approve")
        with anyio.fail_after(SECONDS):
            assert await session.wait(until="end")
        assert (session.status, session.result) == ("done", "made it"), fleet.logs()
        assert [file.path for file in (await helm.extras.changes.diff(session.id)).diff.files] == ["made"]
        [task] = (await helm.tasks.list(origin="fleet"))[0]
        assert (task.status, task.result) == ("completed", "made it")
        assert task.usage is not None
        assert task.usage.output_tokens > 10, "of the plan and the work: a request has 10"


async def test_a_question_of_an_attempt_that_had_no_turn_yet_ends_with_that_attempt(fleet: Fleet) -> None:
    """Its machine asked whether to continue, and was lost as well."""
    env = client_env(fleet)
    offers = [await fleet.idle_worker(name) for name in ("one", "two")]
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        session = await helm.start("work", cwd=fleet.directory)
        for number, offer in enumerate(offers):
            [owned], _ = await OwnedTask.claim(fleet.client.database, offer, 1)
            question = replace(QUESTION, id=f"q{number}", session_id=session.id)
            await owned.ask(question, 60)
            begun = TurnRequested(session_id=session.id, text="work", task_id=owned.id)
            asked = QuestionAsked(session_id=session.id, question=question)
            await owned.add_events([NewEvent.of(begun), NewEvent.of(asked)])
            with anyio.fail_after(SECONDS):
                while question.id not in session.state.questions:
                    await session.feed.changed()
            assert list(session.state.questions) == [question.id]
            await hand_over_tasks(fleet.client.database, offer.worker)
        await fleet.client.cancel(session.task_ids[0])
