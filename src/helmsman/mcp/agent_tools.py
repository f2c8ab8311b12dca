"""The toolset `agents`: the verbs of a whole piece of work, for any agent.

They are the tools for Codex (`codex_…`) under another name, which take the agent as a parameter where it has to be known.
"""

from __future__ import annotations

from typing import Final

from helmsman.mcp import change_tools, review_tools, session_tools
from helmsman.mcp.toolset import tools_in

_MODULES: Final = (session_tools, change_tools, review_tools)

AGENT_TOOLS: Final = tuple(tool.for_any_agent() for module in _MODULES for tool in tools_in(vars(module)))
"""All of them, in the order of the documentation."""
