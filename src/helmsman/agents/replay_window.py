"""Which output of a supervised agent the next owner has to read again.

That is all output since the oldest running turn began, without the questions that were answered. The log of a session has
most of the events already, and says up to which line; those are skipped. The rest of what the next owner needs to follow the
turn (its items in progress, its open questions) comes from the same lines as it did for the owner before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from helmsman.base.jsonrpc import RequestId

REPLAYED_BYTES: Final = 128 * 1024 * 1024
"""A turn with more output than this is not read again, except for its open questions."""


class ReplayWindow:
    """The running turns of a process, by a key, and its open questions, by the ids of their requests."""

    def __init__(self, offset: int) -> None:
        self._end = offset
        self._turns: dict[str, int] = {}
        self._questions: dict[RequestId, tuple[str, list[int]]] = {}
        self._dropped: list[int] = []

    def read(self, end: int) -> None:
        """Note how far the output was read."""
        self._end = end

    def begin_turn(self, key: str, offset: int | None = None) -> None:
        """A turn begins with the line at an offset, or with the next line."""
        self._turns[key] = self._end if offset is None else offset

    def has_turn(self, key: str) -> bool:
        return key in self._turns

    def end_turn(self, key: str) -> None:
        """A turn has ended, and all of it was delivered."""
        self._turns.pop(key, None)
        for request_id in [one for one, (turn, _) in self._questions.items() if turn == key]:
            self.withdraw(request_id)

    def ask(self, request_id: RequestId, offset: int, key: str) -> None:
        """A question was asked in a turn, or asked again."""
        self._questions.setdefault(request_id, (key, []))[1].append(offset)

    def answer(self, request_id: RequestId) -> list[int]:
        """Return the lines of a question that is about to be answered."""
        return self._questions.pop(request_id, ("", []))[1]

    def withdraw(self, request_id: RequestId) -> None:
        """The agent does not wait for an answer any more."""
        self._dropped += self.answer(request_id)

    def take_dropped(self) -> list[int]:
        """Return the lines that the next owner must not read, once."""
        dropped, self._dropped = self._dropped, []
        return dropped

    @property
    def start(self) -> int:
        """The offset from which the next owner has to read."""
        turns = (offset for offset in self._turns.values() if self._end - offset <= REPLAYED_BYTES)
        questions = (lines[0] for _, lines in self._questions.values())
        return min((*turns, *questions), default=self._end)
