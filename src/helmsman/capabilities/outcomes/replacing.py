"""Replace an agent that cannot begin, because of an account limit or a missing login, by the next one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from helmsman.capabilities.outcomes.work import TurnNotDone
from helmsman.errors import HelmsmanError
from helmsman.model.events import USAGE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helmsman.capabilities.outcomes.agent_selection import Chosen
    from helmsman.capabilities.outcomes.work import Work
    from helmsman.settings import OnLimit

T = TypeVar("T")

_NO_ACCOUNT: Final = frozenset(
    {
        USAGE_LIMIT,
        "model_cap",
        "rate_limit_exceeded",
        "rate_limit_low",
        "unauthorized",
        "authentication_failed",
        "agent_not_found",
        "codex_not_found",
        "engine_start_failed",
    }
)
"""Failures that concern the agent's account or installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbleAgent(Generic[T]):
    """Result of the first agent that could begin, or the error if none could."""

    agent: str
    why: str
    done: T | None = None
    error: HelmsmanError | None = None

    @property
    def session_id(self) -> str | None:
        """Session of a failed attempt."""
        found = None if self.error is None else self.error.details.get("sessionId")
        return found if isinstance(found, str) else None


def makers_of(work: Work) -> list[Sequence[Chosen]]:
    """Return the agents for each candidate, best first."""
    wanted, chosen = work.wanted, work.chosen
    if len(wanted.agents) > 1:  # one candidate per agent, without replacement
        count = max(wanted.candidates, len(chosen))
        return [[chosen[number % len(chosen)]] for number in range(count)]
    return [chosen] * wanted.candidates


async def first_able(
    work: Work, what: str, order: Sequence[Chosen], begin: Callable[[str, OnLimit | None], Awaitable[T]]
) -> AbleAgent[T]:
    """Run `begin` with the first agent that can; it takes an agent and the behaviour at a usage limit.

    An agent that has changed files is never replaced.
    """
    passed_over: list[str] = []
    begun: AbleAgent[T] | None = None
    for place, chosen in enumerate(order):
        is_last = place + 1 == len(order)
        why = "; ".join([chosen.why, *passed_over])
        step = f"{what} without {chosen.agent}"
        given_up: str | None = work.known(step)
        if given_up is None:
            try:
                return AbleAgent(
                    agent=chosen.agent, why=why, done=await begin(chosen.agent, None if is_last else "fail")
                )
            except HelmsmanError as error:
                begun = AbleAgent(agent=chosen.agent, why=why, error=error)
                if is_last or not await _may_be_replaced(work, begun, error):
                    return begun
                given_up = await work.once(step, partial(_given, error.message))
        passed_over.append(f"{chosen.agent} could not begin: {given_up}")
    assert begun is not None
    return begun


async def _may_be_replaced(work: Work, begun: AbleAgent[T], error: HelmsmanError) -> bool:
    """Return whether an agent failed because of its account, before it changed any file."""
    cause = error.details.get("cause") if isinstance(error, TurnNotDone) else error.code
    if cause not in _NO_ACCOUNT:
        return False
    if begun.session_id is None:
        return True
    session = await work.helm.session(begun.session_id)
    if session.worktree is None:
        return True  # it has no write access
    return not (await work.changes.diff(session.id)).diff.files


async def _given(value: str) -> str:
    return value
