"""Choose the channel to a recipient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.notices.ntfy import Ntfy
from helmsman.notices.ways import Command, Desktop, Webhook

if TYPE_CHECKING:
    from helmsman.notices.config import Recipient
    from helmsman.notices.store import NoticeStore
    from helmsman.notices.ways import Sender


def sender_of(recipient: Recipient, codes: NoticeStore) -> Sender | None:
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
        case "browser":
            return None
