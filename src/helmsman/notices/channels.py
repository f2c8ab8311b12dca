"""Channels for notifications: the desktop, a command of the user, a webhook. `ntfy.py` has another one.

A channel raises `NotSent` if a message certainly did not arrive, `MaybeSent` if that is unknown, and `NeverSent` if a
retry would not help. Their messages are shown and logged, so they contain no address and no secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from helmsman._version import __version__
from helmsman.base.concurrency import background_tasks
from helmsman.base.json_values import utc_time
from helmsman.base.process_ending import end_group
from helmsman.base.programs import available, check_program, environment_for, find_program
from helmsman.base.redaction import redact
from helmsman.base.sanitize import one_line
from helmsman.errors import ProgramRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import httpx2

    from helmsman.notices.config import Recipient
    from helmsman.notices.store import Delivery

log = logging.getLogger(__name__)

HTTP_SECONDS: Final = 20.0
_DESKTOP_SECONDS: Final = 10.0
_OUTPUT_BYTES: Final = 4096
"""Limit on the output of a command in the log."""
_LAST_WORDS_SECONDS: Final = 0.5
_REFUSED_FOR_NOW: Final = frozenset({408, 425, 429, 503})
"""Answers by which a server says that it has taken nothing, and may do so later."""
_DESKTOP_CHARS: Final = 600
_KEY: Final = "whsec_"
_OSASCRIPT: Final = (
    "on run argv",
    "display notification (item 2 of argv) with title (item 1 of argv)",
    "end run",
)


class ChannelError(Exception):
    """Base of delivery errors."""


class NotSent(ChannelError):
    """Message did not arrive. A retry may help."""


class MaybeSent(ChannelError):
    """Message may have arrived."""


class NeverSent(ChannelError):
    """Message did not arrive, and a retry would not help."""


class RefusedByServer(NeverSent):
    """Server refuses the message with this HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"The server refused it (HTTP {status}).")
        self.status = status


class Sender(Protocol):
    """Channel to one recipient."""

    def prepare(self) -> None:
        """Do the slow part of a delivery that sends nothing. Blocks."""
        return

    async def send(self, delivery: Delivery) -> str | None:
        """Send a message. Return a remark, if any.

        Raises:
            ChannelError: See above.
        """
        ...


def message_of(delivery: Delivery, recipient: Recipient) -> dict[str, Any]:
    """Return the JSON for programs."""
    return {
        "id": delivery.id,
        **delivery.notification.for_programs(is_full=recipient.is_full),
        "createdAt": utc_time(delivery.created_at),
        "mayBeRepeated": delivery.is_doubtful,
    }


class Desktop(Sender):
    """Desktop notifications of the system that the hub runs on."""

    def __init__(self, recipient: Recipient) -> None:
        self._recipient = recipient

    async def send(self, delivery: Delivery) -> str | None:
        notification = delivery.notification
        text = notification.text if self._recipient.is_full else ""
        code, said = await run_command(
            _desktop_words(notification.headline, text[:_DESKTOP_CHARS]), b"", _DESKTOP_SECONDS, os.environ
        )
        if code != 0:
            raise NeverSent(f"The desktop took no notification: {_last_line(said) or f'exit code {code}'}.")
        return None


def _desktop_words(title: str, text: str) -> Sequence[str]:
    """Return the command that shows a notification. Its text is never parsed as an option or as markup."""
    if sys.platform == "darwin":
        script = [word for line in _OSASCRIPT for word in ("-e", line)]
        return ("osascript", *script, "--", title, text)
    if available("notify-send", os.environ) is None:
        raise NeverSent("There is no notify-send here. Install it (libnotify), or use another way.")
    # By the freedesktop specification, the body may contain markup; the title may not.
    shown = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return ("notify-send", "--app-name=Helmsman", "--icon=dialog-information", "--", title, shown)


class Command(Sender):
    """Command of the user, which gets JSON on stdin."""

    def __init__(self, recipient: Recipient) -> None:
        self._recipient = recipient

    async def send(self, delivery: Delivery) -> str | None:
        words, seconds = self._recipient.command, self._recipient.timeout
        told = json.dumps(message_of(delivery, self._recipient)).encode() + b"\n"
        code, said = await run_command(words, told, seconds, os.environ)
        if said.strip():
            log.info("the command of %s says: %s", self._recipient.name, redact(one_line(said)))
        if code != 0:
            raise NeverSent(f"{words[0]} ended with exit code {code}: {_last_line(said) or 'it said nothing'}")
        return None


