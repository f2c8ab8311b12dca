"""Connection with `codex app-server`: one typed function per method, and the WebSockets of servers that others started.

Each method is one request and its answer. Procedures of several requests belong to `helmsman.agents.codex.engine`.
Answers are parsed leniently: unknown fields are ignored and missing ones become None, so that a newer Codex breaks
nothing.

Codex on a pipe has the transports of all agents. `open_unix` and `open_remote` yield a `base.jsonrpc.Transport` with
one message per WebSocket message. The end of their blocks closes the connection.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman._version import __version__
from helmsman.agents.codex.access import Policy, approval_name, read_policy, sandbox_name
from helmsman.agents.codex.features import Version
from helmsman.agents.protocol import (
    Account,
    AgentConfig,
    ConfigLayer,
    EngineHangs,
    Goal,
    Login,
    Model,
    NothingBegun,
    Skill,
    SkillList,
)
from helmsman.base.addresses import REMOTE_TOKEN, engine_address, is_loopback
from helmsman.base.json_values import integer, mapping, optional_text, present, rows, sequence, texts
from helmsman.base.jsonrpc import REQUEST_TIMEOUT, Peer, Transport
from helmsman.base.line_framer import MAX_LINE_BYTES
from helmsman.base.peers import belongs_to_other
from helmsman.errors import (
    EngineLost,
    EngineProtocolError,
    EngineRefused,
    EngineTimeout,
    InvalidInput,
    InvalidSetting,
    SessionIdle,
    SessionLocked,
    SessionNotFound,
    Unsupported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from websockets.asyncio.client import ClientConnection

    from helmsman.agents.codex.binary import CodexBinary

CLIENT_NAME: Final = "helmsman"

HANDSHAKE_TIMEOUT: Final = 30.0

OPEN_TIMEOUT: Final = 120.0
"""Timeout of opening a thread, which may wait for a login shell and MCP servers.

