"""Turns as they are asked for, in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.model.options import TurnInput
from helmsman.model.request import TurnRequest

if TYPE_CHECKING:
    from helmsman.model.options import SessionOptions


def requested(text: str, options: SessionOptions) -> TurnRequest:
    return TurnRequest(turn=TurnInput(text=text), options=options)
