"""The end of every session of a soak, compared with what Helmsman reports.

There are three witnesses: the hub that is there when the faults are over, the next one, which knows nothing but what is on
disk and in supervisors, and the file in which Codex itself records its turns. They must agree.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from bench.soak.servers import ToolError
from bench.soak.stories import answer, changed_file, marker_file
from helmsman.agents.codex.storage import read_head, turns_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from bench.soak.servers import Connection, Connects
    from bench.soak.works import Books, Work
    from helmsman.agents.protocol import RecordedTurn

ENDED: Final = {"done", "error", "interrupted"}
_AT_ONCE: Final = 6
_NOT_BEGUN: Final = "before Codex had begun the turn"
_ALLOWED: Final = {
    "completed": {"done"},
    "failed": {"error"},
    "interrupted": {"interrupted", "error"},  # an error where a limit on silence interrupted it
    "open": {"error", "interrupted"},  # Codex was killed before it could record an end
}


@dataclass(slots=True)
class Verdict:
    """Verdict. Everything but `ends` and `started` should be empty."""

    started: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    lost: list[str] = field(default_factory=list[str])
    untrue: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    ran_without_a_yes: list[str] = field(default_factory=list[str])
    not_begun: list[str] = field(default_factory=list[str])
    """Messages that a hub had accepted and Codex never received; they are reported as such."""


async def judge(
    client: Connects,
    next_hub: Callable[[], Awaitable[None]],
    books: Books,
    codex_home: Path,
    marks: Path,
    *,
    only_hubs: bool,
) -> Verdict:
    """Ask all witnesses about all sessions. If `only_hubs` were killed, no session has a reason to fail."""
    verdict = Verdict()
    _claim_unknown(await anyio.to_thread.run_sync(_rollouts, codex_home), books)
    works = [work for work in books.works if work.session_id is not None]
    verdict.started = len(works)
    async with client.connection() as connection:
        told = await _each(works, lambda work: _last_word(connection, work, books, verdict))
        await next_hub()
        read = await _each(works, lambda work: _status(connection, work, verdict))
    rollouts = await anyio.to_thread.run_sync(_rollouts, codex_home)
    for work in works:
        first, second = told.get(work.number), read.get(work.number)
        if first is not None and second is not None:
            _judge_one(work, first, second, rollouts.get(work.session_id or ""), verdict, only_hubs=only_hubs)
    _count_deeds(books, rollouts, marks, verdict, only_hubs=only_hubs)
    return verdict


async def _each(
    works: Iterable[Work], ask: Callable[[Work], Awaitable[dict[str, Any] | None]]
) -> dict[int, dict[str, Any] | None]:
    waiting = iter(works)
    heard: dict[int, dict[str, Any] | None] = {}

    async def witness() -> None:
        for work in waiting:
            heard[work.number] = await ask(work)

    async with anyio.create_task_group() as tasks:
        for _ in range(_AT_ONCE):
            tasks.start_soon(witness)
    return heard


async def _last_word(connection: Connection, work: Work, books: Books, verdict: Verdict) -> dict[str, Any] | None:
    assert work.session_id is not None
    try:
        await _settle(connection, work.session_id, books)
    except ToolError as error:
        verdict.lost.append(f"{_name(work)}: {error.code}: {error}")
        return None
    return await _status(connection, work, verdict)


async def _status(connection: Connection, work: Work, verdict: Verdict) -> dict[str, Any] | None:
    try:
        return await connection.call("codex_status", sessionId=work.session_id)
    except ToolError as error:
        verdict.lost.append(f"{_name(work)}: {error.code}: {error}")
        return None


async def _settle(connection: Connection, session_id: str, books: Books) -> None:
    """Stop a turn that no client waits for: it may still run."""
    status = await connection.call("codex_wait", sessionId=session_id, timeoutSec=5)
    if status["status"] not in ENDED:
        books.counts["stopped after the soak"] += 1
        await connection.call("codex_interrupt", sessionId=session_id)


def _judge_one(
    work: Work,
    told: Mapping[str, Any],
    read: Mapping[str, Any],
    rollout: Path | None,
    verdict: Verdict,
    *,
    only_hubs: bool,
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
            f"{_name(work)}: one hub says {told['status']} ({told.get('error')}), the next {status} "
            f"({read.get('error')}); Codex recorded {_in_words(turn)}"
        )
    elif work.was_not_found and turn is not None:
        verdict.untrue.append(f"{_name(work)}: Codex has no such session, it was said, and has {_in_words(turn)}")
    elif _NOT_BEGUN in str(read.get("error")) or (work.was_not_found and status == "error"):
        verdict.not_begun.append(f"{_name(work)}: its last message ({read['error']})")
    elif status not in allowed:
        verdict.untrue.append(f"{_name(work)}: {status} ({read.get('error')}), but Codex recorded {_in_words(turn)}")
    elif status == "done" and not any(answer(number) in (result or "") for number in work.numbers):
        verdict.untrue.append(f"{_name(work)}: its result is {result!r}")
    elif only_hubs and status == "error":
        verdict.untrue.append(f"{_name(work)}: {read.get('error')}, though nothing but hubs was killed")
    elif len(work.numbers) == 1 and work.told == "done" != status:
        verdict.untrue.append(f"{_name(work)}: its client was told done, and now it is {status}")


def _claim_unknown(rollouts: Mapping[str, Path], books: Books) -> None:
    """Find the sessions of clients that were killed before they could report theirs."""
    by_number: dict[int, str] = {}
    for session_id, path in rollouts.items():
        with path.open("rb") as file:
            head, _ = read_head(file)
        found = re.search(r"#(\d+)", (head and head.first_prompt) or "")
        if found:
            by_number.setdefault(int(found[1]), session_id)
    for work in books.works:
        work.session_id = work.session_id or by_number.get(work.number)


def _count_deeds(books: Books, rollouts: Mapping[str, Path], marks: Path, verdict: Verdict, *, only_hubs: bool) -> None:
    """Count how often each requested action was carried out."""
    said = Counter(number for path in rollouts.values() for number in _numbers_said(path))
    for work in books.works:
        for number in work.numbers:
            at_most = 1 + (work.starts_refused if number == work.number else 0)
            if said[number] > at_most:
                verdict.doubled.append(f"{_name(work)}: #{number} was said {said[number]} times")
            mark = marker_file(marks, number)
            runs = len(mark.read_text(encoding="utf-8").splitlines()) if mark.exists() else 0
            if runs > at_most:
                verdict.doubled.append(f"{_name(work)}: the command of #{number} ran {runs} times")
            if runs and number not in work.approved:
                verdict.ran_without_a_yes.append(f"{_name(work)}: the command of #{number}")
        if only_hubs and not work.was_interrupted:
            verdict.not_begun += [
                f"{_name(work)}: #{number} ({how})" for number, how in work.acknowledged.items() if not said[number]
            ]
        if work.is_applied and work.repository is not None:
            file = changed_file(work.repository, work.number)
            if not file.exists() or file.read_text(encoding="utf-8") != "once\n":
                verdict.lost.append(f"{_name(work)}: its change was applied, and is not there")


def _numbers_said(rollout: Path) -> Iterable[int]:
    """Yield the numbers of the messages that Codex received in a session."""
    for line in rollout.read_bytes().splitlines():
        if b'"response_item"' in line and b'"role":"user"' in line:
            with suppress(ValueError):
                yield from map(int, re.findall(r"#(\d+)", json.dumps(json.loads(line)["payload"]["content"])))


def _rollouts(codex_home: Path) -> dict[str, Path]:
    return {path.stem[-36:]: path for path in (codex_home / "sessions").rglob("rollout-*.jsonl")}


def _in_words(turn: RecordedTurn | None) -> str:
    return "no turn" if turn is None else f"a turn that is {turn.outcome} ({turn.message!r}, {turn.error})"


def _name(work: Work) -> str:
    return f"#{work.number} ({work.story}, {work.session_id})"
