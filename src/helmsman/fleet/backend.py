"""Backend that runs requests on the machines of a fleet; clients here read, answer and stop them.

It takes the place of the user's hub for a program (`helmsman.hub.service_client.Backend`), so front ends do not depend
on it. Local sessions, tasks, worktrees, accounts and schedules stay on this machine and are served by a Helmsman without a
fleet. Listings contain the sessions and tasks of both.
"""

from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast

import anyio
import anyio.to_thread

from helmsman.agents.protocol import SessionInfo
from helmsman.base.caller_context import asking_client, from_here
from helmsman.base.files import refuse_outside
from helmsman.base.json_values import json_object
from helmsman.base.structs import pack, replace
from helmsman.capabilities.all_tasks import CANDIDATES, NOT_BEGUN, NOT_RUNNING, LocalTasks, Tasks
from helmsman.capabilities.budgets import Budgets
from helmsman.capabilities.changes import AppliedSession, Changes, SessionDiff
from helmsman.capabilities.extras import Extras
from helmsman.capabilities.notices import Notices
from helmsman.capabilities.plans import Plans
from helmsman.capabilities.schedules import Schedules
from helmsman.capabilities.usage_report import UsageReports
from helmsman.errors import InvalidInput, SessionBusy, SessionNotFound, Unsupported
from helmsman.fleet.attempts import ON_LOSS, silence_of, silence_to_keep
from helmsman.fleet.budgets import budget_of_fleet
from helmsman.fleet.client_trees import ClientTrees
from helmsman.fleet.link import FleetLink
from helmsman.fleet.notices import FleetNotifier, place_in
from helmsman.fleet.pictures import image_bundles
from helmsman.fleet.schedules import FLEETS, BothSchedules, FleetSchedules
from helmsman.fleet.values import (
    CLIENT,
    PROJECT,
    FleetDraft,
    is_fleets,
)
from helmsman.git import tree_changes
from helmsman.git.remote_trees import apply_result, diff_of_result
from helmsman.git.worktree import projects
from helmsman.model.answered_by import PROGRAM
from helmsman.model.events import OptionsChanged, PastTurn, RemarksChanged, TaskLinked
from helmsman.model.inputs import (
    changed_options,
    searched_directory,
    session_options,
    session_words,
    takes_turn_options,
    turn_request,
)
from helmsman.model.options import LIST_LIMIT, Placement, WorktreeOptions
from helmsman.model.request import TurnRequest
from helmsman.service import HelmsmanService
from helmsman.sessions.history import turns_of
from helmsman.steering.opening import image_roots
from helmsman.steering.ownership import refuse_before_person, refuse_foreign, refuse_unasked
from helmsman.tasks.drafts import draft_task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from helmsman.agents.protocol import SessionInfo
    from helmsman.capabilities.budgets import BudgetState
    from helmsman.git.lifecycle import Discarded
    from helmsman.git.tree_changes import Selection, Unsaved
    from helmsman.model.answered_by import AnsweredBy
    from helmsman.model.events import Event
    from helmsman.model.options import PathLike, SessionOptions, TurnOptions
    from helmsman.model.request import TurnRequest
    from helmsman.notices.store import Delivery
    from helmsman.sessions.session import QuestionHandler, Session, WhenBusy
    from helmsman.steering.core import Steering
    from helmsman.steering.shared import OpenFleet, Shared
    from helmsman.tasks.model import Task, TaskOrigin, TaskStatus
    from helmsman.tasks.outcome import TaskOutcome
    from helmsman.tasks.registry import TurnUsage


ValueT = TypeVar("ValueT")
_Page = tuple[list[ValueT], str | None]


