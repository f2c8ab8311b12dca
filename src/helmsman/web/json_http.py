"""JSON over HTTP: validated requests, responses, and errors with a matching status."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from starlette.responses import Response
from starlette.routing import Route

from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.shapes.contract import Input
from helmsman.shapes.rendering import json_line
from helmsman.shapes.safe_values import safe

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from helmsman.service import HelmsmanService

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Limit of a request body: Codex's longest prompt with every character escaped, and its options."""

STRANGERS_BODY_BYTES: Final = 4096
"""Limit of an unauthenticated request body: a code or a proof."""
STRANGERS_BODY: Final = "helmsman.strangers_body"
"""Scope key that marks such a request."""

_NO_STORE: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_STATUS: Final[Mapping[str, int]] = {
    "invalid_input": 400,
    "invalid_client": 400,
    "answer_invalid": 400,
    "wrong_code": 401,
    "wrong_proof": 401,
    "device_not_found": 404,
    "grant_not_found": 404,
    "session_not_found": 404,
    "task_not_found": 404,
    "schedule_not_found": 404,
    "not_found": 404,
    "session_busy": 409,
    "session_idle": 409,
    "session_locked": 409,
    "question_not_open": 409,
    "task_not_ours": 409,
    "invalid_setting": 409,
    "dirty_tree": 409,
    "apply_conflict": 409,
    "diff_changed": 409,
    "cannot_rewind": 409,
    "worktree_error": 409,
    "unsupported": 409,
    "too_large": 413,
    "too_many_sessions": 429,
    "registry_unavailable": 503,
    "registry_too_new": 503,
    "too_many_streams": 503,
}
_OTHER_ERRORS: Final = 502
"""Status of all other errors, which concern Codex, its engine or the cloud."""

Endpoint: TypeAlias = "Callable[[Request], Awaitable[Mapping[str, Any] | ASGIApp]]"

InputT = TypeVar("InputT", bound=Input)
MethodT = TypeVar("MethodT", bound="Callable[..., Awaitable[Mapping[str, Any] | ASGIApp]]")


class NotFound(HelmsmanError):
    """Address does not exist."""


class TooLarge(HelmsmanError):
    """Request is too large; nothing was done."""


def respond(content: Mapping[str, Any], status: int = 200) -> Response:
    # ASCII alone: half of a surrogate pair, which Codex may well have printed, is no UTF-8.
    return Response(json_line(content), status, media_type="application/json", headers=_NO_STORE)


def respond_with_error(error: HelmsmanError) -> Response:
    return respond(safe(error.as_dict()), _STATUS.get(error.code, _OTHER_ERRORS))


def answering(endpoint: Endpoint, *, status: int = 200) -> Callable[[Request], Awaitable[ASGIApp]]:
    """Wrap an endpoint so that its result and errors become JSON. A response passes unchanged."""

    async def answer(request: Request) -> ASGIApp:
        try:
            result = await endpoint(request)
        except HelmsmanError as error:
            # Expected errors have a status that fits.
            return respond_with_error(error)
        except Exception:
            # The page learns nothing about the inside of a failure; the log has it.
            log.exception("a request to %s failed", request.url.path)
            return respond(
                {"code": "internal", "message": "Helmsman itself failed. Look at its log.", "retryable": False}, 500
            )
        return respond(result, status) if isinstance(result, Mapping) else result

    return answer


def route(
    path: str, takes: type[Input] | None = None, *, method: str | None = None, status: int = 200
) -> Callable[[MethodT], MethodT]:
    """Declare the route of an endpoint. With `takes` it is a POST, and the endpoint is given the parsed body too."""

    def declare(endpoint: MethodT) -> MethodT:
        endpoint.__dict__["declared"] = path, takes, method or ("GET" if takes is None else "POST"), status
        return endpoint

    return declare


class Routes:
    """Endpoints that belong together. Each declares its route."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm

    def routes(self) -> list[Route]:
        """Return the routes of all endpoints, in the order of their declarations."""
        found = list[Route]()
        for name, endpoint in vars(type(self)).items():
            if hasattr(endpoint, "declared"):
                path, takes, method, status = endpoint.declared
                bound = getattr(self, name)
                answer = answering(bound if takes is None else partial(_with_body, bound, takes), status=status)
                found.append(Route(path, answer, methods=[method]))
        return found


async def _with_body(endpoint: Any, takes: type[Input], request: Request) -> Mapping[str, Any] | ASGIApp:
    answer: Mapping[str, Any] | ASGIApp = await endpoint(request, await body(request, takes))
    return answer


async def whole_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        TooLarge: It is too large.
    """
    most = STRANGERS_BODY_BYTES if STRANGERS_BODY in request.scope else MAX_BODY_BYTES
    content = bytearray()
    # Counted while it arrives: a length that is claimed may be wrong.
    async for piece in request.stream():
        content += piece
        if len(content) > most:
            raise TooLarge(f"The request is larger than {most} bytes. Send less.")
    return bytes(content)


async def body(request: Request, takes: type[InputT], **path: str) -> InputT:
    """Parse the JSON body of a request, together with arguments of its path.

    Raises:
        InvalidInput: It is not a JSON object, or has other fields.
        TooLarge: It is too large.
    """
    content = await whole_body(request)
    try:
        given = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        # Nested too deeply for the parser.
        raise InvalidInput("The request is not JSON. Send a JSON object.") from None
    # The path wins, so that a body cannot name another session.
    return takes.read({**given, **path} if isinstance(given, dict) else given, whole="body")


def session_id(request: Request) -> str:
    """Return the session id in the path."""
    return str(request.path_params["session_id"])


def text(request: Request, name: str) -> str | None:
    """Return a query parameter; None if it is missing or empty."""
    return request.query_params.get(name) or None


def number(request: Request, name: str, default: int | None = None, *, least: int = 0, most: int = 2**53) -> int | None:
    """Return a whole number from the query.

    Raises:
        InvalidInput: It is not a number, or out of range.
    """
    given = text(request, name)
    if given is None:
        return default
    # More digits than JavaScript can hold.
    if not (given.isascii() and given.isdigit() and len(given) < 17 and int(given) >= least):
        raise InvalidInput(f"{name} cannot be {given!r:.40}. Use a number from {least} to {most}.", parameter=name)
    return min(int(given), most)


def limit(request: Request, default: int, most: int) -> int:
    """Return the requested limit, at most `most`."""
    return number(request, "limit", default, least=1, most=most) or default


def switch(request: Request, name: str) -> bool:
    return text(request, name) in ("1", "true")
