"""Sessions of a fleet. Each session is a lane: tasks that run in order.

A lane is named after its first task, so a session has an id before a machine starts it. The agent's session id is known
later and is stored in the tasks. Clients use an id derived from the lane.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

from helmsman.agents.protocol import SessionInfo
from helmsman.base.json_values import json_object
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.fleet.rows import task_of
from helmsman.model.request import TurnRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from psycopg.rows import DictRow

    from helmsman.fleet.client import FleetClient
    from helmsman.tasks.model import Task, TaskStatus

ValueT = TypeVar("ValueT")
_Page = tuple[list[ValueT], str | None]

_TASK: Final = "T-fleet-"
_SESSION: Final = "fleet-"
PLACE: Final = "place"
"""Metadata key: the directory on the client's machine that the work came from. `directory` is where it runs."""

PROJECT: Final = "project"
"""Metadata key: the repository that the work of a task is attributed to."""


def session_id_of(lane: str) -> str:
    """Return the id that clients use for the session of a lane."""
    return _SESSION + lane.removeprefix(_TASK)


def lane_of(session_id: str) -> str:
    """Return the lane of a session of a fleet."""
    return _TASK + session_id.removeprefix(_SESSION)


def is_fleets(session_id: str) -> bool:
    """Return whether an id is that of a fleet session."""
    return session_id.startswith(_SESSION)


def task_for_clients(row: DictRow) -> Task:
    """Return a task with the session id that clients use and the directory that the client gave."""
    task = task_of(row)
    place = task.metadata.get(PLACE, task.directory)
    fleet = {**task.metadata["fleet"], "agentsSession": task.session_id}
    metadata = {**task.metadata, "fleet": {key: value for key, value in fleet.items() if value is not None}}
    return replace(task, session_id=session_id_of(row["lane"]), directory=place, metadata=metadata)


