"""Call of a tool: the client's request, and its reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mcp_types as types

from helmsman.base.structs import Value
from helmsman.capabilities.service import AgentService
from helmsman.mcp.elicitation import Context, Elicitor
from helmsman.mcp.resources import client_of
from helmsman.operations.texts import CODEX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.mcp.elicitation import Confirmation
    from helmsman.sessions.session import QuestionHandler, Session

DeferredReply = types.InputRequiredResult | dict[str, Any]
"""Reply instead of a result: input is required, or (as JSON) a task's handle."""
CallOutcome = types.CallToolResult | DeferredReply


class CallContext(Value, frozen=True):
    """Call of a tool: the service and the client's request."""

    helm: AgentService
    elicitor: Elicitor
    context: Context
    params: types.CallToolRequestParams
    agent: str = CODEX
    """Agent whose tool was called, if each agent has its own tool."""
    host: str | None = None
    """Machine of `helm`, if it is not this one."""

    @property
    def agent_title(self) -> str:
        return self.helm.agents.title(self.agent)

    @property
    def on_question(self) -> QuestionHandler | None:
        """Asks the user at the client as soon as a question arises. None if the client cannot."""
        return self.elicitor.handler(self.context)

    @property
    def viewer(self) -> str:
        return client_of(self.context)

    async def respond(self, session_id: str, question_id: str, answers: Sequence[str]) -> Session:
        return await self.elicitor.respond(self.helm, self.context, session_id, question_id, answers)

    def confirmation(self) -> Confirmation:
        return self.elicitor.confirmation(self.context, self.params.input_responses)
