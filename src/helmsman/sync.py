"""`SyncHelmsman`: the library for scripts without an event loop.

with SyncHelmsman() as helm:
        session = helm.start("Fix the failing test", cwd=repo, sandbox="workspace-write")
        for event in session.events():
            ...
        print(session.result)

It runs `Helmsman` in a separate thread during the block, and each call waits for that thread. Ctrl-C cancels the
current call and raises `KeyboardInterrupt`.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

import anyio.to_thread
from anyio.from_thread import start_blocking_portal

from helmsman.client import Helmsman
from helmsman.errors import NotOpen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from anyio.from_thread import BlockingPortal

    from helmsman.model.events import Event, Failure, Item, Usage
    from helmsman.model.options import PathLike
    from helmsman.model.questions import Question
    from helmsman.sessions.session import QuestionHandler, Session, Until, WhenBusy
    from helmsman.sessions.state import SessionStatus
    from helmsman.settings import Settings

    SyncQuestionHandler = Callable[["SyncSession", Question], Sequence[str] | None]

_GRACE_SECONDS: Final = 10.0
"""Seconds that a cancelled call may take to end."""

P = ParamSpec("P")
ValueT = TypeVar("ValueT")


class _Thread:
    """Thread with an event loop that runs calls and waits for them."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal

    def call(self, function: Callable[[], Awaitable[ValueT]]) -> ValueT:
        is_over = threading.Event()

        async def run() -> ValueT:
            try:
                return await function()
            finally:
                is_over.set()

        future = self._portal.start_task_soon(run)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # Ctrl-C: cancel the call
                future.cancel()
                is_over.wait(_GRACE_SECONDS)
            raise

    def read(self, function: Callable[[], ValueT]) -> ValueT:
        """Look at something while nothing changes it."""
        return self._portal.call(function)


def _here(
    verb: Callable[Concatenate[Helmsman, P], Awaitable[ValueT]],
) -> Callable[Concatenate[SyncHelmsman, P], ValueT]:
    """Wrap a method of the library to block."""

    @wraps(verb)
    def waited_for(self: SyncHelmsman, /, *args: P.args, **named: P.kwargs) -> ValueT:
        return self.run(lambda helm: verb(helm, *args, **named))

    return waited_for


def _with_session(
    verb: Callable[Concatenate[Helmsman, P], Awaitable[Session]],
) -> Callable[Concatenate[SyncHelmsman, P], SyncSession]:
    """Wrap a method of the library that returns a session. Its `on_question` may be an ordinary function."""
    call: Callable[..., Awaitable[Session]] = verb

    @wraps(verb)
    def waited_for(self: SyncHelmsman, /, *args: P.args, **named: P.kwargs) -> SyncSession:
        given: dict[str, Any] = {**named}
        if (handler := given.get("on_question")) is not None and not iscoroutinefunction(handler):
            given["on_question"] = self._asking(handler)
        return self.held(self.run(lambda helm: call(helm, *args, **given)))

    return waited_for


class SyncHelmsman:
    """`Helmsman` for scripts. Its verbs take what those of `Helmsman` take; `run` reaches all the rest of it."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        env: Mapping[str, str] | None = None,
        on_question: SyncQuestionHandler | None = None,
        inside: bool = False,
        host: str | None = None,
    ) -> None:
        """Set up a client. `on_question` is an ordinary function, which may block: it runs in a separate thread."""
        handler = None if on_question is None else self._asking(on_question)
        self._make = partial(Helmsman, settings, env=env, on_question=handler, inside=inside, host=host)
        self._exit = ExitStack()
        self._thread: _Thread | None = None
        self._helm: Helmsman | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio"))
            opening: AbstractAsyncContextManager[Helmsman] = portal.call(self._make)
            self._helm = stack.enter_context(portal.wrap_async_context_manager(opening))
            self._thread = _Thread(portal)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._thread = None
        self._exit.close()

    def _asking(self, handler: SyncQuestionHandler) -> QuestionHandler:
        """Return a handler that runs an ordinary function in a separate thread."""

        async def ask(session: Session, question: Question, /) -> Sequence[str] | None:
            return await anyio.to_thread.run_sync(handler, self.held(session), question, abandon_on_cancel=True)

        return ask

    def held(self, session: Session) -> SyncSession:
        """Return a session of the library for use in this thread."""
        return SyncSession(session, self._in_thread())

    def run(self, do: Callable[[Helmsman], Awaitable[ValueT]]) -> ValueT:
        """Do anything that the library can, and wait for it: `helm.run(lambda helm: helm.tasks.list())`."""
        thread, helm = self._in_thread(), self._helm
        assert helm is not None

        async def done() -> ValueT:
            return await do(helm)

        return thread.call(done)

    def _in_thread(self) -> _Thread:
        if self._thread is None:
            raise NotOpen("This Helmsman is not open. Use it as `with SyncHelmsman() as helm:`.")
        return self._thread

    start = _with_session(Helmsman.start)
    say = _with_session(Helmsman.say)
    session = _with_session(Helmsman.session)
    fork = _with_session(Helmsman.fork)
    list = _here(Helmsman.list)
    history = _here(Helmsman.history)
    capabilities = _here(Helmsman.capabilities)


class SyncSession:
    """`Session` for scripts: attributes return the current state, and methods that take time block."""

    def __init__(self, session: Session, thread: _Thread) -> None:
        self._session = session
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._session)

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def status(self) -> SessionStatus:
        """`active`, `awaiting_approval`, `done`, `error` or `interrupted`."""
        return self._session.status

    @property
    def result(self) -> str | None:
        """Final message of the last turn, once it has completed."""
        return self._session.result

    @property
    def output(self) -> Any:
        """Result as an object, if the turn had an output schema and the result is JSON."""
        return self._session.output

    @property
    def error(self) -> Failure | None:
        """Why the last turn failed, if it did."""
        return self._session.error

    @property
    def usage(self) -> Usage:
        """Tokens spent over all turns."""
        return self._session.usage

    @property
    def items(self) -> list[Item]:
        """Items of the current or last turn."""
        return self._thread.read(lambda: self._session.items)

    @property
    def questions(self) -> list[Question]:
        """Open questions, oldest first."""
        return self._thread.read(lambda: self._session.questions)

    def events(self, *, since: int = 0) -> Iterator[Event]:
        """Yield the events of this session until the running turn ends. See `Session.events`."""
        happening = self._session.events(since=since)

        async def following() -> Event | None:
            return await anext(happening, None)

        try:
            while (event := self._thread.call(following)) is not None:
                yield event
        finally:
            self._thread.call(happening.aclose)

    def wait(self, *, until: Until = "attention", timeout: float | None = None) -> bool:
        """Wait until the turn ends or a question is asked. See `Session.wait`."""
        return self._thread.call(partial(self._session.wait, until=until, timeout=timeout))

    def say(self, message: str, *, images: Sequence[PathLike] = (), when_busy: WhenBusy = "error") -> Self:
        """Send the next message. See `Session.say`."""
        self._thread.call(partial(self._session.say, message, images=images, when_busy=when_busy))
        return self

    def steer(self, text: str) -> None:
        """Put a message into the running turn."""
        self._thread.call(partial(self._session.steer, text))

    def interrupt(self) -> None:
        """Stop the running turn and all it left running; nothing to do when idle."""
        self._thread.call(self._session.interrupt)

    def respond(self, question_id: str, *answers: str) -> None:
        """Answer a question: one answer for each of its parts."""
        self._thread.call(partial(self._session.respond, question_id, *answers))
