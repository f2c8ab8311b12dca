"""A session that cannot reach its model for want of a login is refused before it begins, instead of after many retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.errors import EngineRefused, NotLoggedIn

if TYPE_CHECKING:
    from helmsman.agents.codex.access.configuration import Configuration
    from helmsman.agents.codex.wire.app_server import AppServer
    from helmsman.model.options import SessionOptions

_PROVIDER: Final = "model_provider"
_OPENAI: Final = "openai"


async def require_login(api: AppServer, configuration: Configuration, options: SessionOptions) -> None:
    """Refuse a session at OpenAI without a login. Another provider may need none, and a profile may name one.

    Raises:
        NotLoggedIn: Codex is not logged in, and its model needs that.
    """
    if options.profile is not None or any(key.split(".")[0].startswith(_PROVIDER) for key in options.config):
        return
    known = await configuration.configuration(options.cwd)
    if known.get("profile") is not None or known.get(_PROVIDER) not in (None, _OPENAI):
        return
    try:
        account = await api.account()
    except EngineRefused:  # it does not say; the turn will show
        return
    if account.kind is None and account.requires_login:
        raise NotLoggedIn("Codex is not logged in, so nothing was started. Run `helmsman login`, then try again.")
