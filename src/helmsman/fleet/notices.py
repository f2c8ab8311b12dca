"""Notices of a fleet's tasks: stored by the database with the change that they report, and sent once by any machine.

A task lists its recipients: those of the machine that requested it. The list has names and a digest of the address, never an
address or a secret. A machine may send a notice if its settings contain the identical recipient. So a notice is sent even if
the requesting machine is off, and no machine can redirect it. Only the requesting machine shows `desktop` and `browser`
notices.

A sender leases a notice for a limited time. If it dies, another sender sends the notice once more, marked as possibly
repeated, and never a third time. Sending and retrying follow `helmsman.notices.delivery`, as on one machine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.base.files import create_once
from helmsman.base.structs import replace, unpack
from helmsman.errors import HelmsmanError, InvalidSetting
from helmsman.fleet.schedules import FleetSchedules
from helmsman.fleet.session_queue import task_for_clients
from helmsman.model.questions import Question
from helmsman.notices.channels import Sender
from helmsman.notices.config import ON_THE_MACHINE, NotifySettings
from helmsman.notices.delivery import DeliveryLoop, sender_of
from helmsman.notices.notifications import (
    KINDS,
    Notification,
    limit_notification,
    notification_of_run,
    question_notification,
    task_notification,
)
from helmsman.notices.store import NOT_NEEDED, Delivery, bounded_note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup
    from psycopg.rows import DictRow

    from helmsman.fleet.database import FleetDatabase
    from helmsman.notices.config import Recipient
    from helmsman.notices.store import DeliveryStatus, NoticeStore

log = logging.getLogger(__name__)

NOTIFY: Final = "notify"
"""Metadata key of a task: its notice recipients."""
_LOOK_SECONDS: Final = 3.0
_SETTINGS_SECONDS: Final = 30.0
"""Interval at which the recipients are reloaded."""
_LOAD_SECONDS: Final = 5.0
_MORE_SECONDS: Final = 60.0
"""Lease of a sender, in addition to the timeout of sending."""


def place_in(directory: Path) -> str:
    """Return a unique name for a directory of a machine's state, created on first use. Blocks."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return create_once(directory / "place", uuid.uuid4().hex).strip()


def key_of(recipient: Recipient, place: str) -> str:
    """Return the key of a recipient in a fleet. Keys are equal only if channel, address and quiet hours are identical."""
    quiet = recipient.quiet
    way = (
        *(recipient.way, recipient.url, recipient.topic, recipient.command, recipient.is_full),
        None if quiet is None else (str(quiet.begin), str(quiet.end)),
        place if recipient.way in ON_THE_MACHINE else None,
    )
    return f"{recipient.name} {hashlib.sha256(json.dumps(way).encode()).hexdigest()[:16]}"


def who_is_told(settings: NotifySettings, place: str, *, agent: str, directory: str | None) -> dict[str, Any]:
    """Return the events that each recipient wants, and the delay for questions, for the metadata of a task."""

    def wanted(recipient: Recipient) -> list[str]:
        notification = (Notification(kind=kind, about="", title="", directory=directory, agent=agent) for kind in KINDS)
        return [one.kind for one in notification if recipient.wants(one)]

    to = {key_of(one, place): kinds for one in settings.to if (kinds := wanted(one))}
    return {NOTIFY: {"to": to, "unanswered": settings.unanswered}} if to else {}


# --- what waits for one recipient ------------------------------------------------------------------------------------

_SETTLE: Final = """
    update helmsman.notices notice set
        changed_at = clock_timestamp(),
        note = case status when 'sending' then 'It was sent twice, and may not have arrived.' else %(why)s end,
        status = case status when 'sending' then 'doubtful' else 'dropped' end
    where recipient = %(recipient)s and (
        (status = 'sending' and lease_until < clock_timestamp() and is_doubtful)
        or (status = 'pending' and created_at < clock_timestamp() - interval '24 hours')
        or (status = 'pending' and kind = 'question' and not exists (
            select from helmsman.questions question
            join helmsman.tasks task on task.id = question.task and task.epoch = question.epoch
            where question.task = notice.task and question.id = notice.question and question.closed_at is null
                and question.answer is null and task.status = 'working'
        ))
    )
    returning about
"""
_NEXT: Final = """
    select *, clock_timestamp() as now from helmsman.notices
    where recipient = %(recipient)s
        and (status = 'pending' or (status = 'sending' and lease_until < clock_timestamp() and not is_doubtful))
    order by next_at, created_at limit 1
"""
_BEGIN: Final = """
    update helmsman.notices set
        status = 'sending', attempts = attempts + 1, sender = %(sender)s, changed_at = clock_timestamp(),
        is_doubtful = is_doubtful or status = 'sending', lease_until = clock_timestamp() + make_interval(secs => %(seconds)s)
    where about = %(about)s and recipient = %(recipient)s and attempts = %(attempts)s
        and (status = 'pending' or (status = 'sending' and lease_until < clock_timestamp() and not is_doubtful))
    returning about
"""
_FINISH: Final = """
    update helmsman.notices set status = %(status)s, note = %(note)s, changed_at = clock_timestamp()
    where about = %(about)s and recipient = %(recipient)s
        and (status = 'pending' or (status = 'sending' and sender = %(sender)s))
    returning about
"""
_AGAIN: Final = """
    update helmsman.notices set
        status = 'pending', note = %(note)s, is_doubtful = %(is_doubtful)s, changed_at = clock_timestamp(),
        next_at = clock_timestamp() + make_interval(secs => %(seconds)s)
    where about = %(about)s and recipient = %(recipient)s and status = 'sending' and sender = %(sender)s
    returning about
"""
_DUE: Final = """
    select distinct recipient from helmsman.notices
    where recipient = any(%(recipients)s) and status in ('pending', 'sending')
        and case status when 'pending' then next_at else lease_until end <= clock_timestamp()
"""
_LOG: Final = """
    select *, clock_timestamp() as now from helmsman.notices where recipient = any(%(recipients)s)
    order by created_at desc, about desc limit %(limit)s
"""


