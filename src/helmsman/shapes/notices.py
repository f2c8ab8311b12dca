"""Notices as front ends show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helmsman.base.json_values import present, utc_time

if TYPE_CHECKING:
    from helmsman.capabilities.notices import ChannelStatus
    from helmsman.notices.store import Delivery


def delivery_as_dict(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery: the message, its recipient and its status."""
    notification = delivery.notification
    shown = {
        "noticeId": delivery.id,
        "to": delivery.recipient,
        "kind": notification.kind,
        "title": notification.headline,
        "status": delivery.status,
        "doubtful": delivery.is_doubtful or None,
        "attempts": delivery.attempts,
        "createdAt": utc_time(delivery.created_at),
        "changedAt": utc_time(delivery.changed_at),
        "nextAt": utc_time(delivery.next_at) if delivery.status == "pending" else None,
        "note": delivery.note,
        "sessionId": notification.session_id,
        "taskId": notification.task_id,
        "questionId": notification.question_id,
    }
    return present(shown)


def way_as_dict(way: ChannelStatus) -> dict[str, Any]:
    """Return a notification channel: its filters and its last delivery."""
    shown = {
        "name": way.name,
        "way": way.way,
        "status": way.status,
        "events": list(way.events),
        "projects": list(way.projects) or None,
        "agents": list(way.agents) or None,
        "quiet": way.quiet,
        "detail": way.detail,
        "answers": way.answers or None,
        "lastAt": utc_time(way.last_at),
        "note": way.note,
    }
    return present(shown)
