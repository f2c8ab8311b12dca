"""Send messages to an ntfy topic, and read answers to questions from its buttons.

A button publishes a code to a reply topic that the hub reads. A code is random, valid for one answer to one question,
and expires when the question closes; only its digest is stored. Anyone who can read the topic could press the buttons.
So there are buttons only if the server requires a login for the topic, which is checked each time, and only if the
message shows the whole question.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.base.json_values import json_object, optional_text
from helmsman.base.redaction import redact
from helmsman.model.questions import REFUSALS
from helmsman.notices.channels import HTTP_SECONDS, Sender, http_client, load_http, posted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from datetime import datetime

    import httpx2

    from helmsman.notices.config import Recipient
    from helmsman.notices.store import Delivery, NoticeStore

log = logging.getLogger(__name__)

_MESSAGE_BYTES: Final = 3900
"""ntfy turns a message of more than 4096 bytes into an attachment, which a lock screen does not show."""
_CODE_BYTES: Final = 16
_LINE_BYTES: Final = 64 * 1024
_SILENCE_SECONDS: Final = 120.0
"""Server sends a keepalive every 45 seconds."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_SKEW: Final = timedelta(minutes=1)
"""Server's clock may differ, so replies are requested by duration, not by time."""
_URGENT: Final = frozenset({"question", "limit", "hub"})
_OPEN_TOPIC: Final = "Sent without buttons: anyone can read this topic. Let the server require a login for it."
_NOT_ALL_SHOWN: Final = "(Not all of it is shown here, so there is no button for yes.)"


class Ntfy(Sender):
    """Topic of an ntfy server."""

    def __init__(self, recipient: Recipient, store: NoticeStore) -> None:
        self._recipient = recipient
        self._store = store

    def prepare(self) -> None:
        load_http()

    async def send(self, delivery: Delivery) -> str | None:
        notification, to = delivery.notification, self._recipient
        text = notification.text if to.is_full and notification.text else notification.title
        message, was_cut = _fitting(text)
        content: dict[str, Any] = {
            "topic": to.topic,
            "title": notification.headline,
            "message": message,
            # Priorities of ntfy: 3 is the default, 4 is high.
            "priority": 4 if notification.kind in _URGENT else 3,
        }
        async with http_client() as client:
            note: str | None = None
            if to.answers and notification.choices and notification.question_id is not None:
                shown = notification.is_whole and not was_cut
                choices = tuple(choice for choice in notification.choices if shown or choice in REFUSALS)
                if not await self._is_protected(client):
                    choices, note = (), _OPEN_TOPIC
                elif len(choices) < len(notification.choices):
                    content["message"] = f"{message}\n{_NOT_ALL_SHOWN}"
                # A code is stored before the message leaves, so that a quick press finds it.
                content["actions"] = [await self._button(delivery, choice) for choice in choices]
            await posted(client, to.url, json.dumps(content).encode(), self._authorization())
            return note

    async def _is_protected(self, client: httpx2.AsyncClient) -> bool:
        """Return whether the server refuses the topic to strangers, and knows us."""
        import httpx2

        # ntfy answers 200 there to all who may read the topic.
        address = f"{self._recipient.url}/{self._recipient.topic}/auth"
        try:
            with anyio.fail_after(HTTP_SECONDS):
                stranger = await client.get(address)
                known = await client.get(address, headers=self._authorization())
        except (httpx2.HTTPError, OSError, TimeoutError):
            return False
        return stranger.status_code in (401, 403) and known.status_code == 200

    async def _button(self, delivery: Delivery, choice: str) -> dict[str, Any]:
        code = secrets.token_hex(_CODE_BYTES)
        await self._store.add_code(delivery, digest_of(code), choice)
        button = {
            "action": "http",
            "label": choice[:40].replace("_", " ").capitalize(),
            "url": f"{self._recipient.url}/{self._recipient.reply_topic}",
            "method": "POST",
            "body": code,
            "clear": True,
        }
        if self._recipient.reply_token is not None:
            button["headers"] = {"Authorization": f"Bearer {self._recipient.reply_token}"}
        return button

    def _authorization(self) -> dict[str, str]:
        return {} if self._recipient.secret is None else {"Authorization": f"Bearer {self._recipient.secret}"}

    # --- answers -----------------------------------------------------------------------------------------------------

    async def read_replies(
        self,
        since: datetime,
        take: Callable[[str], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """Pass on messages published to the reply topic after `since`, until cancelled. Reconnects after an error."""
        import httpx2

        place, pause = "", _FIRST_PAUSE
        while True:
            age = self._store.clock() - since + _SKEW
            try:
                # The id of the last message is exact. Before the first one, ask by age, since the clocks may differ.
                async for line in self._lines(place or f"{int(age.total_seconds())}s"):
                    pause = _FIRST_PAUSE
                    # Keepalives have no id to continue from.
                    place = await _taken(line, take) or place
            except (httpx2.HTTPError, OSError, ValueError) as error:
                log.warning(
                    "answers by %s cannot be read: %s", self._recipient.name, redact(str(error)) or type(error).__name__
                )
            except Exception:
                log.exception("answers by %s cannot be read", self._recipient.name)
            await sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _lines(self, since: str) -> AsyncIterator[bytes]:
        """Yield the lines that the server sends from a position on, with a limit on the length of a line."""
        address = f"{self._recipient.url}/{self._recipient.reply_topic}/json"
        async with (
            http_client(_SILENCE_SECONDS) as client,
            client.stream("GET", address, params={"since": since}, headers=self._authorization()) as answer,
        ):
            if answer.status_code != 200:
                raise ValueError(f"HTTP {answer.status_code}")
            kept = b""
            async for part in answer.aiter_bytes():
                *whole, kept = (kept + part).split(b"\n")
                for line in whole:
                    yield line
                if len(kept) > _LINE_BYTES:
                    raise ValueError("a line is too long")


async def _taken(line: bytes, take: Callable[[str], Awaitable[None]]) -> str | None:
    """Take a message; its id, from which on the next connection continues."""
    said = json_object(line) or {}
    if said.get("event") != "message":
        return None
    if (code := optional_text(said.get("message"))) is not None:
        await take(code.strip())
    return optional_text(said.get("id"))


def digest_of(code: str) -> str:
    """Return the digest of a code, which is stored instead of the code."""
    return hashlib.sha256(code.encode("utf-8", "replace")).hexdigest()


def _fitting(text: str) -> tuple[str, bool]:
    data = text.encode()
    if len(data) <= _MESSAGE_BYTES:
        return text, False
    return data[:_MESSAGE_BYTES].decode("utf-8", "ignore") + "\n(cut here)", True
