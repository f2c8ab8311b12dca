"""Requests of Codex as questions, and answers as results.

A table, keyed by the request's method, reads a request and writes its answer. A method without an entry is refused. Codex
never gets a lasting yes (`acceptForSession`, `acceptWithExecpolicyAmendment`, MCP `persist`), because it may cover more than
was shown. Longer approvals are Helmsman's own rules, which answer the next question.

A command's question also says whether a yes stays in Codex's sandbox, which Codex does not say. A command can run outside
because the model asked for it, because the sandbox refused it and Codex retries without (under every approval policy but
`on-request` and `never`, unasked; 0.93 to 0.166), or because there is no sandbox. The session's file proves the opposite: it
has the policy of the turn (`turn_context`) and the model's call, whose `call_id` is the question's `itemId`. A command stays
inside if the turn runs under `on-request` in a sandbox, and the call is one of a known shell, for this very command, with no
unknown argument. Anything missing, unknown, too long or duplicated proves nothing. In code mode no call has the question's
id, so every command counts as outside.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.agents.changes import as_details
from helmsman.agents.codex.binary import TITLE
from helmsman.agents.codex.features import Feature
from helmsman.agents.codex.storage import OWN_ID, SESSIONS, lines_from_end
from helmsman.agents.forms import form_content, form_prompts
from helmsman.base.json_values import json_object, mapping, present, rows
from helmsman.errors import HelmsmanError, QuestionNotOpen
from helmsman.model.change_diff import file_change_diff
from helmsman.model.events import FileChange, McpToolCall, QuestionAsked, QuestionClosed, ToolCalled
from helmsman.model.questions import (
    ABORT,
    ACCEPT,
    APPROVE,
    APPROVE_SESSION,
    CANCEL,
    DECLINE,
    DENY,
    Choice,
    Prompt,
    Question,
    QuestionType,
)

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.connection import AppServer
    from helmsman.agents.codex.threads import CodexThread
    from helmsman.agents.event_router import EventRouter
    from helmsman.base.jsonrpc import IncomingRequest, Peer
    from helmsman.model.client_tools import ToolResult
    from helmsman.model.questions import WhereItRuns

# --- requests and answers --------------------------------------------------------------------------------------------


COMMAND: Final = "item/commandExecution/requestApproval"
FILE_CHANGE: Final = "item/fileChange/requestApproval"
PERMISSIONS: Final = "item/permissions/requestApproval"
USER_INPUT: Final = "item/tool/requestUserInput"
ELICITATION: Final = "mcpServer/elicitation/request"
LEGACY_COMMAND: Final = "execCommandApproval"
LEGACY_FILE_CHANGE: Final = "applyPatchApproval"

_DECISIONS: Final = {APPROVE: "accept", APPROVE_SESSION: "accept", DENY: "decline", ABORT: "cancel"}
_LEGACY_DECISIONS: Final = {APPROVE: "approved", APPROVE_SESSION: "approved", DENY: "denied", ABORT: "abort"}

_TOOL_APPROVAL: Final = "mcp_tool_call_approval_"
"""Codex 0.115 uses this id for the approval of an MCP tool, and offers lasting answers."""
_LASTING: Final = re.compile(r"session|always|again|remember", re.IGNORECASE)


def thread_of(request: IncomingRequest) -> str | None:
    """Return the thread of a request."""
    thread_id = request.params.get("threadId") or request.params.get("conversationId")
    return thread_id if isinstance(thread_id, str) else None


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Context of a request that is not in the request: the directory of its session, the file change it concerns, the
    MCP tools (server, tool) being called, and the proof about a command (`helmsman.agents.codex.questions`).
    """

    directory: str | None = None
    patch: FileChange | None = None
    tools: frozenset[tuple[str, str]] = frozenset()
    sandbox: WhereItRuns = "outside"


def item_of(request: IncomingRequest) -> str | None:
    """Return the item of a request."""
    return _text(request.params, "itemId") or _text(request.params, "callId")


