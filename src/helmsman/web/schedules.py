"""Routes for schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helmsman.errors import TaskNotFound
from helmsman.shapes.contract import NothingInput
from helmsman.shapes.rendering import task_as_dict
from helmsman.shapes.schedules import NewScheduleInput, run_as_dict, schedule_as_dict
from helmsman.web.json_http import body

if TYPE_CHECKING:
    from starlette.requests import Request

    from helmsman.schedules.store import ScheduleRun
    from helmsman.service import HelmsmanService


class ScheduleRoutes:
    """Answers requests about schedules."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm

    async def listed(self, _request: Request) -> dict[str, Any]:
        return {"schedules": [schedule_as_dict(one) for one in await self._helm.extras.schedules.list()]}

    async def shown(self, request: Request) -> dict[str, Any]:
        schedules = self._helm.extras.schedules
        schedule = await schedules.get(_which(request))
        runs = [await self._run(run) for run in await schedules.runs(schedule.id)]
        return schedule_as_dict(schedule) | {"runs": runs}

    async def _run(self, run: ScheduleRun) -> dict[str, Any]:
        shown = run_as_dict(run)
        if run.task_id is None:
            return shown
        try:
            task = await self._helm.tasks.get(run.task_id)
        except TaskNotFound:
            return shown
        return shown | {"task": task_as_dict(task, self._helm.task_writer)}

    async def add(self, request: Request) -> dict[str, Any]:
        given = await body(request, NewScheduleInput)
        agent = self._helm.settings.default_agent
        return schedule_as_dict(await self._helm.extras.schedules.add(given.prompt, **given.options(agent)))

    async def pause(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        return schedule_as_dict(await self._helm.extras.schedules.pause(_which(request)))

    async def resume(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        return schedule_as_dict(await self._helm.extras.schedules.resume(_which(request)))

    async def confirm(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        return schedule_as_dict(await self._helm.extras.schedules.confirm(_which(request)))

    async def run_now(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        task = await self._helm.extras.schedules.run_now(_which(request))
        return {"task": task_as_dict(task, self._helm.task_writer)}

    async def remove(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        return {"removed": schedule_as_dict(await self._helm.extras.schedules.remove(_which(request)))}


def _which(request: Request) -> str:
    return str(request.path_params["schedule_id"])
