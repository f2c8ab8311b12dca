"""Spendings summed up by day, model, directory, session or agent. The sums add up: nothing is in two groups."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import anyio.to_thread

from helmsman.agents.registry import Spendings
from helmsman.base.files import is_inside
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, RegistryUnavailable
from helmsman.git.worktree import places, projects
from helmsman.model.events import ModelUsage, Usage
from helmsman.model.nature import READS, verb
from helmsman.sessions.history import SpentTurn
from helmsman.tasks.agent_records import WRITES_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from helmsman.agents.spending import SessionSpending, TurnSpending
    from helmsman.steering.core import Steering
    from helmsman.tasks.prices import Prices
    from helmsman.tasks.registry import TurnUsage

# --- Collect spending per turn, without counting a turn twice ---------------------------------------------------------

# There are two sources: the tasks, which are written with the log, and the agents' files. A file is read if Helmsman
# did not run the session, or if the tasks do not say all that was spent in it (`helmsman.store.log.only_in_tasks`). A
# turn in both sources counts once, by its id. So does a turn in several files: a fork may begin with a copy of its
# parent's turns, and a session exists twice while Codex moves or unpacks it. A rewound session has a second file, with
# other turns. The cost of a turn is what the agent reports, in its files or to the registry. Otherwise it is computed
# from prices, or unknown.


class Spending(NamedTuple):
    """Spending of one turn on one model. `session_id` is the session it counts for: a sub-agent's turns count for its
    parent.

    `at` is its start, in seconds since 1970. `turns` is 0 if another entry counts the same turn. `cost_usd` is the cost
    that the agent reports. `is_sub_agents` is set for a sub-agent's turn.
    """

    agent: str
    session_id: str | None
    directory: str | None
    model: str | None
    at: float
    turns: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_output_tokens: int
    cost_usd: float | None = None
    turn_id: str | None = None
    is_sub_agents: bool = False

    @property
    def usage(self) -> Usage:
        return Usage(*self[6:11])


Stored: TypeAlias = "tuple[Sequence[TurnUsage], Mapping[str, datetime]]"
"""Usage of all tasks, and the sessions of which they tell everything, with the time of the last event of each."""


def spendings_now(
    files: Spendings,
    stored: Stored,
    place: Callable[[str | None], str | None] = lambda directory: directory,
    running: Mapping[str, Usage] | None = None,
    since: float | None = None,
) -> list[Spending]:
    """Read the files of the sessions that the tasks do not tell everything of, and return all spending. Blocks.

    With `since`, files that have not changed since then are left out. `all_spendings` describes the rest.
    """
    ends = _ends(files, stored)
    read = files.sessions(since, ends)
    in_tasks = ends.keys() - {session.session_id for session in read}
    return all_spendings(read, stored[0], place, running, names_turn=files.names, stored=in_tasks)


def _ends(files: Spendings, stored: Stored) -> dict[str, float]:
    """Return the sessions whose tasks tell everything, with the time after which their agents write no more of it."""
    tasks, sessions = stored

    nothing = Usage()

    def is_known(task: TurnUsage) -> bool:
        # By its id alone a copy of a turn is known in the file of a fork, and a task that has resumed names only its last.
        return task.turn_id is not None and files.names(task.agent, task.turn_id) and task.before == nothing

    unknown = {task.session_id for task in tasks if not is_known(task)}
    return {
        session_id: (changed_at + WRITES_AFTER).timestamp()
        for session_id, changed_at in sessions.items()
        if session_id not in unknown
    }


def all_spendings(
    sessions: Iterable[SessionSpending],
    tasks: Sequence[TurnUsage],
    place: Callable[[str | None], str | None] = lambda directory: directory,
    running: Mapping[str, Usage] | None = None,
    *,
    names_turn: Callable[[str, str], bool],
    stored: Container[str | None] = (),
) -> list[Spending]:
    """Everything that was spent.

    Args:
        sessions: What the files tell, in the order in which the sessions were begun.
        tasks: What the registry tells.
        place: The directory that the work in a directory counts for.
        running: What turns that run have spent, by their ids: a file tells of it a moment later.
        names_turn: Whether an agent's files call a turn by this id (`helmsman.agents.spending.SpendingFiles.names`).
        stored: Sessions whose tasks tell everything. A turn of theirs in the file of another session is a copy.
    """
    files: dict[str, SessionSpending] = {}
    for session in sessions:
        other = files.get(session.session_id)
        files[session.session_id] = session if other is None else _together(other, session)
    told = _told_costs(tasks)
    counted = {task.turn_id for task in tasks if task.turn_id is not None and task.session_id in stored}
    spendings: list[Spending] = []
    for session in files.values():
        agent, spent_for, directory = session.agent, _root(session, files), place(session.directory)
        here: set[str] = set()
        for turn in session.turns[_copied_turns(session, files) :]:
            turn_id, counts, cost = turn.turn_id, turn[3:7], turn.cost_usd
            turns = 1
            if turn_id is not None:
                # In another file the turn is a copy. In the same file it is the part of another model.
                if turn_id in counted and turn_id not in here:
                    continue
                turns = 0 if turn_id in here else 1
                counted.add(turn_id)
                here.add(turn_id)
                if running is not None and sum(running.get(turn_id, Usage()).counts) > sum(counts):
                    counts, cost = running[turn_id].counts, running[turn_id].cost_usd
                if cost is None and turn_id in told:
                    cost = told[turn_id] * _share(turn, session.turns)
            named = turn_id, session.parent_id is not None
            spendings.append(
                Spending(agent, spent_for, directory, turn.model, turn.began_at, turns, *counts, cost, *named)
            )
    for task in tasks:
        if not _is_in_files(task, files, counted, names_turn):
            # The file of a session tells of the turns before the one that a task now continues with.
            usage = task.usage - task.before if task.session_id in files else task.usage
            at = task.began_at.timestamp()
            if usage != Usage():
                of_task = (task.agent, task.session_id, place(task.directory), task.model, at, 1)
                spendings.append(Spending(*of_task, *usage.counts, usage.cost_usd, task.turn_id))
    return spendings


def _told_costs(tasks: Iterable[TurnUsage]) -> dict[str, float]:
    """Return the costs that agents have reported, by turn id."""
    last = ((task.turn_id, (task.usage - task.before).cost_usd) for task in tasks if task.usage.cost_usd is not None)
    return {turn_id: cost for turn_id, cost in last if turn_id is not None and cost is not None}


def _share(turn: TurnSpending, turns: Iterable[TurnSpending]) -> float:
    """Return the part of a turn that one of its models used."""
    own = turn.input_tokens + turn.output_tokens
    whole = sum(one.input_tokens + one.output_tokens for one in turns if one.turn_id == turn.turn_id)
    return own / whole if whole else 1.0


def _together(one: SessionSpending, other: SessionSpending) -> SessionSpending:
    """Merge two files of one session. Without turn ids (0.93) sessions cannot be rewound, so one is a copy."""
    turns = (*one.turns, *other.turns)
    if any(turn.turn_id is None for turn in turns):
        return max(one, other, key=lambda session: len(session.turns))
    return one._replace(turns=tuple({(turn.turn_id, turn.model): turn for turn in reversed(turns)}.values())[::-1])


def _is_in_files(
    task: TurnUsage,
    files: Mapping[str, SessionSpending],
    counted: set[str],
    names_turn: Callable[[str, str], bool],
) -> bool:
    """Return whether a session's file contains this task. Without turn ids, a file counts for its whole session."""
    if task.session_id not in files:
        return False
    return task.turn_id is None or task.turn_id in counted or not names_turn(task.agent, task.turn_id)


