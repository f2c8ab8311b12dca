"""Read turns from a rollout file, without starting Codex: outcomes, spending, history and reviews.

`read_turn` and `turns_of` read backwards, a block at a time: files grow to hundreds of megabytes, and recovery nearly always
asks for the last turn. How a turn is recorded depends on the version:

- since 0.145: `task_started` and `task_complete` or `turn_aborted`, with the turn's id; a failure has its `error`;
- 0.115 to 0.130: the same, but a failure looks like a completion without a last message;
- 0.93: no ids, no beginnings and no ends but `turn_aborted`; a turn begins with its `user_message`, and is complete if it
  ends in a message of the agent.

`read_history` reads forwards. Prompts and messages are `user_message` and `agent_message` up to 0.149, `item_completed`
since 0.152. Commands and patches are the model's calls, which every version records alike.

Up to 0.145 turns that were taken back stay in the file, and a later line says how many (`thread_rolled_back`). Since 0.155
the file of a fork, or of a session that was taken back, begins where it parted and continues its parent's token counts; it
names the parent's file (by the last id in its name) and the place (`history_base`). Damaged or unknown lines are skipped.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from helmsman.agents.codex.normalise import read_usage, spent_between, turn_failure
from helmsman.agents.codex.rollouts import (
    OWN_ID,
    RolloutIndex,
    id_in_name,
    line_object,
    lines_from_end,
    open_to_the_end,
    read_meta,
    read_rollout,
    readable,
)
from helmsman.agents.protocol import Finding, RecordedTurn, ReviewReport, review_text
from helmsman.agents.spending import SessionSpending, TurnSpending
from helmsman.base.json_values import (
    fraction,
    integer,
    json_object,
    mapping,
    optional_text,
    sequence,
    text,
    timestamp,
)
from helmsman.base.structs import replace
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    Failure,
    FileChange,
    PastTurn,
    PathChange,
    Usage,
    UserMessage,
)
from helmsman.model.options import DEFAULT_AGENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from helmsman.agents.protocol import SessionInfo
    from helmsman.model.events import ChangeKind, Item

# --- outcomes, from the end ------------------------------------------------------------------------------------------


_KIND: Final = re.compile(
    rb'\{"timestamp":"(?P<time>[^"]{1,40})",(?:"ordinal":[0-9]{1,20},)?'
    rb'"type":"(?P<type>\w{1,40})"(?:,"payload":\{"type":"(?P<payload>\w{1,40})")?'
)
"""Finds the kind of a line, in every version, without parsing what may be a megabyte of output."""

_OF_TURNS: Final = frozenset(
    {
        *(b"task_started", b"turn_started", b"task_complete", b"turn_complete", b"turn_aborted", b"thread_rolled_back"),
        *(b"agent_message", b"user_message", b"token_count"),
    }
)
_BEGINS: Final = frozenset({"task_started", "turn_started"})
_COMPLETES: Final = frozenset({"task_complete", "turn_complete"})
_ABORTS: Final = "turn_aborted"
_TAKEN_BACK: Final = "thread_rolled_back"
_ABSURD: Final = 10**15
"""Counts above this are corrupt, and would spoil every sum."""
_NO_REASON: Final = (
    "The turn ended without an answer, and Codex did not record why. Send the session a message to continue."
)


def read_turn(path: Path, turn_id: str | None, *, since: datetime | None = None) -> RecordedTurn | None:
    """Read a turn of the session in this file; None if it is not in the file, or unreadable.

    Args:
        path: The rollout file.
        turn_id: Id of the turn. If it is None, or the file has no turn ids (0.93), `since` decides.
        since: The first turn that began then or later; None means the last turn that the session still has.
    """
    found: RecordedTurn | None = None
    for turn in turns_of(path):
        if turn_id is not None and turn.turn_id is not None:
            if turn.turn_id == turn_id:
                return turn
            continue
        if since is None:
            if not turn.forgotten:
                return turn
        # Turns come last first, so the rest began even earlier.
        elif turn.began_at is None or turn.began_at < since:
            break
        else:
            found = turn
    return found


def turns_of(path: Path) -> Iterator[RecordedTurn]:
    """Yield the turns in a file lazily, last first. An unreadable file has none."""
    try:
        with open_to_the_end(path) as file:
            yield from _turns_in(file)
    except OSError:
        return


def _turns_in(file: BinaryIO) -> Iterator[RecordedTurn]:
    reader = _Reader()
    # From the end: files grow to hundreds of megabytes, and callers mostly want the last turn.
    for line in lines_from_end(file):
        reader.take(line)
        if reader.known:
            yield from reader.take_known()
    # The first turn of the file has no count before it.
    reader.end()
    yield from reader.take_known()


# --- from lines to turns ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stretch:
    """Turn while its lines are read, from its end to its beginning."""

    end: Mapping[str, Any] | None = None
    ended_at: datetime | None = None
    last_written_at: datetime | None = None
    spent: Usage | None = None
    """Usage of the session at the end of the turn."""
    message: str | None = None
    ends_in_message: bool | None = None
    model: str | None = None
    names_no_turn: bool = False


@dataclass(slots=True)
class _Reader:
    """Takes lines from the last to the first. A turn is given out once the spending before it is known too."""

    stretch: _Stretch = field(default_factory=_Stretch)
    known: list[RecordedTurn] = field(default_factory=list)
    waiting: list[tuple[RecordedTurn, Usage | None]] = field(default_factory=list)
    """Turns that only lack the session's usage before them, with the usage after them."""
    is_last: bool = True
    taken_back: int = 0
    """Number of turns still to come that were forgotten."""
    first_count: bytes | None = None
    """Earliest line so far that says how much was spent by then."""

    def take(self, line: bytes) -> None:
        found = _KIND.match(line)
        time, kind, payload = (b"", b"", None) if found is None else found.groups()
        # Most lines are recognised by their beginning and never parsed.
        if kind == b"response_item" and payload is not None:
            self._pass_over(time, is_work=payload != b"message")
        elif kind == b"event_msg" and payload == b"token_count":
            self._pass_over(time)
            self._take_count(line)
        # In versions that name their turns, prompts do not begin any.
        elif kind == b"event_msg" and payload == b"user_message" and not self.stretch.names_no_turn:
            self._pass_over(time)
        # The first line holds the instructions of the session, and says nothing of turns.
        elif kind != b"session_meta" and (payload is None or (kind == b"event_msg" and payload in _OF_TURNS)):
            self._take_entry(line)
        else:
            self._pass_over(time)

    def take_known(self) -> list[RecordedTurn]:
        """Return the turns of which all is known now, once, last first."""
        known, self.known = self.known, []
        return known

    def end(self) -> None:
        """The beginning of the file was reached."""
        self._know_spent_before(_spent_before(self.first_count))

    def _take_entry(self, line: bytes) -> None:
        entry = line_object(line)
        if entry is None:
            return
        kind, payload, time = entry.get("type"), mapping(entry.get("payload")), timestamp(entry.get("timestamp"))
        self.stretch.last_written_at = self.stretch.last_written_at or time
        if kind == "turn_context":
            self.stretch.model = self.stretch.model or readable(payload.get("model"))
            self.stretch.names_no_turn = "turn_id" not in payload
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._take_count(line)
        elif kind == "event_msg":
            self._take_event(payload, time)

    def _pass_over(self, time: bytes, *, is_work: bool = False) -> None:
        stretch = self.stretch
        # Lines come from the end, so the first time seen is the last one written.
        if stretch.last_written_at is None:
            stretch.last_written_at = timestamp(time.decode("ascii", "replace"))
        if is_work and stretch.ends_in_message is None:
            stretch.ends_in_message = False  # a tool call or its output, and no message after it

    def _take_count(self, line: bytes) -> None:
        """Codex writes a count after every response of the model. Only the last one of each turn is parsed."""
        if self.stretch.spent is None or self.waiting:
            spent = _count(_counts(line), "total_token_usage")
            if spent is None:
                return
            self._know_spent_before(spent)
            self.stretch.spent = self.stretch.spent or spent
        # Every line overwrites it: the last value is the file's first count.
        self.first_count = line

    def _take_event(self, payload: Mapping[str, Any], time: datetime | None) -> None:
        kind = payload.get("type")
        if kind == "agent_message":
            if self.stretch.ends_in_message is None:
                self.stretch.ends_in_message, self.stretch.message = True, readable(payload.get("message"))
        elif kind == _TAKEN_BACK:
            self.taken_back += max(0, integer(payload.get("num_turns")) or 0)
        elif kind == _ABORTS or kind in _COMPLETES:
            # An end begins the next turn to be read: everything before it belongs to this one.
            self.stretch = _Stretch(end=payload, ended_at=time, last_written_at=time)
        elif kind in _BEGINS:
            self._turn_begins(readable(payload.get("turn_id")), time)
        elif kind == "user_message" and self.stretch.names_no_turn:
            self._turn_begins(None, time)

    def _turn_begins(self, turn_id: str | None, time: datetime | None) -> None:
        stretch, self.stretch = self.stretch, _Stretch()
        end = stretch.end
        if end is not None and readable(end.get("turn_id")) not in (turn_id, None):
            end = None  # two processes wrote concurrently: this is the end of the other one's turn
        turn = replace(
            _outcome(stretch, end, is_last=self.is_last),
            turn_id=turn_id,
            model=stretch.model,
            began_at=time,
            ended_at=None if end is None else stretch.ended_at,
            last_written_at=stretch.last_written_at,
            forgotten=self.taken_back > 0,
        )
        self.is_last = False
        self.taken_back = max(0, self.taken_back - 1)
        if stretch.spent is None and not self.waiting:
            self.known.append(turn)
        else:
            self.waiting.append((turn, stretch.spent))

    def _know_spent_before(self, spent: Usage) -> None:
        for turn, after in self.waiting:
            usage = None if after is None else spent_between(spent, after)
            self.known.append(turn if usage is None else replace(turn, usage=usage, spent_before=spent))
        self.waiting.clear()


