"""Deliver messages to one recipient, in order. Each recipient has its own, so that a dead one delays no other."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from helmsman.base.concurrency import sleep_until
from helmsman.base.structs import replace
from helmsman.errors import HelmsmanError
from helmsman.notices.channels import ChannelError, Command, Desktop, MaybeSent, NotSent, Webhook
from helmsman.notices.ntfy import Ntfy
from helmsman.notices.store import NOT_NEEDED

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from helmsman.notices.channels import Sender
    from helmsman.notices.config import Recipient
    from helmsman.notices.store import Delivery, NoticeStore


# --- Choose the channel to a recipient --------------------------------------------------------------------------------


def sender_of(recipient: Recipient, codes: NoticeStore, state_dir: Path) -> Sender | None:
    """Return the channel to a recipient; None if dashboard pages fetch their notifications themselves. `codes` are for
    answers.
    """
    match recipient.way:
        case "desktop":
            return Desktop(recipient)
        case "command":
            return Command(recipient)
        case "webhook":
            return Webhook(recipient)
        case "ntfy":
            return Ntfy(recipient, codes)
        case "push":
            from helmsman.notices.web_push import WebPush  # it needs cryptography, which most hubs never load

            return WebPush(recipient, state_dir)
        case "browser":
            return None


log = logging.getLogger(__name__)

_PAUSES: Final = (5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0)
"""Seconds between attempts. After the last one the delivery has failed."""
_LOOK_SECONDS: Final = 30.0
"""Seconds between checks of the clock, because the system does not report that it slept."""
_TROUBLE_SECONDS, _LONGEST_TROUBLE_SECONDS = 10.0, 640.0


class DeliveryLoop:
    """Sends what waits for a recipient when it is due, for as long as it runs.

    `is_needed` says whether notification still matters when it is its turn.
    """

    def __init__(
        self,
        name: str,
        sender: Sender,
        store: NoticeStore,
        is_needed: Callable[[Delivery], bool],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._name = name
        self._sender = sender
        self._store = store
        self._is_needed = is_needed
        self._sleep = sleep

    async def run(self) -> None:
        """Send deliveries until cancelled."""
        is_taken_up, pause = False, _TROUBLE_SECONDS
        while True:
            # Taken before the store is read: a commit in between must not be missed.
            committed = self._store.next_commit()
            try:
                if not is_taken_up:
                    await self._store.recover(self._name)
                    is_taken_up = True
                seconds = await self._bring_next(committed)
                pause = _TROUBLE_SECONDS
            except HelmsmanError as error:
                log.warning("notices to %s wait: %s", self._name, error)
                seconds, is_taken_up = _TROUBLE_SECONDS, False  # a message that was being sent may have arrived
            except Exception:
                log.exception("notices to %s wait", self._name)
                await self._sleep(pause)  # also for notices added during the pause: they may fail in the same way
                seconds, is_taken_up = 0.0, False
                pause = min(pause * 2, _LONGEST_TROUBLE_SECONDS)
            if seconds:
                await sleep_until(committed, seconds, self._sleep)

    async def _bring_next(self, committed: asyncio.Event) -> float:
        """Send the delivery that is due first, or wait for a commit. Return the pause before the next look."""
        delivery = await self._store.next_for(self._name)
        if delivery is None:
            await committed.wait()
            return 0.0
        left = (delivery.next_at - self._store.clock()).total_seconds()
        if left <= 0:
            await self._bring(delivery)
            return 0.0
        return min(left, _LOOK_SECONDS)

    async def _bring(self, delivery: Delivery) -> None:
        store = self._store
        if not self._is_needed(delivery):
            await store.finish(delivery, "dropped", NOT_NEEDED)
            return
        # Before it counts as being sent: a hub that is killed in here has sent nothing.
        await anyio.to_thread.run_sync(self._sender.prepare)
        # It may be obsolete by now, or another machine sends it.
        if not await store.begin(delivery):
            return
        delivery = replace(delivery, attempts=delivery.attempts + 1, changed_at=store.clock())
        try:
            note = await self._sender.send(delivery)
        except ChannelError as error:
            log.warning("notice %s to %s was not sent: %s", delivery.id, self._name, error)
            await self._failed(delivery, error)
        # The store cannot be written. The loop waits, and then finds the delivery as begun.
        except HelmsmanError:
            raise
        except Exception as error:
            log.exception("notice %s to %s was not sent", delivery.id, self._name)
            await store.finish(delivery, "failed", f"Helmsman itself failed: {type(error).__name__}.")
        else:
            await store.finish(delivery, "sent", note)

    async def _failed(self, delivery: Delivery, error: ChannelError) -> None:
        """Retry a failed delivery: several times if it certainly did not arrive, once if it may have."""
        is_last = delivery.attempts > len(_PAUSES)
        may_have_arrived = isinstance(error, MaybeSent)
        if may_have_arrived and delivery.is_doubtful:
            await self._store.finish(delivery, "doubtful", str(error))
        elif isinstance(error, NotSent | MaybeSent) and not is_last:
            at = self._store.clock() + timedelta(seconds=_PAUSES[delivery.attempts - 1])
            await self._store.again(delivery, at, str(error), is_doubtful=may_have_arrived)
        else:
            await self._store.finish(delivery, "failed", str(error))
