"""Push notifications to browsers (RFC 8030), encrypted for each (RFC 8291) and signed as this server's (RFC 8292).

The push service of the browser's maker passes them on and can read nothing but their size. A button for yes is sent only
to a device whose user has allowed it, and only if the notification shows the whole question.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio.to_thread
import jwt
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from helmsman.base.addresses import is_loopback
from helmsman.base.files import create_once
from helmsman.errors import InvalidInput
from helmsman.model.questions import DECLINE, DENY, REFUSALS, YES_MEANS
from helmsman.notices.channels import NeverSent, RefusedByServer, Sender, http_client, load_http, posted
from helmsman.notices.devices import DeviceBook, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from helmsman.notices.config import Recipient
    from helmsman.notices.store import Delivery

_SERVICES: Final = (
    "fcm.googleapis.com",
    "updates.push.services.mozilla.com",
    ".push.apple.com",
    ".notify.windows.com",
)
"""Push services of the browsers. The address comes from a client, and the hub must not send requests elsewhere."""
_KEY_FILE: Final = "web-push-key.pem"
# RFC 8292 asks for a contact. This one says nothing about the user.
_SUBJECT: Final = "mailto:helmsman@example.org"
# RFC 8292 allows at most 24 hours.
_TOKEN_SECONDS: Final = 12 * 3600
_TTL_SECONDS: Final = 24 * 3600
_RECORD_BYTES: Final = 4096
"""Size of a message that every push service takes, with all that encryption adds."""
_SEEN_CHARS, _SEEN_LINES = 240, 5
"""What phones show of a notification without unfolding it. A longer question gets no button for yes."""
_BUTTON_CHARS: Final = 40
"""What phones show of a button. A longer answer gets none."""
_NO: Final = (DENY, DECLINE)
_SALT_BYTES, _AUTH_BYTES, _POINT_BYTES = 16, 16, 65
_HEAD_BYTES: Final = _SALT_BYTES + 4 + 1 + _POINT_BYTES
_TAG_BYTES: Final = 16
_CONTENT_BYTES: Final = _RECORD_BYTES - _HEAD_BYTES - _TAG_BYTES - 1
_GONE: Final = frozenset({404, 410})
_GONE_TEXT: Final = "The browser takes no more notifications."


def subscription(endpoint: str, public_key: str, auth: str, *, approves: bool, services: Iterable[str]) -> Subscription:
    """Return a checked subscription of a browser. `services` are further hosts that the user has allowed.

    Raises:
        InvalidInput: It is not one, or of an unknown push service.
    """
    allowed = tuple(services)
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        raise InvalidInput("This is not the address of a push service.", parameter="endpoint") from None
    host = parts.hostname or ""
    # A leading dot means all hosts below the domain.
    known = any(host == one or (one.startswith(".") and host.endswith(one)) for one in (*_SERVICES, *allowed))
    is_private = parts.scheme == "https" or (is_loopback(host) and host in allowed)
    if not known or not is_private or parts.username is not None:
        raise InvalidInput(
            f"Notifications are not pushed by {host or 'this service'}. If you run that push service, name its host in "
            "`push_hosts` of [notify] in your helmsman.toml.",
            parameter="endpoint",
        )
    if len(_bytes(public_key)) != _POINT_BYTES or len(_bytes(auth)) != _AUTH_BYTES:
        raise InvalidInput("These are not the keys of a push subscription.", parameter="keys")
    return Subscription(endpoint=endpoint, public_key=public_key, auth=auth, approves=approves)


class WebPush(Sender):
    """One browser of the user."""

    def __init__(self, recipient: Recipient, state_dir: Path) -> None:
        assert recipient.push is not None
        self._recipient = recipient
        self._to = recipient.push
        self._state_dir = state_dir

    def prepare(self) -> None:
        load_http()

    async def send(self, delivery: Delivery) -> str | None:
        book = DeviceBook(self._state_dir)
        devices = [one.id for one in await anyio.to_thread.run_sync(book.all) if one.push == self._to]
        if not devices:  # revoked since the notification was queued
            raise NeverSent(_GONE_TEXT)
        notification = delivery.notification
        text = notification.text if self._recipient.is_full and notification.text else ""
        content = {
            "id": delivery.id,
            "kind": notification.kind,
            "title": notification.headline,
            "body": text,
            "sessionId": notification.session_id,
            "questionId": notification.question_id,
            "choices": _buttons(delivery, self._to) if text else (),
        }
        headers = {
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(_TTL_SECONDS),
            "Urgency": "high" if notification.question_id is not None else "normal",
            # A later message about the same replaces one that waits. RFC 8030 allows 32 characters, which are 24 bytes.
            "Topic": _base64(hashlib.sha256(notification.about.encode()).digest()[:24]),
            "Authorization": authorization(self._state_dir, self._to.endpoint),
        }
        try:
            async with http_client() as client:
                await posted(client, self._to.endpoint, encrypted(_message(content), self._to), headers)
        except RefusedByServer as error:
            if error.status not in _GONE:
                raise
            for device in devices:
                book.subscribe(device, None)
            raise NeverSent(_GONE_TEXT) from None
        return None


def _message(content: dict[str, Any]) -> bytes:
    """Return the content as JSON that fits. If it is too long, its text is cut, and it only opens the page."""

    def encoded(**changes: object) -> bytes:
        # Half of a surrogate pair must not keep the message from being sent.
        return json.dumps(content | changes, ensure_ascii=False).encode("utf-8", "replace")

    message = encoded()
    if len(message) <= _CONTENT_BYTES:
        return message
    low, high = 0, len(content["body"])
    while low < high:  # how many characters fit
        middle = (low + high + 1) // 2
        fits = len(encoded(body=content["body"][:middle], choices=())) <= _CONTENT_BYTES
        low, high = (middle, high) if fits else (low, middle - 1)
    return encoded(body=content["body"][:low], choices=())


def _buttons(delivery: Delivery, to: Subscription) -> tuple[str, ...]:
    """Return the answers that a notification offers: yes only if all of the question is seen."""
    notification = delivery.notification
    text, choices = notification.text, notification.choices
    is_seen = notification.is_whole and len(text) <= _SEEN_CHARS and text.count("\n") < _SEEN_LINES
    plain = tuple(one for one in choices if one in (*YES_MEANS, *_NO))
    choices = plain or choices  # of an approval, a browser has room for yes and no
    if any(len(one) > _BUTTON_CHARS for one in choices):
        return ()
    return tuple(one for one in choices if one in REFUSALS or (is_seen and to.approves)) if len(choices) <= 2 else ()


def encrypted(content: bytes, to: Subscription) -> bytes:
    """Return a message that only this browser can read: one record of `aes128gcm`."""
    theirs = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), _bytes(to.public_key))
    # RFC 8291 requires a new key for each message.
    own = ec.generate_private_key(ec.SECP256R1())
    point, salt = _point(own.public_key()), os.urandom(_SALT_BYTES)
    info = b"WebPush: info\0" + _bytes(to.public_key) + point
    secret = _derived(own.exchange(ec.ECDH(), theirs), _bytes(to.auth), info, 32)
    key = _derived(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derived(secret, salt, b"Content-Encoding: nonce\0", 12)
    # The last byte marks the last record (RFC 8188).
    record = AESGCM(key).encrypt(nonce, content + b"\x02", None)
    return salt + _RECORD_BYTES.to_bytes(4, "big") + bytes([len(point)]) + point + record


def _derived(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


def authorization(state_dir: Path, endpoint: str) -> str:
    """Return the header by which a push service knows this server."""
    parts = urlsplit(endpoint)
    claims: dict[str, Any] = {
        # The token counts only at this push service.
        "aud": f"{parts.scheme}://{parts.netloc}",
        "exp": int(time.time()) + _TOKEN_SECONDS,
        "sub": _SUBJECT,
    }
    token = jwt.encode(claims, _key(state_dir), algorithm="ES256")
    return f"vapid t={token},k={application_key(state_dir)}"


def application_key(state_dir: Path) -> str:
    """Return the public key of this server, with which browsers subscribe. Blocks."""
    return _base64(_point(_key(state_dir).public_key()))


@cache
def _key(state_dir: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key of this state directory. It is created on first use."""
    made = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    stored = create_once(state_dir / _KEY_FILE, made.decode())
    key = serialization.load_pem_private_key(stored.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """Decode base64 for URLs. Return nothing if it is something else."""
    try:
        # Browsers leave the padding out.
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return b""
