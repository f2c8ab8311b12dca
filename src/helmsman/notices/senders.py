"""Choose the channel to a recipient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.notices.channels import Command, Desktop, Webhook
from helmsman.notices.ntfy import Ntfy

if TYPE_CHECKING:
    from helmsman.notices.channels import Sender
    from helmsman.notices.config import Recipient
    from helmsman.notices.store import NoticeStore


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
