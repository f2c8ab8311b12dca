"""Read the sessions that Claude Code keeps on disk, of all programs, without starting it.

A session is a file of lines, `projects/<the directory, encoded>/<id>.jsonl`. A turn begins with a line of a user (whose
id is the turn's), and ends with the model's last message if that has a stop reason. Large irrelevant lines (model
input, attachments) are skipped unread.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.claude.binary import CLAUDE, PROJECTS, spelled
from helmsman.agents.claude.normalise import SYNTHETIC, ended, failure, item_of_block, results_in, usage_of
from helmsman.agents.protocol import SessionInfo
from helmsman.agents.session_files import SeenFiles, SessionReader, StoredTurn, json_lines
from helmsman.agents.spending import SessionSpending, TurnSpending
from helmsman.base.files import changed_at, size_and_time
from helmsman.base.json_values import (
    amount,
    count,
    integer,
    json_object,
    json_object_in,
    mapping,
    optional_text,
    sequence,
    text,
    timestamp,
)
from helmsman.base.processes import running_process
from helmsman.base.structs import replace
from helmsman.errors import SessionLocked
from helmsman.model.events import ProposedPlan, Usage, UserMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from helmsman.model.events import Item

_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Searched in the raw bytes.
_OF_USE: Final = re.compile(rb'"type":"(?:user|assistant|custom-title|ai-title|summary)"')
_SAID: Final = re.compile(rb'"type":"(?:user|assistant)"')
_COST: Final = re.compile(rb'^\{"type":"cost-state"')
_INTERRUPTED: Final = "[Request interrupted by user"
_HEAD_LINES: Final = 60
_TAIL_BYTES: Final = 64 * 1024
_PROMPT_CHARS: Final = 500


class ClaudeSessions(SessionReader):
    """See `SessionReader`."""

    unfinished = "inProgress"

    def __init__(self, home: Path) -> None:
        self.home = home
        self._projects = home / PROJECTS
        self._seen = SeenFiles(_info)

    def sessions(self) -> Iterator[SessionInfo]:
        return self._marked(path for path in self._projects.glob("*/*.jsonl") if is_id(path.stem))

    def find(self, session_id: str) -> SessionInfo | None:
        path = self.path(session_id)
        return None if path is None else next(self._marked((path,)), None)

    def _marked(self, paths: Iterable[Path]) -> Iterator[SessionInfo]:
        """Yield the sessions in these files, with those that a person has open marked."""
        opened = {one.session_id for one in open_sessions(self.home) if one.by_a_person}
        # Claude Code lets two processes write to one session, so a session that is open elsewhere is marked.
        return (replace(info, open_elsewhere=info.session_id in opened) for info in self._seen.all(paths))

    def path(self, session_id: str) -> Path | None:
        """Return the file of a session."""
        if not is_id(session_id):
            return None
        return next(iter(self._projects.glob(f"*/{session_id}.jsonl")), None)

    def cost(self, session_id: str) -> float:
        """Return the cost of a session at the end of its last process that ended normally.

        The next process continues the count.
        """
        path, cost = self.path(session_id), 0.0
        if path is None:
            return cost
        # Several processes may have written a total. The last one includes the others.
        for line in _lines(path, _COST):
            cost = amount(line.get("totalCostUSD")) or cost
        return cost

    def stored_turns(self, session_id: str) -> list[_Turn] | None:
        path = self.path(session_id)
        return None if path is None else list(_read_turns(path))

    def last_line(self, session_id: str, turn_id: str | None) -> str | None:
        """Return the id of the last line of a turn, or of the session, or None."""
        turns = [turn for turn in self.stored_turns(session_id) or () if turn_id in (None, turn.id)]
        return turns[-1].last_line if turns else None

    # --- spending ----------------------------------------------------------------------------------------------------

    def files(self) -> Iterator[tuple[str, int, int]]:
        for project in _entries(self._projects):
            if not project.is_dir():
                continue
            beside: dict[str, tuple[int, int]] = {}
            found: list[os.DirEntry[str]] = []
            for entry in _entries(Path(project.path)):
                if entry.name.endswith(".jsonl") and is_id(entry.name[:-6]):
                    found.append(entry)
                elif is_id(entry.name):
                    stamps = [size_and_time(one) for one in _entries(Path(entry.path, _SUBAGENTS))]
                    # Sub-agents have their own files, and their growth must be noticed as well.
                    beside[entry.name] = sum(size for size, _ in stamps), max((at for _, at in stamps), default=0)
            for entry in found:
                (size, changed), (more, later) = size_and_time(entry), beside.get(entry.name[:-6], (0, 0))
                yield entry.path, size + more, max(changed, later)

    def read(self, key: str) -> SessionSpending | None:
        path = Path(key)
        reading = _Reading()
        for line in _spending_lines(path):
            reading.take(line)
        if not reading.turns:
            return None
        # Sub-agents have no turns: their usage is counted by time.
        for entry in _entries(path.with_suffix("") / _SUBAGENTS):
            for line in _spending_lines(Path(entry.path)):
                reading.take_of_subagent(line)
        return SessionSpending(
            agent=CLAUDE,
            session_id=path.stem,
            directory=reading.directory,
            created_at=reading.turns[0].began_at,
            parent_id=None,
            forked_from=None,
            turns=tuple(reading.spendings()),
        )


def is_id(name: str) -> bool:
    """Return whether this is a session id, and thus a file name."""
    return _ID.fullmatch(name) is not None


def _last_said(path: Path) -> datetime | None:
    """Return the time of the last message, from its own timestamp; None if the end of the file has none."""
    for line in reversed(_tail(path)):
        if _SAID.search(line) is not None:
            at = timestamp((json_object(line) or {}).get("timestamp"))
            if at is not None:
                return at
    return None


def _tail(path: Path) -> list[bytes]:
    """Return the last lines of a file. The first may be incomplete."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.readlines()
    except OSError:
        return []


