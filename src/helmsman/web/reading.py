"""The routes that look: sessions, transcripts, questions, tasks, engines, usage, notices, search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast, get_args

import anyio.to_thread

from helmsman._version import __version__
from helmsman.agents.registry import engine_overviews
from helmsman.base.json_values import iso_time, present
from helmsman.base.shortening import shortened
from helmsman.base.surroundings import current
from helmsman.capabilities.usage_report import GroupBy
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.model.options import DEFAULT_AGENT
from helmsman.model.unified_diff import read_diff
from helmsman.shapes.agents import all_agents
from helmsman.shapes.listed_sessions import listed_session, listed_sessions
from helmsman.shapes.rendering import budget_as_dict, fields_as_dict, json_line, spent_as_dict, task_as_dict
from helmsman.tasks.model import TaskOrigin, TaskStatus
from helmsman.web.json_http import NotFound, limit, number, switch, text
from helmsman.web.safe_values import safe, shown_files
from helmsman.web.views import entry, in_list, one_line, question_in_full, session_in_full, turn_in_timeline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from starlette.requests import Request

    from helmsman.service import Helmsman
    from helmsman.sessions.session import Session
    from helmsman.tasks.model import Task
    from helmsman.web.live import EventStream, Live
    from helmsman.web.transcripts import Transcripts

_SESSIONS: Final = 50
_MAX_SESSIONS: Final = 200
_RUNNING_LOOKED_FOR: Final = 500
"""Sessions with a turn under way are among the newest so many on disk, or not on disk yet."""
_ENTRIES: Final = 100
_MAX_ENTRIES: Final = 500
_PAGE_CHARS: Final = 1024 * 1024
_TEXT_CHARS: Final = 8000
_WHOLE_CHARS: Final = 4 * 1024 * 1024
_ROLLOUT_BYTES: Final = 64 * 1024 * 1024
"""A larger file is not read for the times of its turns; those that were tasks have them anyway."""
_DIRECTORIES: Final = 20
_TASKS_SEARCHED: Final = 1000
_USAGE_ROWS: Final = 400


class Reading:
    """Answers requests that change nothing."""

    def __init__(self, helm: Helmsman, transcripts: Transcripts, live: Live) -> None:
        self._helm = helm
        self._transcripts = transcripts
        self._live = live

    async def live(self, request: Request) -> EventStream:
        return self._live.stream(request.headers.get("last-event-id") or text(request, "lastEventId"))

    async def overview(self, _request: Request) -> dict[str, Any]:
        helm = self._helm
        codex: dict[str, Any] | None = None
        error: dict[str, Any] | None = None
        capabilities: dict[str, Any] | None = None
        try:
            binary = await helm.codex()
            codex = {"version": str(binary.version), "path": helm.settings.codex_remote or str(binary.path)}
        except HelmsmanError as problem:
            error = problem.as_dict() if helm.settings.default_agent == DEFAULT_AGENT else None
        try:
            capabilities = (await helm.capabilities()).as_dict()
        except HelmsmanError as problem:
            error = error or problem.as_dict()
        running = await self._running()
        recent, _ = await helm.list(limit=_MAX_SESSIONS)
        directories = dict.fromkeys(info.directory for info in recent if info.directory)
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
                "awaitingApproval": sum(one["status"] == "awaiting_approval" for one in running),
                "questions": sum(len(session.state.questions) for session in helm.sessions.values()),
                "directories": list(directories)[:_DIRECTORIES],
            }
        )

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def sessions(self, request: Request) -> dict[str, Any]:
        query, directory, cursor = text(request, "query"), text(request, "directory"), text(request, "cursor")
        agent = text(request, "agent")
        if switch(request, "running"):
            return {"sessions": [one for one in await self._running() if agent in (None, one["agent"])]}
        is_start = cursor is None and query is None and directory is None
        new = await self._not_on_disk_yet() if is_start else []  # before the list: what is written meanwhile is in that
        found, following = await self._list(
            agent=agent,
            query=query,
            directory=directory,
            cursor=cursor,
            count=limit(request, _SESSIONS, _MAX_SESSIONS),
            archived=switch(request, "archived"),
        )
        known = {one["sessionId"] for one in found}
        new = [one for one in new if one["sessionId"] not in known and agent in (None, one["agent"])]
        found = [*new, *found]
        return present({"sessions": found, "nextCursor": following})

    async def _list(
        self,
        *,
        query: str | None,
        count: int,
        agent: str | None = None,
        directory: str | None = None,
        cursor: str | None = None,
        archived: bool = False,
    ) -> tuple[list[dict[str, Any]], str | None]:
        infos, following = await self._helm.list(
            query=query, directory=directory, cursor=cursor, limit=count, include_archived=archived, agent=agent
        )
        return list(map(in_list, await listed_sessions(self._helm, infos))), following

    async def _running(self) -> list[dict[str, Any]]:
        """The sessions with a turn under way, here or in another process, newest first."""
        ids = [session.id for session in self._helm.sessions.values() if session.state.is_running]
        try:
            registered, _ = await self._helm.tasks.list(status=("pending", "working"), origin="local", limit=1000)
        except HelmsmanError:
            registered = []
        ids = list(dict.fromkeys([*ids, *(task.session_id for task in registered if task.session_id is not None)]))
        if not ids:
            return []
        infos, _ = await self._helm.list(limit=_RUNNING_LOOKED_FOR)
        on_disk = {info.session_id: info for info in infos}
        tasks = await self._helm.tasks.of_sessions(ids)
        found = [listed_session(on_disk.get(one), self._helm.sessions.get(one), tasks[one]) for one in ids]
        found = [in_list(one) for one in found if one["isActive"]]
        return sorted(found, key=lambda one: str(one.get("timestamp")), reverse=True)

    async def _not_on_disk_yet(self) -> list[dict[str, Any]]:
        """Sessions that have only just begun: Codex writes them down with their first message."""
        running = [session for session in self._helm.sessions.values() if session.state.is_running]
        young = [session for session in running if session.turn_count == 1 and (session.turn_seconds or 0) < 60]
        return [
            in_list(listed_session(None, session, ()))
            for session in reversed(young)
            if await self._helm.truth.find(session.id) is None
        ]

    async def session(self, request: Request) -> dict[str, Any]:
        lines = number(request, "outputLines", 0, most=2000) or 0
        session = await self._session(request)
        agent = session.options.agent
        about = {
            "agentTitle": self._helm.agents.title(agent),
            "costUsd": self._helm.tasks.prices.cost(session.model, session.usage),
        }
        return session_in_full(session, output_lines=lines) | present(about)

    async def diff(self, request: Request) -> dict[str, Any]:
        session = await self._session(request)
        files, missing = shown_files(read_diff(session.state.diff or ""), _WHOLE_CHARS)
        return present({"files": files, "cut": missing or None})

    async def turns(self, request: Request) -> dict[str, Any]:
        session = await self._session(request)
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
        """When turns that are no tasks began and ended, as Codex wrote it down."""
        if not turn_ids:
            return {}
        info = await self._helm.truth.find(session.id)
        path = None if info is None else info.path
        if path is None or not await anyio.to_thread.run_sync(_is_short, path):
            return {}
        return {
            turn.turn_id: {"began": turn.began_at, "ended": turn.ended_at, "usage": turn.usage}
            for turn in await self._helm.truth.turns(session.id)
            if turn.turn_id is not None
        }

    async def transcript(self, request: Request) -> dict[str, Any]:
        session = await self._session(request)
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
        # Cut to size from the side the reader comes from: it goes on at the other.
        shown = [entry(*one, text_limit=_TEXT_CHARS) for one in transcript.entries(first, end)]
        kept = _fitting(shown if forward else shown[::-1])
        shown = kept if forward else kept[::-1]
        return {
            "entries": shown,
            "first": shown[0]["index"] if shown else first,
            "next": shown[-1]["index"] + 1 if shown else end,
            "total": total,
            "cursor": session.feed.cursor,
        }

    async def entry(self, request: Request) -> dict[str, Any]:
        session = await self._session(request)
        index: int = request.path_params["index"]
        transcript = await self._transcripts.of(session)
        for one in transcript.entries(index, index + 1):
            return entry(*one, text_limit=_WHOLE_CHARS)
        raise NotFound(
            f"Session {session.id} has {transcript.total} entries and no number {index}. Read its transcript."
        )

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
        """What a session is about, as the list has it. Where another process began it, only its file says so."""
        info = await self._helm.truth.find(session.id)
        return None if info is None else one_line(info.about)

    async def _session(self, request: Request) -> Session:
        return await self._helm.session(request.path_params["session_id"])

    # --- tasks, engines, usage, search -------------------------------------------------------------------------------

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
        return present({"tasks": list(map(self._listed_task, found)), "nextCursor": following})

    async def task(self, request: Request) -> dict[str, Any]:
        return dict(safe(task_as_dict(await self._helm.tasks.get(request.path_params["task_id"]))))

    async def agents(self, _request: Request) -> dict[str, Any]:
        return {"agents": safe(await all_agents(self._helm))}

    async def engines(self, _request: Request) -> dict[str, Any]:
        engines = await anyio.to_thread.run_sync(engine_overviews, self._helm.settings.state_dir)
        used = {session.engine for session in self._helm.sessions.values() if session.engine is not None}
        own = min(used, key=lambda engine: engine.lost is not None, default=None)
        shown = None
        if own is not None:
            lost = own.lost.message if own.lost is not None else None
            shown = present({"name": own.name, "id": own.id, "lost": lost})
        return present({"engines": [present(engine) for engine in engines], "own": shown})

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

    async def account(self, _request: Request) -> dict[str, Any]:
        return dict(safe(fields_as_dict(await self._helm.extras.account.read())))

    async def notices(self, _request: Request) -> dict[str, Any]:
        told = await self._helm.extras.notices.for_pages()
        notices = {
            delivery.id: present(
                {
                    "id": delivery.id,
                    "kind": delivery.news.kind,
                    "title": delivery.news.headline,
                    "text": delivery.news.text or None,
                    "sessionId": delivery.news.session_id,
                    "questionId": delivery.news.question_id,
                }
            )
            for delivery in told.deliveries
        }
        later = {"tellsOfQuestions": told.is_told, "nextInSec": told.next_in}
        return {"notices": list(notices.values())} | present(later)

    async def search(self, request: Request) -> dict[str, Any]:
        query = text(request, "q")
        if query is None:
            return {"sessions": [], "tasks": []}
        count = limit(request, 20, _MAX_SESSIONS)
        sessions, _ = await self._list(query=query, count=count)
        words = query.casefold().split()
        await self._helm.ledger.write()
        tasks, _ = await self._helm.ledger.registry(lambda registry: registry.list(limit=_TASKS_SEARCHED))
        found = await self._helm.tasks.local.inside(task for task in tasks if _mentions(task, words))
        return {"sessions": sessions, "tasks": list(map(self._listed_task, found[:count]))}

    def _listed_task(self, task: Task) -> dict[str, Any]:
        """A task in a list, with long texts cut: the page of the task has them."""
        shown: dict[str, Any] = safe(shortened(task_as_dict(task), _TEXT_CHARS)[0])
        elsewhere = task.is_running and task.origin == "local" and self._helm.ledger.is_elsewhere(task)
        return shown | ({"elsewhere": True} if elsewhere else {})


def _fitting(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many of the first entries as a page has room for, but at least one."""
    room = _PAGE_CHARS
    for place, one in enumerate(entries):
        room -= len(json_line(one))
        if room < 0:
            return entries[: max(1, place)]
    return entries


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
