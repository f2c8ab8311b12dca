"""What happens in a session, as the `codex/event` notifications of the removed `codex mcp-server`.

A pure translation: events go in, messages come out, in the kinds, the order and the spelling of Codex 0.145.0 (older ones
differ in details). Each item comes twice, as the original said it: as an item, and in the older form that most clients look
at (`agent_message`, `exec_command_begin`, …). Fields that Helmsman does not know are left out, not invented;
`docs/compat.md` lists them.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from helmsman.mcp.compat_items import Message, began, ended, shown
from helmsman.mcp.compat_questions import asked
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    DiffUpdated,
    EngineGone,
    FileChange,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    Notice,
    QuestionAsked,
    QuestionClosed,
    ServerStarting,
    SettingsApplied,
    TodoList,
    TurnEnded,
    TurnStarted,
    UsageReported,
    UserMessage,
)
from helmsman.model.questions import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Callable

    from helmsman.model.events import Event, Failure, Item, RateLimitsReported, Usage


_FACTS: Final = {
    "modelProvider": "model_provider_id",
    "approvalsReviewer": "approvals_reviewer",
    "activePermissionProfile": "active_permission_profile",
    "reasoningEffort": "reasoning_effort",
    "path": "rollout_path",
}
"""What the app-server says of a thread, and what the original called it."""
_OF_NO_TURN: Final = ("session_configured", "mcp_startup_")


@dataclass(frozen=True, slots=True)
class CodexEvent:
    """One notification: the id of its turn (empty for what concerns the whole session), and the message."""

    id: str
    message: Message


class Translation:
    """The translation of one turn.

    `turn_name` is used instead of Codex's own id of the turn: the original named a session's first turn after its call.
    """

    def __init__(
        self,
        thread_id: str,
        *,
        directory: str | None,
        turn_name: str | None = None,
        is_new: bool = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._thread_id = thread_id
        self._directory = directory
        self._turn_name = turn_name
        self._configured = not is_new
        self._now = now
        self._turn_id = turn_name or ""
        self._began_at: float | None = None
        self._wrote_at: float | None = None
        """When the model was first heard of."""
        self._last_message: str | None = None
        self._waiting: dict[str, CommandExecution] = {}
        """Commands that Codex has announced and may not run yet: the original spoke of them only when they ran."""
        self._patches: dict[str, FileChange] = {}
        self._asked_about: dict[str, str] = {}
        self._reasoning_parts: dict[str, int] = {}
        self._warning: Message | None = None
        self._servers: dict[str, tuple[str, str | None]] = {}

    def take(self, event: Event) -> list[CodexEvent]:
        """What the original would have sent. Never raises."""
        if event.agent_id is not None:
            return []  # what a sub-agent does, the original told nobody
        if self._wrote_at is None and _is_written(event):
            self._wrote_at = self._now()
        messages = self._messages(event)
        held, self._warning = self._warning, None
        if isinstance(event, Notice) and event.kind == "warning" and event.server is None:
            # The last attempt's error comes as a warning first; the end of the turn then says it again.
            self._warning = messages.pop()
        if held is not None and not _repeats(event, held):
            messages.insert(0, held)
        return [
            CodexEvent("" if message["type"].startswith(_OF_NO_TURN) else self._turn_id, message)
            for message in messages
        ]

    def _messages(self, event: Event) -> list[Message]:
        match event:
            case SettingsApplied() if not self._configured:
                self._configured = True
                return [self._session_configured(event)]
            case TurnStarted() if self._began_at is None:
                return [self._task_started(event.turn_id)]
            case TurnEnded():
                return [self._end(event)]
            case EngineGone():
                return [_error(event.failure)]
            case ItemStarted():
                return self._start(event.item)
            case ItemEnded():
                return self._finish(event.item)
            case ItemUpdated(item=TodoList() as plan):
                return [_plan(plan)]
            case ItemDelta():
                return self._delta(event)
            case DiffUpdated():
                return [{"type": "turn_diff", "unified_diff": event.diff}]
            case UsageReported():
                return [_token_count(event)]
            case QuestionAsked(question=question):
                self._asked_about[question.id] = question.item_id or ""
                message = asked(question, self._patches.get(question.item_id or ""))
                return [{**message, "turn_id": self._turn_id, "started_at_ms": self._ms()}] if message else []
            case QuestionClosed():
                return self._closed(event)
            case ServerStarting():
                return self._server(event.server, event.state)
            case Notice(server=str(server)):
                return self._server(server, "failed", event.error)
            case Notice(kind="warning"):
                return [{"type": "warning", "message": event.message}]
            case Notice():
                return [{"type": "stream_error", "message": event.message}]
            case _:
                return []

    # --- the session -------------------------------------------------------------------------------------------------

    def _session_configured(self, event: SettingsApplied) -> Message:
        return {
            "type": "session_configured",
            "session_id": self._thread_id,
            "thread_id": self._thread_id,
            "model": event.model,
            "approval_policy": event.approval_policy,
            "cwd": self._directory,
            **{_FACTS[name]: _plain(value) for name, value in (event.thread or {}).items() if name in _FACTS},
        }

    # --- Codex's own MCP servers -------------------------------------------------------------------------------------

    def _server(self, server: str, state: str, error: str | None = None) -> list[Message]:
        """What became of one; and of all of them, once each that began to start has come to an end."""
        self._servers[server] = (state, error)
        status = {"state": state} if error is None else {"state": state, "error": error}
        update: Message = {"type": "mcp_startup_update", "server": server, "status": status}
        if any(known == "starting" for known, _ in self._servers.values()):
            return [update]
        ended = {
            "ready": [name for name, (known, _) in self._servers.items() if known == "ready"],
            "failed": [
                {"server": name, "error": why or ""}
                for name, (known, why) in self._servers.items()
                if known == "failed"
            ],
            "cancelled": [name for name, (known, _) in self._servers.items() if known == "cancelled"],
        }
        return [update, {"type": "mcp_startup_complete", **ended}]

    # --- turns -------------------------------------------------------------------------------------------------------

    def _task_started(self, turn_id: str | None) -> Message:
        self._turn_id = self._turn_name or turn_id or ""
        self._began_at = self._now()
        return {
            "type": "task_started",
            "turn_id": self._turn_id,
            "started_at": int(self._began_at),
            "collaboration_mode_kind": "default",  # neither tool can ask for another
        }

    def _end(self, event: TurnEnded) -> Message:
        if event.outcome == "failed" and event.failure is not None:
            return _error(event.failure)
        now = self._now()
        began = self._began_at if self._began_at is not None else now
        times = {
            "turn_id": self._turn_id,
            "started_at": int(began),
            "completed_at": int(now),
            "duration_ms": round((now - began) * 1000),
        }
        if event.outcome == "interrupted":
            return {"type": "turn_aborted", "reason": "interrupted", **times}
        first = {} if self._wrote_at is None else {"time_to_first_token_ms": round((self._wrote_at - began) * 1000)}
        return {"type": "task_complete", "last_agent_message": self._last_message, **times, **first}

    # --- items -------------------------------------------------------------------------------------------------------

    def _start(self, item: Item) -> list[Message]:
        if isinstance(item, CommandExecution) and item.announced:
            self._waiting[item.id] = item
            return []
        if isinstance(item, FileChange):
            self._patches[item.id] = item
        return self._started(item)

    def _started(self, item: Item) -> list[Message]:
        item_form = shown(item, ended=False)
        if item_form is None:
            return []
        message = {"type": "item_started", **self._where(), "item": item_form, "started_at_ms": self._ms()}
        return [message, *(self._timed(one, "started_at_ms") for one in began(item))]

    def _finish(self, item: Item) -> list[Message]:
        if isinstance(item, AgentMessage):
            self._last_message = item.text
        if isinstance(item, TodoList):
            return [_plan(item)]
        late = self._begin_waiting(item.id, item) if not getattr(item, "declined", False) else []
        if self._waiting.pop(item.id, None) is not None or (isinstance(item, CommandExecution) and item.declined):
            return []  # a command that was not allowed never began
        item_form = shown(item, ended=True)
        if item_form is None:
            return []
        message = {"type": "item_completed", **self._where(), "item": item_form, "completed_at_ms": self._ms()}
        return [*late, message, *(self._timed(one, "completed_at_ms") for one in ended(item))]

    def _begin_waiting(self, item_id: str, as_ended: Item | None = None) -> list[Message]:
        """The start of a command that had only been announced.

        Who runs it, and in which process, Codex says only with its end: the announcement names neither.
        """
        item = self._waiting.pop(item_id, None)
        if item is None:
            return []
        known = as_ended if isinstance(as_ended, CommandExecution) else None
        runs_in = (known.process_id, known.source) if known is not None else (None, None)
        return self._started(replace(item, process_id=runs_in[0], source=runs_in[1]))

    def _closed(self, event: QuestionClosed) -> list[Message]:
        item_id = self._asked_about.pop(event.question_id, "")
        approved = event.answer is not None and event.answer not in REFUSALS
        return self._begin_waiting(item_id) if approved else []

    def _delta(self, event: ItemDelta) -> list[Message]:
        where = {**self._where(), "item_id": event.item_id}
        match event.item_type:
            case AgentMessage.type:
                return [{"type": "agent_message_content_delta", **where, "delta": event.text}]
            case "reasoning":
                return self._reasoning_delta(event)
            case "plan":
                return [{"type": "plan_delta", **where, "delta": event.text}]
            case CommandExecution.type:
                chunk = base64.b64encode(event.text.encode("utf-8", "surrogatepass")).decode("ascii")
                output = {
                    "type": "exec_command_output_delta",
                    "call_id": event.item_id,
                    "stream": "stdout",
                    "chunk": chunk,
                }
                return [*self._begin_waiting(event.item_id), output]
            case _:
                return []

    def _reasoning_delta(self, event: ItemDelta) -> list[Message]:
        """Each part of a summary begins with a section break; between parts the engine puts an empty line."""
        if event.raw_part is not None:
            raw = {"item_id": event.item_id, "delta": event.text, "content_index": event.raw_part}
            return [{"type": "reasoning_raw_content_delta", **self._where(), **raw}]
        part = self._reasoning_parts.get(event.item_id, -1)
        is_break = event.text == "\n\n" and part >= 0
        messages: list[Message] = []
        if part < 0 or is_break:
            part = self._reasoning_parts[event.item_id] = part + 1
            messages.append({"type": "agent_reasoning_section_break", "item_id": event.item_id, "summary_index": part})
        if not is_break:
            delta = {"item_id": event.item_id, "delta": event.text, "summary_index": part}
            messages.append({"type": "reasoning_content_delta", **self._where(), **delta})
        return messages

    def _where(self) -> Message:
        return {"thread_id": self._thread_id, "turn_id": self._turn_id}

    def _timed(self, message: Message, name: str) -> Message:
        """The older forms of commands and changes carry the turn, and those of commands the time."""
        if message["type"].startswith(("exec_command", "patch_apply")):
            message = {**message, "turn_id": self._turn_id}
        return {**message, name: self._ms()} if message["type"].startswith("exec_command") else message

    def _ms(self) -> int:
        return round(self._now() * 1000)


def _plain(value: Any) -> Any:
    """The app-server names what is not set, the original left it out."""
    return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value


def _is_written(event: Event) -> bool:
    """Whether this comes from the model."""
    if isinstance(event, ItemStarted | ItemEnded):
        return not isinstance(event.item, UserMessage)
    return isinstance(event, ItemDelta | ItemUpdated)


def _repeats(event: Event, warning: Message) -> bool:
    return isinstance(event, TurnEnded) and event.failure is not None and event.failure.message == warning["message"]


def _error(failure: Failure) -> Message:
    return {"type": "error", "message": failure.message, "codex_error_info": failure.code}


def _plan(plan: TodoList) -> Message:
    steps = [{"step": step.text, "status": step.status} for step in plan.steps]
    return {"type": "plan_update", "explanation": plan.explanation, "plan": steps}


def _token_count(event: UsageReported) -> Message:
    info = {
        "total_token_usage": _usage(event.total, event.cache_written),
        "last_token_usage": _usage(event.last, event.last_cache_written),
        "model_context_window": event.context_window,
    }
    return {"type": "token_count", "info": info}


def rate_limits(reported: RateLimitsReported | None) -> Message | None:
    """The account's limits as `token_count` has them; None where nothing is known of any."""
    if reported is None or reported.snapshot is None:
        return None
    snapshot: Message = _snake(reported.snapshot)
    for name in ("primary", "secondary"):
        if isinstance(window := snapshot.get(name), dict):
            window["window_minutes"] = window.pop("window_duration_mins", None)
            window["used_percent"] = float(window.get("used_percent") or 0)
    return snapshot


def _snake(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        "".join(f"_{one.lower()}" if one.isupper() else one for one in name): _snake(inner)
        for name, inner in value.items()
    }


def _usage(usage: Usage | None, cache_written: int | None) -> Message | None:
    if usage is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        **({"cache_write_input_tokens": cache_written} if cache_written is not None else {}),
        "output_tokens": usage.output_tokens,
        "reasoning_output_tokens": usage.reasoning_output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
