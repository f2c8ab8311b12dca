"""Client of the service: its verbs, sessions and parts, carried out by a backend.

The backend is the hub of this machine or of another one (`helmsman.hub.client`). A client holds no store, no agents and no
service; its sessions are folds over the events that the hub sends. `helmsman.Helmsman` adds the service in its own process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Never, Protocol, Self, Unpack, cast

from helmsman._version import __version__
from helmsman.base.caller_context import environment
from helmsman.base.concurrency import require_asyncio
from helmsman.errors import NOT_OPEN, InvalidInput, NotOpen
from helmsman.hub.client import HubClient
from helmsman.hub.host_pool import HostPool
from helmsman.hub.hosts import HostFailed, named_host
from helmsman.model.answered_by import PROGRAM, AnsweredBy
from helmsman.model.inputs import takes_start_options, takes_turn_options
from helmsman.model.options import LIST_LIMIT
from helmsman.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from helmsman.agents.found_programs import Installed
    from helmsman.agents.protocol import Capabilities, SessionInfo
    from helmsman.agents.registry import Agents
    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.capabilities.extras import Extras
    from helmsman.hub.hosts import OtherHost
    from helmsman.hub.http_client import HubEvents
    from helmsman.hub.remote_trees import RemoteTrees
    from helmsman.model.client_tools import ClientTool, ToolDefinition
    from helmsman.model.events import Event, PastTurn
    from helmsman.model.options import PathLike, StartOptions, TurnOptions, WorktreeOptions
    from helmsman.sessions.session import QuestionHandler, Session, WhenBusy
    from helmsman.sessions.state import SessionStatus
    from helmsman.settings import Settings
    from helmsman.tasks.jobs import RunningJob
    from helmsman.tasks.model import Task

log = logging.getLogger(__name__)


class Backend(Protocol):
    """Carries out the calls of a client: a hub, a fleet, or the service in this process."""

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def is_connected(self) -> bool: ...

    @property
    def is_lost(self) -> bool: ...

    async def call(self, verb: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Carry out a verb."""
        ...

    def part(self, path: str) -> Any:
        """Return the proxy of `tasks` or `extras`."""
        ...

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Call a listener for every event. The returned function ends it."""
        ...

    async def goes_on_alone(self) -> bool:
        """Return whether sessions continue when this process ends."""
        ...


class ServiceClient:
    """Client of a service, under asyncio. Use it as an async context manager, or `open` and `close` it."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        env: Mapping[str, str] | None = None,
        on_question: QuestionHandler | None = None,
        host: OtherHost | None = None,
    ) -> None:
        """Set up a client. `host` is another machine, whose hub has its own settings and environment."""
        self.settings = settings if settings is not None else load_settings()
        self.environment: Mapping[str, str] = environment() if env is None else env
        self._on_question = on_question
        self._host = host
        self._backend: Backend | None = None
        self._exit = AsyncExitStack()
        self._life: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    def __enter__(self) -> Never:
        raise TypeError(
            "Use `async with Helmsman()`, or `with helmsman.SyncHelmsman()` in a script without an event loop."
        )

    def __exit__(self, *exc: object) -> None:
        """Exists so that Python calls `__enter__`, whose error names the right class."""

    async def open(self) -> Self:
        """Open it without a block, as in one cell of a notebook; `close` closes it in another. Once is enough.

        Raises:
            NeedsAsyncio: There is no event loop of asyncio.
            NotOpen: It was closed. A closed one cannot be reopened.
        """
        require_asyncio()
        if self._leaving.is_set():
            raise NotOpen("This Helmsman was closed. Make a new one: Helmsman().")
        if self._life is None:
            opened = asyncio.get_running_loop().create_future()
            self._life = asyncio.create_task(self._live(opened), name="helmsman")
            try:
                # The task must not be cancelled with its caller: it closes its own connections.
                await asyncio.shield(opened)
            except asyncio.CancelledError:
                await self.close()
                raise
            except BaseException:
                self._life = None
                raise
        return self

    async def close(self) -> None:
        """Close what `open` opened. A second call does nothing."""
        life, self._life = self._life, None
        if life is not None:
            self._leaving.set()
            # Closing has to finish, even if the caller is cancelled.
            await asyncio.shield(life)

    async def _live(self, opened: asyncio.Future[None]) -> None:
        """Stay open until `close`. A cancel scope must be left in the task that entered it."""
        try:
            await self.__aenter__()
        except BaseException as error:
            # The caller of `open` may have been cancelled in the meantime.
            if not opened.done():
                opened.set_exception(error)
            # A cancellation must reach the task that was cancelled.
            if not isinstance(error, Exception):
                raise
            return
        try:
            opened.set_result(None)
            await self._leaving.wait()
        finally:
            self._leaving.set()
            await self.__aexit__(*sys.exc_info())

    async def __aenter__(self) -> Self:
        require_asyncio()
        self._backend = await self._exit.enter_async_context(await self._found_backend())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._exit.aclose()

    async def _found_backend(self) -> AbstractAsyncContextManager[Backend]:
        hub = await self._found_hub()
        if hub is None:
            raise NotOpen("There is no hub for this process.")
        return hub

    async def _found_hub(self) -> HubClient | None:
        hub = HubClient(self, self.settings, self.environment, self._on_question, self._host)
        if not await hub.connect():
            return None
        for note in self.settings.ignored:
            log.warning("%s", note)
        return hub

    @property
    def _service(self) -> Backend:
        if self._backend is None:
            raise NOT_OPEN.again()
        return self._backend

    @property
    def _hub(self) -> HubClient:
        if not isinstance(self._backend, HubClient):
            raise NOT_OPEN.again()
        return self._backend

    # --- connection --------------------------------------------------------------------------------------------------

    @property
    def asks_hub(self) -> bool:
        """True if the user's hub, or that of another machine, runs the service."""
        return isinstance(self._backend, HubClient)

    @property
    def is_connected(self) -> bool:
        """True if the hub can be reached now."""
        return self._backend is not None and self._backend.is_connected

    @property
    def is_lost(self) -> bool:
        """True if the hub of another machine is lost for good: create a new client."""
        return self._backend is not None and self._backend.is_lost

    @property
    def version_there(self) -> str:
        """The version of Helmsman where the service is."""
        return self._backend.version_there if isinstance(self._backend, HubClient) else __version__

    async def goes_on_alone(self) -> bool:
        """Return whether sessions continue when this process ends."""
        return await self._service.goes_on_alone()

    @cached_property
    def hosts(self) -> HostPool[ServiceClient]:
        """User's other machines, each with an open client."""
        links = HostPool(self.environment, client_of_host, is_bounded=bool(self.settings.session_roots))
        self._exit.push_async_callback(links.close)
        return links

    @cached_property
    def workspaces(self) -> RemoteTrees:
        """Work on the machine `host` with trees of this one, which `start` sent there with `bring`.

        Raises:
            InvalidInput: This client is not connected to another machine.
        """
        from helmsman.hub.remote_trees import RemoteTrees  # packs trees, which few programs do

        if self._host is None or not isinstance(self._backend, HubClient):
            raise InvalidInput("Only a Helmsman of another machine brings trees there: Helmsman(host=…).")
        return RemoteTrees(self._backend, self._host.name, self.settings)

    # --- sessions and parts ------------------------------------------------------------------------------------------

    @property
    def sessions(self) -> Mapping[str, Session]:
        """Sessions that were started or looked up here."""
        return self._service.sessions

    @property
    def agents(self) -> Agents:
        """Known agents: names and titles."""
        from helmsman.agents.registry import Agents  # every agent's package, which a client rarely needs

        return Agents(files=self.settings.files)

    @property
    def tasks(self) -> Tasks:
        """Tasks of this user on the machine, and in the cloud."""
        return cast("Tasks", self._service.part("tasks"))

    @property
    def extras(self) -> Extras:
        """Capabilities of agents beyond starting and messages."""
        return cast("Extras", self._service.part("extras"))

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Call a listener for every event of every session. The returned function ends it. It must not block or raise."""
        return self._service.listen(listener)

    def is_elsewhere(self, _task: Task) -> bool:
        """Return whether only another process can stop a task. A hub can stop all its tasks."""
        return False

    def running_task(self, _session_id: str) -> str | None:
        """Return the task that runs in a session in this process."""
        return None

    def running_job(self, _task_id: str) -> RunningJob | None:
        """Return a job that runs in this process."""
        return None

    async def page(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        """For the dashboard: have that of another machine answer a request. Return the status and the content."""
        return await self._hub.page(method, target, body)

    def page_changes(self, target: str, last_event_id: str | None) -> AbstractAsyncContextManager[HubEvents]:
        """For the dashboard: open the stream of what changes on another machine after an event."""
        return self._hub.page_changes(target, last_event_id)

    def on_event(self, session: Session, event: Event) -> None:
        """Not called: the engines of these sessions are the hub's."""
        raise NotImplementedError

    async def give_answer(
        self, session: Session, question_id: str, answers: Sequence[str], by: AnsweredBy, *, roots: Sequence[Path]
    ) -> None:
        """Not called, for the same reason."""
        raise NotImplementedError

    # --- verbs -------------------------------------------------------------------------------------------------------

    async def _ask(self, verb: str, *arguments: Any, **named: Any) -> Any:
        """Call a verb of the backend."""
        return await self._service.call(verb, arguments, named)

    async def installed(self, agent: str) -> Installed | None:
        """Return the installed program of an agent, or None for an agent without a program.

        Raises:
            CodexNotFound: Codex is not installed.
            AgentNotFound: Another agent is not installed.
            EngineLost: It is on another machine that does not respond.
        """
        done: Installed | None = await self._ask("installed", agent)
        return done

    async def capabilities(self, agent: str | None = None) -> Capabilities:
        """Return the capabilities of an agent (the default one), and the agents that have the others."""
        done: Capabilities = await self._ask("capabilities", agent)
        return done

    @takes_turn_options
    async def start(
        self,
        prompt: str,
        *,
        cwd: PathLike | None = None,
        on_question: QuestionHandler | None = None,
        worktree: bool | WorktreeOptions = False,
        bring: PathLike | None = None,
        min_remaining_percent: float | None = None,
        idempotency_key: str | None = None,
        on_task: Callable[[str], None] | None = None,
        tools: Sequence[ClientTool | ToolDefinition] = (),
        **options: Unpack[TurnOptions],
    ) -> Session:
        """Start a new session and its first turn. Return when the turn is under way.

        `on_question` answers this session's questions, instead of the handler of the whole Helmsman. `worktree` creates a
        git worktree for it, or several (`WorktreeOptions`). `bring`, with `Helmsman(host=…)`, creates one there of the
        repository around this directory here: `Helmsman.workspaces` brings its changes back. With `min_remaining_percent`
        it starts only while that much of the account's rate limit is left. The same `idempotency_key` again returns the
        same session. `on_task` is called with the id of the task as soon as it is registered. `tools` are functions of this
        program that the agent may call.
        `helmsman.model.options.TurnOptions` lists the other options.

        Raises:
            InvalidInput: An argument is wrong; nothing was started.
            RateLimitLow: Less is left of the account's rate limit than was asked for; nothing was started.
            TooManySessions: As many turns are running as are allowed.
            HelmsmanError: Codex is not there, or refuses.
        """
        begin = partial(self._ask, "start") if bring is None else partial(self.workspaces.start, bring)
        done: Session = await begin(
            prompt,
            cwd=cwd,
            on_question=on_question,
            worktree=worktree,
            min_remaining_percent=min_remaining_percent,
            idempotency_key=idempotency_key,
            on_task=on_task,
            tools=tools,
            **options,
        )
        return done

    @takes_turn_options
    async def say(
        self,
        session_id: str,
        message: str,
        *,
        when_busy: WhenBusy = "error",
        on_question: QuestionHandler | None = None,
        on_task: Callable[[str], None] | None = None,
        tools: Sequence[ClientTool | ToolDefinition] = (),
        **options: Unpack[TurnOptions],
    ) -> Session:
        """Send the next message of a session: ours, an earlier process's, or one that a person made in the terminal.

        Options of the session and limits replace those of the session, from this turn on. So does `on_question` its
        handler, and `tools` the functions that it was started with: Codex continues to call those. `on_task` is as for
        `start`.

        With another `agent` than the session's, the session is handed over (`helmsman.steering.handing_over`). The result is
        a new session of that agent, which continues in the same place with a summary of the earlier turns.
        """
        done: Session = await self._ask(
            "say",
            session_id,
            message,
            when_busy=when_busy,
            on_question=on_question,
            on_task=on_task,
            tools=tools,
            **options,
        )
        return done

    async def steer(self, session_id: str, text: str) -> None:
        """Put a message into the running turn.

        Raises:
            SessionIdle: No turn is running.
        """
        await self._ask("steer", session_id, text)

    async def interrupt(self, session_id: str) -> Session:
        """Stop the running turn, its sub-agents and the commands it left running; in an idle session, only those."""
        done: Session = await self._ask("interrupt", session_id)
        return done

    async def respond(
        self, session_id: str, question_id: str, answers: Sequence[str], *, by: AnsweredBy = PROGRAM
    ) -> Session:
        """Answer a question. `by` is recorded as the author of the answer.

        Raises:
            QuestionNotOpen: No such question, or it was answered already.
            AnswerInvalid: The answer does not fit; nothing was sent.
            NotYours: The answer is a model's, and its client did not open the session, or a person has the question in a
                form.
        """
        done: Session = await self._ask("respond", session_id, question_id, answers, by=by)
        return done

    async def give_up(self, session_id: str, question_id: str) -> None:
        """Refuse a question after its handler failed in another process."""
        await self._ask("give_up", session_id, question_id)

    @takes_start_options
    async def fork(
        self,
        session_id: str,
        message: str | None = None,
        *,
        from_turn: int | str | None = None,
        on_question: QuestionHandler | None = None,
        **options: Unpack[StartOptions],
    ) -> Session:
        """Create a session that shares the history of another, and send it `message` if given.

        `from_turn` is the last turn it shares: its number, counted from 1, or its id.
        """
        done: Session = await self._ask(
            "fork", session_id, message, from_turn=from_turn, on_question=on_question, **options
        )
        return done

    async def hand(self, session_id: str, to: str | None) -> Session:
        """Hand a session to the MCP clients with this name, so that their models answer its questions. None takes it back.

        Raises:
            NotYours: A client asks for it. Only a person hands sessions over.
        """
        done: Session = await self._ask("hand", session_id, to)
        return done

    async def session(self, session_id: str) -> Session:
        """Return a session by its id, known or found on disk.

        Raises:
            SessionNotFound: It does not exist.
        """
        done: Session = await self._ask("session", session_id)
        return done

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        """Return all turns of a session, oldest first.

        The agent's own files are read only for turns that are not in the log.
        """
        done: tuple[PastTurn, ...] = await self._ask("history", session_id)
        return done

    async def list(
        self,
        *,
        directory: PathLike | None = None,
        query: str | None = None,
        limit: int = LIST_LIMIT,
        cursor: str | None = None,
        include_archived: bool = False,
        include_sub_agents: bool = False,
        agent: str | None = None,
    ) -> tuple[list[SessionInfo], str | None]:
        """Return the sessions on disk, of an agent or of all, newest first, and the cursor of the next page.

        A session in a worktree of Helmsman counts for the directory of the repository that the worktree was made for.
        With allowed roots, only those inside: a page may have fewer than `limit` then. Sub-agents are sessions that
        another session started.
        """
        done: tuple[list[SessionInfo], str | None] = await self._ask(
            "list",
            directory=directory,
            query=query,
            limit=limit,
            cursor=cursor,
            include_archived=include_archived,
            include_sub_agents=include_sub_agents,
            agent=agent,
        )
        return done

    async def last_statuses(self, sessions: Sequence[tuple[SessionInfo, Sequence[Task]]]) -> dict[str, SessionStatus]:
        """Return the status of listed sessions. Each is given with its tasks."""
        done: dict[str, SessionStatus] = await self._ask("last_statuses", sessions)
        return done


def client_of_host(name: str) -> ServiceClient:
    """Return a client of another machine of the user."""
    return ServiceClient(host=other_host(name))


def other_host(name: str) -> OtherHost:
    """Return another machine of the user.

    Raises:
        InvalidInput: No machine has this name.
    """
    if os.name != "posix":
        raise InvalidInput("Other machines can be reached from Linux and macOS only.")
    try:
        return named_host(name, environment())
    except HostFailed as error:
        raise InvalidInput(str(error)) from error
