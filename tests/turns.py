"""Turns as they are asked for, in a line."""

from __future__ import annotations

from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.request import TurnRequest


def requested(text: str, options: SessionOptions) -> TurnRequest:
    return TurnRequest(turn=TurnInput(text=text), options=options)
