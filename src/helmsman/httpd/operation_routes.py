"""HTTP routes of the operations, derived from their table, and the OpenAPI document that describes them.

An operation on a session is `/v1/sessions/{sessionId}/NAME`, a job `/v1/jobs/NAME`, any other operation `/v1/NAME`. One that
only reads is GET, with its arguments in the query; any other is POST, with its arguments as a JSON object. A POST with an
`Idempotency-Key` is carried out once: repeated within a day, also after a crash of the hub, it gets the same answer. The
same key with another body is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args, get_origin

from starlette.responses import JSONResponse
from starlette.routing import Route

from helmsman._version import __version__
from helmsman.errors import (
    AgentNotFound,
    AnswerInvalid,
    ClientAway,
    CodexNotFound,
    DiffChanged,
    DirtyTree,
    HelmsmanError,
    IdempotencyKeyReused,
    InvalidInput,
    NotYours,
    OutcomeUnknown,
    QuestionNotOpen,
    RegistryUnavailable,
    ScheduleNotFound,
    SessionBusy,
    SessionIdle,
    SessionLocked,
    SessionNotFound,
    TaskNotFound,
    TooManySessions,
    Unsupported,
)
from helmsman.operations.program_call import ProgramCall
from helmsman.operations.schemas import listed_schema
from helmsman.operations.table import Deferred, Operation
from helmsman.operations.texts import FOR_ANY, rendered
from helmsman.operations.toolsets import operations_of
from helmsman.tasks.calls import ELSEWHERE, CallId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request
    from starlette.responses import Response

    from helmsman.operations.table import OperationCall
    from helmsman.service import HelmsmanService
    from helmsman.shapes.contract import Input
    from helmsman.tasks.calls import CallLog

log = logging.getLogger(__name__)

OpenService: TypeAlias = "Callable[[], AbstractAsyncContextManager[HelmsmanService]]"

VERSION_PATH: Final = "/v1"
SESSIONS_PATH: Final = f"{VERSION_PATH}/sessions"
SESSION_PATH: Final = f"{SESSIONS_PATH}/{{sessionId}}"
EVENTS_PATH: Final = f"{SESSION_PATH}/events"
OPENAPI_PATH: Final = f"{VERSION_PATH}/openapi.json"
PROBLEM_TYPE: Final = "application/problem+json"

_TOOL: Final = "{tool}_"
_PATHS: Final = {f"{_TOOL}start": SESSIONS_PATH, f"{_TOOL}list": SESSIONS_PATH, f"{_TOOL}status": SESSION_PATH}
"""Sessions themselves are resources; operations on them are below."""
_DIRECTORY: Final = "working_directory"
_KEY: Final = "Idempotency-Key"
_LONGEST_KEY: Final = 200

_STATUS: Final[Sequence[tuple[int, tuple[type[HelmsmanError], ...]]]] = (
    (400, (InvalidInput, AnswerInvalid)),
    (403, (NotYours,)),
    (404, (SessionNotFound, TaskNotFound, ScheduleNotFound, CodexNotFound, AgentNotFound)),
    (409, (SessionBusy, SessionIdle, SessionLocked, QuestionNotOpen, DirtyTree, DiffChanged, OutcomeUnknown)),
    (422, (IdempotencyKeyReused,)),
    (429, (TooManySessions,)),
    (501, (Unsupported,)),
    (503, (RegistryUnavailable, ClientAway)),
)


def problem(status: int, code: str, detail: str, **more: Any) -> Response:
    """Return an error as RFC 9457 describes it. Its `detail` says what to do next."""
    title = code.replace("_", " ").capitalize()
    content = {**more, "status": status, "title": title, "code": code, "detail": detail}
    return JSONResponse(content, status, media_type=PROBLEM_TYPE)


def problem_of(error: HelmsmanError) -> Response:
    """Return one of our errors as a problem."""
    status = next((status for status, kinds in _STATUS if isinstance(error, kinds)), 500)
    details = {name: value for name, value in error.as_dict().items() if name not in ("code", "message")}
    return problem(status, error.code, error.message, **details)


@dataclass(frozen=True)
class OperationRoute:
    """One operation as an HTTP route."""

    operation: Operation[Any]

    @property
    def method(self) -> str:
        return "GET" if self.operation.nature.reads else "POST"

    @cached_property
    def takes(self) -> type[Input]:
        return self.operation.input(any_agent=True)

    @property
    def name(self) -> str:
        return self.operation.name.removeprefix(_TOOL)

    @cached_property
    def path(self) -> str:
        if (known := _PATHS.get(self.operation.name)) is not None:
            return known
        if not self.operation.name.startswith(_TOOL):
            return f"{VERSION_PATH}/jobs/{self.name}"
        session = self.takes.model_fields.get("session_id")
        is_of_session = session is not None and session.is_required()
        return f"{SESSION_PATH}/{self.name}" if is_of_session else f"{VERSION_PATH}/{self.name}"

    def read(self, given: Mapping[str, Any]) -> Input:
        """Validate the arguments of a call.

        Raises:
            InvalidInput: They do not match.
        """
        lists = {name: [value] for name, value in given.items() if name in self._lists and isinstance(value, str)}
        arguments = self.takes.read({**given, **lists}, whole="body")
        directory = getattr(arguments, _DIRECTORY, None)
        if directory is not None and not Path(directory).is_absolute():
            raise InvalidInput(f"{directory!r:.100} is relative. Give an absolute path.", parameter="workingDirectory")
        if directory is None and self._needs_directory and getattr(arguments, "session_id", None) is None:
            raise InvalidInput("workingDirectory is missing. Give an absolute path.", parameter="workingDirectory")
        return arguments

    @cached_property
    def _lists(self) -> frozenset[str]:
        """Arguments that take several values. In a query, a single value is a list of one."""
        fields = self.takes.model_fields.items()
        kinds = {field.alias or name: (field.annotation, *get_args(field.annotation)) for name, field in fields}
        return frozenset(name for name, hints in kinds.items() if any(get_origin(hint) is list for hint in hints))

    @property
    def _needs_directory(self) -> bool:
        return _DIRECTORY in self.takes.model_fields and not self.operation.nature.reads


def operation_routes() -> tuple[OperationRoute, ...]:
    """Return the routes of all operations."""
    found = {one.name: one for toolset in ("sessions", "extras", "capabilities") for one in operations_of(toolset)}
    return tuple(map(OperationRoute, found.values()))


def routes_of(open_service: OpenService, calls: CallLog) -> list[Route]:
    """Return the routes as Starlette takes them. `open_service` opens the service that carries out a call."""
    routes = operation_routes()
    served = [Route(one.path, _Endpoint(one, open_service, calls).serve, methods=[one.method]) for one in routes]
    return [*served, Route(OPENAPI_PATH, _describe, methods=["GET"])]


class _Endpoint:
    """Answers the requests of one route."""

    def __init__(self, route: OperationRoute, open_service: OpenService, calls: CallLog) -> None:
        self._route = route
        self._open_service = open_service
        self._calls = calls

    async def serve(self, request: Request) -> Response:
        try:
            given = {**await _given(request), **request.path_params}
            arguments = self._route.read(given)
            key = request.headers.get(_KEY)
            if key is None or self._route.operation.nature.reads:
                return JSONResponse(await self._run(arguments, request))
            return await self._run_once(key, given, arguments, request)
        except HelmsmanError as error:
            return problem_of(error)
        except Exception:
            log.exception("%s failed", self._route.path)
            return problem(500, "internal_error", "Helmsman itself failed. Look at its log: helmsman hub log")

    async def _run(self, arguments: Input, request: Request) -> dict[str, Any]:
        async with self._open_service() as helm:
            call: OperationCall = ProgramCall(helm, viewer=f"api {request.headers.get('Helmsman-Client', '')}")
            result = await self._route.operation.run(call, arguments)
        assert not isinstance(result, Deferred)
        return result.as_dict()

    async def _run_once(self, key: str, given: Mapping[str, Any], arguments: Input, request: Request) -> Response:
        if not key.isprintable() or not 0 < len(key) <= _LONGEST_KEY:
            raise InvalidInput(f"{_KEY} has at most {_LONGEST_KEY} printable characters.", parameter=_KEY)
        nature = self._route.operation.nature

        async def do() -> Response:
            return JSONResponse(await self._run(arguments, request))

        def stored(response: Response) -> str:
            return json.dumps([response.status_code, bytes(response.body).decode()])

        def restored(text: str) -> Response:
            status, body = json.loads(text)
            media_type = "application/json" if status == 200 else PROBLEM_TYPE
            return JSONResponse(json.loads(body), status, media_type=media_type)

        return await self._calls.once(
            # A client may use the same key for different resources.
            CallId(f"api {request.url.path} {key}", 1, ELSEWHERE),
            self._route.name,
            do,
            repeatable=nature.repeat != "never",
            request=hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest(),
            stored=stored,
            restored=restored,
            failed=problem_of,
        )


async def _given(request: Request) -> dict[str, Any]:
    """Return the arguments of a request.

    Raises:
        InvalidInput: The body is not a JSON object.
    """
    if request.method == "GET":
        query = request.query_params
        return {name: values if len(values := query.getlist(name)) > 1 else values[0] for name in query}
    body = await request.body()
    try:
        given = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise InvalidInput("The body is not a JSON object.", parameter="body")
    return given


# --- the document ----------------------------------------------------------------------------------------------------

_PROBLEM_SCHEMA: Final = {
    "type": "object",
    "required": ["status", "title", "code", "detail"],
    "properties": {
        "status": {"type": "integer"},
        "title": {"type": "string"},
        "code": {"type": "string", "description": "Stable; the reference lists all codes."},
        "detail": {"type": "string", "description": "What happened, and what to do next."},
        "retryable": {"type": "boolean"},
    },
}


async def _describe(_request: Request) -> Response:
    return JSONResponse(openapi_document())


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the operations."""
    paths: dict[str, Any] = {}
    for route in operation_routes():
        paths.setdefault(route.path, {})[route.method.lower()] = _described(route)
    paths[EVENTS_PATH] = {"get": _EVENTS}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Helmsman",
            "version": __version__,
            "description": "Steer coding agents. Served on the hub's Unix socket, for processes of the user.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://hub"}],
        "paths": paths,
        "components": {"schemas": {"Problem": _PROBLEM_SCHEMA}},
    }


