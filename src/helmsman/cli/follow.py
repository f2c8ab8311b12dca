r"""Runs a step in front of a person: shows it, asks, and handles Ctrl-C.

The first Ctrl-C stops the turn, so that Codex ends it in order and the session can be continued; the second leaves at
once. A program that ends Helmsman with SIGTERM gets the second kind straight away. Ctrl-\ leaves a turn that goes on
without this process, and says how to come back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from helmsman.base.concurrency import background_tasks
from helmsman.cli.displays import Display, Outcome
from helmsman.cli.exit_codes import ExitCode, exit_code_of, in_words_of_shell
from helmsman.cli.signals import exit_after, handle_signals
from helmsman.errors import HelmsmanError, StepInterrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

    from helmsman.model.events import Event
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.step import StepResult

LEAVE_SECONDS: Final = 3.0
"""How long Codex may take to go when one leaves at once. Then we go alone, and it ends when its input closes."""

_LEFT: Final = "Stopped before the turn had ended. Continue the session to go on."


class Step(Protocol):
    """`run_step` with everything but the callbacks."""

    async def __call__(
        self, *, on_event: Callable[[Session, Event], None], on_question: QuestionHandler
    ) -> StepResult: ...


async def follow(step: Step, display: Display, *, session: Session | None = None, left: str = _LEFT) -> Outcome:
    """Run the step on the display; how it ended has then been shown.

    `session` is the one that Ctrl-C stops, where it is known beforehand; `left` is what to say to somebody who leaves.
    """
    began = anyio.current_time()
    watch = _Watch(display, session)
    result: StepResult | None = None
    error: HelmsmanError | None = None
    with display:
        with anyio.CancelScope() as scope:
            async with background_tasks() as tasks:
                await tasks.start(handle_signals, lambda code: watch.on_signal(code, scope, tasks))
                tasks.start_soon(display.animate)
                try:
                    result = await step(on_event=watch.on_event, on_question=display.on_question)
                except HelmsmanError as raised:
                    error = in_words_of_shell(raised)
        if scope.cancelled_caught:
            error = watch.problem or StepInterrupted(left)
        seconds = anyio.current_time() - began if session is None else None
        code = watch.exit_code
        if code is None:
            code = ExitCode.OK if error is None else exit_code_of(error)
        if watch.has_left:
            error = None
        outcome = Outcome(
            result=result,
            error=error,
            session=watch.session,
            seconds=seconds,
            exit_code=code,
            goes_on=watch.has_left and watch.session is not None and watch.session.state.is_running,
        )
        display.finish(outcome)
    return outcome


class _Watch:
    """Knows the session that is running, and what a signal means for it."""

    def __init__(self, display: Display, session: Session | None) -> None:
        self._display = display
        self._heard = 0
        self.session = session
        self.problem: HelmsmanError | None = None
        self.exit_code: int | None = None
        self.has_left = False
        """The person has left, and the turn goes on."""

    def on_event(self, session: Session, event: Event) -> None:
        self.session = session
        self._display.on_event(session, event)

    def on_signal(self, code: ExitCode, scope: anyio.CancelScope, tasks: TaskGroup) -> None:
        if code is ExitCode.OK:
            if self.session is not None and self.session.goes_on_alone:
                self.has_left = True
                self._leave(scope, code)
            return
        self._heard += 1
        running = self.session is not None and self.session.state.is_running
        if code is ExitCode.INTERRUPTED and running and self._heard == 1:
            self._display.interrupting()
            tasks.start_soon(self._interrupt, scope)
        else:
            self._leave(scope, code)

    async def _interrupt(self, scope: anyio.CancelScope) -> None:
        assert self.session is not None
        try:
            await self.session.interrupt()
        except HelmsmanError as error:  # Codex does not listen any more, or only to another process
            self.problem = error
            self._leave(scope, ExitCode.INTERRUPTED)

    def _leave(self, scope: anyio.CancelScope, code: ExitCode) -> None:
        self.exit_code = code
        with suppress(OSError):  # a terminal that was closed cannot be put back
            self._display.close()
        scope.cancel()
        exit_after(LEAVE_SECONDS, code)