def _info(path: Path) -> SessionInfo | None:
    """Read a session's description from the beginning of its file; None if it contains no message.

    It changed with its last message: Claude Code also writes to the file of a session that is only viewed.
    """
    name: str | None = None
    first: Mapping[str, Any] | None = None
    model: str | None = None
    for number, line in enumerate(_lines(path)):
        match line.get("type"):
            case "custom-title" | "ai-title":
                name = optional_text(line.get("customTitle")) or optional_text(line.get("aiTitle")) or name
            case "user" if first is None and said_in(line) is not None:
                first = line
            case "assistant" if model is None:
                model = optional_text(mapping(line.get("message")).get("model"))
            case _:
                pass
        # Files may have many MB, and everything of interest is at their beginning or end.
        if number > _HEAD_LINES or (first is not None and model is not None):
            break
    if first is None:
        return None
    return SessionInfo(
        session_id=path.stem,
        agent=CLAUDE,
        updated_at=_last_said(path) or changed_at(path),
        created_at=timestamp(first.get("timestamp")),
        directory=_directory(path, optional_text(first.get("cwd"))),
        name=_last_name(path) or name,
        first_prompt=(said_in(first) or "")[:_PROMPT_CHARS],
        model=model,
        source=optional_text(first.get("entrypoint")),
        engine_version=optional_text(first.get("version")),
        path=path,
    )


def _directory(path: Path, begun_in: str | None) -> str | None:
    """Return the directory of a session: where it was begun, unless its file was moved to another directory's folder."""
    if begun_in is None or spelled(begun_in) == path.parent.name:
        return begun_in
    for line in reversed(_tail(path)):
        cwd = optional_text((json_object(line) or {}).get("cwd")) if b'"cwd"' in line else None
        if cwd is not None and spelled(cwd) == path.parent.name:
            return cwd
    return begun_in


