"""Backend that runs requests on the machines of a fleet; clients here read, answer and stop them.

It takes the place of the user's hub for a program (`helmsman.hub.service_client.Backend`), so front ends do not depend
on it. Local sessions, tasks, worktrees, accounts and schedules stay on this machine and are served by a Helmsman without a
fleet. Listings contain the sessions and tasks of both.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Unpack

import anyio
import anyio.to_thread

from helmsman.base.caller_context import asking_client, from_here
from helmsman.base.files import refuse_outside
from helmsman.base.structs import pack, replace
from helmsman.errors import InvalidInput, SessionBusy, SessionNotFound, TaskNotFound, Unsupported
from helmsman.fleet.attempts import ON_LOSS, silence_of, silence_to_keep
from helmsman.fleet.backend_parts import FleetExtras, FleetTasks
from helmsman.fleet.client_trees import ClientTrees
from helmsman.fleet.link import FleetLink
from helmsman.fleet.notices import FleetNotifier, place_in
from helmsman.fleet.pictures import read_images
from helmsman.fleet.rows import CLIENT, MAX_COST, OPTIONS
from helmsman.fleet.session_queue import PLACE, PROJECT, is_fleets, lane_of, merged, session_id_of
from helmsman.fleet.values import FleetDraft
from helmsman.git.worktree import projects
from helmsman.model.answered_by import PROGRAM
from helmsman.model.events import ItemEnded, ItemStarted, ItemUpdated, OptionsChanged, PastTurn, RemarksChanged
from helmsman.model.inputs import (
    changed_options,
    searched_directory,
    session_options,
    session_words,
    takes_turn_options,
    turn_request,
)
from helmsman.model.options import LIST_LIMIT, Placement, without_secrets
from helmsman.model.prompts import message_part
from helmsman.model.request import TurnRequest
from helmsman.service import HelmsmanService
from helmsman.steering.opening import image_roots
from helmsman.steering.ownership import refuse_before_person, refuse_foreign, refuse_unasked
from helmsman.tasks.call_key import call_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.protocol import SessionInfo
    from helmsman.model.answered_by import AnsweredBy
    from helmsman.model.events import Event
    from helmsman.model.options import PathLike, SessionOptions, TurnOptions
    from helmsman.model.request import TurnRequest
    from helmsman.sessions.session import QuestionHandler, Session, WhenBusy
    from helmsman.steering.shared import OpenFleet, Shared
    from helmsman.tasks.model import Task

_EVENTS: Final = 1000


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
        if link is None or link.failed is not None:
            link = links[url] = FleetLink(url, helm.settings, shared.tasks)
            store, title = link.client.database.store, shared.agents.title
            post = posts[url] = FleetNotifier(store, shared.state_dir, place, title, shared.notices, is_shown=True)
            shared.tasks.start_soon(_serve, link, post)
        await link.opened.wait()
        if link.failed is not None:
            raise link.failed.again()
        async with HelmsmanService(replace(helm.settings, fleet_url=None), env=helm.environment, shared=shared) as own:
            yield FleetBackend(helm, own, link, posts[url])

    return open_fleet  # type: ignore[return-value]


async def _serve(link: FleetLink, post: FleetNotifier) -> None:
    async with anyio.create_task_group() as both:
        both.start_soon(post.run)
        await link.run()
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
        """Have a verb done: by the fleet if it begins something or is about one of its sessions, else on this machine."""
        if verb in ("start", "list", "session"):
            return await getattr(self, verb)(*arguments, **named)
        if verb in _ABOUT_SESSIONS and arguments and is_fleets(str(arguments[0])):
            if verb not in _DONE_BY_FLEETS:
                raise refusal(verb)
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
        worktree: bool = False,
        min_remaining_percent: float | None = None,
        idempotency_key: str | None = None,
        on_task: Callable[[str], None] | None = None,
        tools: Sequence[Any] = (),
        **options: Unpack[TurnOptions],
    ) -> Session:
        """Start a session in the fleet.

        It is stored with all that is needed to run it, and runs when a machine is free.
        """
        if min_remaining_percent is not None:
            raise InvalidInput(
                "Each machine of a fleet has its own account. Leave min_remaining_percent out.",
                parameter="min_remaining_percent",
            )
        settings, placement = self._helm.settings, options.get("placement")
        in_place = placement is not None and placement.in_place
        if in_place and worktree:
            raise InvalidInput("in_place works in the directory itself: leave worktree out.", parameter="worktree")
        place = from_here("." if cwd is None else cwd)
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
        request, pictures = await self._request(prompt, checked, options)
        draft = replace(self._draft(request, idempotency_key), images=pictures)
        draft = replace(draft, metadata={**draft.metadata, **silence_to_keep(request.limits)})
        task, notes = await self._packed(draft, None if in_place else checked.cwd)
        session = await self._accepted(task, on_question, on_task)
        session.fold(RemarksChanged(session_id=session.id, remarks=(*session.notes, *notes)))
        return session

    async def _packed(self, draft: FleetDraft, directory: Path | None) -> tuple[Task, tuple[str, ...]]:
        """Have a task accepted with the tree around a directory; what does not travel, in words."""
        draft = await self._with_terms(draft)
        if directory is None:
            return await self.link.client.enqueue(draft), ()
        if (known := await self.link.client.with_key(draft)) is not None:
            return known, ()
        async with self.trees.packed(draft, directory) as (packed, notes):
            return await self.link.client.enqueue(packed), notes

    def _there(self, place: Path) -> Path:
        """Return a directory that need not exist on this machine."""
        there = place.absolute()
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
                "Where a session works is said when it begins: leave in_place out.", parameter="placement"
            )
        _refuse_what_stays_here(tools, options)
        known = session.options
        changed = changed_options(known, words)
        checked = session_options(None, changed, self._helm.allowed_roots) if words else known
        checked = replace(checked, cwd=known.cwd)  # the directory may not exist on this machine
        request, pictures = await self._request(message, checked, options)
        draft = replace(self._draft(request, idempotency_key), images=pictures)
        lane = lane_of(session.id)
        earlier = (await self.link.lanes.of_lanes([lane]))[lane]
        held = silence_to_keep(silence_of(earlier[-1].metadata) if request.limits is None else request.limits)
        draft = replace(draft, lane=lane, metadata={**draft.metadata, PLACE: earlier[0].directory, **held})
        session.fold(OptionsChanged(session_id=session.id, options=checked))
        return await self._accepted((await self._packed(draft, None))[0], on_question, on_task)

    async def _request(
        self, text: str, session: SessionOptions, options: TurnOptions
    ) -> tuple[TurnRequest, tuple[tuple[str, bytes], ...]]:
        """Return a checked request, and the images that are sent with it."""
        settings = self._helm.settings
        request = turn_request(text, session, options, settings, image_roots=image_roots(settings))
        pictures = await anyio.to_thread.run_sync(read_images, request.turn.images)
        return replace(request, turn=replace(request.turn, images=())), pictures

    def _draft(self, request: TurnRequest, key: str | None) -> FleetDraft:
        spec = request.packed()
        if spec is None:
            raise InvalidInput(
                "An option looks as if it held a secret, and what a fleet is asked for is stored. Put secrets into the "
                "configuration of the machines."
            )
        if key is None and (called := call_key.get()) is not None:
            key = called.take()
        wanted, options = request.placement or Placement(), request.options
        if wanted.on_machine_loss is not None:
            spec[ON_LOSS] = wanted.on_machine_loss
        extra: dict[str, Any] = {} if wanted.priority is None else {"priority": wanted.priority}
        place = None if options.cwd is None else str(options.cwd)
        return FleetDraft(
            agent=options.agent,
            instruction=message_part(request.turn.text) or "",
            spec=spec,
            directory=place,
            model=options.model,
            metadata={
                OPTIONS: pack(without_secrets(replace(options, tools=()))),
                PLACE: place,
                **({} if (client := asking_client()) is None else {CLIENT: pack(client)}),
                **({} if request.max_cost_usd is None else {MAX_COST: request.max_cost_usd}),
            },
            idempotency_key=key,
            delay=wanted.delay,
            deadline=wanted.deadline,
            labels=tuple(wanted.labels),
            host=wanted.machine,
            **extra,
        )

    async def _accepted(
        self, task: Task, on_question: QuestionHandler | None, on_task: Callable[[str], None] | None
    ) -> Session:
        if on_task is not None:
            on_task(task.id)
        found = await self.link.lanes.find(task.id)
        assert found is not None
        session = await self.link.session(str(found.session_id))
        if on_question is not None:
            session.handle_questions(on_question)
            self.link.offer_questions(session)
        return session

    async def _with_terms(self, draft: FleetDraft) -> FleetDraft:
        return replace(draft, metadata={**draft.metadata, **await self.policy(draft.agent, draft.directory)})

    async def policy(self, agent: str, directory: str | None) -> dict[str, Any]:
        """Return the metadata of tasks and schedules that depends on the client: the project and the notice recipients."""
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
                return await self.own.session(session_id)
            except SessionNotFound:
                lane = await self.link.lanes.lane_of_agents(session_id)
                if lane is None:
                    raise
                session = await self.link.session(session_id_of(lane))
        await self.refuse_outside(session.task_ids[:1])
        return session

    async def task(self, task_id: str) -> Task:
        """Return the current state of a task of the fleet."""
        task = await self.link.lanes.find(task_id)
        if task is None:
            raise TaskNotFound(f"There is no task {task_id} in the fleet.")
        return task

    async def refuse_outside(self, task_ids: Sequence[str]) -> None:
        """Raise an error if a task belongs to a directory outside this client's allowed roots."""
        if self._helm.allowed_roots:
            for task_id in task_ids:
                if (task := await self.link.lanes.find(task_id)) is not None:
                    await self.own.tasks.local.refuse_outside(task)

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        """Return all turns of a session, oldest first, from the stored events."""
        lane = lane_of(session_id)
        turns: list[PastTurn] = []
        for task in (await self.link.lanes.of_lanes([lane]))[lane]:
            items: dict[str, Any] = {}
            turn_id, offset = task.turn_id or task.id, 0
            while True:
                page = await self.link.client.events(task.id, offset, _EVENTS)
                for event in page.events:
                    if isinstance(event, ItemStarted | ItemUpdated | ItemEnded) and event.agent_id is None:
                        items[event.item.id] = event.item
                if page.offset == offset or page.is_over:
                    break
                offset = page.offset
            if items or task.turn_id is not None:
                turns.append(PastTurn(id=turn_id, status=task.status, items=tuple(items.values())))
        return tuple(turns)

    async def list(
        self,
        *,
        directory: PathLike | None = None,
        query: str | None = None,
        limit: int = LIST_LIMIT,
        cursor: str | None = None,
        include_archived: bool = False,
        agent: str | None = None,
    ) -> tuple[list[SessionInfo], str | None]:
        """Sessions of the fleet and of this machine, newest first, and the cursor of the next page."""
        place = None if directory is None else searched_directory(directory)

        async def fleets(count: int, at: str | None) -> tuple[list[SessionInfo], str | None]:
            found, after = await self.link.lanes.sessions(
                query=query, agent=agent, directory=place, limit=count, cursor=at
            )
            return found, after

        async def own(count: int, at: str | None) -> tuple[list[SessionInfo], str | None]:
            return await self.own.list(
                directory=directory,
                query=query,
                limit=count,
                cursor=at,
                include_archived=include_archived,
                agent=agent,
            )

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
