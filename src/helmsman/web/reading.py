"""Routes that only read: sessions, transcripts, questions, tasks, engines, usage, notifications, search."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import anyio.to_thread

from helmsman._version import __version__
from helmsman.agents.registry import engine_overviews
from helmsman.base.caller_context import current
from helmsman.base.json_values import iso_time, present
from helmsman.base.structs import replace
from helmsman.base.truncate import shortened
from helmsman.capabilities.rewinding import cannot_write
from helmsman.capabilities.usage_report import GroupBy, UsageGroup, tokens
from helmsman.errors import EngineRefused, HelmsmanError, InvalidInput, Unsupported
from helmsman.git.turn_snapshots import all_snapshots
from helmsman.git.worktree import projects
from helmsman.model.events import AgentMessage, Item, ModelUsage, PastTurn, Review, UserMessage
from helmsman.model.options import DEFAULT_AGENT
from helmsman.model.prompts import is_own
from helmsman.sessions.history import items_with_prompt
from helmsman.shapes.agents import all_agents
from helmsman.shapes.listed_sessions import found_sessions, listed_session, listed_sessions, with_repositories
from helmsman.shapes.questions import question_in_full
from helmsman.shapes.rendering import budget_as_dict, fields_as_dict, json_line, spent_as_dict, task_as_dict
from helmsman.shapes.safe_values import one_line, safe, shown_item
from helmsman.shapes.session_status import session_in_full
from helmsman.tasks.model import Task, TaskOrigin, TaskStatus
from helmsman.web.json_http import NotFound, Routes, limit, number, route, session_id, switch, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from starlette.requests import Request

    from helmsman.agents.protocol import SessionInfo
    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session
    from helmsman.sessions.state import StateView


# Everything that was done in a session, as one numbered list: past turns from its log, the running one from the
# session.

# --- Items of a turn as users see them: a review once -----------------------------------------------------------------


def review_once(items: Sequence[Item]) -> list[Item]:
    """Return the items without Codex's repetitions in a review: its instructions to itself, and its findings as a
    message.
    """
    shown: list[Item] = []
    review: Review | None = None
    for item in items:
        if isinstance(item, Review):
            review = item
        elif review is not None and _is_repeated(item, review):
            continue
        shown.append(item)
    return shown


def _is_repeated(item: Item, review: Review) -> bool:
    match item:
        case UserMessage():
            return not review.finished
        case AgentMessage():
            return review.text.startswith(item.text) if review.finished else not item.text
        case _:
            return False


def is_for_review(items: Sequence[Item], turn_id: str | None, following: Sequence[Item], its_id: str | None) -> bool:
    """Return whether a turn contains only Codex's instructions for the review in the next stored turn.

    It began earlier, according to the ids, which begin with the time.
    """
    return (
        # Exactly this shape: a user's own prompt must not disappear.
        len(items) == 1
        and isinstance(items[0], UserMessage)
        and any(isinstance(item, Review) for item in following[:2])
        and len(turn_id or "") == len(its_id or "")
        and (turn_id or "") > (its_id or "")
    )


log = logging.getLogger(__name__)

TurnStatus = Literal["active", "done", "error", "interrupted"]

_STATUS: Final[dict[str, TurnStatus]] = {"completed": "done", "failed": "error", "inProgress": "active"}


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn with its items. Its first item has the number `first` in the session's list."""

    id: str | None
    status: TurnStatus
    items: Sequence[Item]
    first: int = 0

    @property
    def prompt(self) -> str | None:
        return next((item.text for item in self.items if isinstance(item, UserMessage)), None)


@dataclass(frozen=True, slots=True)
class Transcript:
    """Turns of a session, oldest first."""

    turns: tuple[Turn, ...]

    @property
    def total(self) -> int:
        return self.turns[-1].first + len(self.turns[-1].items) if self.turns else 0

    def entries(self, first: int, end: int) -> Iterator[tuple[int, int, Turn, Item]]:
        """Yield the items from `first` to before `end`, each with its number, its turn's number (from 1) and the turn."""
        for place, turn in enumerate(self.turns, 1):
            # Turns are in order, so nothing later can match.
            if turn.first >= end:
                return
            begin = max(first - turn.first, 0)
            for offset, item in enumerate(turn.items[begin : end - turn.first], begin):
                yield turn.first + offset, place, turn, item


