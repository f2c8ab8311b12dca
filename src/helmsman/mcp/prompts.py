"""Prompts that a user can pick in an MCP client, and completion of the ids of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from helmsman.base.sanitize import one_line

if TYPE_CHECKING:
    from helmsman.mcp.elicitation import Context
    from helmsman.service import HelmsmanService

_MOST_VALUES: Final = 100  # of one answer, by the specification
_SESSION: Final = "sessionId"
_TASK: Final = types.PromptArgument(name="task", description="What is to be done.", required=True)
_WHICH: Final = types.PromptArgument(name=_SESSION, description="The session.", required=True)

_PROMPTS: Final = {
    "delegate": (
        types.Prompt(
            name="delegate", title="Hand a task over", description="Start an agent on a task.", arguments=[_TASK]
        ),
        "Start a session with {tool}_start on this task, and follow it with {tool}_wait until it has ended. Show me every "
        "question before you answer it. Then sum up what was changed.\n\nTask: {value}",
    ),
    "continue": (
        types.Prompt(
            name="continue", title="Look after a session", description="Follow a session.", arguments=[_WHICH]
        ),
        "Follow session {value} with {tool}_wait until it has ended. Show me every question before you answer it. Then sum "
        "up its result.",
    ),
    "bring_home": (
        types.Prompt(
            name="bring_home", title="Review and apply", description="Look at a session's changes.", arguments=[_WHICH]
        ),
        "Show me what session {value} changed, with {tool}_diff, and say what you think of it. Apply it with {tool}_apply "
        "only when I agree.",
    ),
}


class Prompts:
    """Prompts of one server. There are none without the tools that they name."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm
        # The prompts name tools, and a client may have those of Codex or of any agent.
        tools = helm.settings.tools
        self._tool = "codex" if "sessions" in tools else "agent" if "agents" in tools else None

    async def list(self, _context: Context, _params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[] if self._tool is None else [one for one, _ in _PROMPTS.values()])

    async def get(self, _context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        if self._tool is None or params.name not in _PROMPTS:
            raise MCPError(types.INVALID_PARAMS, f"There is no prompt {params.name}.")
        prompt, text = _PROMPTS[params.name]
        argument = (prompt.arguments or [_TASK])[0]
        value = (params.arguments or {}).get(argument.name)
        if not value:
            raise MCPError(types.INVALID_PARAMS, f"The prompt {params.name} needs {argument.name}.")
        filled = text.replace("{tool}", self._tool).replace("{value}", value)
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=filled))
        return types.GetPromptResult(description=prompt.description, messages=[message])

    async def complete(self, _context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        """Complete the id of a session, newest first, by its prefix or by words of its summary."""
        # Resources call it `id`, prompts `sessionId`.
        if params.argument.name not in (_SESSION, "id"):
            return types.CompleteResult(completion=types.Completion(values=[], total=0, has_more=False))
        given = params.argument.value.lower()
        found, _ = await self._helm.list()
        values = [
            one.session_id
            for one in found
            if one.session_id.lower().startswith(given) or given in one_line(one.name or one.first_prompt or "").lower()
        ]
        shown = values[:_MOST_VALUES]
        return types.CompleteResult(
            completion=types.Completion(values=shown, total=len(values), has_more=len(values) > len(shown))
        )