def read_question(request: IncomingRequest, session_id: str, around: RequestContext) -> Question | None:
    """Convert a request to a question for the owner of `session_id`, or return None if it is not one."""
    if request.method not in _REQUESTS:
        return None
    reader, _ = _REQUESTS[request.method]
    params = request.params
    thread_id = thread_of(request)
    turn_id = _text(params, "turnId")
    item_id = item_of(request)
    kind, prompts, details = reader(params, around)
    return Question(
        id=_question_id(thread_id, turn_id, item_id, request.id),
        type=kind,
        session_id=session_id,
        turn_id=turn_id,
        item_id=item_id,
        agent_id=thread_id if thread_id != session_id else None,
        prompts=prompts,
        details=present(details),
        environment=_text(params, "environmentId"),
        asker=TITLE,
    )


def write_answer(request: IncomingRequest, choices: tuple[Choice, ...] | None) -> Mapping[str, Any]:
    """Return the result with the choices for Codex; None refuses.

    Raises:
        AnswerInvalid: A form field's text does not fit its type.
    """
    _, writer = _REQUESTS[request.method]
    return writer(request.params, choices)


def _question_id(*identity: object) -> str:
    # The same request sent again (to a new connection) keeps its id, and an id never comes back for another question:
    # Codex numbers its requests from 0 in each process, so the number alone would.
    return "q_" + hashlib.sha256(repr(identity).encode()).hexdigest()[:10]


def _text(params: Mapping[str, Any], key: str) -> str | None:
    value = params.get(key)
    return value if isinstance(value, str) and value else None


_Read = tuple[QuestionType, tuple[Prompt, ...], dict[str, Any]]

# --- commands and file changes ---------------------------------------------------------------------------------------


def _read_command(params: Mapping[str, Any], around: RequestContext) -> _Read:
    command = params.get("command")
    if isinstance(command, list):  # the legacy form sends the words
        command = shlex.join(str(word) for word in command)
    reason = _text(params, "reason")
    extra = params.get("additionalPermissions")
    # A command that brings extra permissions is approved each time: "the same command again" does not cover them.
    options = (APPROVE, DENY, ABORT) if extra else (APPROVE, APPROVE_SESSION, DENY, ABORT)
    kind = params.get("kind")
    details = {
        "command": command,
        "kind": kind if kind != "command" else None,
        "directory": _text(params, "cwd"),
        "reason": reason,
        "additionalPermissions": extra,
        "networkContext": params.get("networkApprovalContext"),
        "sandbox": around.sandbox,
    }
    return "command_approval", (Prompt(text="Codex asks to run a command.", options=options),), details


def _read_file_change(params: Mapping[str, Any], around: RequestContext) -> _Read:
    reason = _text(params, "reason")
    root = _text(params, "grantRoot")
    changes = around.patch.changes if around.patch is not None else ()
    details = {
        "diff": file_change_diff(changes, around.directory) if changes else None,
        "changes": list(map(as_details, changes)) or None,
        "paths": [path for change in changes for path in (change.path, change.moved_to) if path is not None] or None,
        "reason": reason,
        "grantRoot": root,
        "files": params.get("fileChanges"),
    }
    prompt = Prompt(text="Codex asks to change files.", options=(APPROVE, APPROVE_SESSION, DENY, ABORT))
    return "patch_approval", (prompt,), details


def _write_decision(
    params: Mapping[str, Any], choices: tuple[Choice, ...] | None, words: Mapping[str, str] = _DECISIONS
) -> Mapping[str, Any]:
    return {"decision": words[choices[0].value if choices else DENY]}


_write_legacy_decision = partial(_write_decision, words=_LEGACY_DECISIONS)


# --- permissions -----------------------------------------------------------------------------------------------------