def _counts(line: bytes) -> Mapping[str, Any]:
    return mapping(mapping(mapping(line_object(line)).get("payload")).get("info"))


def _count(counts: Mapping[str, Any], name: str) -> Usage | None:
    usage = read_usage(counts.get(name))
    # Damaged counts would spoil every sum.
    return None if usage is None or max(usage.input_tokens, usage.output_tokens) >= _ABSURD else usage


def _spent_before(first_count: bytes | None) -> Usage:
    """Return the usage before the first count of a file: none, unless the file continues another one."""
    if first_count is None:
        return Usage()
    counts = _counts(first_count)
    total, last = _count(counts, "total_token_usage"), _count(counts, "last_token_usage")
    # The total minus the last response is the usage before the file's first count.
    return Usage() if total is None or last is None else spent_between(last, total)


def _outcome(stretch: _Stretch, end: Mapping[str, Any] | None, *, is_last: bool) -> RecordedTurn:
    if end is not None and end.get("type") == _ABORTS:
        return RecordedTurn(outcome="interrupted")
    if end is not None:
        return _completion(stretch, end)
    # Codex 0.93 records no end of a turn, only its messages.
    if stretch.names_no_turn and stretch.ends_in_message:
        return RecordedTurn(outcome="completed", message=stretch.message)
    if is_last:
        return RecordedTurn(outcome="open")
    if stretch.names_no_turn:
        return RecordedTurn(outcome="failed", error=Failure(code="other", message=_NO_REASON))
    return RecordedTurn(outcome="interrupted")  # another turn began: this one has not gone on