def fleet_opener(shared: Shared) -> OpenFleet:
    """Return a function that opens fleets for the clients of a hub. Each fleet has one connection while the hub runs."""
    links: dict[str, FleetLink] = {}
    posts: dict[str, FleetNotifier] = {}
    place = place_in(shared.state_dir / "fleet")

    @asynccontextmanager
    async def open_fleet(helm: HelmsmanService) -> AsyncIterator[FleetBackend]:
        url = helm.settings.fleet_url
        assert url is not None
        link = links.get(url)
        # A fleet that could not be reached is tried again for the next client.
        if link is None or link.failed is not None:
            link = links[url] = FleetLink(url, helm.settings, shared.tasks)
            store, title = link.client.database.store, shared.agents.title
            post = posts[url] = FleetNotifier(store, shared.state_dir, place, title, shared.notices, is_shown=True)
            shared.tasks.start_soon(_serve, link, post)
        await link.opened.wait()
        if link.failed is not None:
            raise link.failed.again()
        # Without the address, or it would open the fleet again.
        async with HelmsmanService(replace(helm.settings, fleet_url=None), env=helm.environment, shared=shared) as own:
            yield FleetBackend(helm, own, link, posts[url])

    return open_fleet  # type: ignore[return-value]


async def _serve(link: FleetLink, post: FleetNotifier) -> None:
    async with anyio.create_task_group() as both:
        both.start_soon(post.run)
        await link.run()
        # A lost link ends the notifier, too; the next client makes both again.
        both.cancel_scope.cancel()