def _read_permissions(params: Mapping[str, Any], _around: RequestContext) -> _Read:
    reason = _text(params, "reason")
    wanted = mapping(params.get("permissions"))
    details = {"permissions": wanted, "directory": _text(params, "cwd"), "reason": reason}
    prompt = Prompt(text="Codex asks for more permissions.", options=(APPROVE, APPROVE_SESSION, DENY))
    return "permission_approval", (prompt,), details


def _write_permissions(params: Mapping[str, Any], choices: tuple[Choice, ...] | None) -> Mapping[str, Any]:
    choice = choices[0].value if choices else DENY
    if choice == DENY:
        return {"permissions": {}, "scope": "turn"}
    granted = present(mapping(params.get("permissions")))
    return {"permissions": granted, "scope": "session" if choice == APPROVE_SESSION else "turn"}


# --- questions of the model ------------------------------------------------------------------------------------------


def _read_user_input(params: Mapping[str, Any], _around: RequestContext) -> _Read:
    prompts: list[Prompt] = []
    for entry in rows(params.get("questions")):
        options = rows(entry.get("options"))
        labels = {str(option["label"]): str(option.get("description") or "") for option in options if "label" in option}
        # Lasting answers would be rules of Codex's own, which cover more than was shown.
        if str(entry.get("id", "")).startswith(_TOOL_APPROVAL):
            labels = {label: text for label, text in labels.items() if not _LASTING.search(label)}
        prompts.append(
            Prompt(
                text=_text(entry, "question") or _text(entry, "header") or "Codex asks for your input.",
                options=tuple(labels),
                free_text=bool(entry.get("isOther")) or not labels,
                key=str(entry.get("id", "")),
                secret=bool(entry.get("isSecret")),
                descriptions={label: text for label, text in labels.items() if text},
            )
        )
    headers = [_text(entry, "header") for entry in rows(params.get("questions"))]
    return "user_input", tuple(prompts), {"headers": headers if any(headers) else None}


def _write_user_input(params: Mapping[str, Any], choices: tuple[Choice, ...] | None) -> Mapping[str, Any]:
    keys = [str(entry.get("id", "")) for entry in rows(params.get("questions"))]
    given = zip(keys, choices or (), strict=False)
    return {"answers": {key: {"answers": [choice.in_full]} for key, choice in given}}


# --- elicitations of MCP servers -------------------------------------------------------------------------------------


def _read_elicitation(params: Mapping[str, Any], around: RequestContext) -> _Read:
    meta = mapping(params.get("_meta"))
    server = _text(params, "serverName")
    message = _text(params, "message") or f"The MCP server {server} asks for input."
    prompts = [Prompt(text=message, options=(ACCEPT, DECLINE, CANCEL))]
    prompts += form_prompts(params)
    details = {
        "server": server,
        "mode": _text(params, "mode"),
        "url": _text(params, "url"),
        "approvalKind": _text(meta, "codex_approval_kind"),
        "tool": _called_tool(message, around.tools, server) if "codex_approval_kind" in meta else None,
        "toolDescription": _text(meta, "tool_description"),
        "toolParams": meta.get("tool_params"),
    }
    return "mcp_elicitation", tuple(prompts), details


def _called_tool(message: str, running: frozenset[tuple[str, str]], server: str | None) -> str | None:
    """Return the tool to be approved. The request names it only in a sentence, so it must match a call in progress."""
    # The sentence is the only place, and a tool's name may have been chosen to mislead: it must match a running call.
    named = re.search(r'run tool "(.+)"\?$', message)
    tool = named.group(1) if named is not None else None
    return tool if tool is not None and server is not None and (server, tool) in running else None


def _write_elicitation(params: Mapping[str, Any], choices: tuple[Choice, ...] | None) -> Mapping[str, Any]:
    action = choices[0].value if choices else DECLINE
    if action != ACCEPT:
        return {"action": action, "content": None}
    return {"action": ACCEPT, "content": form_content(params, (choices or ())[1:])}


_Reader = Callable[[Mapping[str, Any], RequestContext], _Read]
_Writer = Callable[[Mapping[str, Any], tuple[Choice, ...] | None], Mapping[str, Any]]

