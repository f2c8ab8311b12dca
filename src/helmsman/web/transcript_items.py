"""Items of a turn as users see them: a review once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.model.events import AgentMessage, Review, UserMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.model.events import Item


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
