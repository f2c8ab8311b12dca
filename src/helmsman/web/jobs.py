"""Routes of jobs: start one, and show its outcome with the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.to_thread

from helmsman.base.json_values import present
from helmsman.capabilities.outcomes.agent_selection import selected_agents
from helmsman.errors import InvalidInput
from helmsman.shapes.outcomes import INPUTS
from helmsman.shapes.rendering import task_as_dict
from helmsman.shapes.safe_values import safe
from helmsman.web.json_http import NotFound, body
from helmsman.web.review import coloured_diff

if TYPE_CHECKING:
    from starlette.requests import Request

    from helmsman.service import HelmsmanService


class JobRoutes:
    """Begins jobs, and shows them."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm

    async def begin(self, request: Request) -> dict[str, Any]:
        kind: str = request.path_params["kind"]
        if kind not in INPUTS:
            raise NotFound(f"There is no outcome {kind}. Use one of: {', '.join(INPUTS)}.")
        given = await body(request, INPUTS[kind])
        if given.task_id is not None or given.wait_sec is not None or given.timeout_sec is not None:
            raise InvalidInput("Begin one here; its task is at /api/tasks.", parameter="taskId")
        task = await self._helm.extras.outcomes.start(given.wanted(), idempotency_key=given.idempotency_key)
        chosen, *_ = selected_agents(task)
        return {"taskId": task.id, "status": task.status, "agent": chosen.agent, "why": safe(chosen.why)}

    async def shown(self, request: Request) -> dict[str, Any]:
        task = await self._helm.tasks.get(request.path_params["task_id"])
        if task.job is None:
            raise NotFound(f"{task.id} is no job, but a turn of a session. Look there.")
        results = await self._helm.tasks.results(task)
        change = await anyio.to_thread.run_sync(coloured_diff, results.diff or "")
        return {
            "task": safe(task_as_dict(results.task, self._helm.task_writer)),
            "sessions": list(task.job_sessions),
            **present({"report": safe(results.report), "files": change["files"] or None, "cut": change.get("cut")}),
        }
