"""Browsers that are remembered: they log in by a signature, at their own address only, until they are revoked."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from starlette.types import ASGIApp

from helmsman.httpd.application import build_app
from helmsman.httpd.listening import HttpOptions
from helmsman.notices.devices import DeviceBook
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.web.login import Logins

pytestmark = pytest.mark.anyio

ORIGIN = "http://127.0.0.1:8645"
PAGE = {"X-Helmsman": "1", "Content-Type": "application/json"}


@pytest.fixture
def restarted(helm: HelmsmanService, token: str, settings: Settings) -> ASGIApp:
    """The same server later: no cookie of before is worth anything."""
    logins = Logins(secure=False, devices=DeviceBook(settings.state_dir))
    return build_app(helm, token=token, options=HttpOptions(), logins=logins)


class Device:
    """A browser with a key of its own."""

    def __init__(self, app: ASGIApp, origin: str = ORIGIN) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.origin = origin
        self.id = ""
        self.http = self.at(app)

    def at(self, app: ASGIApp, address: str | None = None) -> httpx2.AsyncClient:
        headers = {**PAGE, "Origin": self.origin}
        transport = httpx2.ASGITransport(app)
        self.http = httpx2.AsyncClient(transport=transport, base_url=address or self.origin, headers=headers)
        return self.http

    async def log_in(self, code: str) -> None:
        spki = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        device = {"name": "Chrome\non Android", "key": b64encode(spki).decode()}
        welcome = await self.http.post("/api/login", json={"code": code, "device": device})
        assert welcome.status_code == 200
        self.id = welcome.json()["device"]

    async def challenge(self) -> tuple[str, str]:
        nonce = "n" * 30
        return nonce, (await self.http.post("/api/proof", json={"nonce": nonce})).json()["challenge"]

    def signed(self, nonce: str, challenge: str) -> dict[str, Any]:
        content = f"helmsman device\n{self.origin}\n{nonce}\n{challenge}".encode()
        halves = decode_dss_signature(self.key.sign(content, ec.ECDSA(hashes.SHA256())))
        signature = b64encode(b"".join(one.to_bytes(32, "big") for one in halves)).decode()
        return {"device": self.id, "nonce": nonce, "challenge": challenge, "signature": signature}

    async def log_in_again(self) -> httpx2.Response:
        return await self.http.post("/api/login/device", json=self.signed(*await self.challenge()))


async def test_a_device_logs_in_again_after_a_restart_without_a_code(
    app: ASGIApp, restarted: ASGIApp, logins: Logins
) -> None:
    device = Device(app)
    await device.log_in(logins.new_code().value)
    (shown,) = (await device.http.get("/api/devices")).json()["devices"]
    assert (shown["name"], shown["isThis"], shown["address"]) == ("Chrome on Android", True, ORIGIN)
    device.at(restarted)
    assert (await device.http.get("/api/overview")).status_code == 401
    assert (await device.log_in_again()).status_code == 200
    assert (await device.http.get("/api/overview")).status_code == 200


async def test_a_revoked_device_is_out_at_once_and_needs_a_code(app: ASGIApp, logins: Logins) -> None:
    phone, desk = Device(app), Device(app)
    await phone.log_in(logins.new_code().value)
    await desk.log_in(logins.new_code().value)
    assert (await phone.http.get("/api/overview")).status_code == 200
    assert (await desk.http.post(f"/api/devices/{phone.id}/revoke", json={})).status_code == 200
    assert (await phone.http.get("/api/overview")).status_code == 401
    assert (await phone.log_in_again()).status_code == 401
    assert (await desk.http.get("/api/overview")).status_code == 200
    assert (await desk.http.post("/api/logout", json={})).status_code == 200
    assert (await desk.log_in_again()).status_code == 401


async def test_a_signature_is_good_once_and_for_its_own_key(app: ASGIApp, logins: Logins) -> None:
    device, other = Device(app), Device(app)
    await device.log_in(logins.new_code().value)
    other.id = device.id
    assert (await other.log_in_again()).status_code == 401
    signed = device.signed(*await device.challenge())
    for wrong in ({"signature": "AAAA"}, {"signature": "ä"}, {"nonce": "m" * 30}, {"device": "0" * 16}):
        refused = await device.http.post("/api/login/device", json={**signed, **wrong})
        assert (refused.status_code, refused.json()["code"]) == (401, "wrong_code"), wrong
    assert (await device.http.post("/api/login/device", json=signed)).status_code == 200
    assert (await device.http.post("/api/login/device", json=signed)).status_code == 401


async def test_a_program_that_took_the_port_cannot_log_in_elsewhere_with_a_signature(
    app: ASGIApp, restarted: ASGIApp, logins: Logins
) -> None:
    """It passes on the challenge of a server at another port, and sends whatever Host it likes."""
    device = Device(app)
    await device.log_in(logins.new_code().value)
    device.at(restarted, "http://127.0.0.1:9999")
    device.http.headers["Host"] = "127.0.0.1:8645"
    assert (await device.log_in_again()).status_code == 401
    device.origin = "http://127.0.0.1:9999"
    device.at(restarted)
    assert (await device.log_in_again()).status_code == 401


async def test_a_qr_code_holds_the_link_for_a_phone(app: ASGIApp, logins: Logins) -> None:
    device = Device(app)
    await device.log_in(logins.new_code().value)
    made = (await device.http.post("/api/codes", json={"address": "https://x.ts.net/"})).json()
    assert made["qr"].startswith("data:image/svg+xml")
    assert "qr" not in (await device.http.post("/api/codes", json={})).json()


async def test_only_a_remembered_browser_is_pushed_to(app: ASGIApp, logins: Logins, settings: Settings) -> None:
    device, plain = Device(app), Device(app)
    await device.log_in(logins.new_code().value)
    await plain.http.post("/api/login", json={"code": logins.new_code().value})
    keys = {"p256dh": "B" + "A" * 86, "auth": "A" * 22}
    wanted = {"endpoint": "https://fcm.googleapis.com/fcm/send/x", "keys": keys}
    assert (await plain.http.post("/api/push", json=wanted)).status_code == 409
    assert (await device.http.post("/api/push", json={**wanted, "endpoint": "http://10.0.0.1/"})).status_code == 400
    assert (await device.http.post("/api/push", json=wanted)).json() == {"push": True}
    book = DeviceBook(settings.state_dir)
    assert [one.push is not None for one in book.all()] == [True]
    assert (await device.http.post("/api/push", json={})).json() == {"push": False}
    assert [one.push for one in book.all()] == [None]
