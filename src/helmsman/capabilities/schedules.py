"""Schedules for callers: work that the hub starts at a later time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Unpack, get_args

from helmsman.base.caller_context import asking_client
from helmsman.base.files import is_inside, refuse_outside
from helmsman.base.structs import pack, replace
from helmsman.errors import ConfirmationNeeded, InvalidInput, NotYours, ScheduleNotFound, Unanswered, Unsupported
from helmsman.model.inputs import session_options, session_words, takes_work_options, turn_request, worktree_options
from helmsman.model.nature import ACTS, READS, verb
from helmsman.model.options import PathLike, SessionOptions, TurnLimits, WorkOptions
from helmsman.schedules.store import Missed, Schedule, ScheduleRun, new_schedule_id
from helmsman.schedules.when import parse_when
from helmsman.steering.shared import hub_fingerprint
from helmsman.steering.turn_policy import TurnPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering
    from helmsman.tasks.model import Task

_RUNS_SHOWN: Final = 20


class Store(Protocol):
    """Store of schedules (`helmsman.schedules.store`)."""

    @property
    def begin_now(self) -> Callable[[Schedule], Awaitable[Task]] | None: ...

    async def now(self) -> datetime: ...

    async def add(self, schedule: Schedule) -> None: ...

    async def all(self) -> tuple[Schedule, ...]: ...

    async def runs(self, schedule_id: str, limit: int) -> tuple[ScheduleRun, ...]: ...

    async def pause(self, schedule_id: str, *, is_paused: bool, next_at: datetime | None) -> None: ...

    async def remove(self, schedule_id: str) -> None: ...


class Schedules:
    """`Helmsman.extras.schedules`."""

    prefix: ClassVar[str] = "S-"
    """Prefix of new ids."""

    def __init__(self, helm: Steering, store: Store | None = None) -> None:
        self._helm = helm
        self._store: Store = store or helm.schedules

    @verb(ACTS)
    @takes_work_options
    async def add(
        self,
        prompt: str,
        *,
        cron: str | None = None,
        every: str | None = None,
        at: str | None = None,
        timezone: str | None = None,
        cwd: PathLike | None = None,
        missed: Missed = "run",
        overlap: bool = False,
        worktree: bool = False,
        **options: Unpack[WorkOptions],
    ) -> Schedule:
        """Add a schedule: by a `cron` line, `every` so often, or once, `at` a time.

        `timezone` applies to `cron` and `at`, by default that of the machine. Times missed during sleep are made up for
        by one run, or by none if `missed` is `skip`. A run is left out while the previous one works, unless `overlap`
        is set. The rest is as for `start`. A run has the environment of the hub, not the caller's.

        A schedule from an MCP client's model is only proposed: it starts nothing until a user resumes it.

        Raises:
            InvalidInput: An argument is wrong.
            Unsupported: There is no hub here.
        """
        if self._store.begin_now is None:
            raise Unsupported(
                "Schedules are run by the hub, and here the service is inside this process. Leave out HELMSMAN_DETACH=0."
            )
        if missed not in get_args(Missed):
            raise InvalidInput(f"missed cannot be {missed!r:.100}. Use run or skip.", parameter="missed")
        now = await self._store.now()
        when = parse_when(now, cron=cron, every=every, at=at, timezone=timezone)
        helm = self._helm
        roots, agent = helm.allowed_roots, helm.settings.default_agent
        words = session_words(options)
        checked = session_options(cwd if cwd is not None else ".", words, roots, default_agent=agent)
        # Refuses an unknown agent before anything is stored.
        _ = helm.agents[checked.agent]
        request = replace(
            turn_request(prompt, checked, options, helm.settings), worktree=worktree_options(worktree, roots)
        )
        spec = request.packed()
        if spec is None:
            raise InvalidInput("An option looks as if it held a secret, which would be kept on disk.")
        client = asking_client()
        schedule = Schedule(
            id=new_schedule_id(self.prefix),
            prompt=request.turn.text,
            when=when,
            directory=str(checked.cwd),
            spec=spec,
            policy=await self._policy(checked),
            missed=missed,
            overlap=overlap,
            created_at=now,
            next_at=when.next_after(now) if client is None else None,
            is_paused=client is not None,
            proposed_by=None if client is None else client.title,
        )
        await self._store.add(schedule)
        return schedule

    async def _policy(self, _options: SessionOptions) -> dict[str, Any]:
        """Return the policy of its runs, that of the client that adds it. Their questions wait for an answer."""
        settings = self._helm.settings
        limits = TurnLimits.of(settings)
        policy = TurnPolicy.of(settings, limits, hub_fingerprint(settings))
        return dict(pack(replace(policy, client=None)))  # what its runs ask is for people

    @verb(READS)
    async def list(self) -> tuple[Schedule, ...]:
        """Return all schedules, oldest first."""
        roots = self._helm.allowed_roots
        return tuple(one for one in await self._store.all() if not roots or is_inside(Path(one.directory), roots))

    @verb(READS)
    async def get(self, schedule_id: str) -> Schedule:
        """Return a schedule by its id, or by a unique prefix.

        Raises:
            ScheduleNotFound: It does not exist.
        """
        known = await self._store.all()
        found = [one for one in known if schedule_id and one.id.lower().startswith(schedule_id.strip().lower())]
        if len(found) != 1:
            problem = "There is no schedule" if not found else "There is more than one schedule"
            raise ScheduleNotFound(f"{problem} {schedule_id}. List the schedules to see which there are.")
        roots = self._helm.allowed_roots
        if roots:
            refuse_outside(Path(found[0].directory), roots, "schedule_id")
        return found[0]

    @verb(READS)
    async def runs(self, schedule_id: str, limit: int = _RUNS_SHOWN) -> tuple[ScheduleRun, ...]:
        """Return the due times and their outcomes, newest first."""
        return await self._store.runs((await self.get(schedule_id)).id, limit)

    @verb(ACTS)
    async def pause(self, schedule_id: str) -> Schedule:
        """Pause it: it starts nothing until it is resumed."""
        schedule = await self.get(schedule_id)
        await self._store.pause(schedule.id, is_paused=True, next_at=None)
        return await self.get(schedule.id)

    @verb(ACTS)
    async def resume(self, schedule_id: str) -> Schedule:
        """Resume it at its next due time. Runs missed during the pause are not made up.

        Raises:
            ConfirmationNeeded: It is proposed.
            NotYours: The model of an MCP client asks for it.
        """
        schedule = await self.get(schedule_id)
        _require_person(schedule, "resume")
        _refuse_proposed(schedule)
        return await self._resume(schedule)

    @verb(ACTS)
    async def confirm(self, schedule_id: str) -> Schedule:
        """Enable a proposed schedule, after a user has seen its description (`what_begins`).

        Raises:
            InvalidInput: It is not proposed.
            NotYours: The model of an MCP client asks for it.
        """
        schedule = await self.get(schedule_id)
        _require_person(schedule, "confirm")
        if schedule.proposed_by is None:
            raise InvalidInput(
                f"Schedule {schedule.id} is not proposed: it is confirmed already.", parameter="schedule_id"
            )
        return await self._resume(schedule)

    async def _resume(self, schedule: Schedule) -> Schedule:
        next_at = schedule.when.next_after(await self._store.now())
        await self._store.pause(schedule.id, is_paused=False, next_at=next_at)
        return await self.get(schedule.id)

    @verb(ACTS)
    async def run_now(self, schedule_id: str) -> Task:
        """Start a run now; its times stay unchanged.

        Raises:
            Unsupported: There is no hub here.
            ConfirmationNeeded: It is proposed.
            NotYours: The model of an MCP client asks for it.
        """
        schedule = await self.get(schedule_id)
        _require_person(schedule, "run")
        _refuse_proposed(schedule)
        if self._store.begin_now is None:
            raise Unsupported("Schedules are run by the hub, and here the service is inside this process.")
        return await self._store.begin_now(schedule)

    @verb(ACTS)
    async def remove(self, schedule_id: str) -> Schedule:
        """Remove it. Runs that have started continue, and stay in the list of tasks."""
        schedule = await self.get(schedule_id)
        # A model may take back a schedule that is only proposed.
        if schedule.proposed_by is None:
            _require_person(schedule, "remove")
        await self._store.remove(schedule.id)
        return schedule


def _require_person(schedule: Schedule, doing: str) -> None:
    """Refuse a model that would control scheduled work.

    Raises:
        NotYours: The model of an MCP client asks for it.
    """
    if asking_client() is not None:
        command = "confirm" if schedule.proposed_by is not None else "run-now" if doing == "run" else doing
        raise NotYours(
            f"Only a person can {doing} schedule {schedule.id}. Ask the user to do it in the dashboard or at a terminal: "
            f"helmsman schedule {command} {schedule.id}"
        )


def _refuse_proposed(schedule: Schedule) -> None:
    if schedule.proposed_by is not None:
        raise ConfirmationNeeded(
            f"The model of {schedule.proposed_by} proposed schedule {schedule.id}. Look at it and confirm it first: "
            f"helmsman schedule confirm {schedule.id}"
        )


def unanswered(session: Session) -> Unanswered:
    """Return the error for a run with a question that was not answered in time: it has failed, whatever it does next."""
    asked = session.state.timed_out[-1:] or ["a question"]
    return Unanswered(f"No answer in time: {asked[0]} Answer next time, or give it a rule.")