class Transcripts:
    """Transcripts of all sessions of a Helmsman."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm

    async def of(self, session: Session) -> Transcript:
        """Return the current transcript of a session.

        Raises:
            HelmsmanError: Its agent cannot be asked.
        """
        state = session.state
        try:
            history = await self._helm.history(session.id)
        except (Unsupported, EngineRefused) as error:  # a session that has just begun, or was never recorded
            log.debug("session %s has no history: %s", session.id, error)
            history = ()
        past = list(_without_instructions([_past_turn(turn) for turn in history]))
        if state.is_running and session.elsewhere is None:  # the session also has text that is being written
            # The agent's storage has the running turn only in part.
            past = [turn for turn in past if not _is_running(turn, state)]
            past.append(Turn(state.turn_id, "active", review_once(items_with_prompt(state))))
        elif state.is_running and past:  # the log of another process may be a moment behind
            past[-1] = replace(past[-1], status="active")
        elif not past and session.items:
            past = [Turn(state.turn_id, _ended(session), state.items_and_decisions)]
        return Transcript(tuple(_numbered(past)))


def _past_turn(turn: PastTurn) -> Turn:
    return Turn(turn.id, _STATUS.get(turn.status, "interrupted"), review_once(turn.items))


def _without_instructions(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield the turns, except those in which Codex only instructed itself for a review."""
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        if following is None or not is_for_review(turn.items, turn.id, following.items, following.id):
            yield turn


def _is_running(turn: Turn, state: StateView) -> bool:
    if turn.status == "active" or turn.id == state.turn_id:
        return True
    numbered = state.turn_id is not None and state.turn_id.isdigit()  # by 0.93, and differently in its storage
    return numbered and turn.prompt == state.prompt


def _ended(session: Session) -> TurnStatus:
    match session.state.between_turns or session.status:
        case "active" | "awaiting_approval":
            return "active"
        case status:
            return status


def _numbered(turns: list[Turn]) -> Iterator[Turn]:
    first = 0
    for turn in turns:
        yield Turn(turn.id, turn.status, turn.items, first)
        first += len(turn.items)


# ----------------------------------------------------------------------------------------------------------------------

# --- Sessions in a list, turns and entries as the API shows them (`helmsman.web.api` says what the fields mean) -------

_PROMPT_CHARS: Final = 500


# --- sessions --------------------------------------------------------------------------------------------------------


def in_list(session: dict[str, Any]) -> dict[str, Any]:
    """Return a session for a list (`helmsman.shapes.listed_sessions`), with sanitized texts."""
    texts = {"summary": one_line(session.get("summary")), "name": safe(session.get("name"))}
    texts |= {"excerpt": safe(session.get("excerpt")), "labels": safe(session.get("labels"))}
    return present({**session, **texts, "note": safe(session.get("note"))})


# --- turns and entries -----------------------------------------------------------------------------------------------


def turn_in_timeline(number: int, turn: Turn, task: Task | None, times: Mapping[str, Any]) -> dict[str, Any]:
    """`times` has `startedAt`, `endedAt` and `usage` as Codex recorded them; a task knows them better."""
    kinds: dict[str, int] = {}
    for item in turn.items:
        kinds[item.type] = kinds.get(item.type, 0) + 1
    began = task.created_at if task is not None else times.get("began")
    ended = (task.completed_at if task is not None else None) or times.get("ended")
    usage = task.usage if task is not None and task.usage is not None else times.get("usage")
    until = datetime.now(UTC) if turn.status == "active" else ended
    return present(
        {
            "number": number,
            "turnId": turn.id,
            "status": turn.status,
            "prompt": one_line(turn.prompt, _PROMPT_CHARS),
            "firstIndex": turn.first,
            "items": len(turn.items),
            "kinds": kinds,
            "startedAt": iso_time(began),
            "endedAt": iso_time(ended) if turn.status != "active" else None,
            "seconds": round((until - began).total_seconds(), 1) if began is not None and until is not None else None,
            "taskId": None if task is None else task.id,
            "usage": None if usage is None else fields_as_dict(usage),
        }
    )


