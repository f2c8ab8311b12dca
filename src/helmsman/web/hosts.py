"""User's other machines in the dashboard: requests about them are forwarded to their dashboards.

`?host=NAME`, or an id that begins with `NAME:`, selects a machine. The request goes over the connection to that
machine's hub, and ids in the answer get the machine's name as a prefix. Other machines are not trusted: HTML is
rendered again here, ids cannot refer to this machine, and a slow machine delays only its own requests.
"""

from __future__ import annotations

import json
import logging
import re
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import anyio
from starlette.requests import Request
from starlette.routing import Route

from helmsman.base.json_values import present
from helmsman.errors import HelmsmanError, HostUnreachable, OutcomeUnknown
from helmsman.hub.host_pool import elsewhere
from helmsman.shapes.safe_values import safe
from helmsman.web.acting import ShownInput
from helmsman.web.json_http import answering, body, respond, text, whole_body
from helmsman.web.live import LIVE_PATH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import ASGIApp

    from helmsman.hub.http_client import HubEvents
    from helmsman.service import HelmsmanService
    from helmsman.web.live import Live

log = logging.getLogger(__name__)

_NAMING: Final = ("session_id", "task_id", "question_id")
_LOOK_SECONDS: Final = 30.0
_AWAY_SECONDS: Final = 3.0
"""Seconds that a read waits for a connection in progress."""
# Acting may start an agent, or apply a large change.
_ACT_SECONDS: Final = 600.0
_SHOWN_SECONDS: Final = 5.0
_SILENT_SECONDS: Final = 40.0
"""Time after which a machine that says nothing is lost. A working one gives a sign of life in less than half of it."""
_PAUSE_SECONDS: Final = 0.25
"""Minimum pause between changes, however often a machine has some."""
_STATE_SECONDS: Final = 1.0
_PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
_MOST_CHANGES: Final = 200
"""Limit of changes that are forwarded one by one. Beyond it, only the fact that there are changes is."""
_NUMBER: Final = re.compile(r"[0-9a-f]{1,64}-[0-9]{1,20}")
_KINDS: Final = frozenset({"status", "items", "text", "question", "details", "tasks", "sessions"})
_VERBATIM: Final = frozenset({"options", "details", "labels", "descriptions"})
"""Fields that return to the machine unchanged, so they are not sanitized. The page shows them as text."""
_NONSENSE: Final = (TypeError, ValueError, KeyError, AttributeError, RecursionError)
"""Errors from reading an answer that is not a dashboard's."""
_LOST: Final = "The connection is lost. Reconnecting; work continues there."


