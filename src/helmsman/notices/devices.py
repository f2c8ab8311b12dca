"""Browsers that log in again without a code, and to which notifications are pushed.

A browser keeps a private key that no script can read, and the server its public key, with the address at which it was
made. Unlike a cookie, a signature over a fresh challenge is worthless to a program that takes the port of the dashboard.
"""

from __future__ import annotations

import base64
import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Final

from helmsman.base.record_file import RecordFile
from helmsman.base.sanitize import one_line
from helmsman.base.structs import SecretValue, Value, replace
from helmsman.errors import HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

_FILE: Final = "dashboard-devices.json"
_MOST: Final = 50
"""Devices that are remembered. A further one replaces the one that was not seen for longest."""
_UNUSED: Final = timedelta(days=90)
_SEEN_EVERY: Final = timedelta(hours=1)
_NAME_CHARS: Final = 60
_COORDINATE_BYTES: Final = 32


class DeviceNotFound(HelmsmanError):
    """No device has this id."""


class Subscription(SecretValue, frozen=True, kw_only=True):
    """Where a browser takes pushed notifications, and its keys for them. `approves`: they may have a button for yes."""

    secrets: ClassVar[tuple[str, ...]] = ("endpoint", "auth")
    endpoint: str
    public_key: str
    auth: str
    approves: bool = False


class Device(Value, frozen=True, kw_only=True):
    """Browser that has logged in with a code. It is known only at the address and the port where it did."""

    id: str
    name: str
    key: str
    origin: str
    port: int
    added_at: datetime
    seen_at: datetime
    push: Subscription | None = None

    def has_signed(self, content: str, signature: str) -> bool:
        """Return whether this is the signature of the device's key, as WebCrypto makes them."""
        # Only browsers that come back need it, and each hub would load it.
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

        try:
            raw = base64.b64decode(signature, validate=True)
        except ValueError:
            return False
        if len(raw) != 2 * _COORDINATE_BYTES:
            return False
        # WebCrypto gives the two numbers of a signature as they are. The library expects them in DER.
        halves = (int.from_bytes(raw[at : at + _COORDINATE_BYTES], "big") for at in (0, _COORDINATE_BYTES))
        try:
            _public_key(self.key).verify(encode_dss_signature(*halves), content.encode(), ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True


class DeviceBook:
    """Devices of a state directory. All methods block; each change is written immediately."""

    def __init__(self, state_dir: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        # A missing or damaged file costs each browser one more login with a code.
        self._file = RecordFile(
            state_dir / _FILE,
            Device,
            most=_MOST,
            rank=lambda one: one.seen_at,
            is_valid=lambda one: one.seen_at > clock() - _UNUSED,
        )
        self._clock = clock

    def all(self) -> tuple[Device, ...]:
        """Return the devices that may log in, the one that was seen last first."""
        return self._file.all()

    def get(self, device_id: str) -> Device:
        """Return a device.

        Raises:
            DeviceNotFound: It does not exist, was revoked, or was not used for too long.
        """
        found = next((one for one in self.all() if one.id == device_id), None)
        if found is None:
            raise DeviceNotFound("This device is not known, or no longer. Log in with a code.")
        return found

    def add(self, name: str, key: str, *, origin: str, port: int) -> Device:
        """Remember a device.

        Raises:
            InvalidInput: The key is not one of this kind.
        """
        try:
            _public_key(key)
        except ValueError:
            raise InvalidInput("This is not a public key (P-256, SPKI in base64).", parameter="device.key") from None
        now = self._clock()
        device = Device(
            id=secrets.token_hex(8),
            name=one_line(name)[:_NAME_CHARS] or "A browser",
            key=key,
            origin=origin,
            port=port,
            added_at=now,
            seen_at=now,
        )
        with self._file.changing() as devices:
            devices.insert(0, device)
        return device

    def see(self, device: Device) -> None:
        """Record that a device has logged in."""
        # A login must not write to the disk each time.
        if self._clock() - device.seen_at >= _SEEN_EVERY:
            self._replace(replace(device, seen_at=self._clock()))

    def subscribe(self, device_id: str, push: Subscription | None) -> None:
        """Record where a device takes notifications, or that it takes none.

        Raises:
            DeviceNotFound: There is no such device.
        """
        self._replace(replace(self.get(device_id), push=push))

    def revoke(self, device_id: str) -> Device:
        """Forget a device. It needs a code from now on, and gets no more notifications.

        Raises:
            DeviceNotFound: There is no such device.
        """
        device = self.get(device_id)
        with self._file.changing() as devices:
            devices[:] = [one for one in devices if one.id != device_id]
        return device

    def _replace(self, device: Device) -> None:
        with self._file.changing() as devices:
            devices[:] = [device if one.id == device.id else one for one in devices]


def _public_key(spki: str) -> EllipticCurvePublicKey:
    from cryptography.hazmat.primitives import serialization  # as in has_signed
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_der_public_key(base64.b64decode(spki, validate=True))
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("another kind of key")  # noqa: TRY004 - as for content that is no key at all
    return key