class FleetBackend:
    """Backend for one client of a fleet. `own` is the Helmsman of this machine."""

    def __init__(self, helm: HelmsmanService, own: HelmsmanService, link: FleetLink, post: FleetNotifier) -> None:
        self._helm = helm
        self.own = own
        self.link = link
        self.post = post
        tasks = FleetTasks(self, own)
        self.trees = ClientTrees(link.client, own.settings, helm.allowed_roots)
        self._parts: dict[str, Any] = {"tasks": tasks, "extras": FleetExtras(self, own, tasks)}

    @property
    def sessions(self) -> Mapping[str, Session]:
        return {**self.own.sessions, **self.link.sessions}

    @property
    def is_connected(self) -> bool:
        """Always True, because the link is in this process. Calls raise an error if the database cannot be reached."""
        return True

    @property
    def is_lost(self) -> bool:
        return False

    def part(self, path: str) -> Any:
        return self._parts[path]

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Call a listener for the sessions of both the fleet and this machine."""
        stop_here = self.own.listen(listener)
        self.link.listeners.append(listener)

        def stop() -> None:
            stop_here()
            self.link.listeners.remove(listener)

        return stop

    async def goes_on_alone(self) -> bool:
        return True

    async def call(self, verb: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Run a verb: in the fleet if it starts something or concerns one of its sessions, else on this machine."""
        if verb in ("start", "list", "session"):
            return await getattr(self, verb)(*arguments, **named)
        if verb in _ABOUT_SESSIONS and arguments and is_fleets(str(arguments[0])):
            if verb not in _DONE_BY_FLEETS:
                raise refusal(verb)
            # Decided by the id alone, since sessions of a fleet have another form of id.
            return await getattr(self, verb)(*arguments, **named)
        return await getattr(self.own, verb)(*arguments, **named)

    # --- begin -------------------------------------------------------------------------------------------------------

    @takes_turn_options
    async def start(
        self,
        prompt: str,
        *,
        cwd: PathLike | None = None,
        on_question: QuestionHandler | None = None,
        worktree: bool | WorktreeOptions = False,
        min_remaining_percent: float | None = None,
        idempotency_key: str | None = None,
        on_task: Callable[[str], None] | None = None,
        tools: Sequence[Any] = (),
        **options: Unpack[TurnOptions],
    ) -> Session:
        """Start a session in the fleet.

        It is stored with all that is needed to run it, and runs when a machine is free.
        """
        # The limit would be checked here, against another account than the one that pays.
        if min_remaining_percent is not None:
            raise InvalidInput(
                "Each machine of a fleet has its own account. Leave min_remaining_percent out.",
                parameter="min_remaining_percent",
            )
        settings, placement = self._helm.settings, options.get("placement")
        in_place = placement is not None and placement.in_place
        if isinstance(worktree, WorktreeOptions) and worktree != WorktreeOptions():
            raise InvalidInput(
                "A fleet brings the last commit of one repository to a machine. Leave start and add_dirs out.",
                parameter="worktree",
            )
        if in_place and worktree:
            raise InvalidInput("in_place works in the directory itself: leave worktree out.", parameter="worktree")
        place = from_here("." if cwd is None else cwd)
        # Checked here, so that a client gets errors before the task is accepted.
        checked = session_options(
            None if in_place else place,
            session_words(options),
            self._helm.allowed_roots,
            default_agent=settings.default_agent,
            defaults=settings,
        )
        if in_place:
            checked = replace(checked, cwd=self._there(place))
        _refuse_what_stays_here(tools, options)
        request = self._request(prompt, checked, options)
        draft = await self._draft(request, idempotency_key, silence_to_keep(request.limits))
        task, notes = await self._packed(draft, None if in_place else checked.cwd)
        session = await self._accepted(task, on_question, on_task)
        session.fold(RemarksChanged(session_id=session.id, remarks=(*session.notes, *notes)))
        return session

    async def _packed(self, draft: FleetDraft, directory: Path | None) -> tuple[Task, tuple[str, ...]]:
        """Submit a task with the tree around a directory; return it, and in words what is left behind."""
        if directory is None:
            return await self.link.client.enqueue(draft), ()
        # Before packing, which may take minutes: the same key returns the same task.
        if (known := await self.link.client.with_key(draft)) is not None:
            return known, ()
        async with self.trees.packed(draft, directory) as (packed, notes):
            return await self.link.client.enqueue(packed), notes

    def _there(self, place: Path) -> Path:
        """Return a directory that need not exist on this machine."""
        there = place.absolute()
        # Roots apply to the path as text; the directory itself is elsewhere.
        if self._helm.allowed_roots:
            refuse_outside(there, self._helm.allowed_roots, "cwd")
        return there.resolve()

    @takes_turn_options
    async def say(
        self,
        session_id: str,
        message: str,
        *,
        when_busy: WhenBusy = "error",
        on_question: QuestionHandler | None = None,
        on_task: Callable[[str], None] | None = None,
        tools: Sequence[Any] = (),
        idempotency_key: str | None = None,
        **options: Unpack[TurnOptions],
    ) -> Session:
        """Send the next message of a session of the fleet. It runs when the earlier ones have ended."""
        session = await self.session(session_id)
        words, placement = session_words(options), options.get("placement")
        refuse_unasked(session, self._helm.settings, "send it a message", changes_options=bool(words))
        if session.state.is_running and when_busy == "steer":
            _refuse_what_stays_here(tools, options)
            # A running turn takes text only.
            if options.get("images"):
                raise InvalidInput("Images need a separate message: queue it.", parameter="images")
            await self.link.steer(session.id, message)
            return session
        if session.state.is_running and when_busy == "error":
            raise SessionBusy(
                f"A turn is running in session {session.id}. Wait for its end, or send this with whenBusy queue."
            )
        if placement is not None and placement.in_place:
            raise InvalidInput(
                "A place can be given only when a session begins: leave in_place out.", parameter="placement"
            )
        _refuse_what_stays_here(tools, options)
        known = session.options
        changed = changed_options(known, words)
        checked = session_options(None, changed, self._helm.allowed_roots) if words else known
        checked = replace(checked, cwd=known.cwd)  # the directory may not exist on this machine
        request = self._request(message, checked, options)
        earlier = await self.link.client.of_session(session.id)
        held = silence_to_keep(silence_of(earlier[-1]) if request.limits is None else request.limits)
        draft = await self._draft(request, idempotency_key, held)
        # The session keeps its first directory, as its project depends on it.
        draft = replace(draft, session_id=session.id, task=replace(draft.task, directory=earlier[0].directory))
        session.fold(OptionsChanged(session_id=session.id, options=checked))
        return await self._accepted((await self._packed(draft, None))[0], on_question, on_task)

    def _request(self, text: str, session: SessionOptions, options: TurnOptions) -> TurnRequest:
        settings = self._helm.settings
        return turn_request(text, session, options, settings, image_roots=image_roots(settings))

    async def _draft(self, request: TurnRequest, key: str | None, facts: Mapping[str, Any]) -> FleetDraft:
        """Return a task of the fleet with its images. The facts go with it."""
        pictures = await anyio.to_thread.run_sync(image_bundles, request.turn.images)
        # Images travel beside the request, since their paths mean nothing elsewhere.
        request = replace(request, turn=replace(request.turn, images=()))
        spec = request.packed()
        # Requests are stored in the database, where every client can read them.
        if spec is None:
            raise InvalidInput(
                "An option looks as if it held a secret, and what a fleet is asked for is stored. Put secrets into the "
                "configuration of the machines."
            )
        placement, options = request.placement or Placement(), request.options
        if placement.on_machine_loss is not None:
            spec[ON_LOSS] = placement.on_machine_loss
        client = asking_client()
        policy = {
            **({} if client is None else {CLIENT: pack(client)}),
            **facts,
            **await self.policy(options.agent, None if options.cwd is None else str(options.cwd)),
        }
        _, task = draft_task(request, idempotency_key=key, policy=policy, spec=spec)
        return FleetDraft(task=task, placement=placement, bundles=pictures)

    async def _accepted(
        self, task: Task, on_question: QuestionHandler | None, on_task: Callable[[str], None] | None
    ) -> Session:
        if on_task is not None:
            on_task(task.id)
        session = await self.link.session(str(task.session_id))
        # A task that waits for another turn is not shown yet.
        session.fold(TaskLinked(session_id=session.id, task_id=task.id))
        if on_question is not None:
            # Before the questions are offered, which the loaded session may already have.
            session.handle_questions(on_question)
            self.link.offer_questions(session)
        return session

    async def policy(self, agent: str, directory: str | None) -> dict[str, Any]:
        """Return the policy of tasks and schedules that depends on the client: the project and the notice recipients."""
        project = await anyio.to_thread.run_sync(projects(self._helm.settings.state_dir), directory)
        told = await self.post.who_is_told(agent=agent, directory=directory)
        return told if project is None else {**told, PROJECT: project}

    # --- continue --------------------------------------------------------------------------------------------------------

    async def steer(self, session_id: str, text: str) -> None:
        refuse_unasked(await self.session(session_id), self._helm.settings, "steer it")
        await self.link.steer(session_id, text)

    async def interrupt(self, session_id: str) -> Session:
        return await self.link.interrupt(session_id)

    async def respond(
        self, session_id: str, question_id: str, answers: Sequence[str], *, by: AnsweredBy = PROGRAM
    ) -> Session:
        if by.who == "agent":
            session = await self.session(session_id)
            refuse_foreign(session.id, session.opened_by, self._helm.settings, "answer its questions")
            refuse_before_person(session, question_id, self._helm.settings)
        return await self.link.respond(session_id, question_id, answers, by=by)

    async def give_up(self, session_id: str, question_id: str) -> None:
        """Leave a question open for another answer after a program's handler has failed."""

    # --- look --------------------------------------------------------------------------------------------------------

    async def session(self, session_id: str) -> Session:
        """Return a session of the fleet, or of this machine, by its id or its agent's id."""
        if is_fleets(session_id):
            session = await self.link.session(session_id)
        elif session_id in self.own.sessions:
            return await self.own.session(session_id)
        else:
            try:
                # A local session first: agents may use the same ids in both places.
                return await self.own.session(session_id)
            except SessionNotFound:
                known = await self.link.client.session_of_agents(session_id)
                if known is None:
                    raise
                session = await self.link.session(known)
        await self.refuse_outside(session.task_ids[:1])
        return session

    async def refuse_outside(self, task_ids: Sequence[str]) -> None:
        """Raise an error if a task belongs to a directory outside this client's allowed roots."""
        if self._helm.allowed_roots:
            for task_id in task_ids:
                if (task := await self.link.client.find(task_id)) is not None:
                    # An id may name a session of any client, so its directory is checked here.
                    await self.own.tasks.local.refuse_outside(task)

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        """Return all turns of a session, oldest first, from its log."""
        stored = await self.link.client.database.tasks(lambda tasks: tasks.events(session_id))
        return turns_of(session_id, stored.events)

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
        """Sessions of the fleet and of this machine, newest first, and the cursor of the next page."""
        place = None if directory is None else searched_directory(directory)

        asked: Any = {"query": query, "agent": agent}
        own = partial(
            self.own.list,
            directory=directory,
            include_archived=include_archived,
            include_sub_agents=include_sub_agents,
            **asked,
        )
        fleets = partial(self.link.client.sessions, directory=place, **asked)
        return await merged({"fleet": fleets, "own": own}, limit, cursor, lambda info: info.updated_at)


