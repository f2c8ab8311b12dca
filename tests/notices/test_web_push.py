"""Notifications that are pushed to a browser: read with the keys of the browser, and taken back when it is gone."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import http_ece  # type: ignore[import-untyped]
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.notices.channels import NeverSent, NotSent
from helmsman.notices.config import NotifySettings, Recipient
from helmsman.notices.devices import Device, DeviceBook, Subscription
from helmsman.notices.store import Delivery
from helmsman.notices.web_push import WebPush, application_key, subscription
from tests.notices.conftest import opened
from tests.notices.receivers import Received, Receiver
from tests.notices.test_ways import delivery

pytestmark = pytest.mark.anyio


def base64(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


class PushedBrowser:
    """A browser's side of a subscription."""

    def __init__(self, receiver: Receiver, state_dir: Path) -> None:
        self._private = ec.generate_private_key(ec.SECP256R1())
        self._auth = bytes(range(16))
        self._state_dir = state_dir
        self.book = DeviceBook(state_dir)
        point = self._private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.keys = {"public_key": base64(point), "auth": base64(self._auth)}
        self.to = Subscription(
            endpoint=f"{receiver.url}/push/1", public_key=self.keys["public_key"], auth=self.keys["auth"]
        )
        self.device = self._remembered()

    def _remembered(self) -> Device:
        public = self._private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return self.book.add("Phone", b64encode(public).decode(), origin="https://x.ts.net", port=8645)

    def recipient(self, *, approves: bool = False) -> Recipient:
        to = replace(self.to, approves=approves)
        self.book.subscribe(self.device.id, to)
        return Recipient(name=f"push-{self.device.id}", way="push", is_full=True, push=to)

    def read(self, request: Received) -> dict[str, Any]:
        """Decrypt a message, once it is clear that the server sent it."""
        scheme, _, given = request.headers["authorization"].partition(" ")
        parts = dict(part.strip().split("=", 1) for part in given.split(","))
        assert scheme == "vapid"
        assert parts["k"] == application_key(self._state_dir)
        point = urlsafe_b64decode(parts["k"] + "=")
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        origin = self.to.endpoint.removesuffix("/push/1")
        assert jwt.decode(parts["t"], key, algorithms=["ES256"], audience=origin)["sub"].startswith("mailto:")
        assert (request.headers["content-encoding"], int(request.headers["ttl"]) > 0) == ("aes128gcm", True)
        plain = http_ece.decrypt(request.body, private_key=self._private, auth_secret=self._auth, version="aes128gcm")
        content: dict[str, Any] = json.loads(plain)
        return content


@pytest.fixture
def pushed(receiver: Receiver, state_dir: Path) -> PushedBrowser:
    return PushedBrowser(receiver, state_dir)


async def test_only_the_subscribed_browser_can_read_a_push(
    pushed: PushedBrowser, receiver: Receiver, state_dir: Path
) -> None:
    for _ in range(2):
        await WebPush(pushed.recipient(), state_dir).send(delivery())
    first, second = receiver.received
    assert pushed.read(first) == pushed.read(second)
    assert pushed.read(first)["title"] == "site: Codex is done"
    assert pushed.read(first)["body"] == "--all <b>of</b> it & more"
    assert first.body != second.body
    assert b"Codex" not in first.body
    assert first.headers["topic"] == second.headers["topic"]
    assert len(first.body) < 4096


@pytest.mark.parametrize("text", ["ü" * 3000, '"\\\n' * 1000, "\U0001f600" * 1000])
async def test_a_long_text_is_cut_to_what_push_services_take(
    pushed: PushedBrowser, receiver: Receiver, state_dir: Path, text: str
) -> None:
    one: Delivery = delivery()
    long = replace(one, notification=replace(one.notification, text=text))
    await WebPush(pushed.recipient(), state_dir).send(long)
    assert 4000 < len(receiver.received[0].body) <= 4096
    body = pushed.read(receiver.received[0])["body"]
    assert body == text[: len(body)]