class HostRoutes:
    """Answers for other machines, each by its own dashboard."""

    def __init__(self, helm: HelmsmanService, live: Live) -> None:
        self._helm = helm
        self._live = live
        self._problems: dict[str, str] = {}
        """Why machines that are followed cannot be reached."""
        self._followed: set[str] = set()
        self._is_watching = False
        live.on_reader = self._watch

    # --- requests ----------------------------------------------------------------------------------------------------

    async def listed(self, _request: Request) -> dict[str, Any]:
        return {"hosts": self._states()}

    def _states(self) -> list[dict[str, Any]]:
        links = self._helm.hosts
        states = []
        for name, host in sorted(links.known().items()):
            helm = links.opened.get(name)
            problem = self._problems.get(name)
            # A connection that broke may still have no problem noted.
            if helm is not None and not helm.is_connected:
                problem = _LOST
            status = "away" if problem else "connecting" if helm is None else "connected"
            states.append(present({"name": name, "address": host.address, "status": status, "problem": problem}))
        return states

    def before(self, route: Route) -> Route:
        """Wrap a route so that it also serves other machines."""
        here: Callable[[Request], Awaitable[ASGIApp]] = route.endpoint

        async def choose(request: Request) -> ASGIApp:
            host = self._named_in(request)
            if host is not None:
                return await answering(partial(self._ask, host))(request)
            if route.path == "/api/shown":
                return await answering(partial(self._shown, here))(request)
            return await here(request)

        return Route(route.path, choose, methods=list(route.methods or ()))

    def _named_in(self, request: Request) -> str | None:
        # The host of the query and of every id must agree.
        named = {text(request, "host")} - {None}
        for name in _NAMING:
            if (reference := request.path_params.get(name)) is not None:
                named |= {self._helm.hosts.split(str(reference))[0]} - {None}
        # Several names together are no machine, so such a request is refused.
        return str(named.pop()) if len(named) == 1 else ",".join(sorted(map(str, named))) or None

    async def _ask(self, host: str, request: Request) -> ASGIApp:
        """Let the dashboard of another machine answer a request."""
        content = await whole_body(request)
        # The other machine knows its ids without our prefix.
        path = "/".join(part.removeprefix(f"{host}:") for part in request.scope["path"].split("/"))
        query = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "host"])
        status, told = await self._answer(host, request.method, path, query, content)
        return respond(told, status)

    async def _answer(
        self, host: str, method: str, path: str, query: str, content: bytes
    ) -> tuple[int, Mapping[str, Any]]:
        # A machine that is known to be away must not make each request wait.
        if host in self._followed and (problem := self._problems.get(host)) is not None:
            raise HostUnreachable(problem)
        helm = await self._helm.hosts.get(host)
        # An open connection may take long to answer; one that is being opened may never come.
        seconds = _ACT_SECONDS if method != "GET" else _LOOK_SECONDS if helm.is_connected else _AWAY_SECONDS
        with anyio.move_on_after(seconds):
            try:
                status, told = await helm.page(method, f"{quote(path)}?{query}", content)
                answer = dict(self._told(host, json.loads(told or b"{}")))
                # The page would take a 401 for its own login.
                if status == HTTPStatus.UNAUTHORIZED or answer.get("code") == "wrong_token":
                    raise ValueError("this page would ask for its own login")
                return HTTPStatus(status), answer
            except _NONSENSE as error:
                log.info("%s gave an invalid answer", host, exc_info=True)
                raise _nonsense(host) from error
        if method != "GET":
            # The request may have arrived, so it is not repeated.
            raise OutcomeUnknown(f"{host} does not answer. It may have been done: look before you repeat it.")
        raise HostUnreachable(f"{host} does not answer." if helm.is_connected else _LOST)

    def _told(self, host: str, told: Any) -> Any:
        from helmsman.web.markdown import with_html

        def made(key: str, value: Any) -> Any:
            if key in _VERBATIM:
                return value
            match value:
                case dict():
                    # HTML of another machine is not trusted; it is made again from its Markdown.
                    inside = {name: made(name, part) for name, part in value.items() if name != "html"}
                    # A link of another machine may lead only to the web.
                    if not str(inside.get("url", "https://")).startswith("https://"):
                        del inside["url"]
                    if key in ("questions", "pendingQuestion", "moreQuestions") and isinstance(inside.get("id"), str):
                        inside["id"] = f"{host}:{inside['id']}"
                    if isinstance(inside.get("item"), dict) and "type" in inside["item"]:
                        inside = with_html(inside)
                    return inside
                case list():
                    return [made(key, part) for part in value]
                case _:
                    return safe(value)

        return elsewhere(made("", told), host)

    async def _shown(self, here: Callable[[Request], Awaitable[ASGIApp]], request: Request) -> ASGIApp:
        """Forward shown questions to their machines."""
        given = await body(request, ShownInput)
        links = self._helm.hosts
        parts: dict[str | None, dict[str, Any]] = {None: {"page": given.page}}
        for key in ("questions", "sessions", "hidden"):
            # Each machine gets only its questions.
            for reference in getattr(given, key):
                host, there = links.split(reference)
                parts.setdefault(host, {"page": given.page}).setdefault(key, []).append(there)
        told: list[Any] = []

        async def pass_on(host: str, part: dict[str, Any]) -> None:
            with anyio.move_on_after(_SHOWN_SECONDS):
                try:
                    _, answer = await self._answer(host, "POST", "/api/shown", "", json.dumps(part).encode())
                    told.extend(answer.get("questions", ()))
                except (HelmsmanError, TypeError) as error:
                    log.debug("%s does not learn which questions are on a screen: %s", host, error)

        if len(parts) == 1:
            return await here(_with_body(request, parts[None]))
        own = await here(_with_body(request, parts[None]))  # first: no other machine may keep it waiting
        async with anyio.create_task_group() as tasks:
            for name, part in parts.items():
                if name is not None:
                    tasks.start_soon(pass_on, name, part)
        answered = json.loads(bytes(getattr(own, "body", b"{}")))
        return respond({"questions": [*answered.get("questions", ()), *told]})

    # --- what changes there ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if not self._is_watching and self._helm.hosts.known():
            self._is_watching = True
            self._helm.in_background(self._watch_states)

    async def _watch_states(self) -> None:
        """While a page listens, follow every machine, and tell when one is there or away."""
        told: Any = None
        try:
            while self._live.has_readers:
                for name in self._helm.hosts.known().keys() - self._followed:
                    self._followed.add(name)
                    self._helm.in_background(partial(self._follow, name))
                if told != (states := self._states()):
                    # Only changes of state are announced.
                    told = states
                    self._live.mark("", ["hosts"])
                await anyio.sleep(_STATE_SECONDS)
        finally:
            self._is_watching = False

    async def _follow(self, name: str) -> None:
        last: str | None = None
        tries = 0
        try:
            while self._live.has_readers and name in self._helm.hosts.known():
                try:
                    helm = await self._helm.hosts.get(name)
                    # From where we were: nothing is missed during a reconnect.
                    async with helm.page_changes(LIVE_PATH, last) as changes:
                        tries = 0
                        while self._live.has_readers:
                            last = await self._take_next(name, changes, last)
                            # It has sent something sensible, so it is there.
                            self._problems.pop(name, None)
                except HelmsmanError as error:
                    self._problems[name] = error.message
                except _NONSENSE:
                    self._problems[name] = _nonsense(name).message
                # Longer and longer pauses for a machine that stays away.
                if name in self._problems:
                    await anyio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
                    tries += 1
        finally:
            self._followed.discard(name)
            self._problems.pop(name, None)

    async def _take_next(self, name: str, changes: HubEvents, last: str | None) -> str | None:
        """Pass on the next changes on a machine. Return their number."""
        event = None
        with anyio.move_on_after(_SILENT_SECONDS):
            event = await changes.next()
        if event is None:
            raise HostUnreachable(_LOST)
        kind, data, number = event
        if kind:
            self._take_changes(name, json.loads(data))
            await anyio.sleep(_PAUSE_SECONDS)
        # It is sent back in a header.
        return number if _NUMBER.fullmatch(number) else last

    def _take_changes(self, name: str, told: Mapping[str, Any]) -> None:
        changes = told.get("changes", ())
        # After a gap the page reads everything anew.
        if not told.get("resumed", True) or len(changes) > _MOST_CHANGES:
            self._live.mark(f"{name}:", _KINDS)
            changes = ()
        for change in changes:
            # Another version may have kinds that this page does not know.
            self._live.mark(f"{name}:{change.get('sessionId') or ''!s:.200}", _KINDS.intersection(change["kinds"]))


def _nonsense(host: str) -> HostUnreachable:
    return HostUnreachable(f"{host} gives an invalid answer. Install the same version of Helmsman there.")


def _with_body(request: Request, content: Mapping[str, Any]) -> Request:
    """Return the request with another body."""
    told = [{"type": "http.request", "body": json.dumps(content).encode(), "more_body": False}]

    async def receive() -> Any:
        return told.pop() if told else {"type": "http.disconnect"}

    return Request(request.scope, receive)
