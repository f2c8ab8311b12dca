"""Everything that was done in a session, as one numbered list: past turns from its log, the running one from the session."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from helmsman.base.structs import replace
from helmsman.errors import EngineRefused, Unsupported
from helmsman.model.events import AgentMessage, Item, Review, UserMessage
from helmsman.sessions.history import items_with_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helmsman.model.events import Item, PastTurn
    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session
    from helmsman.sessions.state import StateView


# --- Items of a turn as users see them: a review once -----------------------------------------------------------------


def review_once(items: Sequence[Item]) -> list[Item]:
    """Return the items without Codex's repetitions in a review: its instructions to itself, and its findings as a
    message.
    """
    shown: list[Item] = []
    review: Review | None = None
    for item in items:
        if isinstance(item, Review):
            review = item
        elif review is not None and _is_repeated(item, review):
            continue
        shown.append(item)
    return shown


def _is_repeated(item: Item, review: Review) -> bool:
    match item:
        case UserMessage():
            return not review.finished
        case AgentMessage():
            return review.text.startswith(item.text) if review.finished else not item.text
        case _:
            return False


def is_for_review(items: Sequence[Item], turn_id: str | None, following: Sequence[Item], its_id: str | None) -> bool:
    """Return whether a turn contains only Codex's instructions for the review in the next stored turn.

    It began earlier, according to the ids, which begin with the time.
    """
    return (
        len(items) == 1
        and isinstance(items[0], UserMessage)
        and any(isinstance(item, Review) for item in following[:2])
        and len(turn_id or "") == len(its_id or "")
        and (turn_id or "") > (its_id or "")
    )


log = logging.getLogger(__name__)

TurnStatus = Literal["active", "done", "error", "interrupted"]

_STATUS: Final[dict[str, TurnStatus]] = {"completed": "done", "failed": "error", "inProgress": "active"}


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn with its items. Its first item has the number `first` in the session's list."""

    id: str | None
    status: TurnStatus
    items: Sequence[Item]
    first: int = 0

    @property
    def prompt(self) -> str | None:
        return next((item.text for item in self.items if isinstance(item, UserMessage)), None)


@dataclass(frozen=True, slots=True)
class Transcript:
    """Turns of a session, oldest first."""

    turns: tuple[Turn, ...]

    @property
    def total(self) -> int:
        return self.turns[-1].first + len(self.turns[-1].items) if self.turns else 0

    def entries(self, first: int, end: int) -> Iterator[tuple[int, int, Turn, Item]]:
        """Yield the items from `first` to before `end`, each with its number, its turn's number (from 1) and the turn."""
        for number, turn in enumerate(self.turns, 1):
            if turn.first >= end:
                return
            begin = max(first - turn.first, 0)
            for offset, item in enumerate(turn.items[begin : end - turn.first], begin):
                yield turn.first + offset, number, turn, item


class Transcripts:
    """Transcripts of all sessions of a Helmsman."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm

    async def of(self, session: Session) -> Transcript:
        """Return the current transcript of a session.

        Raises:
            HelmsmanError: Its agent cannot be asked.
        """
        state = session.state
        try:
            history = await self._helm.history(session.id)
        except (Unsupported, EngineRefused) as error:  # a session that has just begun, or was never recorded
            log.debug("session %s has no history: %s", session.id, error)
            history = ()
        past = list(_without_instructions([_past_turn(turn) for turn in history]))
        if state.is_running and session.elsewhere is None:  # the session also has text that is being written
            past = [turn for turn in past if not _is_running(turn, state)]
            past.append(Turn(state.turn_id, "active", review_once(items_with_prompt(state))))
        elif state.is_running and past:  # the log of another process may be a moment behind
            past[-1] = replace(past[-1], status="active")
        elif not past and session.items:
            past = [Turn(state.turn_id, _ended(session), state.items_and_decisions)]
        return Transcript(tuple(_numbered(past)))


def _past_turn(turn: PastTurn) -> Turn:
    return Turn(turn.id, _STATUS.get(turn.status, "interrupted"), review_once(turn.items))


def _without_instructions(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield the turns, except those in which Codex only instructed itself for a review."""
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        if following is None or not is_for_review(turn.items, turn.id, following.items, following.id):
            yield turn


def _is_running(turn: Turn, state: StateView) -> bool:
    if turn.status == "active" or turn.id == state.turn_id:
        return True
    numbered = state.turn_id is not None and state.turn_id.isdigit()  # by 0.93, and differently in its storage
    return numbered and turn.prompt == state.prompt


def _ended(session: Session) -> TurnStatus:
    match session.state.between_turns or session.status:
        case "active" | "awaiting_approval":
            return "active"
        case status:
            return status


def _numbered(turns: list[Turn]) -> Iterator[Turn]:
    first = 0
    for turn in turns:
        yield Turn(turn.id, turn.status, turn.items, first)
        first += len(turn.items)
