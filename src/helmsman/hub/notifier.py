"""Notices of the hub: notify people of open questions and ended turns that they do not see.

A notice of a question is sent when it is unanswered for a while and on no screen. A notice of the end of a turn is sent when
no client waits for it or shows it. The notice is stored as due together with the end itself (`helmsman.store.outbox`), so
that no crash comes between the end and its notice. The notifier and the delivery loop of each recipient read from the
store after each commit.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import anyio
import anyio.to_thread

from helmsman.approvals.rule_book import RuleBook
from helmsman.base.concurrency import sleep_until
from helmsman.errors import HelmsmanError, InvalidInput, InvalidSetting, RegistryUnavailable
from helmsman.model.answered_by import PERSON_BY_NTFY
from helmsman.model.events import EngineGone, QuestionAsked, QuestionClosed, TurnEnded
from helmsman.notices.channels import ChannelError
from helmsman.notices.config import NotifySettings
from helmsman.notices.delivery import DeliveryLoop, sender_of
from helmsman.notices.notifications import (
    Notification,
    limit_notification,
    notification_of_run,
    proposal_notification,
    question_key,
    question_notification,
    rule_notification,
    shortened,
    task_notification,
)
from helmsman.notices.ntfy import Ntfy, digest_of
from helmsman.notices.store import NOT_NEEDED, Delivery
from helmsman.store.log import LogReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from helmsman.model.questions import Question
    from helmsman.notices.channels import Sender
    from helmsman.notices.config import Recipient
    from helmsman.notices.store import Due
    from helmsman.sessions.session import Session
    from helmsman.steering.shared import Shared
    from helmsman.tasks.model import Task

log = logging.getLogger(__name__)

_LOOK: Final = timedelta(seconds=60)
"""Interval of the check for due notices that this process has no event of."""
_LOOK_AT_SCREEN: Final = timedelta(seconds=2)
"""Interval of the check whether a question is still on screen."""
_READY_SECONDS: Final = 60.0
_TROUBLE_PAUSE: Final = timedelta(seconds=10)
_MOST_NEWS: Final = 200
_OLD: Final = timedelta(hours=24)
_OLD_FOR_PAGES: Final = timedelta(minutes=10)
_TEST_SECONDS, _PAGE_SECONDS = 45.0, 3.0
_QUICK: Final = timedelta(minutes=1)
"""Longest time in which a failed start needs no notice: its caller still watches."""
_ANSWERED: Final = "The question was closed before."
_NOT_CONFIGURED: Final = "There is no longer a recipient of this name."
_NO_PAGE: Final = "No page of the dashboard was there to show it."
_NO_LONGER_WAITS: Final = "The usage limit was reached, and the wait for it is over."


@dataclass(slots=True)
class _Open:
    """Open question, and the time since which it is neither seen nor answered."""

    session: Session
    question: Question
    since: datetime
    is_told: bool = False


class Notifier:
    """Decide which notices go to which recipients, for as long as the hub runs.

    `load` reads the user's settings; `sleep` goes by the clock of the store.
    """

    def __init__(
        self,
        shared: Shared,
        *,
        load: Callable[[], NotifySettings] | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._shared = shared
        self._store = shared.notices
        self._load = load or partial(NotifySettings.of_machine, shared.state_dir)
        self._sleep = sleep
        self._settings = NotifySettings()
        self._problem: InvalidSetting | None = None
        self._loops: dict[Recipient, _Running] = {}
        self._open: dict[str, _Open] = {}
        """Open questions, by what their notification is about."""
        self._closed: set[str] = set()
        self._reader = LogReader(shared.task_writer.database, QuestionAsked, QuestionClosed, TurnEnded, EngineGone)
        self._has_new_rules = True
        """True if a model may have proposed a rule since the rules were read."""
        self._news: deque[Notification] = deque(maxlen=_MOST_NEWS)
        self._trouble: RegistryUnavailable | None = None
        self._is_trouble_told = False
        self._read_again = anyio.Event()
        self.pending = 1
        """Number of deliveries that wait or are under way; not 0 while there may be some."""
        self._store.send_test = self.test
        self._store.settings = self.settings
        shared.task_writer.on_trouble = self._on_trouble

    # --- what happens ------------------------------------------------------------------------------------------------

    def notify(self, notification: Notification) -> None:
        """Send a notice to all recipients that subscribe to it."""
        self._news.append(notification)
        self._wake()

    def _on_trouble(self, error: RegistryUnavailable | None) -> None:
        self._trouble = error
        self._wake()

    def _wake(self) -> None:
        self._shared.task_writer.database.wake_readers()

    async def _read_log(self) -> None:
        """Read which questions were asked and closed since the last look; at first, which are open."""
        news = await anyio.to_thread.run_sync(self._reader.read)
        sessions = self._shared.session_registry.by_id
        for session_id in tuple(sessions) if news is None else news:
            if (session := sessions.get(session_id)) is None:
                continue
            for key, asked in list(self._open.items()):
                if asked.session is session and asked.question.id not in session.state.questions:
                    del self._open[key]
                    self._closed.add(key)
            for question in session.questions:
                key = question_key(session_id, question.id)
                self._open.setdefault(key, _Open(session, question, self._store.clock()))
        if news is not None and any(QuestionClosed.event_type() in kinds for kinds in news.values()):
            self._has_new_rules = True  # an answer may have proposed one

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Enter notices when they are due, until cancelled."""
        with anyio.move_on_after(_READY_SECONDS):
            await self._shared.is_recovered.wait()  # before that it is unknown which questions are still open
        await self._configure()
        has_forgotten = False
        while True:
            # Before the store is read, so that no commit in between is missed.
            committed = self._store.next_commit()
            trouble = None
            try:
                if not self._read_again.is_set():
                    await self._configure()
                await self._read_log()
                if not has_forgotten:
                    await self._forget_codes()
                    has_forgotten = True
                next_at = await self._look()
            except RegistryUnavailable as error:
                log.warning("notices wait: %s", error)
                trouble, next_at = error, self._store.clock() + _TROUBLE_PAUSE
            except Exception:
                log.exception("notices wait")  # a failure here must not stop the hub
                next_at = self._store.clock() + _TROUBLE_PAUSE
            await self._report_trouble(trouble or self._trouble)
            seconds = max((next_at - self._store.clock()).total_seconds(), 0.0)
            await sleep_until(committed, seconds, self._sleep)

    async def _forget_codes(self) -> None:
        """Invalidate the button codes of questions that were closed while no hub ran."""
        self._closed.update(about for about in await self._store.with_codes() if about not in self._open)

    async def _look(self) -> datetime:
        """Enter all notices that are due. Return when the next one is, as far as is known."""
        while self._closed:
            key = next(iter(self._closed))
            if self._settings.to:
                await self._store.drop(key, _ANSWERED)
            # After the drop: if that fails, the next look repeats it.
            self._closed.discard(key)
        if self._has_new_rules:
            self._has_new_rules = False
            await self._look_at_rules()
        next_at = await self._look_at_questions()
        while self._news:
            notification = self._news.popleft()
            try:
                await self._enter(notification)
            except RegistryUnavailable:
                self._news.appendleft(notification)
                raise
        await self._look_at_due()
        if pages := [one.name for one in self._settings.to if one.way == "browser"]:
            await self._store.drop_older(pages, self._store.clock() - _OLD_FOR_PAGES, _NO_PAGE)
        await self._look_at_replies()
        self.pending = await self._store.pending()
        return next_at

    async def _look_at_questions(self) -> datetime:
        now = self._store.clock()
        next_at = now + _LOOK
        for asked in self._open.values():
            if asked.is_told:
                continue
            deadline = asked.session.deadlines.get(asked.question.id)
            if deadline is not None and deadline.is_paused:
                # Its time counts again from when it is off the screen.
                asked.since = now
                next_at = min(next_at, now + _LOOK_AT_SCREEN)
                continue
            due_at = asked.since + timedelta(seconds=self._settings.unanswered)
            if due_at > now:
                next_at = min(next_at, due_at)
                continue
            session = asked.session
            notification = question_notification(
                asked.question, directory=session.directory, agent=session.options.agent
            )
            await self._enter(notification)
            asked.is_told = True
        return next_at

    async def _look_at_rules(self) -> None:
        """Enter a notice for each rule that a model has proposed."""
        rules = RuleBook((), self._shared.state_dir)
        for rule in await anyio.to_thread.run_sync(rules.listed, None):
            if rule.rule.proposed_by is not None:
                await self._enter(rule_notification(rule))

    async def _enter(self, notification: Notification) -> None:
        await self._configure()
        now = self._store.clock()
        to = {
            one.name: (one.quiet.until(now) if one.quiet is not None and notification.kind != "test" else None) or now
            for one in self._settings.to
            if one.wants(notification)
        }
        await self._store.add(notification, to)

    # --- what has ended ----------------------------------------------------------------------------------------------

    async def _look_at_due(self) -> None:
        for due in await self._store.due():
            try:
                notification = await self._notification_of(due)
            except HelmsmanError:
                raise
            except Exception:
                log.exception("cannot notify of %s", due.about)  # all other notices are still sent
                notification = None
            if notification is None:
                await self._store.forget_due(due.about)
            else:
                await self._enter(notification)

    async def _notification_of(self, due: Due) -> Notification | None:
        kind, _, rest = due.about.partition(" ")
        if kind == "run":
            return await notification_of_run(self._shared.schedules, due.about)
        if kind == "proposal":
            found = next((one for one in await self._shared.schedules.all() if one.id == rest), None)
            return None if found is None or found.proposed_by is None else proposal_notification(found, about=due.about)
        task_id = rest.partition(" ")[0]
        task = await self._shared.task_writer.registry(lambda registry: registry.get(task_id))
        is_ours = due.owner_pid in (None, os.getpid()) or due.engine is not None
        if task is None or not is_ours:
            return None
        if kind == "limit":
            return _limit_notification(rest, task)
        is_scheduled = task.schedule is not None
        if task.session_id is None and not is_scheduled and task.updated_at - task.created_at < _QUICK:
            return None
        who = self._shared.agents.title(task.agent)
        return task_notification(task, who, about=due.about, is_scheduled=is_scheduled)

    # --- recipients --------------------------------------------------------------------------------------------------

    async def settings(self) -> NotifySettings:
        """Return the current recipients and their events.

        Raises:
            InvalidSetting: The settings are invalid. The earlier ones stay in force.
        """
        if self._read_again.is_set():
            self._read_again = anyio.Event()
        self._wake()  # the caller is not the task that runs the loops started then
        await self._read_again.wait()
        if self._problem is not None:
            raise self._problem.again()
        return self._settings

    async def _configure(self) -> None:
        """Read the settings, and start a delivery loop for every recipient that needs one."""
        try:
            settings = await anyio.to_thread.run_sync(self._load)
            self._problem = None
        except InvalidSetting as error:
            if self._problem is None or self._problem.message != error.message:
                log.warning("the recipients of notifications stay as they are: %s", error)
            self._problem = error
            settings = self._settings
        if settings != self._settings or not self._read_again.is_set():
            await self._update_loops(settings)
        self._read_again.set()

    async def _update_loops(self, settings: NotifySettings) -> None:
        self._settings = settings
        for recipient in [one for one in self._loops if one not in settings.to]:
            running = self._loops.pop(recipient)
            running.scope.cancel()
            # The old loop must be gone before another one sends to the same recipient.
            await running.ended.wait()
        try:
            if self._problem is None:  # otherwise a recipient may be unknown only for now
                await self._store.drop_others([one.name for one in settings.to], _NOT_CONFIGURED)
        except RegistryUnavailable as error:
            log.warning("%s", error)
        for recipient in settings.to:
            sender = sender_of(recipient, self._store, self._shared.state_dir)
            if sender is not None and recipient not in self._loops:
                loop = DeliveryLoop(recipient.name, sender, self._store, self._is_needed, self._sleep)
                running = self._loops[recipient] = _Running(loop, sender)
                self._shared.tasks.start_soon(running.run)

    def _is_needed(self, delivery: Delivery) -> bool:
        notification = delivery.notification
        if self._store.clock() - delivery.created_at > _OLD:
            return False
        return notification.question_id is None or self._open_question(notification) is not None

    def _open_question(self, notification: Notification) -> Session | None:
        session = self._shared.session_registry.by_id.get(notification.session_id or "")
        return session if session is not None and notification.question_id in session.state.questions else None

    # --- answers -----------------------------------------------------------------------------------------------------

    async def _look_at_replies(self) -> None:
        """Read replies for as long as a code is valid."""
        for recipient, running in self._loops.items():
            if not recipient.answers or not isinstance(running.sender, Ntfy):
                continue
            since = await self._store.codes_since(recipient.name)
            if since is None and running.reading is not None:
                running.reading.cancel()
                running.reading = None
            elif since is not None and running.reading is None:
                running.reading = anyio.CancelScope()
                self._shared.tasks.start_soon(
                    self._read_replies, recipient.name, running.sender, since, running.reading
                )

    async def _read_replies(self, name: str, ntfy: Ntfy, since: datetime, scope: anyio.CancelScope) -> None:
        async def take(code: str) -> None:
            try:
                await self._take(name, code)
            except HelmsmanError as error:
                log.warning("an answer by %s was not taken: %s", name, error)
            except Exception:
                log.exception("an answer by %s was not taken", name)  # the following answers are still read

        with scope:
            await ntfy.read_replies(since, take, self._sleep)

    async def _take(self, name: str, code: str) -> None:
        known = await self._store.code(digest_of(code))
        if known is None or known.recipient != name:
            log.info("an unknown or expired code by %s is ignored", name)
            return
        session, question_id = self._open_question(known.notification), known.notification.question_id
        if session is None or question_id is None:
            await self._store.drop(known.notification.about, NOT_NEEDED)
            return
        await session.respond(question_id, known.choice, by=PERSON_BY_NTFY)

    # --- by request, and in need -------------------------------------------------------------------------------------

    async def test(self, name: str | None) -> Sequence[Delivery]:
        """Send a test notice to all recipients, or to one, and wait for the result.

        Raises:
            InvalidInput: There is no recipient of that name.
            InvalidSetting: The settings are invalid.
        """
        settings = await self.settings()
        chosen = [one for one in settings.to if name in (None, one.name)]
        if not chosen:
            known = ", ".join(one.name for one in settings.to)
            told = f"Use one of: {known}." if known else "Add [[notify.to]] to your helmsman.toml first."
            raise InvalidInput(f"No notifications are sent by {name or 'any way'}. {told}", parameter="way")
        notification = Notification(
            kind="test",
            about=f"test {uuid4()}",
            title="This is a test of Helmsman's notices",
            text="Notices of Helmsman look like this.",
        )
        notice_id = await self._store.add(notification, {one.name: self._store.clock() for one in chosen}) or ""
        by_loops = {one.name for one in chosen if one.way != "browser"}
        with anyio.move_on_after(_TEST_SECONDS if by_loops else _PAGE_SECONDS):
            await self._until_tried(notice_id, by_loops or {one.name for one in chosen})
        return await self._store.deliveries(notice_id)

    async def _until_tried(self, notice_id: str, recipients: set[str]) -> None:
        while True:
            committed = self._store.next_commit()
            sent = await self._store.deliveries(notice_id)
            if all(one.status != "sending" and one.attempts for one in sent if one.recipient in recipients):
                return
            await committed.wait()

    async def _report_trouble(self, error: RegistryUnavailable | None) -> None:
        """Notify once that the store cannot be written, until it can again. This notice is neither retried nor recorded."""
        if error is None or self._is_trouble_told:
            self._is_trouble_told = error is not None
            return
        self._is_trouble_told = True
        now = self._store.clock()
        notification = Notification(
            kind="hub", about="hub store", title="Nothing can be written down", text=shortened(error.message)
        )
        async with anyio.create_task_group() as sending:
            for recipient, running in self._loops.items():
                if recipient.wants(notification) and (recipient.quiet is None or recipient.quiet.until(now) is None):
                    delivery = Delivery(
                        id=f"N-{uuid4().hex[:12]}",
                        notification=notification,
                        recipient=recipient.name,
                        status="sending",
                        attempts=1,
                        is_doubtful=False,
                        created_at=now,
                        next_at=now,
                        changed_at=now,
                    )
                    sending.start_soon(_send_once, running.sender, delivery)


