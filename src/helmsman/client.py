"""`Helmsman`: the library. It asks the user's hub, or holds the service in its own process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from helmsman.errors import InvalidInput
from helmsman.hub.service_client import ServiceClient, other_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from helmsman.agents.protocol import Agent
    from helmsman.agents.registry import Agents
    from helmsman.hub.service_client import Backend
    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import QuestionHandler
    from helmsman.settings import Settings


class Helmsman(ServiceClient):
    """Client for sessions of agents, under asyncio. Use it as an async context manager; in notebooks, `await open()`
    and `await close()`.

    In a script without an event loop use `helmsman.SyncHelmsman`.

    If agents may outlive this process (`Settings.detach`, the default if Codex supports it), the user's hub runs the
    service, and sessions continue there after the block. Otherwise, with `inside`, or with your own agents, the service
    runs in this process, and leaving the block stops everything.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        env: Mapping[str, str] | None = None,
        on_question: QuestionHandler | None = None,
        agents: Iterable[Agent] = (),
        inside: bool = False,
        host: str | None = None,
    ) -> None:
        """Set up a client. `host` is another machine of yours (`helmsman config hosts`), whose hub runs the agents that
        are installed there.

        Raises:
            InvalidInput: There is no such host, or an argument only works on this machine.
        """
        agents = tuple(agents)
        if host is not None and (settings or env or agents or inside):
            raise InvalidInput(
                "With `host` everything is that machine's own: leave out settings, env, agents and inside, and set there "
                "what should hold there."
            )
        there = None if host is None else other_host(host)
        super().__init__(settings, env=env, on_question=on_question, host=there)
        self._given_env = env
        self._inside: HelmsmanService | None = None
        may_outlive = self.settings.detach and not agents and not inside and os.name == "posix"
        if not may_outlive and there is None:
            self._inside = self._service_here(agents)

    def _service_here(self, agents: Iterable[Agent] = ()) -> HelmsmanService:
        from helmsman.service import HelmsmanService  # a client of the hub does without its hundreds of modules

        return HelmsmanService(self.settings, env=self._given_env, on_question=self._on_question, agents=agents)

    async def _found_backend(self) -> AbstractAsyncContextManager[Backend]:
        if self._inside is None:
            if (hub := await self._found_hub()) is not None:
                return hub
            self._inside = self._service_here()
        return self._inside.as_backend()

    @property
    def agents(self) -> Agents:
        return super().agents if self._inside is None else self._inside.agents


class InsideHelmsman(Helmsman):
    """`Helmsman` for the service of this process, as the hub uses it for its commands."""

    def __init__(self, service: HelmsmanService) -> None:
        ServiceClient.__init__(self, service.settings, env=service.environment)
        self._inside = service