def _completion(stretch: _Stretch, end: Mapping[str, Any]) -> RecordedTurn:
    message, error = optional_text(end.get("last_agent_message")), end.get("error")
    if isinstance(error, dict):
        return RecordedTurn(outcome="failed", error=turn_failure(error))
    # Up to 0.130 a failed turn is recorded as one without a message.
    if message is None and "started_at" not in end and not stretch.ends_in_message:
        return RecordedTurn(outcome="failed", error=Failure(code="other", message=_NO_REASON))
    return RecordedTurn(outcome="completed", message=message)


# --- spending --------------------------------------------------------------------------------------------------------

# Up to 0.130 a turn begins with a count that repeats the last one, so only a difference of two counts is a spending. A fork
# continues the count of its parent. Up to 0.145 its file begins with a copy of the parent's lines: the turns keep their ids,
# by which a copy is known, but on 0.93 they have none, and all get the time of the copying.


def read_spending(file: BinaryIO) -> SessionSpending | None:
    """Return the spending of the session in this file; None if it is not a session."""
    head = read_meta(file)
    if head is None or head.session_id is None:
        return None
    return SessionSpending(
        agent=DEFAULT_AGENT,
        session_id=head.session_id,
        directory=head.directory,
        created_at=None if head.created_at is None else head.created_at.timestamp(),
        parent_id=head.parent_id,
        forked_from=head.forked_from,
        turns=tuple(_spendings(file)),
    )


def _spendings(file: BinaryIO) -> Iterator[TurnSpending]:
    """Yield the turns with spending, oldest first."""
    model: str | None = None
    # The reader goes backwards, and a turn without a model continues with that of the turn before.
    for turn in reversed(list(_turns_in(file))):
        model = turn.model or model
        # A copied or empty turn has no own usage.
        if turn.usage is not None and turn.usage != Usage():
            began = 0.0 if turn.began_at is None else turn.began_at.timestamp()
            yield TurnSpending(turn.turn_id, began, model, *turn.usage.counts)


