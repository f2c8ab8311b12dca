"""Collect spending per turn, without counting a turn twice.

There are two sources: the agents' files, which cover every session they still have, including those of other programs;
and the registry of tasks, which covers turns whose files are gone or not yet written. A turn in both counts once, by
its id. So does a turn in several files: a fork may begin with a copy of its parent's turns, and a session exists twice
while Codex moves or unpacks it. A rewound session has a second file, with other turns.

The cost of a turn is what the agent reports, in its files or to the registry. Otherwise it is computed from prices, or
unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from helmsman.agents.spending import SessionSpending, TurnSpending
    from helmsman.tasks.registry import TurnUsage


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


def all_spendings(
    sessions: Iterable[SessionSpending],
    tasks: Sequence[TurnUsage],
    place: Callable[[str | None], str | None] = lambda directory: directory,
    running: Mapping[str, Usage] | None = None,
    *,
    names_turn: Callable[[str, str], bool],
) -> list[Spending]:
    """Everything that was spent.

    Args:
        sessions: What the files tell, in the order in which the sessions were begun.
        tasks: What the registry tells.
        place: The directory that the work in a directory counts for.
        running: What turns that run have spent, by their ids: a file tells of it a moment later.
        names_turn: Whether an agent's files call a turn by this id (`helmsman.agents.spending.SpendingFiles.names`).
    """
    files: dict[str, SessionSpending] = {}
    for session in sessions:
        other = files.get(session.session_id)
        files[session.session_id] = session if other is None else _together(other, session)
    told = _told_costs(tasks)
    counted: set[str] = set()
    spendings: list[Spending] = []
    for session in files.values():
        agent, spent_for, directory = session.agent, _root(session, files), place(session.directory)
        here: set[str] = set()
        for turn in session.turns[_copied_turns(session, files) :]:
            turn_id, counts, cost = turn.turn_id, turn[3:7], turn.cost_usd
            turns = 1
            if turn_id is not None:
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
            at = task.created_at.timestamp()
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