def _last_name(path: Path) -> str | None:
    """Return the last name. It is at the end, because Claude Code repeats it when it exits."""
    # Compared from the start of the line: a prompt may contain the same text.
    named = [line for line in _tail(path) if line.startswith(b'{"type":"custom-title"')]
    return optional_text((json_object(named[-1]) or {}).get("customTitle")) if named else None


def _lines(path: Path, of_use: re.Pattern[bytes] = _OF_USE) -> Iterator[Mapping[str, Any]]:
    return (line for line in json_lines(path, of_use.search) if line.get("isSidechain") is not True)


def said_in(line: Mapping[str, Any]) -> str | None:
    """Return the user's message in a line; None for other lines."""
    # Claude Code's own remarks, and the summary of a compacted conversation.
    if line.get("isMeta") is True or line.get("isCompactSummary") is True:
        return None
    content = mapping(line.get("message")).get("content")
    if isinstance(content, str):
        said = content
    else:
        blocks = [mapping(block) for block in sequence(content)]
        # A tool's result has the role of a user.
        if not blocks or any(block.get("type") == "tool_result" for block in blocks):
            return None
        said = "\n".join(text(block.get("text")) for block in blocks if block.get("type") == "text")
    return None if said.startswith((_INTERRUPTED, "<command-", "<local-command")) else said


# --- turns -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Turn(StoredTurn):
    """Turn while its lines are read. Several lines share a message of the model: each message is counted once."""

    last_line: str
    usages: dict[str, Usage] = field(default_factory=dict[str, Usage])
    blocks: dict[str, int] = field(default_factory=dict[str, int])


def _read_turns(path: Path) -> Iterator[_Turn]:
    turn: _Turn | None = None
    for line in _lines(path):
        kind, message = line.get("type"), mapping(line.get("message"))
        if kind == "user":
            said = said_in(line)
            if said is not None:
                if turn is not None:
                    turn.outcome = turn.outcome or "interrupted"  # interrupted, so nothing in it can still run
                    yield turn
                turn_id = text(line.get("uuid"))
                first: Item = UserMessage(id=turn_id, text=said)
                at = timestamp(line.get("timestamp"))
                turn = _Turn(id=turn_id, last_line=turn_id, began_at=at, items={turn_id: first}, usage=Usage())
            elif turn is not None:
                _take_results(turn, line)
        elif kind == "assistant" and turn is not None:
            _take_message(turn, line, message)
        if turn is not None and kind in ("user", "assistant"):
            turn.last_at = timestamp(line.get("timestamp")) or turn.last_at
            turn.last_line = optional_text(line.get("uuid")) or turn.last_line
    if turn is not None:
        yield turn


def _take_results(turn: _Turn, line: Mapping[str, Any]) -> None:
    for item_id, block in results_in(line):
        if item_id in turn.items:
            turn.items[item_id] = ended(turn.items[item_id], block, line, None)
    content = sequence(mapping(line.get("message")).get("content"))
    if any(text(mapping(block).get("text")).startswith(_INTERRUPTED) for block in content):
        has_plan = any(isinstance(item, ProposedPlan) for item in turn.items.values())
        turn.outcome = "completed" if has_plan else "interrupted"  # with its plan a turn is stopped
    elif line.get("toolEndsTurn") is True:
        turn.outcome = "completed"


def _take_message(turn: _Turn, line: Mapping[str, Any], message: Mapping[str, Any]) -> None:
    message_id = text(message.get("id"))
    if line.get("isApiErrorMessage") is True:
        said = " ".join(text(mapping(block).get("text")) for block in sequence(message.get("content")))
        turn.outcome, turn.failure = "failed", failure(said, integer(line.get("apiErrorStatus")))
        return
    if message.get("model") == SYNTHETIC:
        return  # added by Claude Code when it continued an interrupted turn
    turn.model = optional_text(message.get("model")) or turn.model
    # Lines repeat the usage of their message, so the newest counts.
    turn.usages[message_id] = usage_of(message.get("usage")) or Usage()
    turn.usage = sum(turn.usages.values(), Usage())
    for block in sequence(message.get("content")):
        place = turn.blocks.get(message_id, 0)
        turn.blocks[message_id] = place + 1
        item = item_of_block(mapping(block), f"{message_id}.{place}", optional_text(line.get("cwd")))
        if item is not None:
            turn.items[item.id] = item
    stop = message.get("stop_reason")
    # These two reasons announce more messages of the same turn.
    turn.outcome = "completed" if stop not in (None, "tool_use", "pause_turn") else None