# --- history, from the beginning -------------------------------------------------------------------------------------


_OF_USE: Final = re.compile(
    rb'"type":"(?:user_message|agent_message|item_completed|task_started|turn_started|task_complete|turn_complete'
    rb'|thread_rolled_back|function_call|function_call_output|custom_tool_call)"'
)
_KIND_BYTES: Final = 400
"""Length of a line's beginning that shows its kind; a megabyte of output may follow."""
_LONGEST_LINE: Final = 4 * 1024 * 1024
_MOST_FILES: Final = 20
"""Limit of files that are followed back through forks."""
_FILE: Final = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)
_KINDS: Final[dict[str, ChangeKind]] = {"Add": "add", "Update": "update", "Delete": "delete"}
_EXIT: Final = re.compile(r"(?:Process exited with code|Exit code:) (-?\d+)")
_TEXT_ITEMS: Final = {"UserMessage", "AgentMessage"}


def read_history(path: Path, codex_home: Path) -> tuple[PastTurn, ...]:
    """Return the turns in a file and in the files that it continues, in the same home, oldest first."""
    files: list[tuple[Path, int | None]] = [(path, None)]
    # A file of a fork, or after a revert, continues another one.
    while len(files) < _MOST_FILES and (base := _parted_from(files[0][0], codex_home)) is not None:
        files.insert(0, base)
    history = _History()
    for file, end in files:
        read_rollout(str(file), partial(history.read, end=end))
    return tuple(turn.past() for turn in history.turns)


def _parted_from(path: Path, codex_home: Path) -> tuple[Path, int] | None:
    """Return the file that this one continues, and how many of its bytes it shares."""
    head = read_rollout(str(path), read_meta)
    if head is None or head.base is None:
        return None
    names = tuple(f"{mark}{head.base}.jsonl" for mark in "-_")
    files = RolloutIndex(codex_home).rollouts()
    found = next((file for file, _, _ in files if file.removesuffix(".zst").endswith(names)), None)
    return None if found is None else (Path(found), head.base_end)


@dataclass(slots=True)
class _Turn:
    id: str
    status: str = "interrupted"
    items: list[Item] = field(default_factory=list)

    def past(self) -> PastTurn:
        return PastTurn(id=self.id, status=self.status, items=tuple(self.items))