_ERROR: Final = {
    "description": "An error.",
    "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_IN_PATH: Final = {"name": "sessionId", "in": "path", "required": True, "schema": {"type": "string"}}
_EVENTS: Final = {
    "operationId": "events",
    "summary": "Follow the events of a session",
    "description": "Server-sent events after a cursor: `since`, or the header Last-Event-ID. An event's id is its number.",
    "parameters": [_IN_PATH, {"name": "since", "in": "query", "schema": {"type": "integer", "minimum": 0}}],
    "responses": {
        "200": {"description": "The events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
        "default": _ERROR,
    },
}


def _described(route: OperationRoute) -> dict[str, Any]:
    operation, say = route.operation, FOR_ANY.render
    schema = rendered(listed_schema(route.takes, "validation"), say)
    in_path = ["sessionId"] if "{sessionId}" in route.path else []
    fields = {name: field for name, field in schema.get("properties", {}).items() if name not in in_path}
    required = [name for name in schema.get("required", ()) if name not in in_path]
    described: dict[str, Any] = {
        "operationId": f"job_{route.name}" if "/jobs/" in route.path else route.name,
        "summary": say(operation.title),
        "description": say(operation.description),
        "parameters": [_IN_PATH] * len(in_path),
        "responses": {
            "200": {
                "description": "The result.",
                "content": {
                    "application/json": {"schema": rendered(listed_schema(operation.output, "serialization"), say)}
                },
            },
            "default": _ERROR,
        },
    }
    if route.method == "GET":
        described["parameters"] += [
            {"name": name, "in": "query", "required": name in required, "schema": field}
            for name, field in fields.items()
        ]
        return described
    body = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
    described["parameters"].append({"name": _KEY, "in": "header", "schema": {"type": "string"}})
    described["requestBody"] = {"required": bool(required), "content": {"application/json": {"schema": body}}}
    return described