class FleetNotices:
    """Queue of notices for one recipient in a fleet's database, with the interface of a local notice store."""

    def __init__(self, database: FleetDatabase, key: str, recipient: Recipient, title: Callable[[str], str]) -> None:
        self._database = database
        self._key = key
        self._recipient = recipient
        self._title = title
        self._sender = uuid.uuid4().hex
        self.seconds = recipient.timeout + _MORE_SECONDS
        """Lease of a notice that this sender is sending."""

    def clock(self) -> datetime:
        return datetime.now(UTC)

    async def recover(self, _recipient: str) -> None:
        """Do nothing. A notice of a dead sender is found when its lease expires."""

    async def next_for(self, _recipient: str) -> Delivery | None:
        """Return the pending notice that is due first, even if it is not due yet."""
        while True:
            await self._one(_SETTLE, why=NOT_NEEDED)
            row = await self._one(_NEXT)
            if row is None:
                return None
            notification = await _notification_of(self._database, row, self._title)
            if notification is not None:
                break
            await self._one(_FINISH, about=row["about"], status="dropped", note=NOT_NEEDED)
        delivery = delivery_of(row, notification, self.clock())
        quiet = self._recipient.quiet
        until = None if quiet is None or delivery.next_at > self.clock() else quiet.until(self.clock())
        is_doubtful = delivery.is_doubtful or row["status"] == "sending"
        return replace(delivery, next_at=until or delivery.next_at, is_doubtful=is_doubtful)

    async def begin(self, delivery: Delivery) -> bool:
        """Lease the notice for sending. Return False if another sender has it, or if it is no longer needed."""
        values = {"attempts": delivery.attempts, "seconds": self.seconds}
        return await self._one(_BEGIN, about=delivery.notification.about, **values) is not None

    async def finish(self, delivery: Delivery, status: DeliveryStatus, note: str | None = None) -> None:
        """Record the result of a delivery."""
        await self._one(_FINISH, about=delivery.notification.about, status=status, note=bounded_note(note))

    async def again(self, delivery: Delivery, at: datetime, note: str, *, is_doubtful: bool = False) -> None:
        """Requeue the notice for any sender. `is_doubtful`: it may already have arrived."""
        seconds = max(0.0, (at - self.clock()).total_seconds())
        doubtful = delivery.is_doubtful or is_doubtful
        await self._one(
            _AGAIN, about=delivery.notification.about, seconds=seconds, note=bounded_note(note), is_doubtful=doubtful
        )

    async def _one(self, sql: Any, **values: Any) -> DictRow | None:
        values |= {"recipient": self._key, "sender": self._sender}
        return await self._database.soon(lambda: self._database.one(sql, values))


def delivery_of(row: DictRow, notification: Notification, now: datetime) -> Delivery:
    """Return a delivery with its times by our clock."""
    ahead: timedelta = now - row["now"]
    return Delivery(
        id=f"N-{hashlib.sha256(row['about'].encode()).hexdigest()[:12]}",
        notification=notification,
        recipient=row["recipient"].rpartition(" ")[0],
        status=row["status"],
        attempts=row["attempts"],
        is_doubtful=row["is_doubtful"],
        created_at=row["created_at"] + ahead,
        next_at=row["next_at"] + ahead,
        changed_at=row["changed_at"] + ahead,
        note=row["note"],
    )


async def _notification_of(database: FleetDatabase, row: DictRow, title: Callable[[str], str]) -> Notification | None:
    """Return the message of a notice, or None if its subject is deleted. `title` names an agent."""
    about = str(row["about"])

    async def one(sql: Any) -> DictRow | None:
        return await database.soon(lambda: database.one(sql, row))

    if row["schedule"] is not None:
        return await notification_of_run(FleetSchedules(database.store), about)
    known = await one("select * from helmsman.tasks where id = %(task)s")
    if known is None:
        return None
    task = task_for_clients(known)
    if row["kind"] == "question":
        asked = await one(
            "select content from helmsman.questions where task = %(task)s and id = %(question)s order by epoch desc limit 1"
        )
        if asked is None:
            return None
        question = replace(unpack(asked["content"], Question), session_id=task.session_id or "")
        return replace(
            question_notification(question, directory=task.directory, agent=task.agent), about=about, task_id=task.id
        )
    if row["kind"] == "limit":
        known_as: Any = {"directory": task.directory, "agent": task.agent, "session_id": task.session_id}
        return replace(limit_notification(task.note or "", about=about, **known_as, task_id=task.id), about=about)
    return task_notification(task, title(task.agent), about=about, is_scheduled=task.schedule is not None)