_ABOUT_SESSIONS: Final = frozenset({"say", "steer", "interrupt", "respond", "give_up", "fork", "hand", "history"})
_DONE_BY_FLEETS: Final = _ABOUT_SESSIONS - {"fork", "hand"}


def refusal(what: str) -> Unsupported:
    """Return the error for an operation that sessions of a fleet do not support."""
    return Unsupported(f"{what} does not work on a session of a fleet: what it needs is on the machine that runs it.")


def _refuse_what_stays_here(tools: Sequence[Any], options: TurnOptions) -> None:
    if tools:
        raise InvalidInput("A fleet's machines cannot call functions of this program.", parameter="tools")
    if options.get("on_limit") is not None:
        raise InvalidInput("Each machine of a fleet has its own limits: set on_limit there.", parameter="on_limit")


async def merged(
    sources: Mapping[str, Callable[..., Awaitable[_Page[ValueT]]]],
    limit: int,
    cursor: str | None,
    age: Callable[[ValueT], Any],
) -> _Page[ValueT]:
    """Merge pages of several sources into one, newest first, with the cursor of the next page."""
    begin: dict[str, str | None] = dict.fromkeys(sources)
    if cursor is not None:
        if (given := json_object(cursor)) is None:
            raise InvalidInput(f"{cursor!r:.100} is not a cursor of this list. Use that of the page before.")
        # A source that is missing in the cursor has no further page.
        begin = {name: given[name] for name in sources if name in given}
    pages = {name: await sources[name](limit=limit, cursor=at) for name, at in begin.items()}
    every = [(name, one) for name, (page, _) in pages.items() for one in page]
    shown = sorted(every, key=lambda named: age(named[1]), reverse=True)[:limit]
    following: dict[str, str | None] = {}
    for name, (page, after) in pages.items():
        used = sum(one == name for one, _ in shown)
        # A page that was only partly shown is read again from where it was cut.
        if used == len(page):
            if after is not None:
                following[name] = after
        else:
            at = begin[name]
            following[name] = (await sources[name](limit=used, cursor=at))[1] if used else at
    return [one for _, one in shown], json.dumps(following) if following else None


