"""Work that changes machines: turns that asked, or had ended, when theirs was lost; newer machines beside older ones.

As in `test_faults`, a journal outside of the database says what ran, and how often.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

import helmsman
from helmsman import Helmsman
from helmsman.base.structs import pack
from helmsman.errors import FleetNotReady, QuestionNotOpen, WorkspaceIncomplete
from helmsman.fleet import schema
from helmsman.fleet.client import FleetClient
from helmsman.fleet.values import AskedInFleet
from helmsman.fleet.workspaces import WORKSPACE
from helmsman.git.bundles import MB, Limits, packing
from helmsman.model.answered_by import PERSON_AT_TERMINAL
from helmsman.model.options import Placement
from helmsman.settings import load_settings
from helmsman.testing import ScriptedModel, run, say
from helmsman.testing.binaries import codex_versions
from tests.fleet.conftest import Fleet
from tests.fleet.test_clients import ASKING, client_env
from tests.fleet.test_faults import FULL, SECONDS, Journal, journal

pytestmark = [pytest.mark.anyio, pytest.mark.rare, pytest.mark.timeout(400)]

__all__ = ["journal"]


async def asked_of(fleet: Fleet, *, but: AskedInFleet | None = None) -> AskedInFleet:
    """What the fleet asks, once it asks something else than before."""
    with anyio.fail_after(SECONDS):
        while True:
            asked = await fleet.client.questions()
            if asked and (but is None or asked[0].asked_at != but.asked_at):
                return asked[0]
            await anyio.sleep(0.05)


async def test_a_question_dies_with_its_machine_in_every_client_and_is_asked_and_answered_once_by_the_next(
    fleet: Fleet, model: ScriptedModel, journal: Journal
) -> None:
    model.on("work", run(journal.command("a", 0.2)), say("never"))
    model.on("lost in the middle", run(journal.command("a", 0.2)), say("done"))
    one = await fleet.worker("one", "--capacity", "1")
    roots = [str(journal.path.parent)]
    clients = [client_env(fleet, name) for name in ("laptop", "desktop")]
    async with (
        Helmsman(load_settings({}, clients[0], fleet.directory), env=clients[0]) as here,
        Helmsman(load_settings({}, clients[1], fleet.directory), env=clients[1]) as there,
    ):
        session = await here.start(
            "work", cwd=fleet.directory, writable_roots=roots, placement=Placement(on_machine_loss="continue"), **ASKING
        )
        copies = session, await there.session(session.id)
        first = await asked_of(fleet)
        for copy in copies:
            with anyio.fail_after(SECONDS):
                assert await copy.wait(until="attention")
            assert [question.id for question in copy.questions] == [first.question.id]
        one.kill()
        with anyio.fail_after(SECONDS):
            while await fleet.client.questions():
                await anyio.sleep(0.05)
                if "two" not in fleet.workers:
                    await fleet.worker("two", "--capacity", "1")
        second = await asked_of(fleet, but=first)
        assert second.machine == "two"
        assert second.question.id != first.question.id
        for copy in copies:
            with anyio.fail_after(SECONDS):
                while [question.id for question in copy.questions] != [second.question.id]:
                    await copy.feed.changed()
            with pytest.raises(QuestionNotOpen):
                await (here if copy is session else there).respond(session.id, first.question.id, ["approve"])
        assert journal.runs("a") == {}

        given: list[str] = []

        async def answer(helm: Helmsman) -> None:
            try:
                await helm.respond(session.id, second.question.id, ["approve"], by=PERSON_AT_TERMINAL)
                given.append("taken")
            except QuestionNotOpen:
                given.append("late")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, here)
            tasks.start_soon(answer, there)
        assert sorted(given) == ["late", "taken"]
        for copy in copies:
            with anyio.fail_after(SECONDS):
                assert await copy.wait(until="end")
            assert (copy.status, copy.result, list(copy.questions)) == ("done", "done", []), fleet.logs()
    assert len(journal.runs("a")) == 1


async def test_a_turn_that_had_ended_when_its_machine_was_lost_is_reported_and_not_done_again(
    fleet: Fleet, model: ScriptedModel, journal: Journal
) -> None:
    """All of its transcript is stored, and its result is not: that waits for a lock, in which its machine is killed."""
    model.on("work", run(journal.command("a", 0.2)), say("done"))
    one = await fleet.worker("one", "--capacity", "1")
    waiting = (
        "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        " and position('with ended as' in query) > 0"
    )
    async with await psycopg.AsyncConnection.connect(fleet.url) as blocking:
        await blocking.execute("lock table helmsman_store.outcomes in access exclusive mode")
        task = await fleet.start("work", options=FULL, spec_more={"onMachineLoss": "fail"})
        with anyio.fail_after(SECONDS):
            while not (stuck := await fleet.client.database.all(waiting)):
                await anyio.sleep(0.05)
        one.kill()
        for row in stuck:
            await blocking.execute("select pg_terminate_backend(%s)", (row["pid"],))
    asked = len(model.requests)
    await fleet.worker("two", "--capacity", "1")
    ended = await fleet.ended(task)
    assert (ended.status, ended.result) == ("completed", "done"), f"{ended} {fleet.logs()}"
    assert ended.placement["machine"] == "two"
    assert ended.usage is not None
    assert (len(model.requests), len(journal.runs("a"))) == (asked, 1)


# --- versions --------------------------------------------------------------------------------------------------------


def changed_package(
    folder: Path, *steps: str, oldest: int | None = None, of_store: str | None = None
) -> dict[str, str]:
    """Another version of Helmsman: the environment that has it, whose tables have these steps more."""
    package = folder / "helmsman"
    shutil.copytree(Path(helmsman.__file__).parent, package, copy_function=os.symlink)
    more = "".join(f"({step!r},), " for step in steps)
    change(
        package / "fleet" / "schema.py", "VERSION: Final = len(_STEPS)", f"_STEPS += ({more})\nVERSION = len(_STEPS)"
    )
    if oldest is not None:
        change(package / "fleet" / "schema.py", "_OLDEST: Final = 1", f"_OLDEST = {oldest}")
    if of_store is not None:
        current = "CURRENT: Final = len(VERSIONS)"
        change(package / "store" / "schema.py", current, f"VERSIONS += (({of_store!r},),)\nCURRENT = len(VERSIONS)")
    return {"PYTHONPATH": str(folder)}


def change(path: Path, text: str, into: str) -> None:
    before = path.read_text(encoding="utf-8")
    assert before.count(text) == 1
    path.unlink()
    path.write_text(before.replace(text, into), encoding="utf-8")


async def init(url: str, env: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "helmsman", "fleet", "init", url]
    return await anyio.run_process(command, env={**os.environ, **env}, check=False)


async def test_machines_of_an_older_and_a_newer_version_work_on_one_queue_while_the_fleet_is_upgraded(
    fleet: Fleet, model: ScriptedModel, journal: Journal, tmp_path: Path
) -> None:
    """A session goes on on the newer one. It had full access on the older; there it may do what is said anew."""
    newer = changed_package(
        tmp_path / "newer",
        "alter table helmsman.workers add column of_a_later_version text",
        of_store="ALTER TABLE tasks ADD COLUMN of_a_later_version INTEGER NOT NULL DEFAULT 0",
    )
    model.on("long", run(journal.command("long", 4)), say("done"))
    model.on("first", say("said first"))
    model.on("then", run("touch widened"), say("said then"))
    await fleet.worker("old", "--capacity", "2")
    early = fleet.begin_worker("new", env=newer)
    assert await early.ended() == 1
    assert "helmsman fleet init" in early.log.read_text(encoding="utf-8")

    running = await fleet.start("long", options=FULL)
    session = await fleet.ended(await fleet.start("first", options=FULL))
    await journal.begun("long")
    assert (made := await init(fleet.url, newer)).returncode == 0, made.stderr
    await fleet.worker("new", "--capacity", "2", env=newer)
    tasks = [await fleet.start("first", machine=host, options=FULL) for host in ("old", "new")]
    for task in tasks:
        assert (await fleet.ended(task)).status == "completed", fleet.logs()
    await fleet.client.drain("old")
    narrow: Any = {"sandbox": "read-only", "approval_policy": "never"}
    moved = await fleet.ended(await fleet.start("then", session_id=session.session_id, options=narrow))
    assert (moved.result, moved.session_id) == ("said then", session.session_id), f"{moved} {fleet.logs()}"
    assert moved.placement["machine"] == "new"
    assert "said first" in str(model.requests[-1].body)
    assert not (fleet.directory / "widened").exists()
    assert (await fleet.ended(running)).status == "completed"
    assert await fleet.workers["old"].ended() == 0
    assert len(journal.runs("long")) == 1
    await fleet.worker("old", "--capacity", "1")  # tables that only have more than it knows are no trouble

    far = changed_package(tmp_path / "far", "select 1", "select 1", oldest=schema.VERSION + 2)
    assert (made := await init(fleet.url, far)).returncode == 0, made.stderr
    with pytest.raises(FleetNotReady, match=r"does not know. Upgrade it here"):
        async with FleetClient(fleet.url):
            pass


async def test_eight_machines_that_start_at_the_same_moment_share_the_work_and_nothing_is_done_twice(
    fleet: Fleet, model: ScriptedModel, journal: Journal, empty_database: str
) -> None:
    inits = [None] * 8

    async def begin(number: int) -> None:
        inits[number] = (await init(empty_database, {})).returncode  # type: ignore[call-overload]

    async with anyio.create_task_group() as starting:
        for number in range(8):
            starting.start_soon(begin, number)
    assert inits == [0] * 8
    for number in range(8):
        model.on(f"task {number}.", run(journal.command(f"t{number}", 0.3)), say("done"))
    tasks = [await fleet.start(f"task {number}.", options=FULL) for number in range(8)]
    workers = [fleet.begin_worker(f"w{number}", "--capacity", "1", lease=20) for number in range(8)]
    for worker in workers:
        await fleet.until_ready(worker)
    for task in tasks:
        assert (await fleet.ended(task, 3 * SECONDS)).status == "completed", fleet.logs()
    assert [len(journal.runs(f"t{number}")) for number in range(8)] == [1] * 8
    assert [machine.is_alive for machine in await fleet.client.machines()] == [True] * 8


async def test_ten_thousand_that_wait_hold_up_neither_who_looks_nor_what_is_urgent(
    fleet: Fleet, model: ScriptedModel
) -> None:
    model.on("urgent", say("now"))
    model.on("late", say("later"))
    task = await fleet.start("late", options=FULL, priority=900)
    columns = [
        row["name"]
        for row in await fleet.client.database.all(
            "select attname as name from pg_attribute where attrelid = 'helmsman_store.tasks'::regclass and attnum > 0 "
            "and not attisdropped and attidentity = '' and attgenerated = ''"
        )
    ]
    made = [f"{name} || '-' || n" if name in ("id", "alias", "session_id") else f'"{name}"' for name in columns]
    names = ", ".join(f'"{name}"' for name in columns)
    copied: Any = (
        f"insert into helmsman_store.tasks ({names}) select {', '.join(made)} from helmsman_store.tasks, "
        "generate_series(2, 10000) n where id = %s returning 1"
    )
    assert len(await fleet.client.database.all(copied, (task.id,))) == 9999
    urgent = await fleet.start("urgent", options=FULL, priority=1)
    assert await fleet.client.waiting() == {"codex": 10_001}
    page, cursor = await fleet.client.database.tasks(lambda tasks: tasks.list(status=["pending"], limit=50))
    assert (len(page), page[0].id) == (50, urgent.id)
    following, _ = await fleet.client.database.tasks(lambda tasks: tasks.list(limit=50, cursor=cursor))
    assert following[0].id not in {task.id for task in page}
    assert (await fleet.client.cancel(page[10].id)).status == "canceled"
    one = await fleet.worker("one", "--capacity", "1")
    assert (await fleet.ended(urgent)).result == "now", fleet.logs()
    assert (await fleet.client.get(page[10].id)).status == "canceled"
    one.kill(signal.SIGTERM)
    assert await one.ended() == 143


async def test_a_machine_whose_agent_is_too_old_for_a_session_is_not_chosen_for_it(
    fleet: Fleet, model: ScriptedModel, journal: Journal
) -> None:
    """Codex 0.130 would damage what a newer one has written: the session waits for a machine that can go on with it."""
    old = codex_versions().get("0.130.0")
    if old is None:
        pytest.skip("Codex 0.130.0 is not here: python scripts/fetch_codex.py")
    for word in ("first", "then"):
        model.on(word, say(f"said {word}"))
    model.on("work", run(journal.command("a", 30)), say("never"))
    model.on("lost in the middle", run(journal.command("a", 0.2)), say("done"))
    new = fleet.binary
    one = await fleet.worker("new", "--capacity", "1")
    session = await fleet.ended(await fleet.start("first", options=FULL))
    cut = await fleet.start("work", options=FULL, spec_more={"onMachineLoss": "continue"})
    await journal.begun("a")
    fleet.binary = old
    await fleet.worker("old", "--capacity", "2")
    fleet.binary = new
    machines = {machine.name: machine.as_dict() for machine in await fleet.client.machines()}
    assert machines["old"]["agentVersions"] == {"codex": "0.130.0"}
    assert (machines["new"]["labels"], machines["old"]["labels"]) == ([], [])

    one.kill()
    assert await one.ended() == -signal.SIGKILL
    with anyio.fail_after(SECONDS):
        while (await fleet.client.get(cut.id)).status != "pending":
            await anyio.sleep(0.1)
    following = await fleet.start("then", session_id=session.session_id, options=FULL)
    plain = await fleet.ended(await fleet.start("first", options=FULL))
    assert (plain.status, plain.placement["machine"]) == ("completed", "old"), fleet.logs()
    waiting = [(await fleet.client.get(task.id)).status for task in (following, cut)]
    assert waiting == ["pending", "pending"], fleet.logs()
    await fleet.worker("new", "--capacity", "2")
    for task, result in ((following, "said then"), (cut, "done")):
        ended = await fleet.ended(task)
        assert (ended.result, ended.placement["machine"]) == (result, "new"), f"{ended} {fleet.logs()}"


async def test_a_bundle_whose_base_a_machine_has_not_is_refused_in_words_and_nothing_is_asked_of_the_agent(
    fleet: Fleet, model: ScriptedModel, tmp_path: Path
) -> None:
    (fleet.directory / "unfinished").write_text("not committed\n", encoding="utf-8")
    with packing(fleet.directory, tmp_path / "client", Limits(total=16 * MB, file=MB)) as packer:
        tree, parts = packer.pack(packer.candidates())  # as if the machine had all that was committed
        bundles = {WORKSPACE: ({"tree": pack(tree)}, parts.bundle)}
        task = await fleet.start("work", options=FULL, bundles=bundles)
    await fleet.worker("one")
    ended = await fleet.ended(task)
    assert (ended.status, (ended.error or {})["code"]) == ("failed", WorkspaceIncomplete.code), fleet.logs()
    assert model.requests == []
