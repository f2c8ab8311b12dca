"""Service that operations call, in this process or by a client of a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from helmsman.model.answered_by import PROGRAM, AnsweredBy
from helmsman.model.options import LIST_LIMIT, PathLike

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from helmsman.agents.found_programs import Installed
    from helmsman.agents.protocol import Capabilities, SessionInfo
    from helmsman.agents.registry import Agents
    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.capabilities.extras import Extras
    from helmsman.model.events import Event, PastTurn
    from helmsman.sessions.session import Session
    from helmsman.sessions.state import SessionStatus
    from helmsman.settings import Settings
    from helmsman.tasks.jobs import RunningJob
    from helmsman.tasks.model import Task

    BeginsTurn = Callable[..., Coroutine[Any, Any, Session]]


class AgentService(Protocol):
    """Core and capabilities: `helmsman.service.HelmsmanService`, or a client of one."""

    settings: Settings

    @property
    def agents(self) -> Agents: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def tasks(self) -> Tasks:
        """Tasks of this service, of other processes on this machine, and in the cloud."""
        ...

    @property
    def extras(self) -> Extras:
        """Capabilities of agents beyond starting and messages."""
        ...

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Call a listener for every event of every session. The returned function ends it."""
        ...

    def is_elsewhere(self, _task: Task, /) -> bool:
        """Return whether only another process can stop a task."""
        ...

    def running_task(self, _session_id: str, /) -> str | None:
        """Return the task that runs in a session in this process."""
        ...

    def running_job(self, _task_id: str, /) -> RunningJob | None:
        """Return a job that runs in this process."""
        ...

    async def installed(self, agent: str) -> Installed | None: ...

    async def capabilities(self, agent: str | None = None) -> Capabilities: ...

    @property
    def start(self) -> BeginsTurn: ...

    @property
    def say(self) -> BeginsTurn: ...

    @property
    def fork(self) -> BeginsTurn: ...

    async def steer(self, session_id: str, text: str) -> None: ...

    async def interrupt(self, session_id: str) -> Session: ...

    async def respond(
        self, session_id: str, question_id: str, answers: Sequence[str], *, by: AnsweredBy = PROGRAM
    ) -> Session: ...

    async def session(self, session_id: str) -> Session: ...

    async def history(self, session_id: str) -> tuple[PastTurn, ...]: ...

    async def last_statuses(
        self, sessions: Sequence[tuple[SessionInfo, Sequence[Task]]]
    ) -> dict[str, SessionStatus]: ...

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
    ) -> tuple[list[SessionInfo], str | None]: ...