async def notices_log(
    database: FleetDatabase, keys: Sequence[str], title: Callable[[str], str], limit: int
) -> list[Delivery]:
    """Return the newest notifications of these recipients, newest first."""
    values = {"recipients": list(keys), "limit": limit}
    rows = await database.soon(lambda: database.all(_LOG, values))
    told = [(row, await _notification_of(database, row, title)) for row in rows]
    return [delivery_of(row, notification, datetime.now(UTC)) for row, notification in told if notification is not None]


async def was_seen(database: FleetDatabase, task_id: str) -> None:
    """Drop the notice of a task's end, because a user has seen the end."""
    sql = (
        "update helmsman.notices set status = 'dropped', note = 'The user was active.', changed_at = clock_timestamp() "
        "where about = %s and status = 'pending' returning about"
    )
    await database.soon(lambda: database.all(sql, (f"end {task_id}",)))


# --- who sends -------------------------------------------------------------------------------------------------------


class _Pages(Sender):
    """Pages of the dashboard fetch what there is for them from the store of their machine."""

    def __init__(self, name: str, store: NoticeStore) -> None:
        self._name = name
        self._store = store

    async def send(self, delivery: Delivery) -> str | None:
        await self._store.add(delivery.notification, {self._name: self._store.clock()})
        return "It waits for a page of the dashboard."


class FleetNotifier:
    """Sends notices to the recipients of this machine while it runs.

    The recipients are in the user's settings file. `store` is the machine's notice store, which the dashboard reads. Without
    `is_shown`, no notices are shown on this machine's screen; only notices that leave the machine are sent.
    """

    def __init__(
        self,
        database: FleetDatabase,
        state_dir: Path,
        place: str,
        title: Callable[[str], str],
        store: NoticeStore,
        *,
        is_shown: bool,
    ) -> None:
        self._database = database
        self._state_dir = state_dir
        self._place = place
        self._title = title
        self._store = store
        self._is_shown = is_shown
        self._read_at = -_SETTINGS_SECONDS
        self.settings = NotifySettings()
        self.loaded = anyio.Event()
        self._loops: dict[str, tuple[DeliveryLoop, anyio.CancelScope]] = {}

    async def who_is_told(self, *, agent: str, directory: str | None) -> dict[str, Any]:
        """Return the events that each recipient wants, for the metadata of a task that is requested here."""
        with anyio.move_on_after(_LOAD_SECONDS):
            await self.loaded.wait()
        return who_is_told(self.settings, self._place, agent=agent, directory=directory)

    async def log(self, limit: int) -> list[Delivery]:
        """Return the newest notifications of this machine's recipients, newest first."""
        keys = [key_of(one, self._place) for one in self.settings.to]
        return await notices_log(self._database, keys, self._title, limit) if keys else []

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    if anyio.current_time() - self._read_at >= _SETTINGS_SECONDS:
                        self._read_at = anyio.current_time()
                        try:
                            read = partial(NotifySettings.of_machine, self._state_dir)
                            self.settings = await anyio.to_thread.run_sync(read)
                        finally:
                            self.loaded.set()
                        self._update_loops(self.settings, tasks)
                    if self._loops:
                        values = {"recipients": list(self._loops)}
                        for row in await self._database.soon(lambda: self._database.all(_DUE, values)):  # noqa: B023
                            self._loops[row["recipient"]][0].look()
                except InvalidSetting as error:
                    log.debug("who is told of the fleet's tasks stays as it is: %s", error)
                except HelmsmanError as error:
                    log.info("notices of the fleet wait: %s", error)
                await anyio.sleep(_LOOK_SECONDS)

    def _update_loops(self, settings: NotifySettings, tasks: TaskGroup) -> None:
        wanted = {
            key_of(one, self._place): one for one in settings.to if self._is_shown or one.way not in ON_THE_MACHINE
        }
        for key in self._loops.keys() - wanted.keys():
            self._loops.pop(key)[1].cancel()
        for key in wanted.keys() - self._loops.keys():
            # Its buttons would publish codes that this machine alone knows: a question of a fleet has none.
            recipient = replace(wanted[key], answers=False)
            sender = sender_of(recipient, self._store) or _Pages(recipient.name, self._store)
            store = FleetNotices(self._database, key, recipient, self._title)
            loop = DeliveryLoop(key, sender, store, lambda _: True, anyio.sleep)
            self._loops[key] = loop, (scope := anyio.CancelScope())
            tasks.start_soon(_run, loop, scope)


async def _run(loop: DeliveryLoop, scope: anyio.CancelScope) -> None:
    with scope:
        await loop.run()