_REQUESTS: Final[Mapping[str, tuple[_Reader, _Writer]]] = {
    COMMAND: (_read_command, _write_decision),
    FILE_CHANGE: (_read_file_change, _write_decision),
    PERMISSIONS: (_read_permissions, _write_permissions),
    USER_INPUT: (_read_user_input, _write_user_input),
    ELICITATION: (_read_elicitation, _write_elicitation),
    LEGACY_COMMAND: (_read_command, _write_legacy_decision),
    LEGACY_FILE_CHANGE: (_read_file_change, _write_legacy_decision),
}

# --- proof of the sandbox --------------------------------------------------------------------------------------------


_TAIL: Final = 4 * 1024 * 1024
"""Maximum number of bytes read from a file's end. A turn that wrote more proves nothing."""

_COMMAND_KEYS: Final = {"exec_command": "cmd", "shell_command": "command", "shell": "command"}
"""Codex's shell tools for models, each with the argument that contains the command."""
_HARMLESS_KEYS: Final = frozenset(
    ["workdir", "shell", "login", "tty", "timeout_ms", "yield_time_ms", "max_output_tokens", "justification"]
)
_HARMLESS_VALUES: Final = {"sandbox_permissions": ("use_default",), "with_escalated_permissions": (False,)}
_SANDBOXES: Final = ("read-only", "workspace-write")


def prove(sessions: Path, params: Mapping[str, Any]) -> WhereItRuns | None:
    """Return where an approved `commandExecution/requestApproval` runs; None if the session's file may only be late.

    Args:
        sessions: Directory of this Codex's session files.
        params: Parameters of the request.
    """
    thread_id, call_id = params.get("threadId"), params.get("itemId")
    extra = (params.get(key) for key in ("additionalPermissions", "networkApprovalContext", "approvalId"))
    # A request with more than a plain command is never proved.
    if not isinstance(thread_id, str) or not isinstance(call_id, str) or any(value is not None for value in extra):
        return "outside"
    if params.get("kind", "command") != "command" or params.get("environmentId", "local") != "local":
        return "outside"
    turn = _running_turn(sessions, thread_id, call_id)
    # Under any other policy Codex may run the command again outside, without asking.
    if turn is None or turn.policy not in ("on-request", "untrusted"):
        return "outside"
    # The file may be behind: the policy found belongs to an earlier turn.
    if turn.names_turn and turn.id != params.get("turnId"):
        return None if not turn.calls else "outside"
    # The call may not be written yet. In code mode it never will be.
    if not turn.calls:
        return None if not call_id.startswith("exec-") else "outside"
    # The same id with another content could be a call that the model repeats on purpose.
    if any(call != turn.calls[0] for call in turn.calls) or not _stays_inside(turn.calls[0], params.get("command")):
        return "outside"
    # Under `untrusted` a command that the sandbox stops is run again outside.
    return "inside" if turn.policy == "on-request" else "inside-then-outside"


