"""Codex as one step of a program: a prompt in, the final message out, or a typed error.

`run_step` is the whole step with its safety net. A turn that stays silent is interrupted and told to continue in the same
thread; so is one that failed for a reason that may pass. After the last attempt there is an error that says what
happened. Whatever happens, nothing is left running.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

import anyio

from helmsman.base.json_values import read_output
from helmsman.base.structs import replace
from helmsman.client import Helmsman
from helmsman.errors import (
    EngineError,
    HelmsmanError,
    InvalidInput,
    SessionNotFound,
    StepError,
    StepFailed,
    StepInterrupted,
    StepOutputInvalid,
    StepTimedOut,
    TurnTimedOut,
)
from helmsman.model.events import USAGE_LIMIT
from helmsman.model.inputs import session_words, takes_turn_options
from helmsman.model.options import TurnLimits
from helmsman.model.prompts import CONTINUE
from helmsman.model.questions import refusal
from helmsman.sessions.watchdog import shows_life
from helmsman.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from helmsman.capabilities.service import AgentService
    from helmsman.model.client_tools import ClientTool
    from helmsman.model.events import Event, Usage
    from helmsman.model.options import PathLike, TurnOptions, WorktreeOptions
    from helmsman.model.questions import Question
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.settings import Settings

log = logging.getLogger(__name__)

FIRST_EVENT_TIMEOUT: Final = 60.0
INACTIVITY_TIMEOUT: Final = 600.0
ATTEMPTS: Final = 3
FAILED_PREFIX: Final = "FAILED:"

_STOP_TIMEOUT: Final = 40.0
"""Long enough to find out that an engine hangs, and to give it up: only then can the next attempt use another."""


_FIRST_TURN: Final = ("images", "kind", "placement")  # an attempt that continues is given all other options of the turn


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of a step. `output` is the parsed JSON if an output schema was given."""

    text: str
    output: Any
    session_id: str
    usage: Usage
    attempts: int

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class _Failed:
    """End of an attempt without a result."""

    error: type[StepError]
    message: str
    retry: bool
    cause_code: str | None = None
    goes_on: str | None = None
    """Task that resumes later, although the step has failed."""