# --- tasks and capabilities -------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

_SHOWN_TASKS, _SHOWN_CHARS = 100, 120
"""Limits for running and waiting tasks on the page of machines."""


class _BackendTasks(LocalTasks):
    """Tasks that are turns of sessions. New tasks run in the fleet; existing tasks are looked up where they are."""

    def __init__(self, backend: FleetBackend, own: HelmsmanService) -> None:
        super().__init__(own)
        self._backend = backend

    async def run(self, instruction: str, **options: Any) -> str:
        return str((await self._backend.start(instruction, **options)).task_id)

    async def follow_up(self, session_id: str, message: str, **options: Any) -> str:
        if not is_fleets(session_id):
            return await super().follow_up(session_id, message, **options)
        return str((await self._backend.say(session_id, message, **options)).task_id)

    async def now(self, task: Task) -> Task:
        return await super().now(task) if task.origin != "fleet" else await self._backend.link.client.get(task.id)

    def session_of(self, task: Task) -> Session | None:
        if task.origin != "fleet":
            return super().session_of(task)
        session = self._backend.link.sessions.get(task.session_id or "")
        return session if session is not None and session.state.is_running else None

    async def follow(self, task: Task) -> Session | None:
        if task.origin != "fleet":
            return await super().follow(task)
        session = await self._backend.session(str(task.session_id))
        return session if session.state.is_running and session.task_ids[-1] == task.id else None

    async def wait(self, task: Task) -> Task:
        if task.origin != "fleet":
            return await super().wait(task)
        await self._backend.link.client.until(task.id, lambda now: not now.is_running or now.input_required)
        return await self.now(task)

    async def cancel(self, task: Task, reason: str | None) -> tuple[Task, str]:
        if task.origin != "fleet":
            return await super().cancel(task, reason)
        if not (now := await self.now(task)).is_running:
            return now, NOT_RUNNING
        await self._backend.link.client.cancel(task.id, reason)
        now = await self.now(task)
        machine = now.placement.get("machine")
        return now, f"it on {machine}" if machine else NOT_BEGUN