@pytest.mark.parametrize("options", [("yes", "n" * 5000), ("Staging", "d" * 41)])
async def test_a_question_with_answers_that_do_not_fit_has_no_buttons(
    pushed: PushedBrowser, receiver: Receiver, state_dir: Path, options: tuple[str, ...]
) -> None:
    one: Delivery = delivery()
    asked = replace(one.notification, kind="question", question_id="q", choices=options, is_whole=True)
    await WebPush(pushed.recipient(approves=True), state_dir).send(replace(one, notification=asked))
    assert len(receiver.received[0].body) <= 4096
    told = pushed.read(receiver.received[0])
    assert told["choices"] == []
    assert told["questionId"] == "q"


async def test_a_browser_that_is_gone_gets_nothing_more(
    pushed: PushedBrowser, receiver: Receiver, state_dir: Path
) -> None:
    receiver.answers = [503, 410]
    recipient = pushed.recipient()
    with pytest.raises(NotSent):
        await WebPush(recipient, state_dir).send(delivery())
    assert pushed.book.get(pushed.device.id).push is not None
    with pytest.raises(NeverSent, match="no more"):
        await WebPush(recipient, state_dir).send(delivery())
    assert pushed.book.get(pushed.device.id).push is None


async def test_queued_notifications_of_a_revoked_device_are_not_pushed(
    pushed: PushedBrowser, receiver: Receiver, state_dir: Path
) -> None:
    sender = WebPush(pushed.recipient(), state_dir)
    pushed.book.revoke(pushed.device.id)
    with pytest.raises(NeverSent, match="no more"):
        await sender.send(delivery())
    assert not receiver.received


@pytest.mark.parametrize("approves", [False, True])
async def test_a_question_can_be_denied_and_approved_only_where_that_is_allowed(
    pushed: PushedBrowser, receiver: Receiver, state_dir: Path, project: Path, approves: bool
) -> None:
    async with opened(state_dir, pushed.recipient(approves=approves)) as house:
        (question,) = (await house.ask(project)).questions
        await house.pass_time(30)
        await house.delivered("sent")
        told = pushed.read(receiver.received[0])
    assert (told["kind"], told["questionId"]) == ("question", question.id)
    assert told["choices"] == (["approve", "deny"] if approves else ["deny"])


def test_each_device_with_a_subscription_is_reported(
    pushed: PushedBrowser, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [one for one in NotifySettings.of_machine(state_dir).to if one.way == "push"] == []
    pushed.recipient()
    (told,) = (one for one in NotifySettings.of_machine(state_dir).to if one.way == "push")
    assert told.push == pushed.to
    assert pushed.to.endpoint not in repr(told)
    pushed.book.revoke(pushed.device.id)
    assert [one for one in NotifySettings.of_machine(state_dir).to if one.way == "push"] == []


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://example.org/push",
        "http://fcm.googleapis.com/x",
        "https://fcm.googleapis.com.example.org/x",
        "https://evilpush.apple.com.evil/x",
        "https://user@fcm.googleapis.com/x",
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
    ],
)
def test_the_hub_posts_to_no_address_but_those_of_push_services(pushed: PushedBrowser, endpoint: str) -> None:
    with pytest.raises(InvalidInput, match="push_hosts"):
        subscription(endpoint, **pushed.keys, approves=False, services=())


def test_push_services_of_browsers_and_of_the_user_are_known(pushed: PushedBrowser) -> None:
    for endpoint in ("https://fcm.googleapis.com/fcm/send/x", "https://web.push.apple.com/x", pushed.to.endpoint):
        made = subscription(endpoint, **pushed.keys, approves=False, services=["127.0.0.1"])
        assert made.endpoint == endpoint
    with pytest.raises(InvalidInput, match="not the address"):
        subscription("https://[", **pushed.keys, approves=False, services=())
    with pytest.raises(InvalidInput, match="keys"):
        subscription("https://fcm.googleapis.com/x", "AAAA", pushed.keys["auth"], approves=False, services=())
