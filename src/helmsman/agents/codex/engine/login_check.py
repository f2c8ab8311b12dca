"""A session that cannot reach its model for want of a login is refused before it begins, instead of after many retries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from helmsman.agents.codex.access.configuration import Configuration, files_state
from helmsman.errors import EngineRefused, NotLoggedIn

if TYPE_CHECKING:
    from helmsman.agents.codex.wire.app_server import AppServer
    from helmsman.model.options import SessionOptions

_PROVIDER: Final = "model_provider"
_OPENAI: Final = "openai"
_SECONDS: Final = 60.0
"""So long a login that was there counts as there, while its file is the same: a keyring tells nobody that it changes."""


class LoginCheck:
    """The one of an engine. Codex is asked once in a while: at every start, that would cost as much as the start itself."""

    def __init__(self, api: AppServer, configuration: Configuration) -> None:
        self._api = api
        self._configuration = configuration
        self._files = tuple(str(home / "auth.json") for home in configuration.homes)
        self._fine: object = None
        self._until = 0.0

    async def require(self, options: SessionOptions) -> None:
        """Refuse a session at OpenAI without a login. Another provider may need none, and a profile may name one.

        Raises:
            NotLoggedIn: Codex is not logged in, and its model needs that.
        """
        if options.profile is not None or any(key.split(".")[0].startswith(_PROVIDER) for key in options.config):
            return
        state = files_state(self._files)
        if state == self._fine and time.monotonic() < self._until:
            return
        known = await self._configuration.configuration(options.cwd)
        if known.get("profile") is not None or known.get(_PROVIDER) not in (None, _OPENAI):
            return
        try:
            account = await self._api.account()
        except EngineRefused:  # it does not say; the turn will show
            return
        if account.kind is None and account.requires_login:
            raise NotLoggedIn("Codex is not logged in, so nothing was started. Run `helmsman login`, then try again.")
        if not self._api.is_elsewhere:
            self._fine, self._until = state, time.monotonic() + _SECONDS