class _History:
    """Takes lines from the first to the last."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._names_turns = False

    def read(self, file: BinaryIO, end: int | None) -> None:
        left = end
        while left is None or left > 0:
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            # A fork shares only the beginning of its parent's file.
            left = None if left is None else left - len(line)
            # Prefilter on the raw bytes: most lines are output that no history shows.
            if _OF_USE.search(line, 0, _KIND_BYTES) and (entry := line_object(line)) is not None:
                self._take(str(entry.get("type")), mapping(entry.get("payload")))

    def _take(self, kind: str, payload: Mapping[str, Any]) -> None:
        match kind, payload.get("type"):
            case "event_msg", "task_started" | "turn_started":
                named = readable(payload.get("turn_id"))
                named = named or readable(mapping(payload.get("turn_attribution")).get("turn_id"))
                self._names_turns = True
                # Some versions name the turn only in its attribution.
                self.turns.append(_Turn(named or str(len(self.turns) + 1)))
            case "event_msg", "user_message":
                self._asked(readable(payload.get("message")))
            case "event_msg", "agent_message":
                self._said(readable(payload.get("message")))
            case "event_msg", "item_completed":
                self._completed(mapping(payload.get("item")))
            case "event_msg", "task_complete" | "turn_complete" if self.turns:
                self.turns[-1].status = "failed" if isinstance(payload.get("error"), dict) else "completed"
            case "event_msg", "thread_rolled_back":
                taken_back = integer(payload.get("num_turns")) or 0
                # Up to 0.145 turns that were taken back stay in the file.
                del self.turns[max(0, len(self.turns) - taken_back) :]
            case "response_item", "function_call" | "custom_tool_call":
                self._called(payload)
            case "response_item", "function_call_output":
                self._add_output(str(payload.get("call_id")), payload.get("output"))

    def _did(self, item: Item) -> None:
        if self.turns:
            self.turns[-1].items.append(item)

    def _asked(self, text: str | None) -> None:
        if text is None:
            return
        if not self._names_turns:  # 0.93: a turn begins with its message, and is over when the agent has said something
            self.turns.append(_Turn(str(len(self.turns) + 1)))
        self._did(UserMessage(id=f"u{len(self.turns)}", text=text))

    def _said(self, text: str | None) -> None:
        if text is not None and self.turns:
            self._did(AgentMessage(id=f"m{len(self.turns[-1].items)}", text=text))
            if not self._names_turns:
                self.turns[-1].status = "completed"

    def _completed(self, item: Mapping[str, Any]) -> None:
        if item.get("type") not in _TEXT_ITEMS:
            return
        parts = (readable(mapping(part).get("text")) for part in sequence(item.get("content")))
        text = "\n".join(filter(None, parts)) or None
        (self._asked if item["type"] == "UserMessage" else self._said)(text)

    def _called(self, call: Mapping[str, Any]) -> None:
        call_id = str(call.get("call_id"))
        if call.get("name") == "apply_patch":
            self._did(FileChange(id=call_id, changes=_patched(call)))
            return
        command = _command(call.get("arguments"))
        if command is not None:
            self._did(CommandExecution(id=call_id, command=command))

    def _add_output(self, call_id: str, output: object) -> None:
        items = self.turns[-1].items if self.turns else []
        found = _EXIT.search(output if isinstance(output, str) else json.dumps(output))
        for place, item in enumerate(items):
            if isinstance(item, CommandExecution) and item.id == call_id and found is not None:
                items[place] = CommandExecution(id=call_id, command=item.command, exit_code=int(found[1]))


def _patched(call: Mapping[str, Any]) -> tuple[PathChange, ...]:
    patch = readable(call.get("input")) or readable(call.get("arguments")) or ""
    return tuple(PathChange(path=path.strip(), kind=_KINDS[kind]) for kind, path in _FILE.findall(patch))


def _command(arguments: object) -> str | None:
    """Return the command of a shell call; None for other tools."""
    given = json_object(optional_text(arguments)) or {}
    command = given.get("cmd", given.get("command"))
    if isinstance(command, list):
        words = [word for word in command if isinstance(word, str)]
        # A shell call: only its script is of interest.
        return words[-1] if len(words) == 3 and words[1] in ("-c", "-lc") else " ".join(words) or None
    return readable(command)


# --- all sessions ----------------------------------------------------------------------------------------------------


class CodexSessions(RolloutIndex):
    """See `helmsman.agents.protocol.SessionIndex` and `helmsman.agents.spending.SpendingFiles`."""

    def turn(self, session_id: str, turn_id: str | None, *, since: datetime | None = None) -> RecordedTurn | None:
        path = self._path(session_id)
        return None if path is None else read_turn(path, turn_id, since=since)

    def last_turn(self, info: SessionInfo) -> RecordedTurn | None:
        return None if info.path is None else read_turn(info.path, None)

    def turns(self, session_id: str) -> Iterable[RecordedTurn]:
        path = self._path(session_id)
        return () if path is None else turns_of(path)

    def history(self, info: SessionInfo) -> tuple[PastTurn, ...] | None:
        return None if info.path is None else read_history(info.path, self.home)

    def _path(self, session_id: str) -> Path | None:
        info = self.find(session_id)
        return None if info is None else info.path

    def files(self) -> Iterable[tuple[str, int, int]]:
        return self.rollouts()

    def read(self, key: str) -> SessionSpending | None:
        try:
            with open_to_the_end(key) as file:
                return read_spending(file)
        except OSError:
            return None

    def names(self, turn_id: str) -> bool:
        return OWN_ID.fullmatch(turn_id) is not None  # those of before 0.115 are not, nor are those of `codex exec`

    def session_of(self, key: str) -> str | None:
        return id_in_name(key)


# --- Codex's own review ----------------------------------------------------------------------------------------------

# The reviewer answers in JSON. Codex records that in the session's file (`exited_review_mode`; in paginated files as an
# item, `ExitedReviewMode`). What it shows is a text made of it, without confidence, and without a priority that is not in
# the title. So the file is read first, and the text where the file has no answer. Nothing in either raises.

_RECORDED: Final = re.compile(rb'"(?:exited_review_mode|ExitedReviewMode)"')
_PRIORITY: Final = re.compile(r"^\s*\[P([0-9])\]\s*")
_HEADING: Final = re.compile(r"^(?:full )?review comments?:\s*$", re.IGNORECASE | re.MULTILINE)
_COMMENT: Final = re.compile(
    r"^- (?:\[[ xX]\] )?(?P<title>.+) (?:—|–|--) (?P<file>.+?):(?P<start>[0-9]{1,9})(?:-(?P<end>[0-9]{1,9}))?\s*$"
)


def read_review(path: Path) -> ReviewReport | None:
    """Return the findings of the newest review in a rollout file; None if there is none, it did not end, or it is
    unreadable.
    """
    try:
        with open_to_the_end(path) as file:
            for line in lines_from_end(file):
                # From the end, as the newest review counts.
                if _RECORDED.search(line) and (output := _recorded(line_object(line))) is not None:
                    return from_record(output)
    except OSError:
        return None
    return None


def _recorded(entry: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the reviewer's answer in a line that records the end of a review; None for other lines."""
    payload = mapping(mapping(entry).get("payload"))
    ended = mapping(payload.get("item")) if payload.get("type") == "item_completed" else payload
    if ended.get("type") not in ("exited_review_mode", "ExitedReviewMode"):
        return None
    return mapping(ended.get("review_output"))


