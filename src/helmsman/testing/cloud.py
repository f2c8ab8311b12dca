"""Backend of `codex cloud`, made of values that a test moves.

    async with ScriptedCloud() as cloud:
        cloud.add_environment("env_1", "My project")
        task = cloud.add_task("Fix it", environment="env_1")
        cloud.log_in(home)
        ...  # codex cloud status <task.id>, run with cloud.env(home), says PENDING
        task.complete(diff)  # and now READY

Codex takes a backend of one's own up to 0.145; from 0.155 on it refuses.
"""

from __future__ import annotations

import base64
import itertools
import json
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from helmsman.git.diff import read_diff
from helmsman.testing.local_server import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from helmsman.testing.home import CodexHome

CloudTurnStatus = Literal["pending", "in_progress", "completed", "failed", "cancelled"]
_Json = dict[str, Any]

_ACCOUNT = "acc_1"
_TOKEN_SECONDS = 10 * 365 * 24 * 3600


@dataclass(slots=True)
class CloudAttempt:
    """One of several attempts at a task."""

    status: CloudTurnStatus = "pending"
    diff: str | None = None
    message: str | None = None


@dataclass(slots=True)
class CloudTask:
    """Task of the backend. Tests change its state, and `codex cloud` reports it."""

    id: str
    title: str
    environment: str
    branch: str | None = None
    attempts: list[CloudAttempt] = field(default_factory=lambda: [CloudAttempt()])
    applied: bool = False
    listed_as: CloudTurnStatus | None = None  # status in the listing, if it should differ from the task's
    created_at: float = field(default_factory=time.time)
    updated_at: float = field(default_factory=time.time)

    @property
    def status(self) -> CloudTurnStatus:
        return self.attempts[0].status

    def begin(self) -> None:
        self._set(1, CloudAttempt("in_progress"))

    def complete(self, diff: str | None = None, *, message: str | None = None, attempt: int = 1) -> None:
        """Complete an attempt with a unified diff and a final message. Attempts count from 1, as in Codex."""
        self._set(attempt, CloudAttempt("completed", diff, message))

    def fail(self) -> None:
        self._set(1, CloudAttempt("failed"))

    def mark_applied(self) -> None:
        """Mark the change as applied to the user's tree."""
        self.applied = True

    def _set(self, number: int, attempt: CloudAttempt) -> None:
        while len(self.attempts) < number:
            self.attempts.append(CloudAttempt())
        self.attempts[number - 1] = attempt
        self.updated_at = time.time()


