"""The items of a turn as they are told to people: a review once, and what was said to the agent where it was said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from helmsman.model.events import AgentMessage, Review, UserMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from helmsman.model.events import Item


@dataclass(frozen=True, slots=True)
class SaidInto:
    """A message into the turn that runs, and how many items there were when it was said."""

    text: str
    place: int


def with_said(items: Sequence[Item], said: Iterable[SaidInto], *, has_ended: bool) -> list[Item]:
    """The items with these messages where they were said. An agent reads them later, and tells of them only then."""
    shown = list(items)
    for number, one in enumerate(said, 1):
        read = next(
            (item for item in shown[one.place :] if isinstance(item, UserMessage) and item.text == one.text), None
        )
        if read is not None:
            shown.remove(read)
        waits = UserMessage(id=f"said-{number}", text=one.text, status="failed" if has_ended else "in_progress")
        shown.insert(one.place, read or waits)
    return shown


def review_once(items: Sequence[Item]) -> list[Item]:
    """The items without what Codex repeats of a review: its instructions to itself, and its findings as a message."""
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
    """Whether a turn has nothing but what Codex told itself for the review in the turn that follows in its storage.

    That turn began earlier, as the ids of both say, which begin with the time.
    """
    return (
        len(items) == 1
        and isinstance(items[0], UserMessage)
        and any(isinstance(item, Review) for item in following[:2])
        and len(turn_id or "") == len(its_id or "")
        and (turn_id or "") > (its_id or "")
    )