A hundred concurrent ones took half a minute.
"""

ANSWER_TIMEOUT: Final = 20.0
"""Timeout of requests that need no work. They take milliseconds unless Codex hangs."""

HEARTBEAT: Final = 30.0
"""Seconds between checks during a turn: an engine that hangs does not report it."""

_UNWANTED_NOTIFICATIONS: Final = (
    "item/fileChange/outputDelta",
    "rawResponseItem/completed",
    "mcpServer/startupStatus/ready",
)
_SETTINGS: Final = (
    "model",
    "modelProvider",
    "reasoningEffort",
    "collaborationMode",
    "cwd",
    "approvalPolicy",
    "approvalsReviewer",
    "sandbox",
    "activePermissionProfile",
    "runtimeWorkspaceRoots",
)
"""Fields of an answer about a thread, in addition to the thread."""
_NEWEST_TURN: Final[Mapping[str, Any]] = {"limit": 1, "itemsView": "full"}
_USER_AGENT_VERSION = re.compile(r"/(\d+\.\d+\.\d+\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """Thread as in an answer; policies only in answers to start, resume and fork."""

    id: str
    cwd: str | None = None
    path: str | None = None
    model: str | None = None
    effort: str | None = None
    mode: str | None = None
    approval_policy: str | None = None
    sandbox: str | None = None
    policy: Policy | None = None
    parent_id: str | None = None
    is_active: bool = False
    is_asking: bool = False
    running_turn: str | None = None
    turns: tuple[Mapping[str, Any], ...] = ()
    raw: Mapping[str, Any] | None = None


INITIALIZED: Final = "initialized"
READ: Final = "thread/read"
RESUME: Final = "thread/resume"


def handshake() -> dict[str, Any]:
    """Return the params of `initialize`."""
    return {
        "clientInfo": {"name": CLIENT_NAME, "title": "Helmsman", "version": __version__},
        "capabilities": {"experimentalApi": True, "optOutNotificationMethods": list(_UNWANTED_NOTIFICATIONS)},
    }


class AppServer:
    """Typed view of one connection."""

    def __init__(self, peer: Peer, binary: CodexBinary) -> None:
        self._peer = peer
        self._binary = binary
        self.hangs = False
        """True once Codex runs but no longer answers, and was abandoned."""

    async def call(self, method: str, *, timeout: float = REQUEST_TIMEOUT, **params: Any) -> dict[str, Any]:
        sent = present(params)
        try:
            answer = await self._peer.request(method, sent, timeout=timeout)
        except EngineRefused as refused:
            raise _explain(refused, params.get("threadId")) from refused
        except EngineTimeout:
            if method != "initialize":
                await self.check()
            raise
        return answer if isinstance(answer, dict) else {}

    # --- the connection ----------------------------------------------------------------------------------------------

    async def initialize(self) -> Version:
        """Shake hands, which tells the version. Must come first, and once: where others have, Codex only has to answer."""
        # The supervisor has shaken hands; any request shows whether Codex still answers.
        if self._peer.resumed is not None:
            await self._peer.request("thread/loaded/list", timeout=HANDSHAKE_TIMEOUT)
            return self._version(self._peer.resumed.answer)
        answer = await self.call("initialize", timeout=HANDSHAKE_TIMEOUT, **handshake())
        self._peer.notify(INITIALIZED)
        return self._version(answer)

    def _version(self, answer: Mapping[str, Any]) -> Version:
        found = _USER_AGENT_VERSION.search(str(answer.get("userAgent", "")))
        return Version.parse(found.group(1)) if found else self._binary.version

    async def check(self) -> None:
        """Check that Codex answers. If it does not, abandon it and fail all open requests.

        Raises:
            EngineLost: It does not answer, or is gone.
        """
        try:
            await self._peer.request("thread/loaded/list", timeout=ANSWER_TIMEOUT)
        except EngineRefused:
            return  # an answer too
        except EngineTimeout as error:
            self.hangs = True
            self._peer.give_up(
                EngineHangs(
                    f"The Codex engine hangs: it answered nothing for {ANSWER_TIMEOUT:g} s and was given up. Send the next "
                    "message to start another; sessions continue from disk."
                )
            )
            raise (self._peer.closed or error).again() from error

    async def watch(self, is_busy: Callable[[], bool]) -> None:
        """Notice an engine that hangs, for as long as this task runs."""
        while self._peer.closed is None:
            await anyio.sleep(HEARTBEAT)
            # An idle engine that hangs is noticed by the next request.
            if is_busy():
                with suppress(EngineLost):  # reported already
                    await self.check()

    # --- threads and turns -------------------------------------------------------------------------------------------

    async def open_thread(self, method: str, **params: Any) -> Thread:
        """Start, resume, fork or read a thread."""
        timeout = REQUEST_TIMEOUT if method == READ else OPEN_TIMEOUT
        return _opened_thread(method, await self.call(method, timeout=timeout, **params))

    async def read_thread(self, thread_id: str, *, with_turns: bool = False) -> Thread:
        return await self.open_thread(READ, threadId=thread_id, includeTurns=with_turns)

    async def resume_thread(self, thread_id: str, settings: Mapping[str, Any]) -> Thread:
        # Full turns of a long thread may be too large for one message, and newer versions deprecate them.
        return await self.open_thread(RESUME, threadId=thread_id, excludeTurns=True, **settings)

    async def join_thread(self, thread_id: str, settings: Mapping[str, Any]) -> Thread:
        """Resume a thread together with its newest turn, running or ended, as far as it has come."""
        asked = {"threadId": thread_id, "excludeTurns": True, "initialTurnsPage": _NEWEST_TURN}
        try:
            answer = await self.call(RESUME, timeout=OPEN_TIMEOUT, **asked, **settings)
        except EngineRefused as refused:
            if "list_turns" not in str(refused.details.get("rpc_message")):
                raise
            return await self.resume_thread(thread_id, settings)  # its first turn has only just begun
        page: Any = answer.get("initialTurnsPage")
        if not isinstance(page, dict):  # Codex before 0.145
            page = await self.call("thread/turns/list", threadId=thread_id, **_NEWEST_TURN)
        thread = {**mapping(answer.get("thread")), "turns": page.get("data")}
        return _opened_thread(RESUME, {**answer, "thread": thread})

    async def loaded_threads(self) -> tuple[str, ...]:
        return tuple(texts((await self.call("thread/loaded/list")).get("data")))

    async def begin_turn(self, method: str, **params: Any) -> str:
        """Begin a turn or a review; its id. The thread must be loaded and idle: a second turn would melt into the first."""
        turn_id = optional_text(mapping((await self.call(method, **params)).get("turn")).get("id"))
        if turn_id is None:
            raise _too_new(method, "turn")
        return turn_id

    async def steer_turn(self, thread_id: str, turn_id: str, text: str) -> None:
        await self.call("turn/steer", threadId=thread_id, expectedTurnId=turn_id, input=user_input(text))

    async def goal(self, thread_id: str) -> Goal | None:
        return read_goal(await self.call("thread/goal/get", threadId=thread_id))

    # --- about Codex itself ------------------------------------------------------------------------------------------

    async def account(self) -> Account:
        answer = await self.call("account/read")
        fields = mapping(answer.get("account"))
        return Account(
            kind=_text(fields.get("type")),
            email=_text(fields.get("email")),
            plan=_text(fields.get("planType")),
            requires_login=answer.get("requiresOpenaiAuth") is True,
        )

    async def config(self, cwd: Path | None = None) -> AgentConfig:
        """Codex's configuration for a directory, layer by layer."""
        return read_config(await self.call("config/read", includeLayers=True, cwd=None if cwd is None else str(cwd)))

    async def mcp_servers(self, *, timeout: float) -> tuple[McpServer, ...]:
        """Return the configured MCP servers. Codex starts each to determine its state."""
        return read_mcp_servers(await self.call("mcpServerStatus/list", timeout=timeout))


