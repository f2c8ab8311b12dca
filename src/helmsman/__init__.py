"""Helmsman steers coding agents (Codex, Claude Code and others): start, follow, answer, steer and stop their work.

    async with Helmsman() as helm:
        session = await helm.start("Fix the failing test", cwd=repo, sandbox="workspace-write")
        async for event in session.events():
            ...
        print(session.result, session.usage)

    answer = await run_step("Review this diff", cwd=repo, output_schema=schema, on_question=ask)

It needs asyncio. A script without an event loop has `SyncHelmsman` and `run_step_sync`.

Events and items are in `helmsman.model.events`, errors in `helmsman.errors`, the test kit in `helmsman.testing`.
"""

from __future__ import annotations

from helmsman._version import __version__

TYPE_CHECKING = False  # `typing` would cost as much as all else that a pipe to the hub imports
if TYPE_CHECKING:
    from typing import Any

    from helmsman.capabilities.outcomes.request import Wanted
    from helmsman.client import Helmsman
    from helmsman.errors import HelmsmanError, StepError, StepFailed, StepInterrupted, StepOutputInvalid, StepTimedOut
    from helmsman.model.client_tools import ClientTool
    from helmsman.model.options import Placement, WorktreeOptions
    from helmsman.model.questions import Prompt, Question
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.settings import Settings, load_settings
    from helmsman.step import StepResult, run_step, run_step_sync
    from helmsman.sync import SyncHelmsman, SyncSession

__all__ = [
    "ClientTool",
    "Helmsman",
    "HelmsmanError",
    "Placement",
    "Prompt",
    "Question",
    "QuestionHandler",
    "Session",
    "Settings",
    "StepError",
    "StepFailed",
    "StepInterrupted",
    "StepOutputInvalid",
    "StepResult",
    "StepTimedOut",
    "SyncHelmsman",
    "SyncSession",
    "Wanted",
    "WorktreeOptions",
    "__version__",
    "load_settings",
    "run_step",
    "run_step_sync",
]

_HOMES = {
    "capabilities.outcomes.request": ("Wanted",),
    "client": ("Helmsman",),
    "errors": ("HelmsmanError", "StepError", "StepFailed", "StepInterrupted", "StepOutputInvalid", "StepTimedOut"),
    "model.client_tools": ("ClientTool",),
    "model.options": ("Placement", "WorktreeOptions"),
    "model.questions": ("Prompt", "Question"),
    "sessions.session": ("QuestionHandler", "Session"),
    "settings": ("Settings", "load_settings"),
    "step": ("StepResult", "run_step", "run_step_sync"),
    "sync": ("SyncHelmsman", "SyncSession"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a command line that needs little starts fast."""
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"helmsman.{module}"), name)
            return value
    raise AttributeError(f"module 'helmsman' has no attribute {name!r}")
