"""Notices of a fleet's tasks, in the fleet's store: entered with the change that they report, and sent once by any machine.

A task lists its recipients: those of the machine that requested it. The list has names and a digest of the address, never an
address or a secret. A machine may send a notice if its settings contain the identical recipient. So a notice is sent even if
the requesting machine is off, and no machine can redirect it. Only the requesting machine shows `desktop` and `browser`
notices.

A triggered row in the store's outbox says what a notice is due for. Any machine with recipients makes the notice of it, and
each machine sends those of its recipients, as on one machine (`helmsman.notices`).
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
from helmsman.notices.store import NOT_NEEDED, Delivery, NoticeStore
from helmsman.store.database import Commits, microseconds
from helmsman.tasks.rows import task_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.notices.config import Recipient
    from helmsman.store.database import Database

log = logging.getLogger(__name__)

NOTIFY: Final = "notify"
"""Key in a task's policy: its notice recipients."""
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
    """Return the events that each recipient wants, and the delay for questions, for the policy of a task."""

    def wanted(recipient: Recipient) -> list[str]:
        # With every kind of event, to see which of them this recipient wants.
        notification = (Notification(kind=kind, about="", title="", directory=directory, agent=agent) for kind in KINDS)
        return [one.kind for one in notification if recipient.wants(one)]

    to = {key_of(one, place): kinds for one in settings.to if (kinds := wanted(one))}
    # Without recipients the task carries no list, and nothing is triggered.
    return {NOTIFY: {"to": to, "unanswered": settings.unanswered}} if to else {}


# --- the store -------------------------------------------------------------------------------------------------------

_OLD: Final = timedelta(hours=24)
_DUE: Final = "SELECT about FROM notices_due WHERE at <= ? ORDER BY at LIMIT 100"
_LEFT: Final = "SELECT DISTINCT recipient FROM notice_deliveries WHERE status = 'sending' AND lease_until < ?"
_ASKED: Final = """
    select content from helmsman.questions question join helmsman_store.tasks task on task.id = question.task
    where 'question ' || task.id || ' ' || question.epoch || ' ' || question.id = ? and task.id = ?
        and task.epoch = question.epoch and task.status = 'working' and question.closed_at is null
"""


