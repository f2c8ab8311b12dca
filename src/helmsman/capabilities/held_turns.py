"""Hold a requested turn while Helmsman itself works in its session; then the turn begins, or is over.

A client that interrupts the session in that time ends this work, and with it the turn.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio

from helmsman.capabilities.repository_commands import end_stopped
from helmsman.errors import HelmsmanError
from helmsman.steering.turn_errors import failed_turn, known_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from helmsman.model.events import TurnEnded
    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering

log = logging.getLogger(__name__)

Doing: TypeAlias = "Callable[[HeldTurn], Awaitable[TurnEnded | None]]"
"""Work before a turn begins. If it returns an end, or raises an error, the turn is over without having begun."""


class HeldTurn:
    """Turn that waits."""

    def __init__(self, helm: Steering, session: Session) -> None:
        self.helm = helm
        self.session = session
        self._scope = anyio.CancelScope()

    @contextmanager
    def at_work(self, what: str) -> Iterator[None]:
        """Something that takes its time. Questions end by themselves when the session is interrupted; this does here."""
        self.session.ask_own(what, self._stop)
        try:
            yield
        finally:
            _no_longer_asks(self.session, what)

    def _stop(self, *_: object) -> None:
        end_stopped(self.helm, self.session)
        self._scope.cancel()

    async def run(self, task_id: str, do: Doing, go_on: Callable[[], Awaitable[None]]) -> None:
        """Do it, then have the turn begin."""
        session = self.session
        try:
            with self._scope:
                ended = await self._do(do)
            # An interrupt has ended the turn already.
            if self._scope.cancelled_caught or not session.state.is_running:
                return
            # The work itself has ended the turn, for example because a question had no answer.
            if ended is not None:
                session.apply(ended)
                self.helm.make_room()
                return
            self.helm.task_writer.update(task_id, {"note": None})
            session.is_beginning()  # who stops it now waits until it can be stopped
            await go_on()
        except HelmsmanError as error:  # the session has the error
            log.warning("session %s could not continue: %s", session.id, error)
        except Exception:
            log.exception("session %s could not continue", session.id)

    async def _do(self, do: Doing) -> TurnEnded | None:
        try:
            return await do(self)
        except Exception as error:
            if not isinstance(error, HelmsmanError):
                log.exception("a step before a turn of session %s failed", self.session.id)
            return failed_turn(self.session.id, known_error(error))


def _no_longer_asks(session: Session, own: str) -> None:
    if session.own_question is not None and session.own_question[0] == own:
        session.drop_own_question()


def hold_turn(
    helm: Steering, session: Session, task_id: str, note: str, do: Doing, go_on: Callable[[], Awaitable[None]]
) -> None:
    """Hold a turn until some work is done; `note` describes the work."""
    helm.task_writer.hold(task_id, session, {"note": note})
    session.begun.set()  # who stops it now stops this
    helm.in_background(partial(HeldTurn(helm, session).run, task_id, do, go_on))
