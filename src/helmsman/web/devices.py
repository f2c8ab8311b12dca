"""Routes for browsers that are remembered: log in without a code, list, revoke, take pushed notifications."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
from pydantic import Field

from helmsman.base.json_values import iso_time
from helmsman.errors import HelmsmanError, Unsupported
from helmsman.notices.devices import DeviceBook, DeviceNotFound
from helmsman.shapes.contract import Input, NothingInput
from helmsman.web.json_http import Routes, respond, route

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from helmsman.service import HelmsmanService
    from helmsman.web.login import Logins
    from helmsman.web.proof import Challenges

DEVICE_LOGIN_PATH: Final = "/api/login/device"


class DeviceLoginInput(Input):
    """Signature of `helmsman device`, the page's origin, the nonce and the challenge, each on a line."""

    device: str = Field(max_length=40)
    nonce: str = Field(min_length=20, max_length=200)
    challenge: str = Field(max_length=400)
    signature: str = Field(max_length=200)


class PushKeysInput(Input):
    p256dh: str = Field(max_length=200, alias="p256dh")
    auth: str = Field(max_length=60)


class PushInput(Input):
    """Subscription as the browser has made it. Without an endpoint, the device takes no more notifications."""

    endpoint: str | None = Field(default=None, max_length=1000)
    keys: PushKeysInput | None = None
    approves: bool = False


class WrongSignature(HelmsmanError):
    """Device is not known here, or has not signed this."""

    code = "wrong_code"


class DeviceRoutes(Routes):
    """Answers requests about the browsers that are remembered."""

    def __init__(self, helm: HelmsmanService, logins: Logins, challenges: Challenges) -> None:
        super().__init__(helm)
        self._logins = logins
        self._challenges = challenges

    @route(DEVICE_LOGIN_PATH, DeviceLoginInput)
    async def log_in(self, request: Request, given: DeviceLoginInput) -> Response:
        """Give a cookie for a signature over a challenge of `/api/proof`.

        The device must have been added at this address and this port. A program at another port of this host may send
        any Host, and pass on signatures that a browser made for it.
        """
        origin, (_, port) = request.headers.get("origin"), request.scope["server"]
        content = f"helmsman device\n{origin}\n{given.nonce}\n{given.challenge}"
        try:
            device = await anyio.to_thread.run_sync(self._book.get, given.device)
        except DeviceNotFound as error:
            # The same error as for a wrong signature, so that ids cannot be tried out.
            raise WrongSignature(error.message) from None
        is_here = origin == device.origin and port == device.port
        if not is_here or not self._challenges.redeem(
            given.nonce, given.challenge, lambda: device.has_signed(content, given.signature)
        ):
            raise WrongSignature("This device has not signed that. Log in with a code.")
        # For the list of devices; after the check, so that only real logins count.
        await anyio.to_thread.run_sync(self._book.see, device)
        response = respond({"ok": True})
        self._logins.log_in(request.scope, response, device)
        return response

    @route("/api/devices")
    async def listed(self, request: Request) -> dict[str, Any]:
        own = self._logins.device_of(request.scope, request.headers)
        devices = await anyio.to_thread.run_sync(self._book.all)
        return {
            "devices": [
                {
                    "id": one.id,
                    "name": one.name,
                    "address": one.origin,
                    "addedAt": iso_time(one.added_at),
                    "seenAt": iso_time(one.seen_at),
                    "isThis": one.id == own,
                    "push": one.push is not None,
                    "approves": one.push is not None and one.push.approves,
                }
                for one in devices
            ]
        }

    @route("/api/devices/{device_id}/revoke", NothingInput)
    async def revoke(self, request: Request, _given: NothingInput) -> dict[str, Any]:
        device = await anyio.to_thread.run_sync(self._book.revoke, request.path_params["device_id"])
        return {"revoked": device.id}

    @route("/api/push")
    async def push_key(self, request: Request) -> dict[str, Any]:
        """Return the key with which the browser of this device subscribes, if notifications can be pushed to it."""
        from helmsman.notices.web_push import application_key  # it needs cryptography

        self._own_device(request)
        if self._helm.notices.settings is None:
            raise Unsupported("Notifications are sent by the hub, and none runs here.")
        return {"key": await anyio.to_thread.run_sync(application_key, self._helm.settings.state_dir)}

    @route("/api/push", PushInput)
    async def subscribe(self, request: Request, given: PushInput) -> dict[str, Any]:
        from helmsman.notices.web_push import subscription  # as above

        device = self._own_device(request)
        settings = self._helm.notices.settings
        push = None
        if given.endpoint is not None and given.keys is not None:
            # Only addresses of known push services: the hub sends requests there.
            services = () if settings is None else (await settings()).push_hosts
            keys = given.keys
            push = subscription(given.endpoint, keys.p256dh, keys.auth, approves=given.approves, services=services)
        await anyio.to_thread.run_sync(partial(self._book.subscribe, device, push))
        # The devices are read again, so that the next notice reaches this browser.
        if settings is not None:
            await settings()
        return {"push": push is not None}

    def _own_device(self, request: Request) -> str:
        device = self._logins.device_of(request.scope, request.headers)
        if device is None:
            raise Unsupported("This browser is not remembered. Log out, and log in with a code from its own address.")
        return device

    @property
    def _book(self) -> DeviceBook:
        if self._logins.devices is None:
            raise Unsupported("No browsers are remembered here.")
        return self._logins.devices