class FleetNotices(NoticeStore):
    """Notices in the store of a fleet. Recipients have the names that `key_of` gives them."""

    def __init__(self, store: Database, title: Callable[[str], str]) -> None:
        super().__init__(store)
        self._title = title
        self._schedules = FleetSchedules(store)
        self._ahead = timedelta()
        self.clock = lambda: datetime.now(UTC) + self._ahead
        self.lease_seconds = 0.0
        self.recipients: dict[str, Recipient] = {}
        self.polled = Commits()

    def next_commit(self) -> asyncio.Event:
        """Return an event that the next poll sets: a fleet commits too often to read after each commit."""
        return self.polled.next()

    async def serve(self, recipients: Mapping[str, Recipient]) -> None:
        """Set the recipients that this machine sends to, and take the time from the database."""
        self.recipients = dict(recipients)
        self.lease_seconds = _MORE_SECONDS + max((one.timeout for one in recipients.values()), default=0.0)
        # Machines' clocks differ, and leases of senders are compared in the database's time.
        self._ahead = await self._schedules.now() - datetime.now(UTC)

    async def enter_due(self) -> None:
        """Make the notices that are due, for all recipients."""
        now = microseconds(self.clock())
        for about in await self._database.read_soon(
            lambda connection: [row["about"] for row in connection.execute(_DUE, (now,))]
        ):
            notification, wanted = await self._of(about)
            if notification is None:
                await self.forget_due(about)
            else:
                to = {key: self.clock() for key, kinds in wanted.items() if notification.kind in kinds}
                await self.add(notification, to)

    async def take_over(self) -> None:
        """Send messages again that a machine did not send in time."""
        now = microseconds(self.clock())
        left = await self._database.read_soon(
            lambda connection: {row["recipient"] for row in connection.execute(_LEFT, (now,))}
        )
        # Only recipients that this machine knows: others have their own senders.
        for key in left & self.recipients.keys():
            await self.recover(key)

    async def next_for(self, recipient: str) -> Delivery | None:
        while (delivery := await super().next_for(recipient)) is not None:
            # Checked at the last moment: a question may have been answered since.
            if await self._is_needed(delivery):
                quiet, now = self.recipients[recipient].quiet, self.clock()
                until = None if quiet is None or delivery.next_at > now else quiet.until(now)
                return replace(delivery, next_at=until or delivery.next_at)
            await self.finish(delivery, "dropped", NOT_NEEDED)
        return None

    async def _is_needed(self, delivery: Delivery) -> bool:
        notification = delivery.notification
        if self.clock() - delivery.created_at > _OLD:
            return False
        return notification.question_id is None or (await self._of(notification.about))[0] is not None

    async def _of(self, about: str) -> tuple[Notification | None, Mapping[str, Sequence[str]]]:
        """Return the notice of a subject, and the detail that each recipient gets."""
        kind, _, rest = about.partition(" ")
        subject = rest.partition(" ")[0]
        # Runs of a schedule carry its policy, as no client asks for them.
        if kind == "run":
            schedule = next((one for one in await self._schedules.all() if one.id == subject), None)
            policy = {} if schedule is None else schedule.policy
            return await notification_of_run(self._schedules, about), policy.get(NOTIFY, {}).get("to", {})
        asked = await self._one(_ASKED, about, subject) if kind == "question" else None
        row = await self._one("SELECT * FROM tasks WHERE id = ?", subject)
        # Deleted, or answered, since it became due.
        if row is None or (kind == "question" and asked is None):
            return None, {}
        task = task_of(row)
        if asked is not None:
            question = replace(unpack(asked["content"], Question), session_id=task.session_id or "")
            told = question_notification(question, directory=task.directory, agent=task.agent)
            notification = replace(told, about=about, task_id=task.id)
        elif kind == "limit":
            known: Any = {"directory": task.directory, "agent": task.agent, "session_id": task.session_id}
            notification = limit_notification(task.note or "", about=about, **known, task_id=task.id)
        else:
            is_scheduled = task.schedule is not None
            notification = task_notification(task, self._title(task.agent), about=about, is_scheduled=is_scheduled)
        return notification, (task.policy or {}).get(NOTIFY, {}).get("to", {})

    async def _one(self, sql: str, *values: str) -> Any:
        return await self._database.read_soon(lambda connection: connection.execute(sql, values).fetchone())


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
        fleet: Database,
        state_dir: Path,
        place: str,
        title: Callable[[str], str],
        store: NoticeStore,
        *,
        is_shown: bool,
    ) -> None:
        self.notices = FleetNotices(fleet, title)
        self._state_dir = state_dir
        self._place = place
        self._store = store
        self._is_shown = is_shown
        self._read_at = -_SETTINGS_SECONDS
        self.settings = NotifySettings()
        self.loaded = anyio.Event()
        self._loops: dict[str, anyio.CancelScope] = {}

    async def who_is_told(self, *, agent: str, directory: str | None) -> dict[str, Any]:
        """Return the events that each recipient wants, for the policy of a task that is requested here."""
        # A client must not wait long for the settings of notices.
        with anyio.move_on_after(_LOAD_SECONDS):
            await self.loaded.wait()
        return who_is_told(self.settings, self._place, agent=agent, directory=directory)

    async def log(self, limit: int) -> list[Delivery]:
        """Return the newest notifications of this machine's recipients, newest first."""
        log = await self.notices.log(limit, [key_of(one, self._place) for one in self.settings.to])
        return [replace(one, recipient=one.recipient.rpartition(" ")[0]) for one in log]

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
                            # Also after an error: a task is then accepted without recipients.
                            self.loaded.set()
                        await self._update_loops(self.settings, tasks)
                    if self._loops:
                        await self.notices.enter_due()
                        await self.notices.take_over()
                        self.notices.polled.notify()
                # The user is editing the file; keep the recipients that were read last.
                except InvalidSetting as error:
                    log.debug("who is told of the fleet's tasks stays as it is: %s", error)
                except HelmsmanError as error:
                    log.info("notices of the fleet wait: %s", error)
                await anyio.sleep(_LOOK_SECONDS)

    async def _update_loops(self, settings: NotifySettings, tasks: TaskGroup) -> None:
        wanted = {
            key_of(one, self._place): one for one in settings.to if self._is_shown or one.way not in ON_THE_MACHINE
        }
        await self.notices.serve(wanted)
        for key in self._loops.keys() - wanted.keys():
            self._loops.pop(key).cancel()
        for key in wanted.keys() - self._loops.keys():
            # Its buttons would publish codes that this machine alone knows: a question of a fleet has none.
            recipient = replace(wanted[key], answers=False)
            sender = sender_of(recipient, self._store, self._state_dir) or _Pages(recipient.name, self._store)
            loop = DeliveryLoop(key, sender, self.notices, lambda _: True, anyio.sleep)
            scope = self._loops[key] = anyio.CancelScope()
            tasks.start_soon(_run, loop, scope)


async def _run(loop: DeliveryLoop, scope: anyio.CancelScope) -> None:
    with scope:
        await loop.run()
