"""Stored notifications: their text, their recipients and their deliveries.

Notification and its deliveries are entered in one transaction. A delivery is `sending` before it is sent and `sent`
after: one that is found `sending` by the next hub may have arrived, so it is sent once more and marked doubtful, and
never a third time. Where several machines send, a delivery is leased for as long as one of them is sending it.
"""
# ruff: noqa: S608 - only names of columns and placeholders are joined, never values

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from helmsman.base.redaction import redact
from helmsman.base.structs import Value, pack, unpack_if_valid
from helmsman.notices.notifications import Notification
from helmsman.store.connection import is_in
from helmsman.store.database import from_microseconds, microseconds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from helmsman.notices.config import NotifySettings
    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Database

T = TypeVar("T")

DeliveryStatus = Literal["pending", "sending", "sent", "failed", "doubtful", "dropped"]
"""`doubtful`: sent twice, and possibly not arrived. `dropped`: obsolete."""

_KEPT: Final = 1000
"""Notices kept in the store."""
_MOST_WAITING: Final = 200
"""Deliveries that may wait for one recipient, apart from open questions. The oldest are dropped."""
_QUESTIONS: Final = "SELECT id FROM notices WHERE about LIKE 'question %'"
"""Not limited: a question drops its notification when it closes."""
_LEFT: Final = "recipient = ? AND status = 'sending' AND (lease_until IS NULL OR lease_until < ?)"
_NOTE_CHARS: Final = 500
NOT_NEEDED: Final = "It was no longer relevant."
_TOO_MANY: Final = "Too many were waiting."


class Delivery(Value, frozen=True, kw_only=True):
    """Notification for one recipient."""

    id: str
    notification: Notification
    recipient: str
    status: DeliveryStatus
    attempts: int
    is_doubtful: bool
    created_at: datetime
    next_at: datetime
    changed_at: datetime
    note: str | None = None


class Due(Value, frozen=True):
    """Ended task or skipped run that may need a notification. `owner_pid` and `engine` are what its task had."""

    about: str
    owner_pid: int | None
    engine: str | None


class ReplyCode(Value, frozen=True):
    """Question and answer that a one-time code is valid for."""

    notification: Notification
    recipient: str
    choice: str