def _root(session: SessionSpending, files: Mapping[str, SessionSpending]) -> str:
    """Return the top-level session of a sub-agent's session."""
    seen = {session.session_id}
    while session.parent_id is not None and session.parent_id not in seen:
        seen.add(session.parent_id)
        parent = files.get(session.parent_id)
        if parent is None:
            return session.parent_id
        session = parent
    return session.session_id


def _copied_turns(session: SessionSpending, files: Mapping[str, SessionSpending]) -> int:
    """Return how many turns at the beginning of a fork are copies, without turn ids (0.93).

    They equal the parent's turns, up to the time of the fork.
    """
    parent = files.get(session.forked_from or "")
    if parent is None or session.created_at is None:
        return 0
    count = 0
    for own, original in zip(session.turns, parent.turns, strict=False):
        is_same = own.turn_id is None and own[2:] == original[2:]  # model and counts
        if not is_same or original.began_at > session.created_at:
            break
        count += 1
    return count


GroupBy = Literal["day", "model", "directory", "session", "agent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageGroup:
    """Spending of one day, model, directory, session or agent; `key` is None if that is unknown.

    `cost_usd` is the cost of the part with a price or a reported cost, or None. `unpriced_tokens` are the
    rest.
    """

    key: str | None
    sessions: int
    turns: int
    usage: Usage
    cost_usd: float | None
    unpriced_tokens: int

    @property
    def tokens(self) -> int:
        return tokens(self.usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """Spending in groups. Days are in order, oldest first; everything else by spending, most first."""

    group_by: GroupBy
    since: datetime | None
    agent: str | None = None
    groups: tuple[UsageGroup, ...]
    total: UsageGroup
    unpriced_models: tuple[str, ...]
    """Models without a known price."""

    def first(self, count: int | None) -> tuple[Sequence[UsageGroup], Sequence[UsageGroup]]:
        """Return the most important groups, or all, and the rest: the newest days, or the groups with the highest
        spending.
        """
        if count is None or count >= len(self.groups):
            return self.groups, ()
        if self.group_by == "day":
            return self.groups[-count:], self.groups[:-count]
        return self.groups[:count], self.groups[count:]


def tokens(usage: Usage) -> int:
    """Return the number of tokens. Cached ones are part of the input, reasoning ones part of the output."""
    return usage.input_tokens + usage.output_tokens


def report(
    spendings: Iterable[Spending],
    group_by: GroupBy,
    prices: Prices,
    *,
    since: datetime | None = None,
    agent: str | None = None,
) -> UsageReport:
    """Sum up the spending since then, for all agents or one. Days are local days."""
    begin = None if since is None else since.timestamp()
    key_of = _KEYS[group_by]
    sums: dict[str | None, _Sums] = {}
    sessions: set[str | None] = set()
    for spending in spendings:
        if (begin is None or spending.at >= begin) and (agent is None or spending.agent == agent):
            kind = spending.model, spending.cost_usd is not None
            sums.setdefault(key_of(spending), {}).setdefault(kind, _Sum()).add(spending)
            sessions.add(spending.session_id)
    groups = [_group(key, by_model, prices) for key, by_model in sums.items()]
    unpriced = {
        model or "unknown"
        for by_model in sums.values()
        for (model, _), one in by_model.items()
        if one.cost(model, prices) is None
    }
    if group_by == "day":
        groups.sort(key=lambda group: group.key or "")
    else:
        groups.sort(key=lambda group: (-group.tokens, group.key or ""))
    return UsageReport(
        group_by=group_by,
        since=since,
        agent=agent,
        groups=tuple(groups),
        # A session may be in several groups, so their counts do not add up.
        total=replace(merged(groups), sessions=len(sessions)),
        unpriced_models=tuple(sorted(unpriced)),
    )


def merged(groups: Sequence[UsageGroup]) -> UsageGroup:
    """Several groups as one without a name, for a table that has no room for all. Sessions may be counted twice."""
    costs = [group.cost_usd for group in groups if group.cost_usd is not None]
    return UsageGroup(
        key=None,
        sessions=sum(group.sessions for group in groups),
        turns=sum(group.turns for group in groups),
        usage=sum((group.usage for group in groups), Usage()),
        cost_usd=sum(costs) if costs else None,
        unpriced_tokens=sum(group.unpriced_tokens for group in groups),
    )


@dataclass(slots=True)
class _Sum:
    """Spending on one model, either all with a reported cost or all without one."""

    turns: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    billed_as_cached: int = 0
    """Turn is billed for at most its own cached tokens: limited turn by turn, so that costs add up in every grouping.
    """
    told: float | None = None
    sessions: set[str | None] = field(default_factory=set[str | None])

    def add(self, spending: Spending) -> None:
        _, session_id, _, _, _, turns, entered, cached, given, reasoning, told, _, _ = spending
        self.turns += turns
        self.input += entered
        self.cached += cached
        self.output += given
        self.reasoning += reasoning
        self.billed_as_cached += min(entered, cached)
        self.sessions.add(session_id)
        if told is not None:
            self.told = (self.told or 0.0) + told

    @property
    def usage(self) -> Usage:
        return Usage(self.input, self.cached, self.output, self.reasoning)

    def cost(self, model: str | None, prices: Prices) -> float | None:
        usage = replace(self.usage, cached_input_tokens=self.billed_as_cached, cost_usd=self.told)
        return prices.cost(model, usage)


_Sums: TypeAlias = "dict[tuple[str | None, bool], _Sum]"
"""Sums by model, and whether the agents reported the cost."""


def _group(key: str | None, by_model: _Sums, prices: Prices) -> UsageGroup:
    costs = {kind: one.cost(kind[0], prices) for kind, one in by_model.items()}
    known = [cost for cost in costs.values() if cost is not None]
    return UsageGroup(
        key=key,
        sessions=len(set[str | None]().union(*(one.sessions for one in by_model.values()))),
        turns=sum(one.turns for one in by_model.values()),
        usage=sum((one.usage for one in by_model.values()), Usage()),
        cost_usd=sum(known) if known else None,
        unpriced_tokens=sum(tokens(one.usage) for kind, one in by_model.items() if costs[kind] is None),
    )


def _day(spending: Spending) -> str | None:
    return _day_of_quarter(int(spending.at // _QUARTER))


@lru_cache(maxsize=100_000)
def _day_of_quarter(quarter: int) -> str | None:
    """Return the local day. Time zones change at multiples of a quarter of an hour."""
    try:
        return datetime.fromtimestamp(quarter * _QUARTER).strftime("%Y-%m-%d")  # noqa: DTZ006
    except (ValueError, OverflowError, OSError):
        return None


_QUARTER: Final = 15 * 60
_KEYS: Final[Mapping[GroupBy, Callable[[Spending], str | None]]] = {
    "day": _day,
    "model": lambda spending: spending.model,
    "directory": lambda spending: spending.directory,
    "session": lambda spending: spending.session_id,
    "agent": lambda spending: spending.agent,
}


# --- Report the spending of agents on this machine: tokens, and their cost if reported or if a price is known ---------

log = logging.getLogger(__name__)

_AGO: Final = re.compile(r"(?P<count>[0-9]{1,5})(?P<unit>[hdwHDW])")
_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


class UsageReports:
    """Reports on the spending of these agents, in Helmsman and in other programs."""

    def __init__(self, helm: Steering, prices: Prices) -> None:
        self._helm = helm
        self._prices = prices
        self._spendings = Spendings(helm.agents, helm.settings, helm.environment)

    @verb(READS)
    async def report(
        self, *, since: datetime | str | None = None, group_by: GroupBy = "day", agent: str | None = None
    ) -> UsageReport:
        """Tokens and cost since a time (a `datetime`, or as `parse_since` reads it; without one, all there ever was), of
        all agents or of one.

        Raises:
            InvalidInput: `since` is not a time, or there is no such agent.
        """
        agent = None if agent is None else self._helm.agents[agent].name
        begin = parse_since(since) if isinstance(since, str) else since
        if begin is not None and begin.tzinfo is None:
            # A time without a zone is local.
            begin = begin.astimezone()
        stored = await self._stored()
        return await anyio.to_thread.run_sync(partial(self._report, stored, group_by, begin, agent))

    @verb(READS)
    async def spent_since(self, since: datetime) -> list[Spending]:
        """Return the spending of each turn begun since then, including running ones.

        The project of a turn is its directory.
        """
        stored = await self._stored(since=since)
        running = self._helm.task_writer.used_by_turns()
        return await anyio.to_thread.run_sync(partial(self._spent_since, stored, running, since.timestamp()))

    @verb(READS)
    async def of_session(self, session_id: str) -> list[SpentTurn]:
        """Return what each turn of a session and of its sub-agents has spent."""
        stored = await self._stored(session_id)
        end = _ends(self._spendings, stored).get(session_id)
        info = None if end is None else await self._helm.agent_records.find(session_id)
        if end is not None and (info is None or info.updated_at.timestamp() <= end):
            spendings = all_spendings((), stored[0], names_turn=self._spendings.names)
        else:
            spendings = await anyio.to_thread.run_sync(spendings_now, self._spendings, await self._stored())
        return [
            SpentTurn(one.turn_id, one.at, ModelUsage(one.model, one.usage), is_sub_agents=one.is_sub_agents)
            for one in spendings
            if one.session_id == session_id
        ]

    def _spent_since(self, stored: Stored, running: Mapping[str, Usage], since: float) -> list[Spending]:
        spendings = spendings_now(self._spendings, stored, projects(self._helm.settings.state_dir), running, since)
        return [spending for spending in spendings if spending.at >= since]

    def _report(self, stored: Stored, group_by: GroupBy, since: datetime | None, agent: str | None) -> UsageReport:
        roots, place = self._helm.allowed_roots, places(self._helm.settings.state_dir)
        spendings = spendings_now(self._spendings, stored, place)
        seen = (one for one in spendings if not roots or (one.directory and is_inside(one.directory, roots)))
        return report(seen, group_by, self._prices, since=since, agent=agent)

    async def _stored(self, session_id: str | None = None, since: datetime | None = None) -> Stored:
        """Return the usage of tasks and the sessions of which they tell everything: of all, one, or the recent ones."""
        await self._helm.task_writer.write()
        try:
            return await self._helm.task_writer.registry(
                lambda registry: (registry.turn_usages(session_id, since), registry.only_in_tasks(session_id, since))
            )
        except RegistryUnavailable as error:
            log.warning("what only the task registry knows is left out: %s", error)
            return (), {}


def parse_since(text: str, now: datetime | None = None) -> datetime:
    """Parse a time such as `24h`, `7d`, `2w` ago, a date (from local midnight), or a date with a time.

    Raises:
        InvalidInput: It is another text.
    """
    now = now or datetime.now().astimezone()
    text = text.strip()
    try:
        if found := _AGO.fullmatch(text):
            return now - int(found["count"]) * _UNITS[found["unit"].lower()]
        given = datetime.fromisoformat(text)
        return given if given.tzinfo is not None else given.astimezone()
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(
            f"{text!r:.100} is not a time. Use one such as 24h, 7d, 2w, 2026-11-01 or 2026-11-01T09:30.",
            parameter="since",
        ) from None