def entry(index: int, number: int, turn: Turn, item: Item, *, text_limit: int) -> dict[str, Any]:
    """Return one item of a transcript, with truncated texts."""
    shown, missing = shown_item(item, text_limit)
    by = "helmsman" if isinstance(item, UserMessage) and is_own(item.text) else None
    about = {"index": index, "turn": number, "turnId": turn.id, "item": shown, "by": by}
    return present(about | {"cut": missing or None})


# --- Cost and working time of listed sessions -------------------------------------------------------------------------

# A loaded session knows its own. Tasks know it immediately if all turns of a session were tasks. For the rest, the
# agents' files are summed up in the background, at most once a minute while the page is open.

_EVERY_SECONDS: Final = 60.0


class SessionSpendings:
    """Costs and working times of the sessions of a Helmsman."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm
        self._known: Mapping[str, UsageGroup] = {}
        self._read_at = -_EVERY_SECONDS
        self._reading = False

    def now(self) -> Mapping[str, UsageGroup]:
        """Return the known costs of all sessions, by id."""
        # In the background: agents' files take seconds to read.
        if not self._reading and time.monotonic() - self._read_at >= _EVERY_SECONDS:
            self._reading = True
            self._helm.in_background(self._read)
        return self._known

    async def _read(self) -> None:
        try:
            report = await self._helm.extras.usage.report(group_by="session")
            self._known = {group.key: group for group in report.groups if group.key is not None}
        except HelmsmanError as error:
            log.warning("the costs of sessions are not known: %s", error)
        finally:
            # After the attempt, so that a failure is not repeated immediately.
            self._read_at = time.monotonic()
            self._reading = False

    def of(self, session_id: str, tasks: Sequence[Task], known: Mapping[str, UsageGroup]) -> dict[str, Any]:
        """Return the fields of one session."""
        turns = [task for task in tasks if not task.is_waiting]
        ends = ((task, task.completed_at or datetime.now(UTC)) for task in turns)
        seconds = sum((end - task.created_at).total_seconds() for task, end in ends)
        shown: dict[str, Any] = {"seconds": round(seconds, 1) if turns else None}
        session = self._helm.sessions.get(session_id)
        if session is not None:
            parts = session.state.usage_by_model
            return shown | _spent(tokens(session.usage), self._helm.tasks.prices.cost_of(parts))
        spent = known.get(session_id)
        # A report with fewer turns is older than the newest tasks.
        if spent is not None and spent.turns >= sum(task.usage is not None for task in turns):
            return shown | _spent(spent.tokens, spent.cost_usd)
        usages = [ModelUsage(task.model, task.usage) for task in turns if task.usage is not None]
        return shown | _spent(sum(tokens(one.usage) for one in usages), self._helm.tasks.prices.cost_of(usages))


def _spent(used: int, cost: float | None) -> dict[str, Any]:
    return {"tokens": used, "costUsd": cost} if used else {}


_SESSIONS: Final = 50
_MAX_SESSIONS: Final = 200
_RUNNING_LOOKED_FOR: Final = 500
"""Number of newest sessions on disk that are searched for running turns."""
_ENTRIES: Final = 100
_MAX_ENTRIES: Final = 500
_PAGE_CHARS: Final = 1024 * 1024
_TEXT_CHARS: Final = 8000
_WHOLE_CHARS: Final = 4 * 1024 * 1024
_ROLLOUT_BYTES: Final = 64 * 1024 * 1024
"""Limit for reading a rollout for the times of turns; turns that are tasks have them anyway."""
_DIRECTORIES: Final = 20
_TASKS_SEARCHED: Final = 1000
_SEARCH_PATIENCE: Final = 0.05
"""Search while the user types: report how much is not indexed yet, and let the page ask again."""
_USAGE_ROWS: Final = 400
_LOOKED_AT: Final = 5000
"""Limit of sessions that are searched for a filtered page."""

ListedState = Literal["active", "awaiting_approval", "done", "error", "interrupted", "denied"]


class Reading(Routes):
    """Answers requests that change nothing."""

    def __init__(self, helm: HelmsmanService) -> None:
        super().__init__(helm)
        self._transcripts = Transcripts(helm)
        self._spendings = SessionSpendings(helm)

    @route("/api/overview")
    async def overview(self, _request: Request) -> dict[str, Any]:
        helm = self._helm
        codex: dict[str, Any] | None = None
        error: dict[str, Any] | None = None
        capabilities: dict[str, Any] | None = None
        try:
            if (installed := await helm.installed(DEFAULT_AGENT)) is not None:
                codex = {"version": installed.version, "path": installed.path}
        except HelmsmanError as problem:
            # A missing Codex is no error if the user works with another agent.
            error = problem.as_dict() if helm.settings.default_agent == DEFAULT_AGENT else None
        try:
            capabilities = (await helm.capabilities()).as_dict()
        except HelmsmanError as problem:
            error = error or problem.as_dict()
        running = await self._running()
        recent, _ = await helm.list(limit=_MAX_SESSIONS)
        directories = await anyio.to_thread.run_sync(_projects, recent, helm.settings.state_dir)
        # Search is ready when the user types.
        helm.extras.search.update_soon()
        return present(
            {
                "version": __version__,
                "codex": codex,
                "codexError": error,
                "defaultAgent": helm.settings.default_agent,
                "capabilities": capabilities,
                "defaultDirectory": str(current().directory),
                "approvalTimeoutSec": helm.settings.approval_timeout,
                "maxSessions": helm.settings.max_sessions,
                "running": len(running),
                "atOnce": helm.turns_at_work(),
                "awaitingApproval": sum(one["status"] == "awaiting_approval" for one in running),
                "questions": sum(len(session.state.questions) for session in helm.sessions.values()),
                "directories": directories[:_DIRECTORIES],
                "labels": safe(await anyio.to_thread.run_sync(helm.labels.all)),
            }
        )

    # --- sessions ----------------------------------------------------------------------------------------------------

    @route("/api/sessions")
    async def sessions(self, request: Request) -> dict[str, Any]:
        query, directory, cursor = text(request, "query"), text(request, "directory"), text(request, "cursor")
        agent, project, state = text(request, "agent"), text(request, "project"), text(request, "state")
        label = text(request, "label")
        is_wanted = await self._wanted(agent, project, state, label)
        if switch(request, "running"):
            return {"sessions": await self._spent(list(filter(is_wanted, await self._running())))}
        # A filter or a page shows only what is on disk.
        is_start = cursor is None and query is None and directory is None
        new = await self._not_on_disk_yet() if is_start else []  # before the list, which then includes later sessions
        count = limit(request, _SESSIONS, _MAX_SESSIONS)
        found: list[dict[str, Any]] = []
        looked_at = 0
        # Filters apply after reading, so several pages may be needed for one.
        while looked_at < _LOOKED_AT:
            infos, cursor = await self._helm.list(
                query=query,
                directory=directory,
                cursor=cursor,
                limit=count,
                include_archived=switch(request, "archived"),
                agent=agent,
            )
            looked_at += len(infos)
            found += filter(is_wanted, await self._labelled(await listed_sessions(self._helm, infos)))
            # Without these filters, one page is enough.
            if cursor is None or len(found) >= count or not (project or state or label):
                break
        known = {one["sessionId"] for one in found}
        found = [*(one for one in new if one["sessionId"] not in known and is_wanted(one)), *map(in_list, found)]
        return present({"sessions": await self._spent(found), "nextCursor": cursor})

    async def _wanted(
        self, agent: str | None, project: str | None, state: str | None, label: str | None
    ) -> Callable[[Mapping[str, Any]], bool]:
        """Return a filter by agent, project (including its worktrees), outcome of the last turn and label."""
        if state is not None:
            _one_of("state", state, ListedState)
        project_of = await anyio.to_thread.run_sync(projects, self._helm.settings.state_dir)

        def is_wanted(one: Mapping[str, Any]) -> bool:
            if agent not in (None, one["agent"]) or (
                project is not None and project_of(one.get("directory")) != project
            ):
                return False
            if label is not None and label not in one.get("labels", ()):
                return False
            # A question that timed out counts as denied, and also under the turn's own state.
            return state in (None, "denied" if one.get("timedOut") else one.get("status"), one.get("status"))

        return is_wanted

    async def _with_places(self, sessions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return await self._labelled(await with_repositories(self._helm, sessions))

    async def _labelled(self, sessions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        labels = await anyio.to_thread.run_sync(self._helm.labels.of, [one["sessionId"] for one in sessions])
        return [one | present({"labels": labels.get(one["sessionId"])}) for one in sessions]

    async def _spent(self, sessions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add cost and working time to sessions, if known."""
        tasks = await self._helm.tasks.of_sessions([one["sessionId"] for one in sessions])
        known = self._spendings.now()
        return [one | present(self._spendings.of(one["sessionId"], tasks[one["sessionId"]], known)) for one in sessions]

    async def _running(self) -> list[dict[str, Any]]:
        """Return the sessions with a running turn, in any process, newest first."""
        ids = [session.id for session in self._helm.sessions.values() if session.state.is_running]
        try:
            registered, _ = await self._helm.tasks.list(status=("pending", "working"), limit=1000)
        except HelmsmanError:
            # Sessions of this process are known without the registry.
            registered = []
        ids = list(dict.fromkeys([*ids, *(task.session_id for task in registered if task.session_id is not None)]))
        if not ids:
            return []
        infos, _ = await self._helm.list(limit=_RUNNING_LOOKED_FOR)
        on_disk = {info.session_id: info for info in infos}
        tasks = await self._helm.tasks.of_sessions(ids)
        found = [
            listed_session(self._helm.is_elsewhere, on_disk.get(one), self._helm.sessions.get(one), tasks[one])
            for one in ids
        ]
        found = [in_list(one) for one in await self._with_places(found) if one["isActive"]]
        return sorted(found, key=lambda one: str(one.get("timestamp")), reverse=True)

    async def _not_on_disk_yet(self) -> list[dict[str, Any]]:
        """Return sessions that have just begun. Codex records them only with their first message."""
        running = [session for session in self._helm.sessions.values() if session.state.is_running]
        young = [session for session in running if session.turn_count == 1 and (session.turn_seconds or 0) < 60]
        found = [
            listed_session(self._helm.is_elsewhere, None, session, ())
            for session in reversed(young)
            if await self._helm.agent_records.find(session.id) is None
        ]
        return list(map(in_list, await self._with_places(found)))

    @route("/api/sessions/{session_id}")
    async def session(self, request: Request) -> dict[str, Any]:
        lines = number(request, "outputLines", 0, most=2000) or 0
        helm, session = self._helm, await self._helm.session(session_id(request))
        shown = await session_in_full(helm, helm.tasks.prices, session, output_lines=lines)
        labels = await anyio.to_thread.run_sync(helm.labels.of, [session.id])
        return shown | present({"labels": safe(labels.get(session.id))})

    @route("/api/sessions/{session_id}/turns")
    async def turns(self, request: Request) -> dict[str, Any]:
        session = await self._helm.session(session_id(request))
        transcript = await self._transcripts.of(session)
        tasks = (await self._helm.tasks.of_sessions([session.id]))[session.id]
        by_turn = {task.turn_id: task for task in tasks}
        times = await self._times(session, {turn.id for turn in transcript.turns} - by_turn.keys())
        return {
            "turns": [
                turn_in_timeline(place, turn, by_turn.get(turn.id), times.get(turn.id or "", {}))
                for place, turn in enumerate(transcript.turns, 1)
            ]
        }

    async def _times(self, session: Session, turn_ids: set[str | None]) -> dict[str, dict[str, Any]]:
        """Return start and end of turns that are not tasks, from Codex's record."""
        if not turn_ids:
            return {}
        info = await self._helm.agent_records.find(session.id)
        path = None if info is None else info.path
        # Reading a large record takes seconds, and only times would be gained.
        if path is None or not await anyio.to_thread.run_sync(_is_short, path):
            return {}
        return {
            turn.turn_id: {"began": turn.began_at, "ended": turn.ended_at, "usage": turn.usage}
            for turn in await self._helm.agent_records.turns(session.id)
            if turn.turn_id is not None
        }

    @route("/api/sessions/{session_id}/transcript")
    async def transcript(self, request: Request) -> dict[str, Any]:
        session = await self._helm.session(session_id(request))
        count = limit(request, _ENTRIES, _MAX_ENTRIES)
        before, after = number(request, "before"), number(request, "after")
        transcript = await self._transcripts.of(session)
        total = transcript.total
        forward = after is not None
        if after is not None:
            first = min(after, total)
            end = min(first + count, total)
        else:
            end = total if before is None else min(before, total)
            first = max(0, end - count)
        # Cut to size from the side the reader comes from: it continues at the other.
        shown = [entry(*one, text_limit=_TEXT_CHARS) for one in transcript.entries(first, end)]
        kept = _fitting(shown if forward else shown[::-1])
        shown = kept if forward else kept[::-1]
        return {
            "entries": await anyio.to_thread.run_sync(_with_html, shown),
            "first": shown[0]["index"] if shown else first,
            "next": shown[-1]["index"] + 1 if shown else end,
            "total": total,
            "cursor": session.feed.cursor,
        }

    @route("/api/sessions/{session_id}/transcript/{index:int}")
    async def entry(self, request: Request) -> dict[str, Any]:
        session = await self._helm.session(session_id(request))
        index: int = request.path_params["index"]
        transcript = await self._transcripts.of(session)
        for one in transcript.entries(index, index + 1):
            (whole,) = await anyio.to_thread.run_sync(_with_html, [entry(*one, text_limit=_WHOLE_CHARS)])
            return whole
        raise NotFound(
            f"Session {session.id} has {transcript.total} entries and no number {index}. Read its transcript."
        )

    @route("/api/questions")
    async def questions(self, _request: Request) -> dict[str, Any]:
        asking = [session for session in self._helm.sessions.values() if session.questions]
        return {
            "questions": [
                question_in_full(session, question) | present({"summary": await self._summary(session)})
                for session in asking
                for question in session.questions
            ]
        }

    async def _summary(self, session: Session) -> str | None:
        """Return the summary of a session as in the list. For sessions of other processes only its file has it."""
        info = await self._helm.agent_records.find(session.id)
        return None if info is None else one_line(info.about)

    # --- tasks, engines, usage, search -------------------------------------------------------------------------------

    @route("/api/tasks")
    async def tasks(self, request: Request) -> dict[str, Any]:
        given = text(request, "status")
        statuses = [_one_of("status", one.strip(), TaskStatus) for one in given.split(",")] if given else None
        origin = text(request, "origin")
        found, following = await self._helm.tasks.list(
            status=cast("Sequence[TaskStatus] | None", statuses),
            origin=cast("TaskOrigin | None", _one_of("origin", origin, TaskOrigin) if origin else None),
            agent=text(request, "agent"),
            directory=text(request, "directory"),
            limit=limit(request, _SESSIONS, _MAX_SESSIONS),
            cursor=text(request, "cursor"),
        )
        unchanged = await anyio.to_thread.run_sync(_unchanged, found, self._helm.settings.state_dir)
        tasks = [self._listed_task(task) | present({"unchanged": task.id in unchanged or None}) for task in found]
        return present({"tasks": tasks, "nextCursor": following})

    @route("/api/tasks/{task_id}")
    async def task(self, request: Request) -> dict[str, Any]:
        task = await self._helm.tasks.get(request.path_params["task_id"])
        return dict(safe(task_as_dict(task, self._helm.task_writer)))

    @route("/api/agents")
    async def agents(self, _request: Request) -> dict[str, Any]:
        return {"agents": safe(await all_agents(self._helm))}

    @route("/api/engines")
    async def engines(self, _request: Request) -> dict[str, Any]:
        engines = await anyio.to_thread.run_sync(engine_overviews, self._helm.settings.state_dir)
        used = {session.engine for session in self._helm.sessions.values() if session.engine is not None}
        # A lost engine is named only if there is no other.
        own = min(used, key=lambda engine: engine.lost is not None, default=None)
        shown = None
        if own is not None:
            lost = own.lost.message if own.lost is not None else None
            shown = present({"name": own.name, "id": own.id, "lost": lost})
        fleet = await self._helm.extras.fleet()
        return present({"engines": [present(engine) for engine in engines], "own": shown, "fleet": safe(fleet)})

    @route("/api/usage")
    async def usage(self, request: Request) -> dict[str, Any]:
        by = cast("GroupBy", _one_of("by", text(request, "by") or "day", GroupBy))
        since = text(request, "since") or "30d"
        report = await self._helm.extras.usage.report(
            since=None if since == "all" else since, group_by=by, agent=text(request, "agent")
        )
        rows, omitted = report.first(limit(request, _USAGE_ROWS, 10_000))
        budgets = await self._helm.extras.budgets.states()
        unpriced = {"unpricedTokens": 0}
        return present(
            {
                "by": by,
                "since": iso_time(report.since),
                "agent": report.agent,
                "rows": [present({"key": row.key, **unpriced, **spent_as_dict(row)}) for row in rows],
                "total": unpriced | spent_as_dict(report.total),
                "omitted": len(omitted),
                "unpricedModels": list(report.unpriced_models),
                "budgets": [budget_as_dict(state) for state in budgets],
            }
        )

    @route("/api/account")
    async def account(self, _request: Request) -> dict[str, Any]:
        return dict(safe(fields_as_dict(await self._helm.extras.account.read())))

    @route("/api/notices")
    async def notices(self, _request: Request) -> dict[str, Any]:
        told = await self._helm.extras.notices.for_pages()
        notices = {
            delivery.id: present(
                {
                    "id": delivery.id,
                    "kind": delivery.notification.kind,
                    "title": delivery.notification.headline,
                    "text": delivery.notification.text or None,
                    "sessionId": delivery.notification.session_id,
                    "questionId": delivery.notification.question_id,
                }
            )
            for delivery in told.deliveries
        }
        later = {"tellsOfQuestions": told.is_told, "nextInSec": told.next_in}
        return {"notices": list(notices.values())} | present(later)

    @route("/api/search")
    async def search(self, request: Request) -> dict[str, Any]:
        query = text(request, "q")
        if query is None:
            return {"sessions": [], "tasks": []}
        count = limit(request, 20, _MAX_SESSIONS)
        agent, directory = text(request, "agent"), text(request, "directory")
        result = await self._helm.extras.search.find(
            query,
            agent=agent,
            directory=directory,
            limit=count,
            include_archived=switch(request, "archived"),
            patience=_SEARCH_PATIENCE,
        )
        sessions = await found_sessions(self._helm, result)
        words = query.casefold().split()
        await self._helm.task_writer.write()
        tasks, _ = await self._helm.task_writer.registry(lambda registry: registry.list(limit=_TASKS_SEARCHED))
        matching = (task for task in tasks if _mentions(task, words) and agent in (None, task.agent))
        # Tasks outside the allowed roots are not shown.
        found = await self._helm.tasks.local.inside(matching)
        shown = {
            "sessions": await self._spent(list(map(in_list, sessions))),
            "tasks": list(map(self._listed_task, found[:count])),
        }
        return shown | present({"unread": result.unread})

    def _listed_task(self, task: Task) -> dict[str, Any]:
        """Return a task for a list, with truncated texts."""
        return dict(safe(shortened(task_as_dict(task, self._helm.task_writer), _TEXT_CHARS)[0]))