# --- open sessions ---------------------------------------------------------------------------------------------------
# A running Claude Code writes its session to `sessions/<pid>.json`. The file of a killed one stays, so a file counts
# only while its process runs. Claude Code lets two processes write to one session, which then diverges.


_PROGRAM: Final = "sdk-cli"
"""Begun by a program, as ours are; in a person's terminal it is `cli`."""
_ENDING_SECONDS: Final = 3.0
"""Seconds for which a process of Helmsman may still hold a session that it releases."""
_POLL: Final = 0.02


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Session held by a process. `by_a_person` marks one in a terminal or an editor."""

    session_id: str
    pid: int
    by_a_person: bool


def open_sessions(home: Path) -> Iterator[OpenSession]:
    """Yield the sessions of all processes of this machine.

    Processes in other sandboxes or containers cannot be checked.
    """
    for path in home.glob("sessions/*.json"):
        # Half-written, or just removed: then nothing is known of it.
        about = json_object_in(path) or {}
        pid = integer(about.get("pid")) or 0
        if _is_here(text(about.get("pidDomain"))) and _runs(pid, text(about.get("procStart"))):
            yield OpenSession(
                session_id=text(about.get("sessionId")),
                pid=pid,
                by_a_person=about.get("entrypoint") != _PROGRAM,
            )


def _is_here(domain: str) -> bool:
    """Return whether its pid is valid here: in another namespace it would name another process."""
    if ":pid:[" not in domain:
        return True
    try:
        return domain.endswith(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        return False


def _runs(pid: int, started: str) -> bool:
    found = running_process(pid)
    # It counts as Linux does, in ticks since the start of the system. Elsewhere the pid has to do.
    return found is not None and (not started.isdecimal() or found.started.endswith(f":{started}"))


async def refuse_if_open(home: Path, session_id: str) -> None:
    """Check that no process has the session.

    Raises:
        SessionLocked: A process has.
    """

    def found() -> OpenSession | None:
        return next((one for one in open_sessions(home) if one.session_id == session_id), None)

    # A process of Helmsman that ends holds its session a moment longer.
    until = anyio.current_time() + _ENDING_SECONDS
    while (other := await anyio.to_thread.run_sync(found)) is not None:
        if other.by_a_person or anyio.current_time() > until:
            raise SessionLocked(
                f"Session {session_id} is open in another Claude Code (process {other.pid}), and would go two ways. "
                "Close it there, or fork the session."
            )
        await anyio.sleep(_POLL)


# --- spending --------------------------------------------------------------------------------------------------------
# Several lines share one message of the model, and each repeats its usage: the last one counts. Messages of sub-agents
# are in `<session>/subagents/agent-….jsonl`. A process that ends writes the cost of the whole session (`cost-state`):
# the increase is the cost of the turns before it, if it covers all their tokens. A killed process writes nothing, and
# the next one does not know its cost.


_ANSWER_LINE, _COST_LINE = b'"type":"assistant"', b'{"type":"cost-state"'
_USER_LINE, _RESULT_LINE = b'"type":"user"', b'"tool_use_id":'
_SUBAGENTS: Final = "subagents"
_WEIGHTS: Final = (1.0, -0.9, 5.0, 0.0)
"""Relative price of tokens compared to input, good enough to divide a sum: a tenth from the cache, five times for
output.
"""


@dataclass(slots=True)
class _SpentTurn:
    id: str
    began_at: float
    process: int
    calls: dict[str, tuple[str | None, Usage]] = field(default_factory=dict[str, tuple[str | None, Usage]])


@dataclass(slots=True)
class _Told:
    """Report of a process at its end: cost and tokens of the session so far; no cost if unknown."""

    cost: float | None
    tokens: int


class _Reading:
    """Session while its lines are read. `processes` are those that have reported a cost."""

    def __init__(self) -> None:
        self.turns: list[_SpentTurn] = []
        self.directory: str | None = None
        self._processes: list[_Told] = []

    def take(self, line: Mapping[str, Any]) -> None:
        kind = line.get("type")
        if kind == "assistant":
            if self.turns:
                _count(self.turns[-1], line)
        elif kind == "cost-state":
            used = [mapping(one) for one in mapping(line.get("modelUsage")).values()]
            names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
            cost = None if line.get("hasUnknownModelCost") is True else amount(line.get("totalCostUSD"))
            self._processes.append(_Told(cost, sum(count(one.get(name)) for one in used for name in names)))
        # A user's message begins a turn; the process that runs it reports its cost later.
        elif line.get("isSidechain") is not True and said_in(line) is not None:
            self.directory = self.directory or optional_text(line.get("cwd"))
            self.turns.append(_SpentTurn(text(line.get("uuid")), _seconds(line), len(self._processes)))

    def take_of_subagent(self, line: Mapping[str, Any]) -> None:
        """Count it for the turn that ran then."""
        if line.get("type") == "assistant":
            at = _seconds(line)
            # Sub-agents do not name the turn. A message before the first turn counts for the first.
            _count(next((turn for turn in reversed(self.turns) if turn.began_at <= at), self.turns[0]), line)

    def spendings(self) -> Iterator[TurnSpending]:
        rates = self._rates()
        for turn in self.turns:
            by_model: dict[str | None, Usage] = {}
            for model, usage in turn.calls.values():
                by_model[model] = by_model.get(model, Usage()) + usage
            rate = rates.get(turn.process)
            for model, usage in by_model.items():
                cost = None if rate is None else rate * _weight(usage)
                yield TurnSpending(turn.id, turn.began_at, model, *usage.counts, cost)

    def _rates(self) -> dict[int, float]:
        """Return the cost of a weighted token in each process that reported."""
        rates: dict[int, float] = {}
        before = _Told(0.0, 0)
        for place, told in enumerate(self._processes):
            usages = [usage for turn in self.turns if turn.process == place for _, usage in turn.calls.values()]
            counted = sum(usage.input_tokens + usage.output_tokens for usage in usages)
            weight = sum(map(_weight, usages))
            # If the report covers fewer tokens than were counted, a process was killed: its cost is unknown.
            is_whole = told.tokens - before.tokens >= counted > 0
            if told.cost is not None and before.cost is not None and is_whole and weight:
                rates[place] = max(0.0, told.cost - before.cost) / weight
            before = told
        return rates


def _count(turn: _SpentTurn, line: Mapping[str, Any]) -> None:
    message = mapping(line.get("message"))
    usage = usage_of(message.get("usage"))
    if usage is not None and message.get("model") != SYNTHETIC and line.get("isApiErrorMessage") is not True:
        turn.calls[text(message.get("id"))] = optional_text(message.get("model")), usage


def _weight(usage: Usage) -> float:
    return sum(count * weight for count, weight in zip(usage.counts, _WEIGHTS, strict=True))


def _seconds(line: Mapping[str, Any]) -> float:
    at = timestamp(line.get("timestamp"))
    return 0.0 if at is None else at.timestamp()


def _spending_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the relevant lines. Tool results may be large, and are skipped unread."""
    return json_lines(path, _is_counted)


def _is_counted(line: bytes) -> bool:
    # Searched as they are: in large lines a pattern takes several times as long.
    return _ANSWER_LINE in line or line.startswith(_COST_LINE) or (_USER_LINE in line and _RESULT_LINE not in line)


def _entries(directory: Path) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return ()