# --- websockets -------------------------------------------------------------------------------------------------------


CONNECT_TIMEOUT: Final = 10.0

_LISTENING: Final = "0A"
"""State of a listening socket in Linux's tables."""


class WebSocketTransport(Transport):
    """Transport with one JSON object per text message."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def messages(self) -> AsyncIterator[list[bytes | str]]:
        from websockets.exceptions import ConnectionClosed

        try:
            async for message in self._connection:
                yield [message]
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == 1009:  # we refused it: "message too big"
                raise EngineProtocolError(
                    f"Codex sent a message of more than {MAX_LINE_BYTES} bytes. Start the session again; if it is "
                    "resumed, its history may be too large to be read as a whole."
                ) from error

    async def send(self, message: str) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise EngineLost(
                "The connection to the Codex engine is closed. Send the next message to continue."
            ) from error

    async def loss(self) -> EngineLost:
        code = self._connection.close_code
        return EngineLost(
            f"Codex has ended, or closed the connection (code {code}). Send the next message to continue.",
            close_code=code,
        )


@asynccontextmanager
async def open_unix(path: Path) -> AsyncIterator[WebSocketTransport]:
    """Connect to an engine that listens on a Unix socket.

    Raises:
        EngineLost: No server answers.
    """
    from websockets.asyncio.client import unix_connect

    # Codex before 0.166 drops a handshake that offers compression.
    connecting = unix_connect(str(path), uri="ws://localhost/", **_OPTIONS)
    async with _connected(connecting, f"at {path}") as connection:
        if belongs_to_other(connection.transport.get_extra_info("socket")):
            raise EngineLost(  # it would receive everything and could answer anything
                f"The engine at {path} belongs to another user. Remove that path, and start an engine of your own."
            )
        yield WebSocketTransport(connection)


@asynccontextmanager
async def open_remote(url: str, *, token: str | None) -> AsyncIterator[WebSocketTransport]:
    """Connect to an engine on another host, or on a port of this one.

    Raises:
        InvalidSetting: The address is invalid, or needs a token.
        EngineLost: No server answers, or the token is refused.
    """
    from websockets.asyncio.client import connect

    parts = engine_address(url)
    host, port = parts.hostname or "", parts.port or 80
    if token is None and not is_loopback(host):
        raise InvalidSetting(f"An engine on another machine is only used with a token. Set {REMOTE_TOKEN}.")
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    where = f"at {url}"
    options = dict(_OPTIONS)
    if parts.scheme == "ws" and token is not None:
        # Connect first: a program that takes the port later must not get the token.
        options["sock"] = await _connected_socket(host, port, where)
        if any(uid not in (0, os.geteuid()) for uid in listeners_uids(port)):
            options["sock"].close()
            raise EngineLost(
                f"The port of the engine {where} belongs to another user, so the token was not sent. Use another port."
            )
    connecting = connect(url, additional_headers=headers, **options)
    async with _connected(connecting, where) as connection:
        yield WebSocketTransport(connection)


async def _connected_socket(host: str, port: int, where: str) -> socket.socket:
    try:
        with anyio.fail_after(CONNECT_TIMEOUT):
            connected = await anyio.to_thread.run_sync(lambda: socket.create_connection((host, port), CONNECT_TIMEOUT))
    except OSError as error:
        raise EngineLost(f"No Codex engine answers {where}: {error}. Check that one is running.") from error
    # `websockets` expects a non-blocking socket.
    connected.setblocking(False)
    return connected


def listeners_uids(port: int) -> set[int]:
    """Return the users whose programs listen on a port of this machine (Linux); empty elsewhere."""
    uids: set[int] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            # Fields of the table: local address, state and uid.
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                uids.add(int(fields[7]))
    return uids


_quiet = logging.getLogger(f"{__name__}.websocket")
_quiet.setLevel(logging.INFO)  # below that every header is logged, the token among them
_OPTIONS: Final[Mapping[str, Any]] = {
    "compression": None,
    "max_size": MAX_LINE_BYTES,
    "open_timeout": CONNECT_TIMEOUT,
    "logger": _quiet,
}


@asynccontextmanager
async def _connected(connecting: Any, where: str) -> AsyncIterator[ClientConnection]:
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

    try:
        connection: ClientConnection = await connecting
    except InvalidStatus as error:
        status = error.response.status_code
        hint = "Check the token." if status in (401, 403) else "Check that a codex app-server listens there."
        raise EngineLost(f"The engine {where} refused the connection (HTTP {status}). {hint}") from error
    except (OSError, TimeoutError, InvalidHandshake, InvalidURI, EOFError, ssl.SSLError) as error:
        raise EngineLost(
            f"No Codex engine answers {where}: {str(error) or type(error).__name__}. Check that one is running."
        ) from error
    try:
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close()


# --- reading answers -------------------------------------------------------------------------------------------------


def _text(value: Any) -> str | None:
    return optional_text(value) or None


def user_input(text: str, images: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Return the input of a turn."""
    items: list[dict[str, Any]] = [{"type": "text", "text": text}]
    return items + [{"type": "localImage", "path": str(image)} for image in images]