class FleetTasks(Tasks):
    """Tasks of the fleet, of this machine, and in the cloud."""

    def __init__(self, backend: FleetBackend, own: HelmsmanService) -> None:
        super().__init__(cast("Steering", own), env=own.environment)
        self.local = _BackendTasks(backend, own)
        self._client = backend.link.client

    async def find(self, reference: str) -> Task:
        # The prefix tells where a task is, so local ones cost no query.
        task = None if reference.startswith(("T-local-", "T-cloud-")) else await self._client.find(reference)
        if task is None:
            return await super().find(reference)
        await self.local.refuse_outside(task)
        return task

    async def list(
        self,
        *,
        status: Collection[TaskStatus] | None = None,
        origin: TaskOrigin | None = None,
        agent: str | None = None,
        directory: str | Path | None = None,
        limit: int = CANDIDATES,
        cursor: str | None = None,
    ) -> tuple[list[Task], str | None]:
        place = None if directory is None else searched_directory(directory)
        asked: Any = {"status": status, "agent": agent}
        own = partial(super().list, origin=origin, directory=directory, **asked)

        async def fleets(**page: Any) -> tuple[list[Task], str | None]:
            directories = None if place is None else [place]
            found, after = await self._client.database.tasks(
                lambda tasks: tasks.list(directories=directories, **asked, **page)
            )
            return list(await self.local.inside(found)), after

        sources: dict[str, Callable[..., Awaitable[_Page[Task]]]] = {"fleet": fleets, "own": own}
        if origin is not None:
            return await sources["fleet" if origin == "fleet" else "own"](limit=limit, cursor=cursor)
        return await merged(sources, limit, cursor, lambda task: task.created_at)

    async def of_sessions(self, session_ids: Sequence[str]) -> dict[str, tuple[Task, ...]]:
        fleets = [one for one in session_ids if is_fleets(one)]
        found = await super().of_sessions([one for one in session_ids if not is_fleets(one)])
        for one in fleets:
            found[one] = tuple(reversed(await self.local.inside(await self._client.of_session(one))))
        return found

    async def _outcome(self, task: Task) -> TaskOutcome:
        return await (super()._outcome(task) if task.origin != "fleet" else self._client.outcome(task.id))


