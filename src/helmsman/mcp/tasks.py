"""The MCP extension `io.modelcontextprotocol/tasks`: a long wait as a task that the client polls.

A client that declares the extension on a `codex_wait` whose turn is still running gets a handle instead of an answer. The
task is the turn: it is `working` while Codex works, `input_required` while Codex asks (with the questions as forms), and
`completed` with what `codex_wait` would have returned. Cancelling it interrupts the turn. Clients without the extension
lose nothing: they wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from helmsman.mcp.doors import has_forms
from helmsman.mcp.status import in_words, session_status

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from helmsman.mcp.doors import Doors
    from helmsman.service import Helmsman
    from helmsman.sessions.session import Session
    from helmsman.sessions.state import SessionStatus

EXTENSION: Final = "io.modelcontextprotocol/tasks"
_POLL_MS: Final = 2000
_DONE: Final = {"resultType": "complete"}
"""What these methods' own answers are, whatever the state of the task they tell of."""

McpTaskStatus = Literal["working", "input_required", "completed", "cancelled"]

TASK_STATUS: Final[dict[SessionStatus, McpTaskStatus]] = {
    "active": "working",
    "awaiting_approval": "input_required",
    "done": "completed",
    "error": "completed",  # the call worked; what it tells is that the turn failed
    "interrupted": "cancelled",
}
"""The one mapping between the states of a session and those of an MCP task."""


class GetTaskParams(types.RequestParams):
    task_id: str


class CancelTaskParams(types.RequestParams):
    task_id: str


class UpdateTaskParams(types.RequestParams):
    task_id: str
    input_responses: types.InputResponses


def task_handle(context: ServerRequestContext[Any, Any], session: Session) -> dict[str, Any] | None:
    """The handle to return from a wait, or None for a client that does not know tasks or a turn that is over.

    A task asks by forms, so a client that cannot show any waits instead, and finds the question in what it gets.
    """
    if not _declared(context) or not has_forms(context) or not session.state.is_running or not session.task_ids:
        return None
    return {"resultType": "task", **task_state(session, session.task_ids[-1])}


class TaskMethods:
    """`tasks/get`, `tasks/update` and `tasks/cancel`."""

    def __init__(self, helm: Helmsman, doors: Doors) -> None:
        self._helm = helm
        self._doors = doors

    async def get(self, context: ServerRequestContext[Any, Any], params: GetTaskParams) -> dict[str, Any]:
        session = self._session(context, params.task_id)
        task = {**_DONE, **task_state(session, params.task_id)}
        if task["status"] == "input_required":
            forms = {question.id: self._doors.form(question) for question in session.questions}
            task["inputRequests"] = {
                key: form.model_dump(by_alias=True, mode="json", exclude_none=True) for key, form in forms.items()
            }
        elif task["status"] == "completed":
            status = session_status(session)
            result = types.CallToolResult(
                content=[types.TextContent(type="text", text=in_words(status))],
                structured_content=status.model_dump(by_alias=True, mode="json", exclude_none=True),
            )
            task["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return task

    async def update(self, context: ServerRequestContext[Any, Any], params: UpdateTaskParams) -> dict[str, Any]:
        session = self._session(context, params.task_id)
        await self._doors.take_responses(params.input_responses, session)
        return dict(_DONE)

    async def cancel(self, context: ServerRequestContext[Any, Any], params: CancelTaskParams) -> dict[str, Any]:
        session = self._session(context, params.task_id)
        if session.state.is_running and session.task_ids[-1] == params.task_id:
            await self._helm.interrupt(session.id)
        return dict(_DONE)

    def _session(self, context: ServerRequestContext[Any, Any], task_id: str) -> Session:
        if not _declared(context):
            raise MCPError(
                types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"Declare the extension {EXTENSION} to use tasks.",
                {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        for session in self._helm.sessions.values():
            if task_id in session.task_ids:
                return session
        raise MCPError(types.INVALID_PARAMS, f"There is no task {task_id}. Use codex_list to find its session.")


def _declared(context: ServerRequestContext[Any, Any]) -> bool:
    capabilities = context.session.client_capabilities
    extensions = capabilities.extensions if capabilities is not None else None
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in (extensions or {})


def task_state(session: Session, task_id: str) -> dict[str, Any]:
    """A task as the extension describes it. One that is not the session's newest is over: only one turn runs at a time."""
    newest = session.task_ids[-1] == task_id
    status = session_status(session, output_lines=0)
    message = status.note or (status.progress.text if status.progress is not None else None)
    task = {
        "taskId": task_id,
        "status": TASK_STATUS[session.status] if newest else "completed",
        "statusMessage": message,
        "createdAt": session.created_at.isoformat(),
        "lastUpdatedAt": session.changed_at.isoformat(),
        "ttlMs": None,
        "pollIntervalMs": _POLL_MS,
    }
    return {key: value for key, value in task.items() if value is not None or key == "ttlMs"}