@dataclass(frozen=True, slots=True)
class CloudRequest:
    """Request from `codex cloud`."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


class ScriptedCloud:
    """Answers `codex cloud` from the tasks and environments it was given."""

    def __init__(self) -> None:
        self.tasks: dict[str, CloudTask] = {}
        self.requests: list[CloudRequest] = []
        self.rejects_login = False
        """Answer every request with 401."""
        self.fault: Callable[[CloudRequest], int | None] = lambda request: None
        """Returns the HTTP status of a failure to answer a request with, or None to answer it normally."""
        self._environments: dict[str, str] = {}
        self._address = ""
        self._numbers = itertools.count(1)
        self._news = anyio.Event()
        self._resources = AsyncExitStack()

    def add_environment(self, id: str, label: str) -> None:  # noqa: A002
        """Add an environment. Labels need not be unique, as in the real cloud."""
        self._environments[id] = label

    def add_task(self, title: str, *, environment: str, branch: str | None = None, attempts: int = 1) -> CloudTask:
        """Add a pending task."""
        task_id = f"task_e_{next(self._numbers):032x}"
        waiting = [CloudAttempt() for _ in range(attempts)]
        self.tasks[task_id] = task = CloudTask(task_id, title, environment, branch, waiting)
        return task

    async def wait_for_task(self, count: int = 1) -> CloudTask:
        """Wait until there are `count` tasks and return the last. The caller bounds the wait."""
        while len(self.tasks) < count:
            await self._news.wait()
        return list(self.tasks.values())[count - 1]

    # --- environment of a `codex cloud` process ----------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        return f"{self._address}/backend-api"

    def env(self, home: CodexHome, *, reachable: bool = True) -> dict[str, str]:
        """Return the environment for `codex cloud`; with `reachable=False`, connections are refused."""
        return home.env | {"CODEX_CLOUD_TASKS_BASE_URL": self.base_url if reachable else self._closed_address}

    def log_in(self, home: CodexHome) -> None:
        """Write a login for `codex cloud` to a home. The backend accepts any."""
        # `codex cloud` reads claims of the token, but cannot check its signature.
        token = _unsigned_token()
        tokens = {"id_token": token, "access_token": token, "refresh_token": "refresh", "account_id": _ACCOUNT}
        today = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        login = {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": today}
        (home.path / "auth.json").write_text(json.dumps(login), encoding="utf-8")

    async def __aenter__(self) -> Self:
        # Bind without listening: connections are refused, and no other process can take the port.
        closed = self._resources.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))
        self._closed_address = f"http://127.0.0.1:{closed.getsockname()[1]}/backend-api"
        self._address = await self._resources.enter_async_context(serve(self._backend()))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._resources.__aexit__(*error)

    # --- the backend -------------------------------------------------------------------------------------------------

    def _backend(self) -> Starlette:
        tasks = "/backend-api/wham/tasks"
        routes = [
            self._route("/backend-api/wham/environments", self._list_environments),
            self._route(f"{tasks}/list", self._list_tasks),
            self._route(f"{tasks}/{{task}}", self._show_task),
            self._route(f"{tasks}/{{task}}/turns/{{turn}}/sibling_turns", self._list_siblings),
            self._route(tasks, self._create_task, "POST"),
        ]
        return Starlette(routes=routes)

    def _route(self, path: str, handler: Callable[[Request, Any], Any], method: str = "GET") -> Route:
        async def endpoint(request: Request) -> JSONResponse:
            text = await request.body()
            body = json.loads(text) if text else None
            # Recorded before any fault, so that a test sees refused requests as well.
            sent = CloudRequest(
                request.method, request.url.path, dict(request.query_params), dict(request.headers), body
            )
            self.requests.append(sent)
            if self.rejects_login:
                return JSONResponse({"detail": "Unauthorized"}, 401)
            if (status := self.fault(sent)) is not None:
                return JSONResponse({"detail": "Scripted fault"}, status)
            answer = handler(request, body)
            return JSONResponse({"detail": "Task not found"}, 404) if answer is None else JSONResponse(answer)

        return Route(path, endpoint, methods=[method])

    def _list_environments(self, _request: Request, _body: Any) -> list[_Json]:
        return [
            {"id": id_, "label": label, "is_pinned": False, "task_count": 0}
            for id_, label in self._environments.items()
        ]

    def _list_tasks(self, request: Request, _body: Any) -> _Json:
        wanted = request.query_params.get("environment_id")
        newest_first = sorted(self.tasks.values(), key=lambda task: task.updated_at, reverse=True)
        chosen = [task for task in newest_first if wanted in {None, task.environment}]
        first = int(request.query_params.get("cursor", 0))
        after = first + int(request.query_params.get("limit", 20))
        items = [
            self._summary(task) | {"task_status_display": self._display(task, task.listed_as)}
            for task in chosen[first:after]
        ]
        return {"items": items, "cursor": str(after) if after < len(chosen) else None}

    def _show_task(self, request: Request, _body: Any) -> _Json | None:
        task = self.tasks.get(request.path_params["task"])
        if task is None:
            return None
        # Codex shows the first attempt and fetches the others as its siblings.
        first = _turn(0, task.attempts[0]) | {"sibling_turn_ids": [f"turn_{n}" for n in range(1, len(task.attempts))]}
        prompt = {"type": "message", "role": "user", "content": [{"content_type": "text", "text": task.title}]}
        return {
            "task": self._summary(task) | {"external_pull_requests": []},
            "current_user_turn": {"id": "turn_user", "input_items": [prompt]},
            "current_assistant_turn": first,
            "current_diff_task_turn": first if task.attempts[0].diff is not None else None,
            "task_status_display": self._display(task),
        }

    def _list_siblings(self, request: Request, _body: Any) -> _Json | None:
        task = self.tasks.get(request.path_params["task"])
        if task is None:
            return None
        return {"sibling_turns": [_turn(number, attempt) for number, attempt in enumerate(task.attempts)][1:]}

    def _create_task(self, _request: Request, body: Any) -> _Json:
        wanted = body["new_task"]
        task = self.add_task(
            body["input_items"][0]["content"][0]["text"],
            environment=wanted["environment_id"],
            branch=wanted.get("branch"),
            attempts=(body.get("metadata") or {}).get("best_of_n", 1),
        )
        self._news.set()
        self._news = anyio.Event()
        return {"task": {"id": task.id}, "id": task.id}

    def _summary(self, task: CloudTask) -> _Json:
        return {
            "id": task.id,
            "title": task.title,
            "created_at": task.created_at,
            "updated_at": task.updated_at,
            "archived": False,
            "has_unread_turn": False,
            "has_generated_title": True,
        }

    def _display(self, task: CloudTask, status: CloudTurnStatus | None = None) -> _Json:
        latest: _Json = (
            {} if task.applied else {"turn_status": status or task.status}
        )  # Codex looks at this before `state`
        if task.attempts[0].diff is not None:
            latest["diff_stats"] = _diff_stats(task.attempts[0].diff)
        return {
            "environment_label": self._environments.get(task.environment, task.environment),
            "state": "applied" if task.applied else None,
            "latest_turn_status_display": latest,
        }


def _turn(number: int, attempt: CloudAttempt) -> _Json:
    output: list[_Json] = []
    if attempt.diff is not None:
        output.append({"type": "output_diff", "diff": attempt.diff})
    if attempt.message is not None:
        content = [{"content_type": "text", "text": attempt.message}]
        output.append({"type": "message", "role": "assistant", "content": content})
    return {
        "id": f"turn_{number}",
        "attempt_placement": number,
        "turn_status": attempt.status,
        "output_items": output,
    }


def _diff_stats(diff: str) -> _Json:
    files = read_diff(diff)
    return {
        "files_modified": len(files),
        "lines_added": sum(file.added or 0 for file in files),
        "lines_removed": sum(file.removed or 0 for file in files),
    }


def _unsigned_token() -> str:
    person = {"chatgpt_plan_type": "pro", "chatgpt_account_id": _ACCOUNT, "chatgpt_user_id": "u1", "user_id": "u1"}
    claims = {
        "exp": int(time.time()) + _TOKEN_SECONDS,
        "email": "test@example.org",
        "https://api.openai.com/auth": person,
    }
    parts = (json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "unsigned"])