def _too_new(method: str, missing: str) -> EngineProtocolError:
    return EngineProtocolError(
        f"Codex's answer to {method} names no {missing}. Update Helmsman: this Codex is too new for it."
    )


def _opened_thread(method: str, answer: Mapping[str, Any]) -> Thread:
    raw = answer.get("thread")
    settings = {key: answer[key] for key in _SETTINGS if key in answer}
    thread = _thread({**raw, **settings}) if isinstance(raw, dict) else None
    if thread is None:
        raise _too_new(method, "thread")
    return thread


def _thread(raw: Mapping[str, Any]) -> Thread | None:
    thread_id = _text(raw.get("id"))
    if thread_id is None:
        return None
    known_turns = tuple(rows(raw.get("turns")))
    running = (turn.get("id") for turn in reversed(known_turns) if turn.get("status") == "inProgress")
    return Thread(
        id=thread_id,
        cwd=_text(raw.get("cwd")),
        path=_text(raw.get("path")),
        model=_text(raw.get("model")),
        effort=_text(raw.get("reasoningEffort")),
        mode=_text(mapping(raw.get("collaborationMode")).get("mode")),
        approval_policy=approval_name(raw.get("approvalPolicy")),
        sandbox=sandbox_name(raw.get("sandbox")),
        policy=read_policy(raw),
        parent_id=_parent_id(raw.get("source")),
        is_active=mapping(raw.get("status")).get("type") == "active",
        is_asking=bool(mapping(raw.get("status")).get("activeFlags")),
        running_turn=_text(next(running, None)),
        turns=known_turns,
        raw=raw,
    )