class _BackendChanges(Changes):
    """Changes of sessions, local or in the fleet."""

    def __init__(self, backend: FleetBackend, own: HelmsmanService, tasks: Tasks) -> None:
        super().__init__(own, tasks)
        self._backend = backend

    async def _changed(self, session_id: str) -> SessionDiff:
        if not is_fleets(session_id):
            return await super()._changed(session_id)
        session = await self._backend.session(session_id)
        try:
            # The result is a commit in this repository. Without the repository only reported edits are known.
            found = await self._backend.trees.brought_back(session.id, session.directory)
        except InvalidInput as error:  # the repository is not here
            log.info("of session %s only its edits are shown: %s", session.id, error)
            found = None
        if found is not None:
            away, notes = found
            diff = await anyio.to_thread.run_sync(diff_of_result, away)
            diff = replace(diff, nested=(*diff.nested, *notes))
            return SessionDiff(session_id=session_id, scope="worktree", diff=diff)
        diff = tree_changes.TreeDiff.of_text(await self._last_edits(session))
        return SessionDiff(session_id=session_id, scope="turn", diff=diff)

    async def _last_edits(self, session: Session) -> str:
        """Return the diff of the last turn that changed files, as its agent reported it."""
        for task in reversed(await self._backend.link.client.of_session(session.id)):
            if (patch := (await self._backend.link.client.outcome(task.id)).diff) is not None:
                return patch
        return session.state.diff or ""

    async def apply(
        self,
        session_id: str,
        *,
        allow_dirty: bool = False,
        digest: str | None = None,
        viewer: str | None = None,
        only: Selection | None = None,
    ) -> AppliedSession:
        if not is_fleets(session_id):
            return await super().apply(session_id, allow_dirty=allow_dirty, digest=digest, viewer=viewer, only=only)
        if only is not None:
            raise InvalidInput("Changes of a fleet's session are applied as a whole.", parameter="only")
        session = await self._backend.session(session_id)
        # A model may apply changes of the sessions that its client opened.
        refuse_foreign(session.id, session.opened_by, self._helm.settings, "apply its changes")
        if session.state.is_running:
            raise SessionBusy(f"Session {session_id} is still at work. Nothing was touched. Wait for it.")
        found = await self._backend.trees.brought_back(session.id, session.directory)
        if found is None:
            raise InvalidInput(
                f"Session {session_id} works in a directory of its machine, {session.directory}. What it changed is there.",
                parameter="sessionId",
            )
        # Only the diff that this client was shown may be applied.
        expected = self.shown.expected(viewer, session_id, digest)
        away, _ = found
        check = self.shown.check_of(session_id, expected)
        applied = await anyio.to_thread.run_sync(lambda: apply_result(away, allow_dirty=allow_dirty, check=check))
        return AppliedSession.of(session_id, away.repository, applied)

    async def unsaved(self, session_id: str) -> Unsaved:
        return await super().unsaved(_of_this_machine(session_id))

    async def discard(self, session_id: str, *, losing: Unsaved | None = None) -> Discarded:
        return await super().discard(_of_this_machine(session_id), losing=losing)


def _of_this_machine(session_id: str) -> str:
    if is_fleets(session_id):
        raise InvalidInput(
            f"Session {session_id} has no worktree here: the machines of the fleet remove what they no longer need.",
            parameter="sessionId",
        )
    return session_id


class _BackendPlans(Plans):
    """Plans of the fleet: the machine that has made one asks for the approval, and carries it out."""

    def __init__(self, backend: FleetBackend, own: HelmsmanService) -> None:
        super().__init__(own)
        self._backend = backend

    def start(self, prompt: str, **named: Any) -> Coroutine[Any, Any, Session]:
        return self._backend.start(prompt, **named, kind="plan")


