"""Everything that was done in a session, as one numbered list.

Past turns come from Codex's own storage, the running one from the session. Older Codex versions store messages only, so
the turns that ended here are remembered as they were, as far as there is room.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from helmsman.base.structs import replace
from helmsman.errors import EngineRefused, Unsupported
from helmsman.model.events import Decision, EngineGone, ErrorItem, Event, Item, TurnEnded, UserMessage
from helmsman.shapes.rendering import json_line
from helmsman.web.transcript_items import SaidInto, is_for_review, review_once, with_said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from helmsman.agents.protocol import PastTurn
    from helmsman.service import Helmsman
    from helmsman.sessions.session import Session
    from helmsman.sessions.state import StateView

log = logging.getLogger(__name__)

TurnStatus = Literal["active", "done", "error", "interrupted"]

_HISTORIES_KEPT: Final = 16
_SAID_KEPT: Final = 1000
"""Turns of which it is known where messages into them were said."""
_REMEMBERED_CHARS: Final = 32 * 1024 * 1024
_STATUS: Final[dict[str, TurnStatus]] = {"completed": "done", "failed": "error", "inProgress": "active"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn and what was done in it; its first item has the number `first` in the session's list."""

    id: str | None
    status: TurnStatus
    items: Sequence[Item]
    first: int = 0

    @property
    def prompt(self) -> str | None:
        return next((item.text for item in self.items if isinstance(item, UserMessage)), None)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The turns of a session, oldest first."""

    turns: tuple[Turn, ...]

    @property
    def total(self) -> int:
        return self.turns[-1].first + len(self.turns[-1].items) if self.turns else 0

    def entries(self, first: int, end: int) -> Iterator[tuple[int, int, Turn, Item]]:
        """The items from `first` to before `end`: each with its number, that of its turn (from 1) and the turn."""
        for number, turn in enumerate(self.turns, 1):
            if turn.first >= end:
                return
            begin = max(first - turn.first, 0)
            for offset, item in enumerate(turn.items[begin : end - turn.first], begin):
                yield turn.first + offset, number, turn, item


class Transcripts:
    """The transcripts of all sessions of a Helmsman."""

    def __init__(self, helm: Helmsman) -> None:
        self._helm = helm
        self._histories: OrderedDict[str, tuple[Any, tuple[Turn, ...]]] = OrderedDict()
        self._remembered: OrderedDict[tuple[str, str], tuple[Turn, int]] = OrderedDict()
        self._said: OrderedDict[tuple[str, str | None], list[SaidInto]] = OrderedDict()
        self._chars = 0
        self._reading: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        helm.listen(self._on_event)

    async def of(self, session: Session) -> Transcript:
        """The transcript of a session as it is now.

        Raises:
            HelmsmanError: Codex cannot be asked.
        """
        history: Sequence[Turn] | None = await self._history(session)
        state = session.state
        if history is not None and state.is_running:
            # Codex's storage may have the running turn too; the session has what is being written as well.
            history = [turn for turn in history if not _is_running(turn, state)]
            if session.engine is None and history and _is_begun(history[-1], state):
                # Another process runs it: Codex's storage alone has what was done, and takes it for broken off.
                return Transcript(tuple(_numbered([*history[:-1], replace(history[-1], status="active")])))
        past = self._remembered_of(session.id) if history is None else self._as_they_were(session.id, history)
        if state.is_running:
            past.append(Turn(state.turn_id, "active", self._items_of(session)))
        elif not past and history is None and session.items:
            past = [Turn(state.turn_id, _ended(session), state.items_and_decisions)]
        return Transcript(tuple(_numbered(await self._with_errors(session, past))))

    async def _with_errors(self, session: Session, turns: list[Turn]) -> list[Turn]:
        """The turns, those that failed with why: agents write down that they did, and seldom more."""
        if all(turn.status != "error" for turn in turns):
            return turns
        tasks = (await self._helm.tasks.of_sessions([session.id]))[session.id]
        known = {task.turn_id: str(task.error.get("message", "")) for task in tasks if task.error is not None}
        if session.error is not None:
            known[session.state.turn_id] = session.error.message
        return [_with_error(turn, known.get(turn.id)) for turn in turns]

    @asynccontextmanager
    async def saying(self, session: Session, text: str) -> AsyncIterator[None]:
        """Somebody says something to a session; where that goes into the turn that runs, it stands here from now on."""
        turn = session.id, session.state.turn_id
        said = SaidInto(text, len(self._items_of(session))) if session.state.is_running else None
        if said is not None:
            self._said.setdefault(turn, []).append(said)
        arrived = False
        try:
            yield
            arrived = turn == (session.id, session.state.turn_id)  # else it has become the next turn
        finally:
            if said is not None and not arrived:
                self._said[turn].remove(said)
            while len(self._said) > _SAID_KEPT:
                self._said.popitem(last=False)

    def _items_of(self, session: Session) -> list[Item]:
        """What was done in the current, or last, turn of a session."""
        state = session.state
        items = review_once(_with_prompt(state.items_and_decisions, state.prompt))
        return with_said(items, self._said.get((session.id, state.turn_id), ()), has_ended=not state.is_running)

    # --- Codex's storage ---------------------------------------------------------------------------------------------

    async def _history(self, session: Session) -> tuple[Turn, ...] | None:
        """The turns that Codex has; None where it has none or does not tell."""
        async with self._reading[session.id]:
            version = await self._version(session)
            known = self._histories.get(session.id)
            if known is None or known[0] != version:
                turns = await self._read(session)
                if turns is None:
                    return None
                known = self._histories[session.id] = version, turns
            self._histories.move_to_end(session.id)
        while len(self._histories) > _HISTORIES_KEPT:
            forgotten, _ = self._histories.popitem(last=False)
            self._reading.pop(forgotten, None)
        return known[1]

    async def _version(self, session: Session) -> Any:
        """Something that changes when past turns may have changed: during a turn they do not."""
        if session.state.is_running:
            return session.turn_count
        info = await self._helm.truth.find(session.id)
        return None if info is None else info.updated_at

    async def _read(self, session: Session) -> tuple[Turn, ...] | None:
        try:
            return tuple(_without_instructions(list(map(_past_turn, await self._helm.history(session.id)))))
        except (Unsupported, EngineRefused) as error:  # the exec engine, or a session that has only just begun
            log.debug("session %s has no history: %s", session.id, error)
            return None

    # --- turns that ended here ---------------------------------------------------------------------------------------

    def _remembered_of(self, session_id: str) -> list[Turn]:
        return [turn for (whose, _), (turn, _) in self._remembered.items() if whose == session_id]

    def _as_they_were(self, session_id: str, history: Sequence[Turn]) -> list[Turn]:
        """The turns of Codex's storage, those that ended here as they were."""
        remembered = self._remembered_of(session_id)
        by_id = {turn.id: turn for turn in remembered}
        turns = [_fuller(turn, by_id.get(turn.id)) for turn in history]
        if not by_id.keys() & {turn.id for turn in turns}:
            # Codex 0.93 numbers turns anew in its storage: only their place and their prompt say which is which.
            for place, turn in enumerate(reversed(remembered), 1):
                if place > len(turns) or turns[-place].prompt != turn.prompt:
                    break
                turns[-place] = _fuller(turns[-place], turn)
        return turns

    def _on_event(self, session: Session, event: Event) -> None:
        if not isinstance(event, TurnEnded | EngineGone) or event.agent_id is not None or session.state.has_turn:
            return
        turn_id = session.state.turn_id
        if session.engine is None or turn_id is None:
            return  # only told of, by somebody who was not there
        turn = Turn(turn_id, _ended(session), tuple(self._items_of(session)))
        self._forget(session.id, turn_id)
        size = sum(_size(item) for item in turn.items)
        self._remembered[session.id, turn_id] = turn, size
        self._chars += size
        while self._chars > _REMEMBERED_CHARS:
            self._forget(*next(iter(self._remembered)))

    def _forget(self, session_id: str, turn_id: str) -> None:
        _, size = self._remembered.pop((session_id, turn_id), (None, 0))
        self._chars -= size


