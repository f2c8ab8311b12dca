"""Access that the user has granted to programs over OAuth. Tokens are stored as digests: the file opens nothing."""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Final

from helmsman.base.record_file import RecordFile
from helmsman.base.structs import SecretValue, Value, replace
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ACCESS_TIME: Final = timedelta(minutes=15)
REFRESH_TIME: Final = timedelta(days=30)
_FILE: Final = "http-grants.json"
_MOST: Final = 100


class GrantNotFound(HelmsmanError):
    """No program has access under this id."""


class Grant(Value, frozen=True, kw_only=True):
    """Access of one program to one resource, with the digests of its newest tokens."""

    id: str
    client_id: str
    client_name: str
    resource: str
    added_at: datetime
    refreshed_at: datetime
    access: str
    refresh: str
    spent: str = ""
    """Digest of the refresh token before. Who brings it again has stolen it, or was robbed of it."""


class Tokens(SecretValue, frozen=True, kw_only=True):
    """Tokens for a program, in plain."""

    secrets: ClassVar[tuple[str, ...]] = ("access", "refresh")
    access: str
    refresh: str


class GrantBook:
    """Grants of a state directory. All methods block; each change is written immediately."""

    def __init__(self, state_dir: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        # A grant that was not used for that long ends.
        self._file = RecordFile(
            state_dir / _FILE,
            Grant,
            most=_MOST,
            rank=lambda one: one.added_at,
            is_valid=lambda one: one.refreshed_at > clock() - REFRESH_TIME,
        )
        self._clock = clock

    def all(self) -> tuple[Grant, ...]:
        """Return the grants that hold, the newest first."""
        return self._file.all()

    def add(self, *, client_id: str, client_name: str, resource: str) -> tuple[Grant, Tokens]:
        """Grant access."""
        tokens, now = _new_tokens(), self._clock()
        grant = Grant(
            id=secrets.token_hex(8),
            client_id=client_id,
            client_name=client_name,
            resource=resource,
            added_at=now,
            refreshed_at=now,
            access=digest(tokens.access),
            refresh=digest(tokens.refresh),
        )
        with self._file.changing() as grants:
            grants.insert(0, grant)
        return grant, tokens

    def with_access(self, token: str) -> Grant | None:
        """Return the grant of an access token that holds now."""
        given, earliest = digest(token), self._clock() - ACCESS_TIME
        return self._first(lambda one: one.refreshed_at > earliest and secrets.compare_digest(one.access, given))

    def with_refresh(self, token: str) -> Grant | None:
        """Return the grant of a refresh token. A token that was used before ends its grant."""
        given = digest(token)
        # Either the thief or the owner brings it: both lose the access.
        if (robbed := self._first(lambda one: secrets.compare_digest(one.spent, given))) is not None:
            with suppress(GrantNotFound):
                self.revoke(robbed.id)
        return self._first(lambda one: secrets.compare_digest(one.refresh, given))

    def refresh(self, token: str) -> tuple[Grant, Tokens] | None:
        """Replace the tokens of a grant, once for each refresh token."""
        given, tokens = digest(token), _new_tokens()
        with self._file.changing() as grants:
            for place, one in enumerate(grants):
                if secrets.compare_digest(one.refresh, given):
                    access, refresh, now = digest(tokens.access), digest(tokens.refresh), self._clock()
                    # The old one is kept, to recognize a second use.
                    grants[place] = replace(one, access=access, refresh=refresh, spent=given, refreshed_at=now)
                    return grants[place], tokens
        return None

    def revoke(self, grant_id: str) -> Grant:
        """Take back a grant, with all its tokens.

        Raises:
            GrantNotFound: There is no such grant.
        """
        with self._file.changing() as grants:
            found = next((one for one in grants if one.id == grant_id), None)
            if found is None:
                raise GrantNotFound("No program has access under this id. It may have been taken back already.")
            grants.remove(found)
        return found

    def holds(self, grant_id: str) -> bool:
        """Return whether a grant was not taken back."""
        return any(one.id == grant_id for one in self.all())

    def _first(self, fits: Callable[[Grant], bool]) -> Grant | None:
        fitting = [one for one in self.all() if fits(one)]  # all are looked at: no answer comes sooner than another
        return fitting[0] if fitting else None


def digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _new_tokens() -> Tokens:
    return Tokens(access=secrets.token_urlsafe(32), refresh=secrets.token_urlsafe(32))
