"""MCP extension `io.modelcontextprotocol/tasks`: a long wait becomes a task that the client polls.

A client that declares the extension gets a handle if the turn is still running. The task is the one in the registry, so
it outlives this server: it is `working` while Codex works, `input_required` while Codex asks (with the questions as
forms), and `completed` with the result of `codex_wait`. Cancelling it interrupts the turn. Clients without the
extension wait as usual.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from helmsman.base.truncate import TEXT_CHARS, cut, within
from helmsman.errors import HelmsmanError
from helmsman.mcp.elicitation import Context, Elicitor, has_forms
from helmsman.shapes.job_answers import job_in_words, job_output, job_sessions
from helmsman.shapes.rendering import task_as_dict, ttl_ms
from helmsman.shapes.session_status import in_words, session_status
from helmsman.tasks.model import Task, mcp_status_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helmsman.mcp.call import CallContext
    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session

EXTENSION: Final = "io.modelcontextprotocol/tasks"
_DONE: Final = {"resultType": "complete"}
"""Result type of these methods, whatever the state of the task."""


class GetTaskParams(types.RequestParams):
    task_id: str


class CancelTaskParams(types.RequestParams):
    task_id: str


class UpdateTaskParams(types.RequestParams):
    task_id: str
    input_responses: types.InputResponses


async def task_handle(call: CallContext, session: Session) -> dict[str, Any] | None:
    """Return a handle for a wait, or None for a client without tasks or a turn that is over.

    Questions of a task are forms, so a client without forms waits instead and finds the question in the result.
    """
    task_id = call.helm.running_task(session.id)
    # Questions of a task are forms, which this client cannot show.
    if task_id is None or not _declared(call.context) or not has_forms(call.context):
        return None
    return {"resultType": "task", **task_state(await call.helm.tasks.get(task_id))}


async def job_handle(call: CallContext, task: Task) -> dict[str, Any] | None:
    """Return a handle for a job."""
    if not task.is_running or not _declared(call.context) or not has_forms(call.context):
        return None
    return {"resultType": "task", **task_state(task)}


class TaskMethods:
    """`tasks/get`, `tasks/update` and `tasks/cancel`."""

    def __init__(self, helm: HelmsmanService, elicitor: Elicitor) -> None:
        self._helm = helm
        self._elicitor = elicitor

    async def get(self, context: Context, params: GetTaskParams) -> dict[str, Any]:
        task, sessions = await self._task(context, params.task_id)
        state = {**_DONE, **task_state(task)}
        if state["status"] == "input_required" and sessions:
            # A question that was opened in the dashboard is answered there.
            asked = [(session, question) for session in sessions for question in session.questions]
            forms = {
                question.id: self._elicitor.form(context, session, question)
                for session, question in asked
                if not self._elicitor.is_opened(question)
            }
            state["inputRequests"] = {
                key: form.model_dump(by_alias=True, mode="json", exclude_none=True) for key, form in forms.items()
            }
        elif state["status"] == "completed":
            with _protocol_errors(types.INVALID_PARAMS):
                result = await self._result(task)
            state["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return state

    async def _result(self, task: Task) -> types.CallToolResult:
        """Return the result of the wait: the session's state if this was its newest turn, otherwise the task's result."""
        if task.job is not None:
            output = await job_output(self._helm, task)
            return _call_result(job_in_words(output), output.as_dict())
        session = await self._helm.session(task.session_id) if task.session_id is not None else None
        # A later turn has replaced the state of this one.
        if session is not None and session.task_id == task.id:
            status = session_status(session)
            return _call_result(in_words(status), status.as_dict())
        text = f"{task.id}: {task.status}" + (f"\n{task.result}" if task.result else "")
        return _call_result(text, task_as_dict(task, self._helm.task_writer))

    async def update(self, context: Context, params: UpdateTaskParams) -> dict[str, Any]:
        _, sessions = await self._task(context, params.task_id)
        # The client sends answers by the id of the question, and does not say in which session.
        for session in sessions:
            await self._elicitor.take_responses(context, params.input_responses, session)
        return dict(_DONE)

    async def cancel(self, context: Context, params: CancelTaskParams) -> dict[str, Any]:
        task, _ = await self._task(context, params.task_id)
        with _protocol_errors(types.INTERNAL_ERROR):
            await self._helm.tasks.cancel(task)
        return dict(_DONE)

    async def _task(self, context: Context, task_id: str) -> tuple[Task, list[Session]]:
        """Return a task and, while it runs, its sessions. Attach to sessions of an earlier server.

        A job may have several sessions.
        """
        # Required by the specification: only a client that declares the extension gets tasks.
        if not _declared(context):
            raise MCPError(
                types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"Declare the extension {EXTENSION} to use tasks.",
                {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        with _protocol_errors(types.INVALID_PARAMS):
            task = await self._helm.tasks.get(task_id)
            # A job has no session of its own; it asks in those of its agents.
            if task.job is not None:
                return task, await job_sessions(self._helm, task) if task.is_running else []
            session = await self._helm.tasks.local.follow(task) if task.origin == "local" and task.is_running else None
            return (task, []) if session is None else (await self._helm.tasks.get(task_id), [session])


def _call_result(text: str, content: dict[str, Any]) -> types.CallToolResult:
    shown = types.TextContent(type="text", text=cut(text, TEXT_CHARS))
    return types.CallToolResult(content=[shown], structured_content=within(content))


@contextmanager
def _protocol_errors(code: int) -> Iterator[None]:
    """Turn errors into protocol errors: unlike tools, these methods have no result for them."""
    try:
        yield
    except HelmsmanError as error:
        raise MCPError(code, error.message, error.as_dict()) from error


def _declared(context: Context) -> bool:
    # The extension exists since 2026-07-28.
    capabilities = context.session.client_capabilities
    extensions = capabilities.extensions if capabilities is not None else None
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in (extensions or {})


def task_state(task: Task) -> dict[str, Any]:
    """Return a task in the extension's format."""
    progress = task.progress.get("text") if task.progress is not None else None
    state = {
        "taskId": task.id,
        "status": mcp_status_of(task),
        "statusMessage": task.note or progress,
        "createdAt": task.created_at.isoformat(),
        "lastUpdatedAt": task.updated_at.isoformat(),
        "ttlMs": None if task.expires_at is None else ttl_ms(task.expires_at),
        "pollIntervalMs": task.poll_ms,
    }
    # The specification requires ttlMs, where null means without limit.
    return {key: value for key, value in state.items() if value is not None or key == "ttlMs"}