class _BackendUsage(UsageReports):
    """Usage of this machine and of the fleet."""

    def __init__(self, backend: FleetBackend, own: HelmsmanService, tasks: Tasks) -> None:
        super().__init__(own, tasks.prices)
        self._backend = backend

    async def _stored(
        self, session_id: str | None = None, since: datetime | None = None
    ) -> tuple[Sequence[TurnUsage], Mapping[str, datetime]]:
        own, sessions = await super()._stored(session_id, since)
        # Usage of fleets' tasks is only in the fleet's database.
        fleets = await self._backend.link.client.database.tasks(lambda tasks: tasks.turn_usages(session_id, since))
        return [*own, *fleets], sessions


class _BackendSchedules(Schedules):
    """Schedules of the fleet and of this machine. A new one is the fleet's."""

    prefix = FLEETS

    def __init__(self, own: Steering, backend: FleetBackend) -> None:
        super().__init__(own, BothSchedules(own.schedules, FleetSchedules(backend.link.client.database.store)))
        self._backend = backend

    async def _policy(self, options: SessionOptions) -> dict[str, Any]:
        """Return the client's metadata for the schedule's runs. The machines that run it apply their own policies."""
        return await self._backend.policy(options.agent, None if options.cwd is None else str(options.cwd))


class _BackendBudgets(Budgets):
    """Budgets of this machine, for its own work, and those of the fleet."""

    def __init__(self, backend: FleetBackend, own: HelmsmanService, tasks: Tasks) -> None:
        super().__init__(own, own.extras.usage, tasks.prices)
        self._backend = backend

    async def states(self, directory: str | Path | None = None) -> tuple[BudgetState, ...]:
        place = None if directory is None else str(directory)
        project = await anyio.to_thread.run_sync(projects(self._helm.settings.state_dir), place)
        _, fleets = await budget_of_fleet(self._backend.link.client.database, self._prices, project)
        return *await super().states(directory), *fleets


class _BackendNotices(Notices):
    """Notices about tasks of this machine, and about fleet tasks to the recipients of this machine."""

    def __init__(self, backend: FleetBackend, own: HelmsmanService) -> None:
        super().__init__(own)
        self._backend = backend

    async def log(self, limit: int = 50) -> Sequence[Delivery]:
        fleets = self.within_roots(await self._backend.post.log(limit))
        both = (*await super().log(limit), *fleets)
        return sorted(both, key=lambda one: one.created_at, reverse=True)[:limit]


class FleetExtras(Extras):
    """Extras of this machine, extended by the sessions of a fleet."""

    def __init__(self, backend: FleetBackend, own: HelmsmanService, tasks: FleetTasks) -> None:
        super().__init__(own, tasks)
        self._backend = backend
        self._own = own

    async def fleet(self) -> Mapping[str, Any] | None:
        link = self._backend.link
        tasks = [
            {
                "taskId": task.id,
                "sessionId": task.session_id,
                "text": task.instruction.strip().partition("\n")[0][:_SHOWN_CHARS],
                "status": task.status,
                "askedAt": task.created_at.isoformat(),
                **{name: task.placement.get(name) for name in ("machine", "queue", "priority", "notBefore")},
            }
            for task in await self._own.tasks.local.inside(await link.client.at_work(_SHOWN_TASKS))
        ]
        return {
            "machines": [machine.as_dict() for machine in await link.client.machines()],
            "waiting": dict(await link.client.waiting()),
            "tasks": tasks,
        }

    schedules = cached_property(lambda self: _BackendSchedules(cast("Steering", self._own), self._backend))
    budgets = cached_property(lambda self: _BackendBudgets(self._backend, self._own, self._tasks))
    notices = cached_property(lambda self: _BackendNotices(self._backend, self._own))
    plans = cached_property(lambda self: _BackendPlans(self._backend, self._own))
    changes = cached_property(lambda self: _BackendChanges(self._backend, self._own, self._tasks))
    usage = cached_property(lambda self: _BackendUsage(self._backend, self._own, self._tasks))
