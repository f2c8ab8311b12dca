"""What Claude Code's sessions have spent, by its own files: each model call once, sub-agents' too.

Several lines share one message of the model, and each repeats what it used: the last one counts. What sub-agents say is
beside the session's file, in `<session>/subagents/agent-….jsonl`. When a process ends it writes what the whole session has
cost by then (`cost-state`): what is new in it is the cost of the turns before it, as long as it knows of all their tokens;
a process that was killed has left nothing, and the next one does not know of what it spent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.claude.binary import CLAUDE, PROJECTS
from helmsman.agents.claude.normalise import SYNTHETIC, usage_of
from helmsman.agents.claude.storage import is_id, said_in
from helmsman.agents.spending import SessionSpending, TurnSpending
from helmsman.base.files import size_and_time
from helmsman.base.json_values import amount, count, json_object, mapping, optional_text, text, timestamp
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_ANSWER, _COST, _SAID, _RESULT = b'"type":"assistant"', b'{"type":"cost-state"', b'"type":"user"', b'"tool_use_id":'
_SUBAGENTS: Final = "subagents"
_WEIGHTS: Final = (1.0, -0.9, 5.0, 0.0)
"""What tokens cost beside one of input, near enough to share a sum out: from the cache a tenth, of output five times."""


class ClaudeSpending:
    """See `helmsman.agents.spending.SpendingFiles`."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def files(self) -> Iterator[tuple[str, int, int]]:
        for project in _entries(self.home / PROJECTS):
            if not project.is_dir():
                continue
            beside: dict[str, tuple[int, int]] = {}
            found: list[os.DirEntry[str]] = []
            for entry in _entries(Path(project.path)):
                if entry.name.endswith(".jsonl") and is_id(entry.name[:-6]):
                    found.append(entry)
                elif is_id(entry.name):
                    stamps = [size_and_time(one) for one in _entries(Path(entry.path, _SUBAGENTS))]
                    beside[entry.name] = sum(size for size, _ in stamps), max((at for _, at in stamps), default=0)
            for entry in found:
                (size, changed), (more, later) = size_and_time(entry), beside.get(entry.name[:-6], (0, 0))
                yield entry.path, size + more, max(changed, later)

    def names(self, _turn_id: str) -> bool:
        return False

    def read(self, key: str) -> SessionSpending | None:
        path = Path(key)
        reading = _Reading()
        for line in _lines(path):
            reading.take(line)
        if not reading.turns:
            return None
        for entry in _entries(path.with_suffix("") / _SUBAGENTS):
            for line in _lines(Path(entry.path)):
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


@dataclass(slots=True)
class _Turn:
    id: str
    began_at: float
    process: int
    calls: dict[str, tuple[str | None, Usage]] = field(default_factory=dict[str, tuple[str | None, Usage]])


@dataclass(slots=True)
class _Told:
    """What a process has told when it ended: cost and tokens of the session by then; no cost where it does not know one."""

    cost: float | None
    tokens: int


class _Reading:
    """A session while its lines are read. `processes` are those that have told what they cost."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
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
        elif line.get("isSidechain") is not True and said_in(line) is not None:
            self.directory = self.directory or optional_text(line.get("cwd"))
            self.turns.append(_Turn(text(line.get("uuid")), _seconds(line), len(self._processes)))

    def take_of_subagent(self, line: Mapping[str, Any]) -> None:
        """It counts for the turn that ran then."""
        if line.get("type") == "assistant":
            at = _seconds(line)
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
        """What a token has cost in each process that told, by its weight."""
        rates: dict[int, float] = {}
        before = _Told(0.0, 0)
        for place, told in enumerate(self._processes):
            usages = [usage for turn in self.turns if turn.process == place for _, usage in turn.calls.values()]
            counted = sum(usage.input_tokens + usage.output_tokens for usage in usages)
            weight = sum(map(_weight, usages))
            is_whole = told.tokens - before.tokens >= counted > 0
            if told.cost is not None and before.cost is not None and is_whole and weight:
                rates[place] = max(0.0, told.cost - before.cost) / weight
            before = told
        return rates


def _count(turn: _Turn, line: Mapping[str, Any]) -> None:
    message = mapping(line.get("message"))
    usage = usage_of(message.get("usage"))
    if usage is not None and message.get("model") != SYNTHETIC and line.get("isApiErrorMessage") is not True:
        turn.calls[text(message.get("id"))] = optional_text(message.get("model")), usage


def _weight(usage: Usage) -> float:
    return sum(count * weight for count, weight in zip(usage.counts, _WEIGHTS, strict=True))


def _seconds(line: Mapping[str, Any]) -> float:
    at = timestamp(line.get("timestamp"))
    return 0.0 if at is None else at.timestamp()


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """The lines that matter here. What tools gave may be large, and is passed over unread."""
    try:
        with path.open("rb") as file:
            for line in file:
                # Looked for as they are: in large lines a pattern takes several times as long.
                if _ANSWER not in line and not line.startswith(_COST) and (_SAID not in line or _RESULT in line):
                    continue
                if (message := json_object(line)) is not None:  # half a line is just being written
                    yield message
    except OSError:
        return


def _entries(directory: Path) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return ()
