"""What Helmsman relies on in the Agent Client Protocol, version 1 (`test_acp_drift` compares it with its schema)."""

from __future__ import annotations

from typing import NamedTuple


class Uses(NamedTuple):
    """Fields of a method's parameters, and of its answer."""

    fields: tuple[str, ...]
    answer: tuple[str, ...] = ()


METHODS = {
    "initialize": Uses(
        ("protocolVersion", "clientCapabilities", "clientInfo"), ("protocolVersion", "agentCapabilities", "agentInfo")
    ),
    "session/new": Uses(("cwd", "mcpServers", "_meta"), ("sessionId", "modes", "configOptions")),
    "session/load": Uses(("sessionId", "cwd", "mcpServers", "_meta")),
    "session/resume": Uses(("sessionId", "cwd", "mcpServers", "_meta")),
    "session/set_mode": Uses(("sessionId", "modeId")),
    "session/set_config_option": Uses(("sessionId", "configId", "value")),
    "session/prompt": Uses(("sessionId", "prompt"), ("stopReason",)),
    "session/cancel": Uses(("sessionId",)),
    "session/update": Uses(("sessionId", "update")),
    "session/request_permission": Uses(("sessionId", "toolCall", "options"), ("outcome",)),
}

OUTSIDE = ("session/set_model", "_session/steering", "craft/drainMidTurnQueue")
"""Agents have these, the protocol does not. Where it comes to have one, its form may be another."""

UPDATES = {
    "agent_message_chunk": ("content", "messageId"),
    "agent_thought_chunk": ("content", "messageId"),
    "user_message_chunk": ("content",),
    "tool_call": ("toolCallId", "title", "kind", "status", "content", "locations", "rawInput", "rawOutput"),
    "tool_call_update": ("toolCallId", "title", "kind", "status", "content", "locations", "rawInput", "rawOutput"),
    "plan": ("entries",),
    "current_mode_update": ("currentModeId",),
    "session_info_update": ("title",),
    "available_commands_update": (),
    "config_option_update": (),
    "usage_update": (),
}

WORDS = {
    "StopReason": ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"),
    "PermissionOptionKind": ("allow_once", "allow_always", "reject_once", "reject_always"),
    "ToolKind": ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"),
    "ToolCallStatus": ("pending", "in_progress", "completed", "failed"),
    "PlanEntryStatus": ("pending", "in_progress", "completed"),
}
"""All words there are: one more has to be understood, one less is not needed any more."""

FIELDS = {
    "AgentCapabilities": ("sessionCapabilities",),
    "Diff": ("path", "oldText", "newText"),
    "PermissionOption": ("optionId", "kind"),
    "SelectedPermissionOutcome": ("optionId",),
    "TextContent": ("text",),
    "ImageContent": ("data", "mimeType"),
    "ToolCallLocation": ("path",),
    "PlanEntry": ("content", "status"),
}
