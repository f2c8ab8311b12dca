"""Request for a turn, with all that is needed to run it. It is stored with its task until the turn is sent."""

from __future__ import annotations

from typing import Any, Final, cast

from helmsman.base.files import DirectoryIdentity
from helmsman.base.structs import Value, pack, replace, unpack_if_valid
from helmsman.model.options import (
    Placement,
    SessionOptions,
    StartOptions,
    TurnInput,
    TurnLimits,
    TurnOptions,
    WorkOptions,
    WorktreeOptions,
    approval_word,
    sandbox_word,
    without_secrets,
)


class TurnRequest(Value, frozen=True, kw_only=True):
    """Request for a turn, from every front end to every agent. `helmsman.model.inputs.turn_request` checks it.

    Attributes:
        turn: The prompt, and the options of this turn alone.
        options: Options of its session, from this turn on.
        limits: Limits on its silence; None applies those of the session, or else of the settings.
        max_cost_usd: Stop the turn when it costs more.
        placement: Place and time for it in a fleet.
        worktree: Create a worktree for its session, or several.
        engine: The detached engine to run it.
        place: The requested directory.
    """

    turn: TurnInput
    options: SessionOptions
    limits: TurnLimits | None = None
    max_cost_usd: float | None = None
    placement: Placement | None = None
    worktree: WorktreeOptions | None = None
    engine: str | None = None
    place: DirectoryIdentity | None = None

    def packed(self) -> dict[str, Any] | None:
        """Return the request for the store; None if the next hub could not run all of it.

        Options that hold a secret are not stored, and functions of a program end with the program.
        """
        if self.options.tools or without_secrets(self.options) != self.options:
            return None
        packed: dict[str, Any] = pack(replace(self, place=self.place or DirectoryIdentity.at(self.options.cwd)))
        return packed

    @classmethod
    def unpacked(cls, content: Any) -> TurnRequest | None:
        """Return the stored request; None if it is invalid. Writable directories that are gone are left out."""
        request = unpack_if_valid(content, cls)
        if request is None:
            return None
        there = tuple(directory for directory in request.options.writable_roots if directory.is_dir())
        return replace(request, options=replace(request.options, writable_roots=there))

    def words(self) -> TurnOptions:
        """Return the options as callers pass them, without images, limits and placement."""
        options = self.options
        words: dict[str, Any] = {name: getattr(options, name) for name in _SAME_WORDS}
        words |= {"sandbox": sandbox_word(options.writes), "approval_policy": approval_word(options.asks)}
        words |= {name: getattr(self.turn, name) for name in _SAME_WORDS_OF_TURN} | {"max_cost_usd": self.max_cost_usd}
        return cast("TurnOptions", {name: value for name, value in words.items() if value})


_SAME_WORDS: Final = tuple(name for name in SessionOptions.__struct_fields__ if name in StartOptions.__annotations__)
_SAME_WORDS_OF_TURN: Final = tuple(name for name in TurnInput.__struct_fields__ if name in WorkOptions.__annotations__)
