"""How a person joins a session in the agent's own terminal program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTerminal:
    """What to run, with which variables besides one's own.

    `engine` is the engine that has it and has to go on while the program runs; None where that is not ours to keep.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    engine: str | None
