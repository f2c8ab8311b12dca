"""Which agents there are: the one place above their packages that knows their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helmsman.agents.codex.agent import CodexAgent, find_agent
from helmsman.agents.codex.storage.rollout_usage import SessionSpending
from helmsman.agents.codex.storage.spending_index import SpendingIndex
from helmsman.errors import InvalidInput

__all__ = ["Agents", "SessionSpending", "SpendingIndex", "engine_overviews", "find_agent", "spending_index"]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from helmsman.agents.protocol import Agent, SessionIndex
    from helmsman.settings import Settings


class Agents:
    """The agents of a service: those that come with Helmsman, and those its caller brings."""

    def __init__(self, brought: Iterable[Agent] = ()) -> None:
        self._by_name: dict[str, Agent] = {agent.name: agent for agent in (CodexAgent(), *brought)}

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Agent:
        """An agent by its name.

        Raises:
            InvalidInput: There is none of that name.
        """
        if name not in self._by_name:
            raise InvalidInput(
                f"There is no agent {name!r:.80}. Use one of: {', '.join(sorted(self._by_name))}.", parameter="agent"
            )
        return self._by_name[name]

    def get(self, name: str) -> Agent | None:
        """An agent by its name; None where a task or a session is of one that is not there now."""
        return self._by_name.get(name)

    def indexes(self, settings: Settings) -> dict[str, SessionIndex]:
        """What each of them keeps on disk."""
        found = {agent.name: agent.sessions(settings) for agent in self}
        return {name: index for name, index in found.items() if index is not None}


def engine_overviews(settings: Settings) -> list[dict[str, Any]]:
    """The detached engines that run, oldest first. Blocks for a few seconds where one does not answer."""
    from helmsman.agents.codex.detached.overview import engine_overviews

    return engine_overviews(settings.state_dir)


def spending_index(settings: Settings) -> SpendingIndex:
    """What the sessions on disk have spent."""
    return SpendingIndex(settings.codex_home, settings.state_dir)