@takes_turn_options
async def run_step(
    prompt: str,
    *,
    cwd: PathLike | None = None,
    session_id: str | None = None,
    on_question: QuestionHandler | None = None,
    tools: Sequence[ClientTool] = (),
    on_event: Callable[[Session, Event], None] | None = None,
    first_event_timeout: float | Literal["settings"] | None = "settings",
    inactivity_timeout: float | Literal["settings"] | None = "settings",
    attempts: int = ATTEMPTS,
    retry_interrupted: bool = False,
    plan: bool = False,
    worktree: bool | WorktreeOptions = False,
    bring: PathLike | None = None,
    bound: bool = True,
    helm: AgentService | None = None,
    settings: Settings | None = None,
    env: Mapping[str, str] | None = None,
    **options: Unpack[TurnOptions],
) -> StepResult:
    """Run one step and return its result.

    Args:
        prompt: Prompt.
        cwd: Working directory; the current directory by default.
        session_id: Continue this session instead of a new one.
        on_question: Answers the agent's questions. Without it every question is refused immediately.
        tools: Functions of this program that the agent may call.
        on_event: Called with each event; must not block.
        first_event_timeout: Seconds until the first sign of life of the model; None means no limit. By default as in
            the settings, else a minute.
        inactivity_timeout: Seconds between later signs of life; None means no limit. By default as in the settings,
            else ten minutes.
        attempts: Maximum number of attempts; each retry continues in the same session.
        retry_interrupted: Also retry a turn that was interrupted.
        plan: Plan first, in a new session: `on_question` gets the plan, and without approval nothing is done. One
            attempt.
        worktree: Create a git worktree for a new session, or several.
        bring: A directory of this machine whose repository is copied to that of `helm`; see `Helmsman.start`.
        bound: Stop the turn if the caller stops waiting for it; otherwise it continues, if the engine of the Helmsman
            does.
        helm: A Helmsman to use; without it one is opened for this step, with `settings` and `env`.
        options: `helmsman.model.options.TurnOptions`. A turn that waits for a usage limit (`on_limit`) and resumes
            later has failed as a step; its task has the outcome.

    Raises:
        StepFailed: The turn failed, had no final message, or its message reports failure (`FAILED: …`).
        StepTimedOut: The model stayed silent, on every attempt.
        StepInterrupted: The turn was interrupted.
        StepOutputInvalid: The final message does not fit the schema.
        HelmsmanError: The step could not begin: bad input, no Codex, …
    """
    if plan and options.get("placement") is not None:
        raise InvalidInput("Plans are made on this machine. Leave the placement out.", parameter="placement")
    of_session = session_words(options)
    again: Any = {name: value for name, value in options.items() if name not in of_session and name not in _FIRST_TURN}
    on_question = on_question or _refuse
    attempts = 1 if plan else attempts  # to continue is not to plan
    session: Session | None = None
    failed = _Failed(StepFailed, "No attempt was made.", retry=True)
    tried = 0

    async def begin(helm: AgentService) -> Session:
        """Start a session, continue the given one, or retry."""
        if session is not None:
            await _interrupt(session)
            try:
                return await helm.say(session.id, CONTINUE, **again)
            except SessionNotFound:
                log.debug("session %s left nothing to continue; starting over", session.id)
        if session_id is not None:
            return await helm.say(session_id, prompt, on_question=on_question, tools=tools, **options)
        new: dict[str, Any] = {"cwd": cwd, "on_question": on_question, "worktree": worktree}
        new |= {} if bring is None else {"bring": bring}
        start = helm.extras.plans.start if plan else helm.start
        return await start(prompt, tools=tools, **new, **options)

    async with _opened(helm, settings, env) as helmsman:
        usual = helmsman.settings
        first = usual.first_event_timeout or FIRST_EVENT_TIMEOUT
        if usual.fleet_url is not None:
            first = math.inf  # waiting for a free machine has its own limit
        limits = TurnLimits(
            _seconds(first_event_timeout, first),
            _seconds(inactivity_timeout, usual.inactivity_timeout or INACTIVITY_TIMEOUT),
        )
        while tried < max(1, attempts) and failed.retry:
            tried += 1
            try:
                session = await begin(helmsman)
            except EngineError as error:
                failed = _Failed(StepFailed, error.message, error.retryable, error.code)
                continue
            outcome = await _follow(session, limits, on_event, bound=bound)
            if outcome is None:
                return _result(session, options.get("output_schema"), tried)
            failed = outcome
            if failed.error is StepInterrupted:
                failed = replace(failed, retry=retry_interrupted)
            failed = await _or_later(helmsman, session, failed)
    raise failed.error(
        f"{failed.message} (attempt {tried} of {attempts})" if tried > 1 else failed.message,
        session_id=session.id if session is not None else None,
        attempts=tried,
        cause_code=failed.cause_code,
        **({} if failed.goes_on is None else {"goes_on": failed.goes_on}),
    )


def _seconds(given: float | Literal["settings"] | None, usual: float) -> float:
    if given == "settings":
        return usual
    return math.inf if given is None else given


async def _or_later(helm: AgentService, session: Session, failed: _Failed) -> _Failed:
    """Return the failure, with the time at which the turn resumes if it waits for a usage limit."""
    if failed.cause_code != USAGE_LIMIT or session.task_id is None:
        return failed
    task = await helm.tasks.get(session.task_id)
    if task.resumes_at is None:
        return failed
    message = f"{failed.message} It resumes at {task.resumes_at.astimezone():%Y-%m-%d %H:%M}."
    return replace(failed, message=message, retry=False, goes_on=task.id)