def from_record(output: Mapping[str, Any]) -> ReviewReport | None:
    """Parse the reviewer's answer as Codex records it, or None."""
    if not output:
        return None
    if not output.get("findings"):  # Codex is strict: an answer with a field missing it takes for prose
        output = _answer_in(text(output.get("overall_explanation"))) or output
    findings = tuple(_finding(mapping(raw)) for raw in sequence(output.get("findings")))
    explanation = text(output.get("overall_explanation")).strip()
    return ReviewReport(
        findings=findings,
        explanation=explanation,
        verdict=text(output.get("overall_correctness")).strip() or None,
        confidence=fraction(output.get("overall_confidence_score")),
        text=review_text(explanation, findings),
    )


def from_text(shown: str) -> ReviewReport:
    """Parse Codex's text of a review: an explanation, a heading, and the comments as a list."""
    report = from_record(_answer_in(shown) or {})
    if report is not None:
        return report
    heading = _HEADING.search(shown)
    if heading is None:
        return ReviewReport(text=shown, explanation=shown.strip())
    findings: list[Finding] = []
    body: list[str] = []
    # The sentinel closes the last finding.
    for line in [*shown[heading.end() :].splitlines(), "- "]:
        found = _COMMENT.match(line)
        if (found or line == "- ") and findings:
            shown_body = "\n".join(line.removeprefix("  ") for line in body).strip()
            findings[-1] = replace(findings[-1], body=shown_body)
        if found:
            findings.append(_shown_finding(found))
            body = []
        else:
            body.append(line)
    return ReviewReport(text=shown, findings=tuple(findings), explanation=shown[: heading.start()].strip())


def _answer_in(said: str) -> Mapping[str, Any] | None:
    """Parse a text that consists of the reviewer's answer; None otherwise."""
    # The answer may be wrapped in prose or a code fence.
    begin, end = said.find("{"), said.rfind("}")
    found = json_object(said[begin : end + 1].encode("utf-8", "replace")) if 0 <= begin < end else None
    return found if found is not None and sequence(found.get("findings")) else None


def is_of(report: ReviewReport, shown: str) -> bool:
    """Return whether Codex's text was made from this report."""
    # A file may hold the review of an earlier turn.
    return report.explanation in shown and all(finding.title in shown for finding in report.findings)


def _finding(raw: Mapping[str, Any]) -> Finding:
    place = mapping(raw.get("code_location"))
    lines = mapping(place.get("line_range"))
    title, tagged = _title(text(raw.get("title")))
    priority = integer(raw.get("priority"))
    return Finding(
        title=title,
        body=text(raw.get("body")).strip(),
        priority=priority if priority is not None else tagged,
        confidence=fraction(raw.get("confidence_score")),
        file=text(place.get("absolute_file_path")) or None,
        start_line=integer(lines.get("start")),
        end_line=integer(lines.get("end")),
    )


def _shown_finding(found: re.Match[str]) -> Finding:
    title, priority = _title(found["title"])
    start = int(found["start"])
    return Finding(
        title=title, priority=priority, file=found["file"], start_line=start, end_line=int(found["end"] or start)
    )


def _title(title: str) -> tuple[str, int | None]:
    """Split a title into the text and the priority before it."""
    tag = _PRIORITY.match(title)
    return (title[tag.end() :].strip(), int(tag[1])) if tag else (title.strip(), None)
