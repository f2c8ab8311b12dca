"""Verbs that a request can ask for, separate from the parser for use in tool schemas."""

from __future__ import annotations

from typing import Literal

RouterVerb = Literal["run", "check", "wait", "cancel", "results", "respond", "apply", "environments", "setup"]