class _Running:
    """DeliveryLoop at work."""

    def __init__(self, loop: DeliveryLoop, sender: Sender) -> None:
        self.loop = loop
        self.sender = sender
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.reading: anyio.CancelScope | None = None
        """Reads replies."""

    async def run(self) -> None:
        try:
            with self.scope:
                await self.loop.run()
        finally:
            self.ended.set()
            if self.reading is not None:
                self.reading.cancel()


async def _send_once(sender: Sender, delivery: Delivery) -> None:
    try:
        await sender.send(delivery)
    except (ChannelError, HelmsmanError) as error:
        log.warning("%s was not notified of trouble: %s", delivery.recipient, error)
    except Exception:
        log.exception("%s was not notified of trouble", delivery.recipient)


def _limit_notification(about: str, task: Task) -> Notification:
    """Return the notice of a task that waits for its limit, or did while no notice could be sent."""
    return limit_notification(
        (task.note or "") if task.waiting_for is not None else _NO_LONGER_WAITS,
        about=about,
        directory=task.directory,
        agent=task.agent,
        session_id=task.session_id,
        task_id=task.id,
    )


def death_of(epoch: int) -> Notification:
    """Return the notice that the hub before this one was killed, or crashed."""
    return Notification(
        kind="hub",
        about=f"hub {epoch}",
        title="The hub had ended without a word, and another has begun",
        text="Its work is being resumed. `helmsman hub log` may say more.",
    )