def _parent_id(source: Any) -> str | None:
    """Return the thread that spawned this one, in `source['subAgent']['thread_spawn']['parent_thread_id']`."""
    for key in ("subAgent", "thread_spawn"):
        source = mapping(source).get(key)
    return _text(mapping(source).get("parent_thread_id"))


def read_goal(answer: Mapping[str, Any]) -> Goal | None:
    """Parse the goal of a thread."""
    raw = answer.get("goal")
    if not isinstance(raw, dict):
        return None
    return Goal(
        objective=str(raw.get("objective") or ""),
        status=str(raw.get("status") or ""),
        tokens_used=integer(raw.get("tokensUsed")),
        seconds_used=integer(raw.get("timeUsedSeconds")),
    )


def read_login(answer: Mapping[str, Any], *, with_code: bool) -> Login:
    """Parse a login that has begun."""
    login_id, url = _text(answer.get("loginId")), _text(answer.get("verificationUrl" if with_code else "authUrl"))
    if login_id is None or url is None:
        raise _too_new("account/login/start", "page")
    return Login(id=login_id, url=url, code=_text(answer.get("userCode")))


def read_model(raw: Mapping[str, Any]) -> Model:
    """Parse a model."""
    return Model(
        id=str(raw.get("id") or raw.get("model") or ""),
        name=str(raw.get("displayName") or raw.get("id") or ""),
        description=_text(raw.get("description")),
        is_default=raw.get("isDefault") is True,
        efforts=tuple(texts([one.get("reasoningEffort") for one in rows(raw.get("supportedReasoningEfforts"))])),
        default_effort=_text(raw.get("defaultReasoningEffort")),
    )


_UNREAD_CONFIGURATION: Final = re.compile(
    r"(?:failed to (?:read|load)|error (?:deriving|loading)) config\w*(?: layers)?: (?P<said>.+)",
    re.IGNORECASE | re.DOTALL,
)