@dataclass(slots=True)
class _Turn:
    """End of a session's file, back to the policy of the turn."""

    id: str | None = None
    names_turn: bool = False
    policy: str | None = None
    """Approval policy; None without a known sandbox."""
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Calls with the requested id."""


def _running_turn(sessions: Path, thread_id: str, call_id: str) -> _Turn | None:
    path = _file(sessions, thread_id)
    if path is None:
        return None
    turn, left = _Turn(), _TAIL
    wanted = json.dumps(call_id).encode()
    settings: list[Mapping[str, Any]] = []
    try:
        with path.open("rb") as file:
            # From the end: the file may have many MB, and the call is among its newest lines.
            for line in lines_from_end(file):
                left -= len(line) + 1
                if left < 0:
                    return None
                if wanted in line:
                    payload = _payload(line, "response_item")
                    # The output of one counts, too: that call is over, so it is not the one asked about.
                    if payload.get("call_id") == call_id:
                        turn.calls.append({key: payload.get(key) for key in ("type", "name", "namespace", "arguments")})
                elif b'"thread_settings_applied"' in line[:200]:
                    settings.append(mapping(_payload(line, "event_msg").get("thread_settings")))
                elif b'"turn_context"' in line[:200] and (context := _payload(line, "turn_context")):
                    turn.names_turn = "turn_id" in context
                    turn.id = context.get("turn_id")
                    # Settings may have changed during the turn. Unless all agree, nothing is proved.
                    policies = {_policy(one) for one in (context, *settings)}
                    turn.policy = policies.pop() if len(policies) == 1 else None
                    return turn
    except OSError:
        return None
    return None


def _file(sessions: Path, thread_id: str) -> Path | None:
    """Return the file of a thread; of several, the one that was written last.

    It is in the folder of the day in its id.
    """
    found: list[tuple[float, Path]] = []
    for day in _days_around(thread_id):
        folder = sessions / f"{day:%Y}" / f"{day:%m}" / f"{day:%d}"
        try:
            with os.scandir(folder) as entries:
                mine = (entry for entry in entries if thread_id in entry.name and entry.name.endswith(".jsonl"))
                found += [(entry.stat().st_mtime, Path(entry.path)) for entry in mine]
        except OSError:
            continue
    return max(found)[1] if found else None


def _days_around(thread_id: str) -> list[datetime]:
    """Return the day on which a thread began, and its neighbours: the folder's name is local time."""
    if not OWN_ID.fullmatch(thread_id):
        return []
    try:
        began = datetime.fromtimestamp(int(thread_id.replace("-", "")[:12], 16) / 1000, UTC)
        return [began + timedelta(days=offset) for offset in (-1, 0, 1)]
    except (ValueError, OverflowError, OSError):
        return []  # no year that there is


def _payload(line: bytes, kind: str) -> Mapping[str, Any]:
    entry = json_object(line)
    return mapping(entry.get("payload")) if entry is not None and entry.get("type") == kind else {}


def _policy(context: Mapping[str, Any]) -> str | None:
    """Return the approval policy if the turn is certainly sandboxed and asks the user."""
    policy = context.get("approval_policy")
    profile, sandbox = context.get("permission_profile"), context.get("sandbox_policy")
    managed = mapping(profile).get("type") == "managed"
    restricted = mapping(mapping(profile).get("file_system")).get("type") == "restricted"
    sandboxed = mapping(sandbox).get("type") in _SANDBOXES if sandbox is not None else profile is not None
    if not sandboxed or (profile is not None and not (managed and restricted)):
        return None
    if context.get("approvals_reviewer", "user") != "user":
        return None
    return policy if isinstance(policy, str) else None


def _stays_inside(call: Mapping[str, Any], asked: object) -> bool:
    """Return whether a call is exactly a shell call of the command in question."""
    key = _COMMAND_KEYS.get(str(call["name"]))
    # A namespace makes it another tool of the same name.
    if call["type"] != "function_call" or key is None or call["namespace"] is not None:
        return False
    arguments = _arguments(call["arguments"])
    command = arguments.pop(key, None)
    for name, value in arguments.items():
        if name not in _HARMLESS_KEYS and name not in _HARMLESS_VALUES:
            return False
        if value is not None and name in _HARMLESS_VALUES and value not in _HARMLESS_VALUES[name]:
            return False
    try:
        words = shlex.split(asked) if isinstance(asked, str) else []
    except ValueError:
        return False
    if isinstance(command, list):
        return words == command
    # Codex asks about the command as the shell is called.
    return len(words) == 3 and words[1] in ("-lc", "-c") and words[2] == command


