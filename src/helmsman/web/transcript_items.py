"""Items of a turn as users see them: a review once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.model.events import AgentMessage, Review, UserMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.model.events import Item


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
