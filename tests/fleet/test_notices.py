"""Tests of notifications about a fleet's tasks: each is sent once, by any machine, and none is lost with its sender."""

from __future__ import annotations

import json
import sys
import uuid
from datetime import timedelta
from pathlib import Path

import anyio
import psycopg
import pytest

from helmsman.base.structs import replace
from helmsman.fleet.notices import FleetNotices, key_of, place_in, who_is_told
from helmsman.model.answered_by import PERSON_AT_TERMINAL
from helmsman.notices.config import NotifySettings, Recipient
from helmsman.notices.store import Delivery
from helmsman.testing import ScriptedModel, run, say
from tests.fleet.conftest import Fleet
from tests.fleet.test_clients import client_env, helmsman
from tests.fleet.test_schedules import rows

pytestmark = [pytest.mark.anyio, pytest.mark.rare]
SECONDS = 60
HOOK = Recipient(name="hook", way="webhook", url="https://hooks.example/T0P-S3CRET", secret="whsec_c2VjcmV0")


def be_done(fleet: Fleet, task_id: str) -> None:
    """Wait until a task has ended, and was possibly seen."""
    with psycopg.connect(fleet.url, autocommit=True) as connection:
        sql = (
            "update helmsman_store.tasks set status = 'completed', "
            'expiring = helmsman.with_facts(expiring, \'{"result": "all of it"}\') where id = %s'
        )
        connection.execute(sql, (task_id,))
        connection.execute("update helmsman_store.notices_due set at = 0")


def test_two_processes_that_start_at_once_have_one_name_for_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[str] = []

    def uuid4() -> uuid.UUID:
        monkeypatch.undo()
        others.append(place_in(tmp_path))
        return uuid.uuid4()

    monkeypatch.setattr("uuid.uuid4", uuid4)
    assert [place_in(tmp_path)] == others


KEY = key_of(HOOK, "elsewhere")


async def until_free(store: FleetNotices) -> Delivery | None:
    """What there is to send once the time of the last sender is over."""
    with anyio.move_on_after(3):
        while (found := await store.next_for(KEY)) is None:
            await anyio.sleep(0.05)
            await store.take_over()
        return found
    return None


async def test_a_notice_is_sent_by_one_machine_and_once_more_by_another_if_that_dies_and_never_a_third_time(
    fleet: Fleet,
) -> None:
    settings = NotifySettings((HOOK, replace(HOOK, name="late", events=frozenset({"question"}))))
    told = who_is_told(settings, "laptop", agent="codex", directory="/src/app")
    task = await fleet.start("do it", directory="/src/app", metadata=told)
    be_done(fleet, task.id)

    async def sender(recipient: Recipient = HOOK, seconds: float = 60.0) -> FleetNotices:
        store = FleetNotices(fleet.client.database.store, str)
        await store.serve({key_of(recipient, "elsewhere"): recipient})
        store.lease_seconds = seconds
        return store

    other = replace(HOOK, url="https://other.example/")
    others = await sender(other)
    await others.enter_due()
    kinds = "select recipient, attempts from helmsman_store.notice_deliveries"
    assert rows(fleet, kinds) == [(KEY, 0)], "of what it wants to hear alone"
    stored = json.dumps(rows(fleet, "select to_jsonb(tasks) from helmsman_store.tasks"))
    assert "hooks.example" not in stored
    assert "whsec" not in stored
    assert await others.next_for(key_of(other, "elsewhere")) is None, "it is another's"
    one, two = await sender(seconds=0.5), await sender(seconds=0.5)
    delivery = await one.next_for(KEY)
    assert delivery is not None
    notification = delivery.notification
    assert (notification.headline, notification.task_id, delivery.is_doubtful) == ("app: codex is done", task.id, False)
    assert sorted([await one.begin(delivery), await two.begin(delivery)]) == [False, True]
    assert await two.next_for(KEY) is None  # and then its sender dies
    again = await until_free(two)
    assert again is not None
    assert (again.id, again.is_doubtful, await two.begin(again)) == (delivery.id, True, True)
    assert await until_free(one) is None
    assert rows(fleet, "select status, attempts from helmsman_store.notice_deliveries") == [("doubtful", 2)]

    later = await fleet.start("more", directory="/src/app", metadata=told)
    be_done(fleet, later.id)
    async with anyio.create_task_group() as both:
        for store in (one, two):
            both.start_soon(store.enter_due)
    delivery = await one.next_for(KEY)
    assert delivery is not None
    assert await one.begin(delivery)
    await one.again(delivery, one.clock() + timedelta(seconds=-1), "The server said 503.")
    delivery = await two.next_for(KEY)
    assert delivery is not None
    assert (delivery.attempts, delivery.is_doubtful, await two.begin(delivery)) == (1, False, True)
    await two.finish(delivery, "sent")
    assert await one.next_for(KEY) is None


async def test_a_question_and_an_end_are_reported_once_though_the_machine_that_asked_is_gone(
    fleet: Fleet, model: ScriptedModel, tmp_path: Path
) -> None:
    """Two machines have the recipient that the laptop has. The laptop's hub ends with its client."""
    heard = tmp_path / "heard"
    heard.touch()
    tell = tmp_path / "tell.py"
    tell.write_text(f"import sys\nwith open({str(heard)!r}, 'a') as heard:\n    heard.write(sys.stdin.read())\n")
    config = (
        '[notify]\nunanswered_sec = 1\n[[notify.to]]\nway = "command"\nname = "phone"\n'
        f"command = [{json.dumps(sys.executable)}, {json.dumps(str(tell))}]\n"
    )

    def configured(name: str) -> None:
        path = fleet.folder / name / ".config" / "helmsman" / "helmsman.toml"
        path.parent.mkdir(parents=True)
        path.write_text(config)

    def told() -> list[str]:
        return [json.loads(line)["kind"] for line in heard.read_text().splitlines()]

    async def until_told(count: int) -> None:
        with anyio.move_on_after(SECONDS):
            while len(told()) < count:
                await anyio.sleep(0.05)
            return
        known = (
            "select expiring, status from helmsman_store.tasks union all "
            "select notice, status from helmsman_store.notice_deliveries"
        )
        pytest.fail(f"{told()}\n{rows(fleet, known)}\n{fleet.logs()}")

    for name in ("one", "two"):
        worker = fleet.begin_worker(name)
        configured(name)
        await fleet.until_ready(worker)
    env = client_env(fleet)
    configured("laptop")
    model.on("work", run("touch made"), say("done"))
    where = ("-C", str(fleet.directory), "-s", "workspace-write", "-a", "untrusted")
    started = json.loads(await helmsman(env, "run", "--detach", "work", *where, "--json"))
    task = await fleet.client.get(started["taskId"])
    await until_told(1)
    [asked] = await fleet.client.questions(task.id)
    await fleet.client.answer(task.id, asked.question.id, ["approve"], PERSON_AT_TERMINAL)
    await fleet.ended(task)
    await until_told(2)
    assert told() == ["question", "done"], fleet.logs()
    with anyio.fail_after(SECONDS):
        while rows(fleet, "select status from helmsman_store.notice_deliveries where status = 'sending'"):
            await anyio.sleep(0.05)  # its command has read it, and may not have ended
    assert rows(fleet, "select distinct status, attempts from helmsman_store.notice_deliveries") == [("sent", 1)]
