"""What became of every session of a soak, and whether that is what Helmsman says of it.

There are three witnesses: the server that was there all the time, a server that has just started and knows nothing but what
is on disk, and the file in which Codex itself records its turns. They must agree.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from bench.soak.servers import ToolError
from bench.soak.stories import answer, marker_file
from helmsman.agents.codex.storage.rollout_end import turns_of
from helmsman.agents.codex.storage.rollout_head import read_head

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.model.recorded_turn import RecordedTurn

    from bench.soak.servers import Connection, Server
    from bench.soak.works import Books, Work

ENDED: Final = {"done", "error", "interrupted"}
_AT_ONCE: Final = 6
_ALLOWED: Final = {
    "completed": {"done"},
    "failed": {"error"},
    "interrupted": {"interrupted", "error"},  # an error where a limit on silence interrupted it
    "open": {"error", "interrupted"},  # Codex was killed before it could record an end
}


@dataclass(slots=True)
class Verdict:
    """The outcome. Everything but `ends` and `started` should be empty."""

    started: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    lost: list[str] = field(default_factory=list[str])
    untrue: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    ran_without_a_yes: list[str] = field(default_factory=list[str])


async def judge(steady: Server, fresh: Server, books: Books, codex_home: Path, marks: Path) -> Verdict:
    """Ask all witnesses about all sessions."""
    verdict = Verdict()
    rollouts = await anyio.to_thread.run_sync(_rollouts, codex_home)
    _claim_unknown(rollouts, books, verdict)
    works = [work for work in books.works if work.session_id is not None]
    verdict.started = len(works)
    waiting = iter(works)

    async def witness() -> None:
        async with steady.connection() as first, fresh.connection() as second:
            for work in waiting:
                await _hear(work, first, second, books, rollouts, verdict)

    async with anyio.create_task_group() as tasks:
        for _ in range(_AT_ONCE):
            tasks.start_soon(witness)
    for work in books.works:
        for number in work.numbers - work.approved:
            if marker_file(marks, number).exists():
                verdict.ran_without_a_yes.append(f"{_name(work)}: the command of #{number}")
    return verdict


async def _hear(
    work: Work,
    steady: Connection,
    fresh: Connection,
    books: Books,
    rollouts: Mapping[str, Path],
    verdict: Verdict,
) -> None:
    assert work.session_id is not None
    try:
        await _settle(steady, work.session_id, books)
        told = await steady.call("codex_status", sessionId=work.session_id)
        read = await fresh.call("codex_status", sessionId=work.session_id)
    except ToolError as error:
        verdict.lost.append(f"{_name(work)}: {error.code}: {error}")
    else:
        _judge_one(work, told, read, rollouts.get(work.session_id), verdict)


async def _settle(connection: Connection, session_id: str, books: Books) -> None:
    """A turn that nobody waits for any more may still run, and rightly so: it is stopped."""
    status = await connection.call("codex_wait", sessionId=session_id, timeoutSec=5)
    if status["status"] not in ENDED:
        books.counts["stopped after the soak"] += 1
        await connection.call("codex_interrupt", sessionId=session_id)


def _judge_one(
    work: Work, told: Mapping[str, Any], read: Mapping[str, Any], rollout: Path | None, verdict: Verdict
) -> None:
    status, result = read["status"], read.get("result")
    verdict.ends[status] += 1
    if status not in ENDED:
        verdict.lost.append(f"{_name(work)}: still {status}")
        return
    turn = None if rollout is None else next(turns_of(rollout), None)
    allowed = _ALLOWED[turn.outcome] if turn is not None else {"error", "interrupted"}
    if work.refused:
        allowed = {*allowed, "error"}  # the turn that was recorded last is then not the one that was asked for last
    if (told["status"], told.get("result")) != (status, result):
        verdict.untrue.append(
            f"{_name(work)}: one server says {told['status']} ({told.get('error')}), the other {status} "
            f"({read.get('error')}); Codex recorded {_in_words(turn)}"
        )
    elif status not in allowed:
        verdict.untrue.append(f"{_name(work)}: {status} ({read.get('error')}), but Codex recorded {_in_words(turn)}")
    elif status == "done" and not any(answer(number) in (result or "") for number in work.numbers):
        verdict.untrue.append(f"{_name(work)}: its result is {result!r}")
    elif len(work.numbers) == 1 and work.told == "done" != status:
        verdict.untrue.append(f"{_name(work)}: its client was told done, and now it is {status}")


def _claim_unknown(rollouts: Mapping[str, Path], books: Books, verdict: Verdict) -> None:
    """Find the sessions of those who were killed before they could say which theirs is, and sessions made twice."""
    by_number: dict[int, list[str]] = {}
    for session_id, path in rollouts.items():
        with path.open("rb") as file:
            head, _ = read_head(file)
        found = re.search(r"#(\d+)", (head and head.first_prompt) or "")
        if found:
            by_number.setdefault(int(found[1]), []).append(session_id)
    for work in books.works:
        sessions = by_number.get(work.number, [])
        if work.session_id is None and sessions:
            work.session_id = sessions[0]
        if len(sessions) > 1 + work.refused:
            verdict.doubled.append(f"{_name(work)}: {', '.join(sessions)}")


def _rollouts(codex_home: Path) -> dict[str, Path]:
    return {path.stem[-36:]: path for path in (codex_home / "sessions").rglob("rollout-*.jsonl")}


def _in_words(turn: RecordedTurn | None) -> str:
    return "no turn" if turn is None else f"a turn that is {turn.outcome} ({turn.message!r}, {turn.error})"


def _name(work: Work) -> str:
    return f"#{work.number} ({work.story}, {work.session_id})"