class NoticeStore:
    """Notices of a store. Reads and writes raise `RegistryUnavailable` if it cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.lease_seconds: float | None = None
        """Seconds for which a delivery that is being sent is not sent by other machines; None if there are none."""
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.revision = 0
        """Grows when something was entered here, or has changed."""
        self.settings: Callable[[], Awaitable[NotifySettings]] | None = None
        """Return the current recipients; None if no notifications are sent here."""
        self.send_test: Callable[[str | None], Awaitable[Sequence[Delivery]]] | None = None
        """Sends a test to all recipients or one; None in processes that do not send notices."""

    # --- notifications -----------------------------------------------------------------------------------------------

    async def add(self, notification: Notification, recipients: Mapping[str, datetime]) -> str | None:
        """Add a notification for these recipients, each with its earliest time. Return its id, or None if it is not
        new.

        Its subject is no longer due. A delivery that was dropped as obsolete is sent if its subject comes up again.
        """
        notice_id, now = f"N-{secrets.token_hex(6)}", microseconds(self.clock())

        def work(connection: StoreConnection) -> str | None:
            connection.execute("DELETE FROM notices_due WHERE about = ?", (notification.about,))
            known = connection.execute("SELECT id FROM notices WHERE about = ?", (notification.about,)).fetchone()
            if known is not None:
                # Only those that were never tried: any other may have arrived.
                connection.execute(
                    "UPDATE notice_deliveries SET status = 'pending', next_at = ?, changed_at = ?, note = NULL "
                    "WHERE notice = ? AND status = 'dropped' AND attempts = 0 AND note = ?",
                    (now, now, known["id"], NOT_NEEDED),
                )
            if known is not None or not recipients:
                return None
            values = (notice_id, notification.about, json.dumps(pack(notification)), now)
            connection.execute("INSERT INTO notices (id, about, content, created_at) VALUES (?, ?, ?, ?)", values)
            for recipient, at in recipients.items():
                connection.execute(
                    "INSERT INTO notice_deliveries (notice, recipient, status, next_at, changed_at) "
                    "VALUES (?, ?, 'pending', ?, ?)",
                    (notice_id, recipient, microseconds(at), now),
                )
                connection.execute(
                    "UPDATE notice_deliveries SET status = 'dropped', changed_at = ?, note = ? "
                    f"WHERE recipient = ? AND status = 'pending' AND notice NOT IN ({_QUESTIONS}) AND notice NOT IN "
                    "(SELECT notice FROM notice_deliveries WHERE recipient = ? AND status = 'pending' "
                    f"AND notice NOT IN ({_QUESTIONS}) ORDER BY number DESC LIMIT ?)",
                    (now, _TOO_MANY, recipient, recipient, _MOST_WAITING),
                )
            _forget_old(connection)
            return notice_id

        return await self._write(work)

    async def due(self) -> tuple[Due, ...]:
        """Return ended tasks and skipped runs without a notification yet, oldest first."""
        sql = "SELECT about, owner_pid, engine FROM notices_due ORDER BY at LIMIT 1000"
        return await self._database.read_soon(lambda connection: tuple(Due(*row) for row in connection.execute(sql)))

    async def forget_due(self, about: str) -> None:
        """Mark a subject as handled without a notification."""
        await self._write(lambda connection: connection.execute("DELETE FROM notices_due WHERE about = ?", (about,)))

    async def drop(self, about: str, why: str) -> None:
        """Do not send what waits about something, and forget the codes for it."""
        notice = "notice = (SELECT id FROM notices WHERE about = ?)"

        def work(connection: StoreConnection) -> None:
            connection.execute(f"DELETE FROM notice_codes WHERE {notice}", (about,))
            self._drop(connection, why, notice, about)

        await self._write(work)

    async def drop_others(self, recipients: Sequence[str], why: str) -> None:
        """Do not send what waits for others than these recipients."""
        condition = is_in("recipient", recipients, negated=True)
        await self._write(lambda connection: self._drop(connection, why, condition, *recipients))

    async def drop_older(self, recipients: Sequence[str], before: datetime, why: str) -> None:
        """Do not send these recipients what has waited since before a time."""
        condition = f"next_at < ? AND {is_in('recipient', recipients)}"
        await self._write(lambda connection: self._drop(connection, why, condition, microseconds(before), *recipients))

    def _drop(self, connection: StoreConnection, why: str, condition: str, *values: Any) -> None:
        connection.execute(
            "UPDATE notice_deliveries SET status = 'dropped', changed_at = ?, note = ? "
            f"WHERE status IN ('pending', 'sending') AND {condition}",
            (microseconds(self.clock()), why, *values),
        )

    # --- deliveries --------------------------------------------------------------------------------------------------

    async def recover(self, recipient: str) -> None:
        """Recover deliveries of an earlier hub, or of a machine that did not end its delivery in time.

        Those that were being sent may have arrived: send them once more, then never again.
        """

        def work(connection: StoreConnection) -> None:
            now = microseconds(self.clock())
            # First those that were doubtful before: they must not be sent a third time.
            connection.execute(
                f"UPDATE notice_deliveries SET status = 'doubtful', changed_at = ?, note = ? WHERE {_LEFT} "
                "AND is_doubtful = 1",
                (now, "It was sent twice, and may not have arrived.", recipient, now),
            )
            connection.execute(
                "UPDATE notice_deliveries SET status = 'pending', is_doubtful = 1, changed_at = ?, next_at = ? "
                f"WHERE {_LEFT}",
                (now, now, recipient, now),
            )

        await self._write(work)

    async def next_for(self, recipient: str) -> Delivery | None:
        """Return the next delivery for a recipient, due or not."""
        sql = f"{_SELECT} WHERE recipient = ? AND status = 'pending' ORDER BY next_at, notices.number LIMIT 1"
        found = await self._database.read_soon(lambda connection: _deliveries(connection.execute(sql, (recipient,))))
        return found[0] if found else None

    async def waiting_for(self, recipients: Iterable[str]) -> tuple[Delivery, ...]:
        """Return the deliveries for these recipients that are due, oldest first."""
        names = tuple(recipients)
        sql = f"{_SELECT} WHERE {is_in('recipient', names)} AND status = 'pending' AND next_at <= ? ORDER BY notices.number"
        values = (*names, microseconds(self.clock()))
        return await self._database.read_soon(lambda connection: _deliveries(connection.execute(sql, values)))

    async def begin(self, delivery: Delivery) -> bool:
        """Mark a delivery as being sent. Return False if it should no longer be sent."""
        seconds = self.lease_seconds
        until = None if seconds is None else microseconds(self.clock() + timedelta(seconds=seconds))
        return await self._change(
            delivery, "pending", status="sending", attempts=delivery.attempts + 1, lease_until=until
        )

    async def finish(self, delivery: Delivery, status: DeliveryStatus, note: str | None = None) -> None:
        """Record the outcome of a delivery."""
        await self._change(delivery, None, status=status, note=bounded_note(note))

    async def again(self, delivery: Delivery, at: datetime, note: str, *, is_doubtful: bool = False) -> None:
        """Schedule a retry. `is_doubtful`: the message may have arrived."""
        doubtful = int(delivery.is_doubtful or is_doubtful)
        values = {"next_at": microseconds(at), "note": bounded_note(note), "is_doubtful": doubtful}
        await self._change(delivery, "sending", status="pending", **values)

    async def _change(self, delivery: Delivery, expected: str | None, **values: Any) -> bool:
        values["changed_at"] = microseconds(self.clock())
        sql = f"UPDATE notice_deliveries SET {', '.join(f'{name} = ?' for name in values)} "
        # Another machine, or the end of its subject, may have changed it in between.
        sql += "WHERE notice = ? AND recipient = ?" + ("" if expected is None else f" AND status = '{expected}'")

        def work(connection: StoreConnection) -> bool:
            return connection.execute(sql, (*values.values(), delivery.id, delivery.recipient)).rowcount == 1

        return await self._write(work)

    async def deliveries(self, notice_id: str) -> tuple[Delivery, ...]:
        """Return all deliveries of a notice."""
        sql = f"{_SELECT} WHERE notice = ? ORDER BY recipient"
        return await self._database.read_soon(lambda connection: _deliveries(connection.execute(sql, (notice_id,))))

    async def log(self, limit: int, recipients: Collection[str] | None = None) -> tuple[Delivery, ...]:
        """Return the newest deliveries, to all recipients or to these, newest first."""
        where = "" if recipients is None else f"WHERE {is_in('recipient', recipients)}"
        sql = f"{_SELECT} {where} ORDER BY notices.number DESC, recipient LIMIT ?"
        values = (*(recipients or ()), limit)
        return await self._database.read_soon(lambda connection: _deliveries(connection.execute(sql, values)))

    def newest(self) -> dict[str, Delivery]:
        """Return each recipient's latest delivery that was tried at least once. Blocks."""
        sql = f"{_SELECT} WHERE attempts > 0 ORDER BY changed_at, notices.number"
        found = self._database.read(lambda connection: _deliveries(connection.execute(sql)))
        return {delivery.recipient: delivery for delivery in found}

    async def pending(self) -> int:
        """Return how many deliveries wait or are under way."""
        sql = "SELECT COUNT(*) FROM notice_deliveries WHERE status IN ('pending', 'sending')"
        return int(await self._database.read_soon(lambda connection: connection.execute(sql).fetchone()[0]))

    # --- codes -------------------------------------------------------------------------------------------------------

    async def add_code(self, delivery: Delivery, digest: str, choice: str) -> None:
        """Store the meaning of a code, by its digest."""
        values = (digest, delivery.id, delivery.recipient, choice, microseconds(self.clock()))
        await self._write(
            lambda connection: connection.execute("INSERT INTO notice_codes VALUES (?, ?, ?, ?, ?)", values)
        )

    async def code(self, digest: str) -> ReplyCode | None:
        """Return the meaning of a code."""
        sql = (
            "SELECT content, recipient, choice FROM notice_codes JOIN notices ON notices.id = notice_codes.notice "
            "WHERE digest = ?"
        )
        row = await self._database.read_soon(lambda connection: connection.execute(sql, (digest,)).fetchone())
        notification = None if row is None else _notification(row["content"])
        return None if notification is None else ReplyCode(notification, row["recipient"], row["choice"])

    async def with_codes(self) -> tuple[str, ...]:
        """Return the subjects that have valid codes."""
        sql = "SELECT DISTINCT about FROM notice_codes JOIN notices ON notices.id = notice"
        return await self._database.read_soon(lambda connection: tuple(row["about"] for row in connection.execute(sql)))

    async def codes_since(self, recipient: str) -> datetime | None:
        """Return when the oldest valid code was issued, or None."""
        sql = "SELECT MIN(made_at) FROM notice_codes WHERE recipient = ?"
        at = await self._database.read_soon(lambda connection: connection.execute(sql, (recipient,)).fetchone()[0])
        return None if at is None else from_microseconds(at)

    # --- the store ---------------------------------------------------------------------------------------------------

    def next_commit(self) -> asyncio.Event:
        """Return an event that the next commit to the store sets. Take it before reading."""
        return self._database.next_commit()

    async def _write(self, work: Callable[[StoreConnection], T]) -> T:
        def counted(connection: StoreConnection) -> tuple[T, bool]:
            before = connection.total_changes
            return work(connection), connection.total_changes > before

        result, has_changed = await self._database.write_soon(counted)
        if has_changed:
            self.revision += 1
        return result