def _with_error(turn: Turn, message: str | None) -> Turn:
    if turn.status != "error" or not message or any(isinstance(item, ErrorItem) for item in turn.items):
        return turn
    return replace(turn, items=(*turn.items, ErrorItem(id="failure", status="failed", message=message)))


def _past_turn(turn: PastTurn) -> Turn:
    status = _STATUS.get(turn.status, "interrupted")
    return Turn(turn.id, status, review_once(turn.items))


def _without_instructions(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns, except those in which Codex only told itself how to review."""
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        if following is None or not is_for_review(turn.items, turn.id, following.items, following.id):
            yield turn


def _is_running(turn: Turn, state: StateView) -> bool:
    if turn.status == "active" or turn.id == state.turn_id:
        return True
    numbered = state.turn_id is not None and state.turn_id.isdigit()  # by 0.93, and differently in its storage
    return numbered and turn.prompt == state.prompt


def _is_begun(last: Turn, state: StateView) -> bool:
    """Whether the last turn in storage is the running one, of which nobody told us more than its prompt."""
    return state.turn_id is None and last.status == "interrupted" and last.prompt == state.prompt


def _fuller(turn: Turn, remembered: Turn | None) -> Turn:
    return remembered if remembered is not None and _done(remembered) >= _done(turn) else turn


def _done(turn: Turn) -> int:
    """How many things Codex did in it."""
    return sum(not isinstance(item, Decision) for item in turn.items)


def _ended(session: Session) -> TurnStatus:
    match session.state.between_turns or session.status:
        case "active" | "awaiting_approval":
            return "active"
        case status:
            return status


def _with_prompt(items: list[Item], prompt: str | None) -> list[Item]:
    """The items with the prompt first: `codex exec` does not repeat it, and the app-server does so after a moment."""
    if prompt is None or (items and isinstance(items[0], UserMessage)):
        return items
    return [UserMessage(id="prompt", text=prompt), *items]


def _numbered(turns: list[Turn]) -> Iterator[Turn]:
    first = 0
    for turn in turns:
        yield Turn(turn.id, turn.status, turn.items, first)
        first += len(turn.items)


def _size(item: Item) -> int:
    return len(json_line({"item": item}))