async def run_command(words: Sequence[str], told: bytes, seconds: float, env: Mapping[str, str]) -> tuple[int, str]:
    """Run a command in its own process group. Return its exit code and the beginning of its output.

    Nothing that it started outlives it.

    Raises:
        NeverSent: It cannot be started.
        MaybeSent: It did not end in time. All that is left of it was killed.
    """
    try:
        program = check_program(words[0], env) if "/" in words[0] else find_program(words[0], env)
    except ProgramRefused as error:
        raise NeverSent(error.message) from None
    if program is None:
        raise NeverSent(f"{words[0]} cannot be started: there is no such program on PATH.")
    try:
        process = await anyio.open_process(
            [program, *words[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment_for(env),
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise NeverSent(f"{words[0]} cannot be started: {error.strerror or error}") from None
    said = bytearray()
    try:
        with anyio.fail_after(seconds):
            async with background_tasks() as tasks:
                # Write while reading: a command that fills its output before it reads would block both sides.
                tasks.start_soon(_write, process, told)
                reading = anyio.Event()
                tasks.start_soon(_listen, process, said, reading)
                code = await process.wait()
                with anyio.move_on_after(_LAST_WORDS_SECONDS):  # a process that it started may keep its output open
                    await reading.wait()
    except TimeoutError:
        raise MaybeSent(f"{words[0]} did not end within {seconds:g} s, and was killed.") from None
    finally:
        # Also when the hub stops: nothing that the command started may outlive this call.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(end_group, process.pid)
            await process.aclose()
    return code, said.decode("utf-8", "replace")


async def _write(process: anyio.abc.Process, told: bytes) -> None:
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        await process.stdin.send(told)  # a command need not read its input
    with suppress(anyio.BrokenResourceError, ConnectionError):
        await process.stdin.aclose()


async def _listen(process: anyio.abc.Process, said: bytearray, is_over: anyio.Event) -> None:
    assert process.stdout is not None
    async for part in process.stdout:
        # Read to the end although little is kept: a full pipe would block the command.
        said += part[: _OUTPUT_BYTES - len(said)]
    is_over.set()


def _last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return redact(one_line(lines[-1]))[:200] if lines else ""


class Webhook(Sender):
    """POST request, signed as in Standard Webhooks: over the id, the time and the body."""

    def __init__(self, recipient: Recipient) -> None:
        self._recipient = recipient

    def prepare(self) -> None:
        load_http()

    async def send(self, delivery: Delivery) -> str | None:
        body = json.dumps(message_of(delivery, self._recipient)).encode()
        # The time of this attempt. Receivers refuse messages that were signed long ago.
        at = str(int(delivery.changed_at.timestamp()))
        headers = {"Content-Type": "application/json", "Webhook-Id": delivery.id, "Webhook-Timestamp": at}
        if self._recipient.secret is not None:
            headers["Webhook-Signature"] = signature(self._recipient.secret, delivery.id, at, body)
        async with http_client() as client:
            await posted(client, self._recipient.url, body, headers)
        return None


def signature(secret: str, notice_id: str, at: str, body: bytes) -> str:
    """`v1,` and the base64 of an HMAC-SHA256 over `id.time.body`. A secret that begins with `whsec_` is base64, too."""
    key = secret.encode()
    if secret.startswith(_KEY):
        # A secret may begin like this by chance.
        with suppress(binascii.Error):
            key = base64.b64decode(secret.removeprefix(_KEY), validate=True)
    signed = hmac.new(key, f"{notice_id}.{at}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(signed).decode()}"


def load_http() -> None:
    """Import what speaks HTTP: it takes a tenth of a second, more on a busy machine, and most hubs never need it."""
    import httpx2  # noqa: F401


@asynccontextmanager
async def http_client(seconds: float | None = HTTP_SECONDS) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield an HTTP client without redirects and without settings from the environment.

    `seconds` limits a whole answer.
    """
    import httpx2

    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)  # they log addresses, which may be as good as a password
    timeout = httpx2.Timeout(HTTP_SECONDS, read=seconds)
    headers = {"User-Agent": f"helmsman/{__version__}"}
    # A redirect would take the message, and a token, to another server.
    async with httpx2.AsyncClient(timeout=timeout, headers=headers, follow_redirects=False, trust_env=False) as client:
        yield client


async def posted(client: httpx2.AsyncClient, url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Post something, and make sure that it was taken.

    Raises:
        ChannelError: It was not, or may not have been.
    """
    import httpx2

    try:
        # The client's timeouts apply to single operations. This one limits all of it.
        with anyio.fail_after(HTTP_SECONDS):
            # Streamed, so that a large body is not read: only the status matters.
            async with client.stream("POST", url, content=body, headers=dict(headers)) as answer:
                status = answer.status_code
    # Nothing was sent before these errors, so a retry cannot repeat the message.
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise NotSent(f"The server cannot be reached ({_kind(error)}).") from None
    # These may have come after the server took the message.
    except (httpx2.HTTPError, OSError, TimeoutError) as error:
        raise MaybeSent(f"The server did not answer ({_kind(error)}).") from None
    except (httpx2.InvalidURL, ValueError) as error:
        raise NeverSent(f"It cannot be sent there ({_kind(error)}).") from None
    if 200 <= status < 300:
        return
    if status in _REFUSED_FOR_NOW:
        raise NotSent(f"The server takes nothing now (HTTP {status}).")
    # It may have stored the message before it failed.
    if status >= 500:
        raise MaybeSent(f"The server failed (HTTP {status}).")
    raise RefusedByServer(status)


def _kind(error: Exception) -> str:
    """Describe an error without the address, which may contain a secret."""
    return type(error).__name__