def _arguments(text: object) -> dict[str, Any]:
    """Parse the arguments of a call. Duplicate keys are invalid, because it is unknown which value Codex uses."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    try:
        arguments = json.loads(text, object_pairs_hook=once) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {"": None}  # a key that cannot occur
    return arguments if isinstance(arguments, dict) else {"": None}


# --- open questions --------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

STEER_TIMEOUT: Final = 5.0
_TOOL_CALL: Final = "item/tool/call"
_PROOF_SECONDS: Final = 0.5
"""Seconds to wait for Codex to write the call of a question to its file. It nearly always has already."""
_PROOF_AGAIN: Final = 0.02


class OpenQuestions:
    """Open questions of one engine."""

    def __init__(
        self,
        tasks: TaskGroup,
        peer: Peer,
        api: AppServer,
        binary: CodexBinary,
        router: EventRouter,
        threads: Mapping[str, CodexThread],
        codex_home: Path,
    ) -> None:
        self._tasks = tasks
        self._peer = peer
        self._api = api
        self._binary = binary
        self._router = router
        self._threads = threads
        self._sessions = codex_home / SESSIONS
        self._unproved: dict[int | str, IncomingRequest] = {}
        """Commands of which is not yet known whether a yes stays in the sandbox."""
        self._open: dict[str, IncomingRequest] = {}
        self._tool_calls: dict[str, IncomingRequest] = {}
        """Calls of a program's functions, by their ids."""

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        request = self._open.get(question.id)
        if request is None:
            raise QuestionNotOpen.any_more(question.id)
        result = write_answer(request, choices)
        del self._open[question.id]  # from here on no other answer is possible
        reason = choices[0].reason if choices else None
        with anyio.CancelScope(shield=True):  # bounded; a caller who leaves now must not leave Codex without its answer
            if reason is not None:
                await self._send_reason(request, reason)
            if not self._peer.respond(request.id, result):
                raise QuestionNotOpen.any_more(question.id)

    def answer_tool(self, call: ToolCalled, result: ToolResult) -> None:
        request = self._tool_calls.pop(call.call_id, None)
        if request is not None:  # `output` is for Codex 0.93
            content = [{"type": "inputText", "text": result.text}]
            self._peer.respond(request.id, {"contentItems": content, "output": result.text, "success": result.success})

    async def _send_reason(self, request: IncomingRequest, reason: str) -> None:
        """Send the reason of a refusal as a message into the turn, right before the refusal, which has no field for it."""
        thread_id, turn_id = thread_of(request), request.params.get("turnId")
        if thread_id is None or not isinstance(turn_id, str) or not self._binary.can(Feature.STEER):
            return
        try:
            with anyio.move_on_after(STEER_TIMEOUT):
                await self._api.steer_turn(thread_id, turn_id, reason)
        except HelmsmanError as error:
            log.warning("the reason did not reach Codex: %s", error)

    def take(self, request: IncomingRequest) -> bool:
        """Handle a request of Codex. Return whether it is, or may become, a question."""
        thread_id = thread_of(request)
        # Without a thread there is no session that could be asked.
        if thread_id is None:
            return False
        session_id = self._router.parent(thread_id) or thread_id
        # A session that is being opened has no sink yet, but is known.
        owner = self._router.owner(thread_id) or (session_id if self._is_own(session_id) else None)
        if owner is not None:
            return self._prove_and_ask(request, owner)
        # Codex sends no `thread/started` for spawned threads, so ask it for the parent.
        self._tasks.start_soon(self._ask_parent, request, thread_id)
        return True

    def _prove_and_ask(self, request: IncomingRequest, session_id: str) -> bool:
        sandbox = prove(self._sessions, request.params) if request.method == COMMAND else "outside"
        if sandbox is not None:
            return self._ask(request, session_id, sandbox)
        self._unproved[request.id] = request
        self._tasks.start_soon(self._ask_when_proved, request, session_id)
        return True

    async def _ask_when_proved(self, request: IncomingRequest, session_id: str) -> None:
        sandbox: WhereItRuns | None = None
        with anyio.move_on_after(_PROOF_SECONDS):
            while sandbox is None and request.id in self._unproved:
                await anyio.sleep(_PROOF_AGAIN)
                sandbox = prove(self._sessions, request.params)
        if self._unproved.pop(request.id, None) is not None:  # otherwise the answer is no longer needed
            self._ask(request, session_id, sandbox or "outside")

    def take_or_refuse(self, request: IncomingRequest) -> None:
        if not self.take(request):
            self._peer.refuse(request.id, f"Helmsman does not answer {request.method}")

    def resolved(self, params: Mapping[str, Any]) -> None:
        """Handle Codex's report that a request needs no answer any longer."""
        self._withdraw(lambda request: request.id == params.get("requestId"), "codex")

    def withdraw_of(self, thread_id: str, *, by: str) -> None:
        """Withdraw the open requests of a thread."""
        self._withdraw(lambda request: thread_of(request) == thread_id, by)

    def _withdraw(self, is_meant: Callable[[IncomingRequest], bool], by: str) -> None:
        self._unproved = {key: request for key, request in self._unproved.items() if not is_meant(request)}
        self._tool_calls = {key: request for key, request in self._tool_calls.items() if not is_meant(request)}
        for question_id, request in list(self._open.items()):
            if is_meant(request):
                del self._open[question_id]
                thread_id = thread_of(request) or ""
                self._router.deliver(QuestionClosed(session_id=thread_id, question_id=question_id, answer=None, by=by))

    def clear(self) -> None:
        self._unproved.clear()
        self._open.clear()
        self._tool_calls.clear()

    def _is_own(self, thread_id: str) -> bool:
        thread = self._threads.get(thread_id)
        return thread is not None and thread.access is not None

    def _ask(self, request: IncomingRequest, session_id: str, sandbox: WhereItRuns) -> bool:
        if request.method == _TOOL_CALL:
            return self._call_tool(request, session_id)
        thread = self._threads.get(thread_of(request) or session_id)
        items = {} if thread is None else thread.asked_about
        # A file change is described by its item, which comes before the request.
        patch = items.get(item_of(request) or "")
        around = RequestContext(
            directory=None if thread is None else thread.directory,
            patch=patch if isinstance(patch, FileChange) else None,
            tools=frozenset((item.server, item.tool) for item in items.values() if isinstance(item, McpToolCall)),
            sandbox=sandbox,
        )
        question = read_question(request, session_id, around)
        if question is None:
            return False
        # Recorded before it is delivered: the answer may come immediately.
        self._open[question.id] = request
        self._router.deliver(
            QuestionAsked(
                session_id=session_id,
                turn_id=question.turn_id,
                agent_id=question.agent_id,
                question=question,
            ).with_raw(request.params)
        )
        return True

    def _call_tool(self, request: IncomingRequest, session_id: str) -> bool:
        call_id, tool, arguments = (request.params.get(name) for name in ("callId", "tool", "arguments"))
        if not isinstance(call_id, str) or not isinstance(tool, str):
            return False
        is_known = call_id in self._tool_calls  # Codex asks again when a thread is joined
        self._tool_calls[call_id] = request
        if is_known:
            return True
        called = ToolCalled(
            session_id=thread_of(request) or session_id,
            call_id=call_id,
            tool=tool,
            arguments=arguments if isinstance(arguments, dict) else {},
        )
        self._router.deliver(called)
        return True

    async def _ask_parent(self, request: IncomingRequest, thread_id: str) -> None:
        """Ask Codex for the parent of an unknown thread: the start of that sub-agent has not been reported yet."""
        try:
            parent = (await self._api.read_thread(thread_id)).parent_id
        except HelmsmanError as error:
            # An unknown parent leaves the request without an owner, and it is refused below.
            log.debug("thread/read of %s: %s", thread_id, error)
            parent = None
        if parent is not None:
            self._router.adopt(thread_id, parent)
        owner = self._router.owner(thread_id)
        if owner is None or not self._prove_and_ask(request, owner):
            self._peer.refuse(request.id, "Helmsman does not know this thread")