def _projects(sessions: Sequence[SessionInfo], state_dir: Path) -> list[str]:
    """Return the existing directories of these sessions, without duplicates and worktrees. Blocks."""
    project = projects(state_dir)
    found = dict.fromkeys(place for info in sessions if (place := project(info.directory)) is not None)
    return [place for place in found if Path(place).is_dir()]


def _unchanged(tasks: Sequence[Task], state_dir: Path) -> set[str]:
    """Return the ids of the tasks whose turn changed no file, by its sandbox or the snapshots of git. Blocks."""
    found = {task.id for task in tasks if cannot_write(task)}
    for session in {task.session_id for task in tasks if task.session_id is not None}:
        turns = [turn for known in all_snapshots(state_dir, session) for turn in known.turns]
        changed = {turn.task_id for turn in turns if turn.after != turn.before.tree}
        found.update({turn.task_id for turn in turns} - changed)
    return found


def _fitting(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return as many of the first entries as fit on a page, at least one."""
    room = _PAGE_CHARS
    for place, one in enumerate(entries):
        # Measured as JSON, which is what is sent.
        room -= len(json_line(one))
        if room < 0:
            return entries[: max(1, place)]
    return entries


def _with_html(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from helmsman.web.markdown import (
        with_html,
    )  # loads a parser and Pygments, which API clients do not need

    return list(map(with_html, entries))


def _is_short(path: Path) -> bool:
    try:
        return path.stat().st_size <= _ROLLOUT_BYTES
    except OSError:
        return False


def _mentions(task: Task, words: list[str]) -> bool:
    content = f"{task.instruction}\n{task.alias}\n{task.id}".casefold()
    return all(word in content for word in words)


def _one_of(name: str, value: str, allowed: Any) -> str:
    if value not in get_args(allowed):
        raise InvalidInput(
            f"{name} cannot be {value!r:.40}. Use one of: {', '.join(get_args(allowed))}.", parameter=name
        )
    return value
