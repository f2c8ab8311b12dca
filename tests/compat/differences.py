"""The one list of what differs between Helmsman's toolset `compat` and the built-in server of Codex 0.145.0.

`docs/appendix/compat.md` explains each. The differential test removes these from what it compares, and fails on anything
else and on a difference that is gone.
"""

from __future__ import annotations

LEFT_OUT_KINDS = frozenset({"raw_response_item", "raw_response_completed"})
"""Messages that are not sent: the raw traffic with the model."""

IN_ANY_ORDER = frozenset({"mcp_startup_update", "mcp_startup_complete"})
"""Messages about Codex's own MCP servers, which start while the turn begins: with both servers they come among the others
as it happens. That there are none to start, the app-server does not tell."""

LEFT_OUT_FIELDS: dict[str, frozenset[str]] = {
    "session_configured": frozenset({"permission_profile"}),
    "task_started": frozenset({"model_context_window"}),
    "patch_apply_begin": frozenset({"auto_approved"}),
    "patch_apply_end": frozenset({"stdout", "stderr"}),
    # Inside `item_started` and `item_completed`, by the type of the item:
    "FileChange": frozenset({"auto_approved", "stdout", "stderr"}),
}
"""Fields that Codex's app-server does not tell, by the type of what they belong to."""

TOLD_LATER = frozenset({"process_id", "source"})
"""Fields of a command that was asked about, which the app-server tells with its end and not with its beginning."""

OTHER_VALUES = frozenset(
    {
        (
            "exec_approval_request",
            "available_decisions",
        ),  # what may be answered here, not what the original's own UI offers
        ("mcp_startup_complete", "failed"),  # the error is the whole one that `mcp_startup_update` has too
    }
)
"""Fields with another value."""

MEASURED = frozenset(
    {
        "started_at",
        "completed_at",
        "started_at_ms",
        "completed_at_ms",
        "duration_ms",
        "duration",
        "time_to_first_token_ms",
    }
)
"""Fields that tell the time: they are there in both, and differ from run to run."""

OTHER_OUTCOMES = {
    "accept": "the protocol's own yes counts as one",
    "accept with a decision": "the protocol's form counts",
    "abort": "an interrupted turn ends the call, with an error",
    "error": "a client that cannot ask gets a denial when the time is up",
    "no elicitation": "a client that cannot be asked is not asked, and gets a denial when the time is up",
    "an MCP tool asks": "the question is put to the person",
    "reply to a busy thread": "the call is answered, when the turn that took it in has ended",
    "reply after a restart": "threads resume from disk",
    "cancelled command": "a cancelled turn's command is stopped too",
    "on-failure": "the old policy is mapped to on-request, and the result says so",
    "profile": "the argument of older servers is taken",
    "missing directory": "a working directory that does not exist is refused",
    "empty prompt": "an empty prompt is refused",
    "unknown tool": "an unknown tool is an error of the protocol, as it says since 2025-06-18",
}
"""Scripts that end otherwise than with the original, each to the better. The test says how exactly."""

LONGER_QUESTIONS = "the original's sentence comes first, then all that is granted; a reason is told among that"
"""The message of an approval."""

LONGER_TEXTS = frozenset({"bad type", "unknown thread", "not a thread id", "not a thread id, by the old name"})
"""Errors that begin like the original's and add the next step."""

OTHER_TEXTS = frozenset({"bad config"})
"""Errors with another text, which is that of Codex's app-server."""