class SessionQueue:
    """Queries of clients on a fleet's tables, in addition to those of `FleetClient`."""

    def __init__(self, client: FleetClient) -> None:
        self._database = client.database

    async def _all(self, sql: Any, values: Mapping[str, Any]) -> list[DictRow]:
        return await self._database.soon(lambda: self._database.all(sql, values))

    async def find(self, reference: str) -> Task | None:
        """Return a task by its id or alias."""
        rows = await self._all(
            "select * from helmsman.tasks where id = %(ref)s or alias = %(ref)s order by number desc limit 1",
            {"ref": reference.replace("\0", "")},
        )
        return task_for_clients(rows[0]) if rows else None

    async def tasks(
        self,
        *,
        status: Iterable[TaskStatus] | None,
        agent: str | None,
        directory: str | None,
        limit: int,
        cursor: str | None,
    ) -> tuple[list[Task], str | None]:
        """Tasks, newest first, and the cursor of the next page."""
        rows = await self._all(
            """
            select * from helmsman.tasks
            where (%(status)s::text[] is null or status = any(%(status)s)) and (%(agent)s::text is null or agent = %(agent)s)
                and (%(directory)s::text is null or coalesce(metadata ->> 'place', directory) = %(directory)s)
                and (%(before)s::bigint is null or number < %(before)s)
            order by number desc limit %(limit)s
            """,
            {
                "status": None if status is None else list(status),
                "agent": agent,
                "directory": directory,
                "before": _number(cursor),
                "limit": limit + 1,
            },
        )
        following = str(rows[limit - 1]["number"]) if len(rows) > limit else None
        return [task_for_clients(row) for row in rows[:limit]], following

    async def sessions(
        self, *, query: str | None, agent: str | None, directory: str | None, limit: int, cursor: str | None
    ) -> tuple[list[SessionInfo], str | None]:
        """Sessions, the one first that was last asked for something, and the cursor of the next page."""
        rows = await self._all(
            """
            select last.number, last.lane, last.agent, last.model, last.updated_at, first.instruction, first.created_at,
                coalesce(first.metadata ->> 'place', first.directory) as directory
            from helmsman.tasks last join helmsman.tasks first on first.id = last.lane
            where not exists (select from helmsman.tasks later where later.lane = last.lane and later.number > last.number)
                and (%(agent)s::text is null or last.agent = %(agent)s)
                and (%(directory)s::text is null or coalesce(first.metadata ->> 'place', first.directory) = %(directory)s)
                and (%(query)s::text is null or position(lower(%(query)s) in lower(first.instruction)) > 0)
                and (%(before)s::bigint is null or last.number < %(before)s)
            order by last.number desc limit %(limit)s
            """,
            {"agent": agent, "directory": directory, "query": query, "before": _number(cursor), "limit": limit + 1},
        )
        following = str(rows[limit - 1]["number"]) if len(rows) > limit else None
        return [
            SessionInfo(
                session_id=session_id_of(row["lane"]),
                agent=row["agent"],
                updated_at=row["updated_at"],
                created_at=row["created_at"],
                directory=row["directory"],
                first_prompt=row["instruction"],
                model=row["model"],
                source="fleet",
            )
            for row in rows[:limit]
        ], following

    async def of_lanes(self, lanes: Sequence[str]) -> dict[str, list[Task]]:
        """Return the tasks of each of these lanes, oldest first."""
        found: dict[str, list[Task]] = {lane: [] for lane in lanes}
        rows = await self._all(
            "select * from helmsman.tasks where lane = any(%(lanes)s) order by number", {"lanes": list(lanes)}
        )
        for row in rows:
            found[row["lane"]].append(task_for_clients(row))
        return found

    async def lane_of_agents(self, session_id: str) -> str | None:
        """Return the lane of a session by its agent's id."""
        rows = await self._all(
            "select lane from helmsman.tasks where session_id = %(id)s order by number limit 1", {"id": session_id}
        )
        return str(rows[0]["lane"]) if rows else None

    async def asking(self) -> list[str]:
        """Return the lanes with an open question."""
        rows = await self._all(
            "select distinct lane from helmsman.tasks where status = 'working' and input_required", {}
        )
        return [str(row["lane"]) for row in rows]

    async def since(self, number: int | None) -> tuple[int, list[str]]:
        """Return the number of the newest task, and the lanes of tasks after the given number."""
        rows = await self._all(
            "select number, lane from helmsman.tasks where number > %(number)s or %(number)s is null "
            "order by number desc limit case when %(number)s is null then 1 else 10000 end",
            {"number": number},
        )
        newest = max((int(row["number"]) for row in rows), default=number or 0)
        return newest, [] if number is None else [str(row["lane"]) for row in rows]

    async def spec(self, task_id: str) -> TurnRequest | None:
        """Return the request of a task."""
        rows = await self._all("select spec from helmsman.tasks where id = %(id)s", {"id": task_id})
        return TurnRequest.unpacked(rows[0]["spec"]) if rows else None

    async def at_work(self, limit: int) -> list[Task]:
        """Return running tasks, then pending tasks in the order in which they will start."""
        rows = await self._all(
            "select * from helmsman.tasks where status in ('pending', 'working') "
            "order by status = 'pending', priority, number limit %(limit)s",
            {"limit": limit},
        )
        return [task_for_clients(row) for row in rows]

    async def usages(self) -> list[Task]:
        """Return all tasks with usage."""
        rows = await self._all("select * from helmsman.tasks where usage is not null order by number", {})
        return [task_for_clients(row) for row in rows]


def _number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidInput(f"{cursor!r:.100} is not a cursor of this list. Use that of the page before, or none.")
    return int(cursor)


async def merged(
    sources: Mapping[str, Callable[[int, str | None], Awaitable[_Page[ValueT]]]],
    limit: int,
    cursor: str | None,
    age: Callable[[ValueT], Any],
) -> _Page[ValueT]:
    """Merge pages of several sources into one, newest first, with the cursor of the next page."""
    begin: dict[str, str | None] = dict.fromkeys(sources)
    if cursor is not None:
        if (given := json_object(cursor)) is None:
            raise InvalidInput(f"{cursor!r:.100} is not a cursor of this list. Use that of the page before.")
        begin = {name: given[name] for name in sources if name in given}
    pages = {name: await sources[name](limit, at) for name, at in begin.items()}
    every = [(name, one) for name, (page, _) in pages.items() for one in page]
    shown = sorted(every, key=lambda named: age(named[1]), reverse=True)[:limit]
    following: dict[str, str | None] = {}
    for name, (page, after) in pages.items():
        used = sum(one == name for one, _ in shown)
        if used == len(page):
            if after is not None:
                following[name] = after
        else:
            following[name] = (await sources[name](used, begin[name]))[1] if used else begin[name]
    return [one for _, one in shown], json.dumps(following) if following else None