def _explain(refused: EngineRefused, thread_id: str | None) -> Exception:
    """Convert a refusal to a specific error, if Codex's text allows it."""
    # Codex has one error code for nearly everything, so its text decides.
    text = str(refused.details.get("rpc_message", ""))
    data = mapping(refused.details.get("rpc_data"))
    if data.get("input_error_code") == "input_too_large":
        return InvalidInput(
            f"The prompt has {data.get('actual_chars')} characters and Codex takes at most {data.get('max_chars')}. "
            "Shorten it, or put the material into a file and name the file."
        )
    if "already has an active writer" in text:
        return SessionLocked(
            f"Session {thread_id} is open in another Codex process, perhaps the background daemon of a terminal session "
            "(`codex app-server daemon stop` ends that). Close it there, or fork the session."
        )
    if "no active turn to steer" in text:  # it has just ended
        return SessionIdle(f"No turn is running in session {thread_id} now. Send it as a new message instead.")
    if "is draining" in text:  # it was asked to end, and waits for the turns that run in it
        return NothingBegun(
            "This Codex engine is ending and takes no new work. Try again: another one takes its place."
        )
    if "is archived" in text:
        return InvalidInput(f"Session {thread_id} is archived. Unarchive it first, then send the message again.")
    if any(
        mark in text for mark in ("no rollout found", "thread not found", "invalid thread id", "invalid session id")
    ):
        return SessionNotFound(
            f"Codex has no session {thread_id}. List the sessions to see which there are. One that never ran a turn "
            "cannot be resumed: start a new one."
        )
    if "goals feature is disabled" in text:
        return Unsupported(
            "This Codex can keep goals, but that is switched off. Set `goals = true` under [features] in its config.toml, "
            "or use Codex 0.145.0 and newer, where it is on."
        )
    # The text names a file that could not be read. Other refusals of configuration concern the caller's values.
    if (unread := _UNREAD_CONFIGURATION.search(text)) is not None and ".toml" in unread["said"]:
        said = unread["said"].rstrip(".")
        return InvalidSetting(
            f"Codex cannot read its own configuration: {said}. Correct it there; `helmsman doctor` says whether all "
            "is well then."
        )
    method = refused.details.get("method")
    # Codex answers unknown methods with the list of all known ones.
    if f"unknown variant `{method}`" in text:
        return Unsupported(f"This Codex does not know {method}. Update Codex; `helmsman doctor` shows its version.")
    return refused


# --- skills and configuration ----------------------------------------------------------------------------------------


def read_skills(answer: Mapping[str, Any]) -> SkillList:
    """Parse the skills for the requested directories."""
    places = rows(answer.get("data"))
    skills = [_skill(row) for place in places for row in rows(place.get("skills"))]
    problems = [f"{row.get('path')}: {row.get('message')}" for place in places for row in rows(place.get("errors"))]
    return SkillList(skills=tuple(skill for skill in skills if skill.name), problems=tuple(problems))


def _skill(row: Mapping[str, Any]) -> Skill:
    shown = mapping(row.get("interface"))
    short = optional_text(shown.get("shortDescription")) or optional_text(row.get("shortDescription"))
    return Skill(
        name=str(row.get("name") or ""),
        description=short or str(row.get("description") or ""),
        scope=str(row.get("scope") or ""),
        path=str(row.get("path") or ""),
        enabled=row.get("enabled") is not False,
    )


def read_config(answer: Mapping[str, Any]) -> AgentConfig:
    """Parse the configuration, without unset keys."""
    layers = tuple(_layer(mapping(row)) for row in sequence(answer.get("layers")))
    return AgentConfig(values=present(mapping(answer.get("config"))), layers=layers)


def _layer(row: Mapping[str, Any]) -> ConfigLayer:
    name = mapping(row.get("name"))
    folder = optional_text(name.get("dotCodexFolder"))
    return ConfigLayer(
        kind=str(name.get("type")),
        file=f"{folder}/config.toml" if folder is not None else optional_text(name.get("file")),
        version=optional_text(row.get("version")),
        values=mapping(row.get("config")),
    )


# --- MCP servers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Server. `answers` is None if this Codex does not say; `error` is the reason if it does not answer."""

    name: str
    answers: bool | None
    tools: int
    error: str | None = None
    needs_login: bool = False


def read_mcp_servers(answer: Mapping[str, Any]) -> tuple[McpServer, ...]:
    """Parse the servers in an answer of Codex, in its order."""
    return tuple(server for server in map(_server, rows(answer.get("data"))) if server.name)


def _server(row: Mapping[str, Any]) -> McpServer:
    tools, error = row.get("tools"), optional_text(row.get("toolsError")) or None
    count = len(tools) if isinstance(tools, dict | list) else 0
    answers: bool | None = True
    if error is not None:
        answers = False
    # Neither tools nor information: it does not answer, if this Codex would report it.
    elif not count and not row.get("serverInfo"):
        answers = False if "serverInfo" in row else None
    return McpServer(
        name=str(row.get("name") or ""),
        answers=answers,
        tools=count,
        error=error,
        needs_login=row.get("authStatus") == "notLoggedIn",
    )