_SELECT: Final = (
    "SELECT notice, content, recipient, status, attempts, is_doubtful, created_at, next_at, changed_at, note "
    "FROM notice_deliveries JOIN notices ON notices.id = notice"
)


def _deliveries(rows: Iterable[Any]) -> tuple[Delivery, ...]:
    """Return deliveries, without those that this version cannot read."""
    return tuple(
        Delivery(
            id=row["notice"],
            notification=notification,
            recipient=row["recipient"],
            status=row["status"],
            attempts=row["attempts"],
            is_doubtful=bool(row["is_doubtful"]),
            created_at=from_microseconds(row["created_at"]),
            next_at=from_microseconds(row["next_at"]),
            changed_at=from_microseconds(row["changed_at"]),
            note=row["note"],
        )
        for row in rows
        if (notification := _notification(row["content"])) is not None
    )


def _notification(content: str) -> Notification | None:
    try:
        return unpack_if_valid(json.loads(content), Notification)
    except ValueError:
        return None


def _forget_old(connection: StoreConnection) -> None:
    """Delete the oldest notices, but keep questions that wait to be sent or have valid codes."""
    needed = (
        "SELECT notice FROM notice_codes UNION SELECT notice FROM notice_deliveries "
        f"WHERE status IN ('pending', 'sending') AND notice IN ({_QUESTIONS})"
    )
    newest = f"SELECT id FROM notices ORDER BY number DESC LIMIT {_KEPT}"
    old = f"(SELECT id FROM notices WHERE id NOT IN ({newest}) AND id NOT IN ({needed}))"
    # `notices` last, because the rows of the other tables are found through it.
    for table, column in (("notice_codes", "notice"), ("notice_deliveries", "notice"), ("notices", "id")):
        connection.execute(f"DELETE FROM {table} WHERE {column} IN {old}")


def bounded_note(note: str | None) -> str | None:
    """Truncate the reason why a delivery failed."""
    return None if note is None else redact(note)[:_NOTE_CHARS]