def run_step_sync(prompt: str, **arguments: Any) -> StepResult:
    """`run_step` for scripts without an event loop; takes the same arguments.

    Raises:
        RuntimeError: An event loop runs in this thread.
    """
    if _in_event_loop():
        raise RuntimeError("An event loop runs in this thread, as in a notebook. Use `await run_step(…)` there.")

    async def main() -> StepResult:
        return await run_step(prompt, **arguments)

    return anyio.run(main)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _follow(
    session: Session, limits: TurnLimits, on_event: Callable[[Session, Event], None] | None, *, bound: bool
) -> _Failed | None:
    """Follow one attempt within its limits. Return None when the turn completed.

    Leaves no turn running, unless it is not bound and the caller is cancelled.
    """
    limit, silence = limits.first_event, "no sign of life"
    goes_on = False
    try:
        with anyio.move_on_after(limit) as scope:
            async with aclosing(session.events(since=session.turn_cursor)) as events:
                async for event in events:
                    if on_event is not None:
                        on_event(session, event)
                    if shows_life(event):
                        limit, silence = limits.inactivity, "nothing more"
                        # While a question waits for the program's handler, the model cannot act, so the clock stands
                        # still.
                        waits_for_us = bool(session.state.questions)
                        scope.deadline = math.inf if waits_for_us else anyio.current_time() + limit
        if scope.cancelled_caught:
            return _Failed(StepTimedOut, f"There was {silence} from the model within {limit:g} s.", retry=True)
        return _ended(session)
    except anyio.get_cancelled_exc_class():
        goes_on = not bound
        raise
    finally:
        if session.state.is_running and not goes_on:
            # Also for a cancelled caller: the cancellation would otherwise stop this, too.
            with anyio.CancelScope(shield=True):
                await _interrupt(session)


def _ended(session: Session) -> _Failed | None:
    match session.status:
        case "done":
            text = (session.result or "").strip()
            if not text:
                return _Failed(StepFailed, "The turn ended without a final message. Run the step again.", retry=False)
            return _Failed(StepFailed, text, retry=False) if text.startswith(FAILED_PREFIX) else None
        case "interrupted":
            return _Failed(StepInterrupted, "The turn was interrupted. Run the step again to continue.", retry=False)
        case _:
            error = session.error
            message = error.message if error is not None else "The turn failed."
            code = error.code if error is not None else None
            kind = StepTimedOut if code == TurnTimedOut.code else StepFailed  # a limit of the session's own was first
            return _Failed(kind, message, error is not None and error.retryable, code)


def _result(session: Session, output_schema: Mapping[str, Any] | None, attempts: int) -> StepResult:
    text = session.result or ""
    output = _parse(session, text, output_schema) if output_schema is not None else None
    return StepResult(text=text, output=output, session_id=session.id, usage=session.usage, attempts=attempts)


def _parse(session: Session, text: str, schema: Mapping[str, Any]) -> Any:
    output, problem = read_output(text, schema)
    if problem is None:
        return output
    raise StepOutputInvalid(
        f"The final message {problem}. Run the step again, or make the prompt or the schema clearer.",
        session_id=session.id,
        text=text,
    )


async def _refuse(_session: Session, question: Question, /) -> Sequence[str] | None:
    """Refuse a question immediately, because nothing can answer it."""
    return refusal(question)


@asynccontextmanager
async def _opened(
    helm: AgentService | None, settings: Settings | None, env: Mapping[str, str] | None
) -> AsyncIterator[AgentService]:
    if helm is not None:
        yield helm
        return
    # A step ends with the one who asked for it, and so does the engine it runs in.
    async with Helmsman(replace(settings or load_settings(), detach=False), env=env) as own:
        yield own


async def _interrupt(session: Session) -> None:
    try:
        with anyio.move_on_after(_STOP_TIMEOUT):
            await session.interrupt()
    except HelmsmanError as error:
        log.debug("session %s could not be interrupted: %s", session.id, error)
