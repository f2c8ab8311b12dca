"""Every turn is a task: what the registry says of turns of a real Codex, and what the next process makes of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from helmsman.base.processes import Process
from helmsman.base.structs import replace
from helmsman.errors import SessionBusy, TaskNotOurs
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.tasks.drafts import draft_task
from helmsman.tasks.model import Task, TaskChanges, TaskDraft
from helmsman.tasks.registry import REGISTRY_NAME
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say, usage
from tests.engines import start_turn
from tests.hub_service import hub_service
from tests.turns import requested

pytestmark = pytest.mark.anyio
needs_detached = pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")

DEAD = Process(1, "long ago")
SECONDS = 60


@pytest.fixture
def detached(settings: Settings, detached_engines: Path) -> Settings:
    return replace(settings, detach=True, state_dir=detached_engines)


def of_dead_process(draft: tuple[str, TaskDraft]) -> TaskDraft:
    return replace(draft[1], owner=DEAD)


async def add(helm: HelmsmanService, draft: TaskDraft, **changes: object) -> Task:
    """A task as a process left it that died."""
    task, _ = await helm.task_writer.registry(lambda registry: registry.add(draft))
    known: TaskChanges = changes  # type: ignore[assignment]
    updated = await helm.task_writer.registry(lambda registry: registry.update(task.id, **known))
    assert updated is not None
    return updated


async def ended(helm: HelmsmanService, task_id: str) -> Task:
    with anyio.fail_after(SECONDS):
        while (task := await helm.tasks.get(task_id)).is_running:
            await helm.tasks.wait(task)
    return task


# --- while we live ---------------------------------------------------------------------------------------------------


async def test_a_turn_is_a_task_before_codex_receives_it_and_until_its_end(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    seen: list[str] = []
    model.on("work", [run("echo one"), usage(100, output_tokens=10)], [say("All done."), usage(200, output_tokens=20)])
    session = await helm.start("work", cwd=folder, on_task=lambda task_id: seen.append(f"{task_id} {model.requests}"))
    (task_id,) = session.task_ids
    assert seen == [f"{task_id} []"]
    await session.wait(until="end", timeout=SECONDS)
    task = await helm.tasks.get(task_id)
    assert (task.status, task.result, task.session_id) == ("completed", "All done.", session.id)
    assert task.usage is not None
    assert (task.usage.input_tokens, task.usage.output_tokens) == (300, 30)
    assert task.owner == Process.me()


async def test_each_turn_counts_its_own_tokens(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    model.on("one", [say("1"), usage(100, output_tokens=10)])
    model.on("two", [say("2"), usage(250, output_tokens=25)])
    session = await helm.start("one", cwd=folder)
    await session.wait(until="end", timeout=SECONDS)
    await session.say("two")
    await session.wait(until="end", timeout=SECONDS)
    spent = [(await helm.tasks.get(task_id)).usage for task_id in session.task_ids]
    assert [used.input_tokens for used in spent if used is not None] == [100, 250]


async def test_work_continues_without_a_registry(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    (settings.state_dir / REGISTRY_NAME).mkdir(parents=True)
    settings.state_dir.chmod(0o700)
    model.on("work", say("All done."))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("work", cwd=folder, idempotency_key="key")
        await session.wait(until="end", timeout=SECONDS)
        assert session.result == "All done."


# --- after somebody died ---------------------------------------------------------------------------------------------


@needs_detached
async def test_a_hub_that_died_before_its_turn_was_known_to_have_begun_leaves_a_task_that_finds_it(
    detached: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", say("All ", gate, "done."))
    options = SessionOptions(cwd=folder, writes="nothing", asks="when_needed")
    async with hub_service(detached, codex_home.env) as helm:
        engine = await helm.engine()
        lost = await add(
            helm,
            draft_task(requested("work", options), policy=None)[1],
            engine=engine.id,
        )
        never_ran = await add(
            helm,
            draft_task(requested("work", options), policy=None)[1],
            engine=engine.id,
        )
        opened = await start_turn(engine, options, TurnInput(text="work"))
        await helm.task_writer.registry(lambda registry: registry.update(lost.id, opened_session=opened.session_id))
        with anyio.fail_after(SECONDS):
            await gate.reached()
    async with hub_service(detached, codex_home.env) as helm:
        session = await helm.session(opened.session_id)  # before anybody has looked at the task
        assert session.status == "active"
        found = await helm.tasks.get(lost.id)
        assert (found.status, found.session_id) == ("working", opened.session_id)
        assert (await helm.tasks.get(never_ran.id)).status == "unknown"
        gate.release()
        done = await ended(helm, lost.id)
        assert (done.status, done.result) == ("completed", "All done.")
        assert (await helm.tasks.get(never_ran.id)).status == "unknown"


@needs_detached
async def test_a_key_whose_hub_died_before_its_turn_was_known_to_have_begun_starts_no_second_one(
    detached: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("work", say("All done."))
    options = SessionOptions(cwd=folder, writes="nothing", asks="when_needed")
    async with hub_service(detached, codex_home.env) as helm:
        engine = await helm.engine()
        dead = await add(
            helm,
            draft_task(requested("work", options), idempotency_key="key", policy=None)[1],
            engine=engine.id,
        )
        opened = await start_turn(engine, options, TurnInput(text="work"))
        await helm.task_writer.registry(lambda registry: registry.update(dead.id, opened_session=opened.session_id))
        with anyio.fail_after(SECONDS):
            await model.wait_for_request()
    async with hub_service(detached, codex_home.env) as helm:
        session = await helm.start("work", cwd=folder, idempotency_key="key")
        assert session.id == opened.session_id
        await session.wait(until="end", timeout=SECONDS)
    assert len(model.requests) == 1


async def test_a_key_whose_process_died_before_it_began_is_free_again(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("work", say("All done."))
    draft = draft_task(requested("work", SessionOptions(cwd=folder)), idempotency_key="key", policy=None)
    dead = await add(helm, of_dead_process(draft))
    session = await helm.start("work", cwd=folder, idempotency_key="key")
    assert dead.id not in session.task_ids
    assert (await helm.tasks.get(dead.id)).status == "unknown"
    await session.wait(until="end", timeout=SECONDS)
    again = await helm.start("work", cwd=folder, idempotency_key="key")
    assert again is session


@pytest.mark.parametrize("status", ["pending", "working"])
async def test_a_turn_that_never_began_is_not_taken_for_the_one_before_it(
    helm: HelmsmanService, model: ScriptedModel, folder: Path, status: str
) -> None:
    model.on("first", say("One."))
    session = await helm.start("first", cwd=folder)
    await session.wait(until="end", timeout=SECONDS)
    await helm.tasks.get(session.task_ids[0])  # by now it is written down
    draft = of_dead_process(draft_task(requested("second", session.options), session_id=session.id, policy=None))
    second = await add(helm, draft, status=status, engine="gone")
    task = await helm.tasks.get(second.id)
    assert (task.status, task.result) == ("unknown", None)


async def test_a_turn_that_began_later_is_not_taken_for_one_that_never_did(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("first", say("One."))
    model.on("third", say("Three."))
    session = await helm.start("first", cwd=folder)
    await session.wait(until="end", timeout=SECONDS)
    draft = of_dead_process(draft_task(requested("second", session.options), session_id=session.id, policy=None))
    second = await add(helm, draft, status="unknown")
    await session.say("third")
    await session.wait(until="end", timeout=SECONDS)
    assert (await helm.tasks.get(second.id)).status == "unknown"
    assert (await helm.tasks.get(session.task_ids[-1])).result == "Three."


async def test_a_turn_that_began_while_later_messages_waited_is_that_of_its_task(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("first", say("One."))
    model.on("second", say("Two."))
    session = await helm.start("first", cwd=git_repo)
    await session.wait(until="end", timeout=SECONDS)
    second = of_dead_process(draft_task(requested("second", session.options), session_id=session.id, policy=None))
    third = of_dead_process(draft_task(requested("third", session.options), session_id=session.id, policy=None))
    spec = requested("third", session.options).packed()
    asked = await add(helm, second)
    waiting = await add(helm, replace(third, spec=spec))
    await helm.task_writer.registry(
        lambda registry: registry.update(asked.id, status="working", asked_at=datetime.now(UTC))
    )
    engine = await helm.engine()
    engine.detach(session.id)  # or the turn would be taken for one that a person has begun in Codex itself
    await engine.run_turn(session.id, session.options, TurnInput(text="second"))
    with anyio.fail_after(SECONDS):
        while (task := await helm.tasks.get(asked.id)).is_running:
            await anyio.sleep(0.05)
    assert (task.status, task.result) == ("completed", "Two.")
    assert (await helm.tasks.get(waiting.id)).status == "pending"


@needs_detached
async def test_a_takeover_counts_all_tokens_of_the_turn(
    detached: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("before", [say("Before."), usage(1000, output_tokens=100)])
    model.on(
        "work",
        [run("echo one"), usage(100, output_tokens=10)],
        [run("echo two"), usage(200, output_tokens=20)],
        [say("All ", gate, "done."), usage(400, output_tokens=40)],
    )
    async with hub_service(detached, codex_home.env) as helm:
        session = await helm.start("before", cwd=folder)
        await session.wait(until="end", timeout=SECONDS)
        await session.say("work")
        with anyio.fail_after(SECONDS):
            await gate.reached()
    async with hub_service(detached, codex_home.env) as helm:
        task = await helm.tasks.get(session.task_ids[-1])
        assert await helm.tasks.local.follow(task) is not None
        gate.release()
        task = await ended(helm, task.id)
    assert (task.status, task.result) == ("completed", "All done.")
    assert task.usage is not None
    assert (task.usage.input_tokens, task.usage.output_tokens) == (700, 70)


async def test_a_session_that_another_process_runs_is_active_here_until_it_ends_there(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", say("All ", gate, "done."))
    async with (
        HelmsmanService(settings, env=codex_home.env) as helm,
        HelmsmanService(settings, env=codex_home.env) as other,
    ):
        session = await helm.start("work", cwd=folder)
        with anyio.fail_after(SECONDS):
            await gate.reached()
        await helm.task_writer.write()
        seen = await other.session(session.id)
        assert (seen.status, seen.task_ids) == ("active", session.task_ids)
        assert seen.state.note is not None
        with pytest.raises(TaskNotOurs):
            await other.interrupt(session.id)
        with pytest.raises(SessionBusy):
            await other.say(session.id, "go on")
        gate.release()
        await session.wait(until="end", timeout=SECONDS)
        await helm.tasks.get(session.task_ids[0])
        again = await other.session(session.id)
        assert again is seen
        assert (seen.status, seen.result) == ("done", "All done.")


@needs_detached
async def test_leaving_a_helmsman_leaves_its_task_working_and_the_next_one_stops_it(
    detached: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    async with hub_service(detached, codex_home.env) as helm:
        session = await helm.start("hang", cwd=folder)
        with anyio.fail_after(SECONDS):
            await model.wait_for_request()
    async with hub_service(detached, codex_home.env) as helm:
        task, said = await helm.tasks.cancel(await helm.tasks.get(session.task_ids[0]), reason="enough")
    assert task.status == "canceled"
    assert "Codex's turn" in said


# --- when something goes wrong with the writing ----------------------------------------------------------------------


async def test_failed_writes_are_repeated_as_soon_as_possible(
    helm: HelmsmanService, settings: Settings, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", say("All ", gate, "done."))
    session = await helm.start("work", cwd=folder)
    await helm.task_writer.write()
    registry, aside = settings.state_dir / REGISTRY_NAME, settings.state_dir / "aside"
    registry.rename(aside)
    registry.mkdir()
    gate.release()
    await session.wait(until="end", timeout=SECONDS)
    await helm.task_writer.write()
    registry.rmdir()
    aside.rename(registry)
    task = await ended(helm, session.task_ids[0])
    assert (task.status, task.result) == ("completed", "All done.")


@needs_detached
async def test_a_task_whose_start_was_broken_off_does_not_stay_pending(
    detached: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("work", say("All done."))
    async with hub_service(detached, codex_home.env) as helm:
        await helm.engine()
        task_id = await helm.tasks.local.run("work", cwd=folder)
        with anyio.fail_after(SECONDS):
            while (await helm.tasks.find(task_id)).engine is None:
                continue
    async with hub_service(detached, codex_home.env) as later:
        task = await ended(later, task_id)
        assert not task.is_running
