"""Notifications for callers: recipients, deliveries, and a test."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import anyio.to_thread

from helmsman.base.files import is_inside
from helmsman.base.structs import Value, replace
from helmsman.errors import Unsupported
from helmsman.model.nature import ACTS, READS, verb
from helmsman.notices.config import NotifySettings, Recipient
from helmsman.notices.notifications import KINDS
from helmsman.notices.store import Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.steering.core import Steering

_SHOWN: Final = 50


class ChannelStatus(Value, frozen=True, kw_only=True):
    """Recipient without its secrets, and the result of its last delivery."""

    name: str
    way: str
    status: Literal["untried", "ok", "failing"]
    events: tuple[str, ...]
    projects: tuple[str, ...]
    agents: tuple[str, ...]
    quiet: str | None
    detail: Literal["full", "short"]
    answers: bool
    last_at: datetime | None
    note: str | None


def channel_statuses(settings: NotifySettings, newest: Mapping[str, Delivery]) -> tuple[ChannelStatus, ...]:
    """Return all recipients with the latest delivery to each."""
    return tuple(_status(one, newest.get(one.name)) for one in settings.to)


def _status(recipient: Recipient, last: Delivery | None) -> ChannelStatus:
    quiet = recipient.quiet
    # A dropped delivery says nothing against its recipient.
    well = last is not None and last.status in ("sent", "sending", "dropped")
    return ChannelStatus(
        name=recipient.name,
        way=recipient.way,
        status="untried" if last is None else "ok" if well else "failing",
        events=tuple(kind for kind in KINDS if kind in recipient.events),
        projects=tuple(map(str, recipient.projects)),
        agents=tuple(sorted(recipient.agents)),
        quiet=None if quiet is None else f"{quiet.begin:%H:%M}-{quiet.end:%H:%M}",
        detail="full" if recipient.is_full else "short",
        answers=recipient.answers,
        last_at=None if last is None else last.changed_at,
        note=None if last is None or last.status == "dropped" else last.note,
    )


class ForPages(Value, frozen=True):
    """Notifications for pages of the dashboard.

    `is_told`: True if questions are sent to pages at all. `next_in`: seconds until there may be more.
    """

    is_told: bool
    deliveries: tuple[Delivery, ...]
    next_in: float | None


class Notices:
    """`Helmsman.extras.notices`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm
        self._store = helm.notices

    @verb(READS)
    async def ways(self) -> tuple[ChannelStatus, ...]:
        """Return the recipients that the hub knows, with the result of their last delivery.

        Raises:
            InvalidSetting: The settings are invalid.
        """
        if self._store.settings is not None:
            settings = await self._store.settings()
        else:
            settings = await anyio.to_thread.run_sync(NotifySettings.load, self._helm.settings.files)
        return channel_statuses(settings, await anyio.to_thread.run_sync(self._store.newest))

    @verb(READS)
    async def log(self, limit: int = _SHOWN) -> Sequence[Delivery]:
        """Return the newest deliveries with their outcomes, newest first."""
        return self.within_roots(await self._store.log(limit))

    def within_roots(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return the deliveries that this client may see."""
        roots = self._helm.allowed_roots
        where = [(one, one.notification.directory) for one in deliveries]
        return tuple(one for one, place in where if not roots or place is None or is_inside(place, roots))

    @verb(READS)
    async def for_pages(self) -> ForPages:
        """Return the notifications for a page of the dashboard that may show them.

        Raises:
            InvalidSetting: The settings are invalid.
        """
        settings = NotifySettings() if self._store.settings is None else await self._store.settings()
        pages = [one for one in settings.to if one.way == "browser"]
        waiting = await self._store.waiting_for([one.name for one in pages])
        full = {one.name for one in pages if one.is_full}
        deliveries = [
            one if one.recipient in full else replace(one, notification=replace(one.notification, text=""))
            for one in waiting
        ]
        later = [one for page in pages if (one := await self._store.next_for(page.name)) is not None]
        now = self._store.clock()
        seconds = [left for one in later if (left := (one.next_at - now).total_seconds()) > 0]
        is_told = any("question" in one.events for one in pages)
        return ForPages(is_told, tuple(self.within_roots(deliveries)), min(seconds, default=None))

    @verb(ACTS)
    async def shown(self, notice_id: str) -> None:
        """Record that a page has shown a notification."""
        for delivery in (await self.for_pages()).deliveries:
            # `begin` fails if another page has shown it.
            if delivery.id == notice_id and await self._store.begin(delivery):
                await self._store.finish(delivery, "sent")

    @verb(ACTS)
    async def test(self, name: str | None = None) -> Sequence[Delivery]:
        """Send a test to all recipients, or to the one with this name. Return the deliveries.

        Raises:
            InvalidInput: There is no such recipient.
            InvalidSetting: The settings are invalid.
            Unsupported: There is no hub here.
        """
        if self._store.send_test is None:
            raise Unsupported(
                "Notices are sent by the hub, and here the service is inside this process. Leave out HELMSMAN_DETACH=0."
            )
        return await self._store.send_test(name)
