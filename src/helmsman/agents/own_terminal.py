"""How a person joins a session in the agent's own terminal program."""

from __future__ import annotations

from collections.abc import Mapping

from helmsman.base.structs import Value


class OwnTerminal(Value, frozen=True, kw_only=True):
    """What to run, with which variables besides one's own.

    `engine` is the engine that has it and has to go on while the program runs; None where that is not ours to keep.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    engine: str | None
