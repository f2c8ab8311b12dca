"""Other machines of one client: their names, ids that include the machine, and open connections.

A session or task of another machine is called `HOST:ID` wherever machines are shown together. So users see the machine of an
id, and no machine can present its own sessions as local ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from helmsman.base.concurrency import OnceEach
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.hub.hosts import HostFailed, known_hosts
from helmsman.tasks.call_key import call_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helmsman.hub.hosts import OtherHost

NAMING: Final = ("sessionId", "taskId")
"""Parameters that hold an id."""
_IDS: Final = frozenset({*NAMING, "waitingTaskId", "handedOverFrom", "parentId", "conversation"})
_LISTS_OF_IDS: Final = frozenset({"taskIds", "sessions"})
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62}):(.+)", re.DOTALL)


class PooledClient(Protocol):
    """`Helmsman` of another machine."""

    @property
    def is_lost(self) -> bool: ...

    async def open(self) -> Self: ...

    async def close(self) -> None: ...


LinkedT = TypeVar("LinkedT", bound=PooledClient)


class HostPool(Generic[LinkedT]):
    """Other machines of one client, with a connection to each that was called."""

    def __init__(self, env: Mapping[str, str], make: Callable[[str], LinkedT], *, is_bounded: bool) -> None:
        """Set up the connections. A client that `is_bounded` to directories of this machine gets none."""
        self._env = env
        self._make = make
        self._is_bounded = is_bounded
        self._opened: OnceEach[LinkedT] = OnceEach()
        self._open: dict[str, LinkedT] = {}

    def known(self) -> Mapping[str, OtherHost]:
        """Return the known machines by name. An invalid file is reported when one of them is requested."""
        try:
            return {} if self._is_bounded else known_hosts(self._env)
        except HostFailed:
            return {}

    def split(self, reference: str) -> tuple[str | None, str]:
        """Split a reference into its machine (None for this one) and the id there."""
        parts = _QUALIFIED.fullmatch(reference)
        return (parts[1], parts[2]) if parts is not None and parts[1] in self.known() else (None, reference)

    async def get(self, name: str) -> LinkedT:
        """Return a connection to another machine.

        Raises:
            InvalidInput: No machine has this name.
            HostUnreachable: It cannot be reached now.
        """
        if self._is_bounded:
            raise InvalidInput(
                "This server is bound to directories of its machine (allowed_roots), and to no other one."
            )
        if name not in self.known():
            raise self._unknown(name)
        # A lost client never reconnects, so make another one.
        if (known := self._open.get(name)) is not None and known.is_lost:
            self._opened.forget(name)
            del self._open[name]
            await known.close()

        async def make() -> LinkedT:
            before = call_key.set(None)  # the connection is no part of the call that is the first to need it
            try:
                return await self._make(name).open()
            finally:
                call_key.reset(before)

        helm = self._open[name] = await self._opened.get(name, make)
        return helm

    @property
    def opened(self) -> Mapping[str, LinkedT]:
        """Connections in use."""
        return self._open

    def _unknown(self, name: str) -> HelmsmanError:
        try:
            names = sorted(known_hosts(self._env))
        except HostFailed as error:
            return InvalidInput(str(error), parameter="host")
        which = f"There are: {', '.join(names)}." if names else "There is none yet: helmsman config hosts add"
        return InvalidInput(f"There is no host {name!r:.80}. {which}", parameter="host")

    async def close(self) -> None:
        """Close all connections."""
        while self._open:
            _, helm = self._open.popitem()
            await helm.close()


def elsewhere(value: Any, host: str) -> Any:
    """Qualify the ids in data from another machine."""
    if isinstance(value, list):
        return [elsewhere(part, host) for part in value]
    if not isinstance(value, dict):
        return value
    return {key: _told(key, part, host) for key, part in value.items()}


def _told(key: str, part: Any, host: str) -> Any:
    if key in _IDS and isinstance(part, str):
        return f"{host}:{part}"
    if key in _LISTS_OF_IDS and isinstance(part, list):
        return [f"{host}:{one}" if isinstance(one, str) else elsewhere(one, host) for one in part]
    return elsewhere(part, host)
