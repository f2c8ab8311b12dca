"""Notifications of `codex app-server` as events.

One function a method, found in a table: this runs for every token that any session streams. All of it is total:
whatever comes, it answers with an event, or with None for what says nothing new, and never raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.codex.access.policies import approval_name, sandbox_name
from helmsman.agents.codex.normalise.failures import notice_kind, turn_failure
from helmsman.agents.codex.normalise.items import app_server_item, file_change
from helmsman.agents.codex.normalise.usage import read_usage
from helmsman.base.json_values import integer, mapping, optional_text, sequence, text
from helmsman.model.events import (
    AgentMessage,
    DiffUpdated,
    Event,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    Notice,
    PlanStep,
    RateLimit,
    RateLimitsReported,
    SessionRenamed,
    SettingsApplied,
    TodoList,
    TurnEnded,
    TurnStarted,
    Unknown,
    Untranslated,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from helmsman.model.events import StepStatus, TurnOutcome

PLAN_ITEM_ID: Final = "plan"
"""Codex's plan is not an item and has no id; a turn has one plan."""

_OUTCOMES: Final[Mapping[str, TurnOutcome]] = {
    "completed": "completed",
    "failed": "failed",
    "interrupted": "interrupted",
}
_STEP_STATUSES: Final[Mapping[str, StepStatus]] = {"inProgress": "in_progress", "completed": "completed"}
_RATE_LIMIT_WINDOWS: Final = ("primary", "secondary")
_MCP_SERVER_STATUS: Final = "mcpServer/startupStatus/updated"


def from_app_server(method: object, params: object) -> Event | None:
    """The event a notification means, or None where it says nothing a session would want to know."""
    name, fields = text(method), mapping(params)
    handler = _HANDLERS.get(name)
    if handler is not None:
        event = handler(fields)
        if event is None or (isinstance(event, ItemDelta) and event.item_type != "reasoning"):
            return event  # most events are deltas, and only those of reasoning need Codex's own message
        return event.with_raw(fields)
    if name in _SILENT or name.startswith(_SILENT_FAMILIES):
        return None
    return Unknown(**_where(fields), name=name, payload=fields).with_raw(fields)


def turn_as_events(thread_id: str, raw: Any) -> Iterator[Event]:
    """A turn out of a thread's history, as the events it would have been, had somebody listened: its beginning, its items as
    far as they have come, and its end if it has ended.
    """
    turn = mapping(raw)
    turn_id = text(turn.get("id"))
    if not turn_id:
        return
    yield TurnStarted(session_id=thread_id, turn_id=turn_id)
    for entry in sequence(turn.get("items")):
        item = app_server_item(entry)
        kind = ItemStarted if item.status in ("started", "in_progress") else ItemEnded
        yield kind(session_id=thread_id, turn_id=turn_id, item=item)
    if turn.get("status") != "inProgress":
        ended = from_app_server("turn/completed", {"threadId": thread_id, "turn": turn})
        if ended is not None:
            yield ended


def _where(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the session and the turn that a notification is about. The session id '' is the whole engine."""
    return {"session_id": text(params.get("threadId")), "turn_id": optional_text(params.get("turnId"))}


# --- turns -----------------------------------------------------------------------------------------------------------


def _turn_started(params: Mapping[str, Any]) -> Event:
    turn_id = optional_text(mapping(params.get("turn")).get("id"))
    return TurnStarted(session_id=text(params.get("threadId")), turn_id=turn_id)


def _turn_completed(params: Mapping[str, Any]) -> Event:
    turn = mapping(params.get("turn"))
    error = turn.get("error")
    outcome = _OUTCOMES.get(text(turn.get("status")), "completed" if error is None else "failed")
    return TurnEnded(
        session_id=text(params.get("threadId")),
        turn_id=optional_text(turn.get("id")),
        outcome=outcome,
        failure=turn_failure(error) if outcome == "failed" else None,
        final_message=_last_message(turn.get("items")),
    )


def _last_message(items: Any) -> str | None:
    for raw in reversed(sequence(items)):
        item = app_server_item(raw)
        if isinstance(item, AgentMessage):
            return item.text
    return None


def _turn_diff(params: Mapping[str, Any]) -> Event:
    return DiffUpdated(**_where(params), diff=text(params.get("diff")))


def _turn_plan(params: Mapping[str, Any]) -> Event:
    steps = tuple(_plan_step(mapping(step)) for step in sequence(params.get("plan")))
    is_done = bool(steps) and all(step.status == "completed" for step in steps)
    plan = TodoList(
        id=PLAN_ITEM_ID,
        status="completed" if is_done else "in_progress",
        steps=steps,
        explanation=optional_text(params.get("explanation")),
    )
    return (ItemEnded if is_done else ItemUpdated)(**_where(params), item=plan)


def _plan_step(step: Mapping[str, Any]) -> PlanStep:
    return PlanStep(text(step.get("step")), _STEP_STATUSES.get(text(step.get("status")), "pending"))


# --- items -----------------------------------------------------------------------------------------------------------


def _item_started(params: Mapping[str, Any]) -> Event:
    return ItemStarted(**_where(params), item=app_server_item(params.get("item"), stage="started"))


def _item_completed(params: Mapping[str, Any]) -> Event:
    return ItemEnded(**_where(params), item=app_server_item(params.get("item"), stage="completed"))


def _patch_updated(params: Mapping[str, Any]) -> Event:
    return ItemUpdated(**_where(params), item=file_change(params, text(params.get("itemId")), "in_progress"))


def _delta(item_type: str, field: str = "delta") -> Callable[[Mapping[str, Any]], Event | None]:
    def handler(params: Mapping[str, Any]) -> Event | None:
        piece = text(params.get(field))
        if not piece:
            return None
        return ItemDelta(
            session_id=text(params.get("threadId")),
            turn_id=optional_text(params.get("turnId")),
            item_id=text(params.get("itemId")),
            item_type=item_type,
            text=piece,
        )

    return handler


def _reasoning_part_added(params: Mapping[str, Any]) -> Event | None:
    """A further part of the summary: the item joins its parts with an empty line, and so does whoever follows live."""
    if not integer(params.get("summaryIndex")):
        return None
    return ItemDelta(**_where(params), item_id=text(params.get("itemId")), item_type="reasoning", text="\n\n")


# --- the session and the account -------------------------------------------------------------------------------------


def _token_usage(params: Mapping[str, Any]) -> Event:
    usage = mapping(params.get("tokenUsage"))
    return UsageReported(**_where(params), total=read_usage(usage.get("total")), last=read_usage(usage.get("last")))


def _rate_limits(params: Mapping[str, Any]) -> Event | None:
    """Without an account all windows are null: then there is nothing to report."""
    snapshot = mapping(params.get("rateLimits"))
    limits = tuple(limit for name in _RATE_LIMIT_WINDOWS if (limit := _rate_limit(name, snapshot)) is not None)
    plan = optional_text(snapshot.get("planType"))
    if not limits and plan is None:
        return None
    return RateLimitsReported(**_where(params), limits=limits, plan=plan)


def _rate_limit(window_name: str, snapshot: Mapping[str, Any]) -> RateLimit | None:
    window = snapshot.get(window_name)
    if not isinstance(window, dict):
        return None
    used = window.get("usedPercent")
    limit_id = text(snapshot.get("limitId"))
    limit_name = text(snapshot.get("limitName")) or (limit_id if limit_id != _GENERAL_LIMIT else "")
    return RateLimit(
        name=f"{limit_name} {window_name}" if limit_name else window_name,
        used_percent=float(used) if isinstance(used, int | float) and abs(used) < _ABSURD_PERCENT else 0.0,
        window_minutes=integer(window.get("windowDurationMins")),
        resets_at=integer(window.get("resetsAt")),
    )


_GENERAL_LIMIT: Final = "codex"
"""The limit of the account as a whole; others are of single models."""

_ABSURD_PERCENT: Final = 1e6
"""JSON integers have no bounds, floats have: what is beyond this is no percentage."""


def _settings(params: Mapping[str, Any]) -> Event:
    settings = mapping(params.get("threadSettings"))
    return SettingsApplied(
        **_where(params),
        model=optional_text(settings.get("model")),
        approval_policy=approval_name(settings.get("approvalPolicy")),
        sandbox=sandbox_name(settings.get("sandboxPolicy")),
    )


def _renamed(params: Mapping[str, Any]) -> Event:
    return SessionRenamed(**_where(params), name=optional_text(params.get("threadName")))


# --- notices ---------------------------------------------------------------------------------------------------------


def _error(params: Mapping[str, Any]) -> Event:
    """A failed attempt. When Codex does not try again, `turn/completed` brings the failure; this is only the remark."""
    failure = turn_failure(params.get("error"))
    kind = notice_kind(failure) if params.get("willRetry") is True else "warning"
    return Notice(**_where(params), kind=kind, message=failure.message)


def _warning(params: Mapping[str, Any]) -> Event:
    parts = (text(params.get(name)) for name in ("message", "summary", "details"))
    return Notice(**_where(params), kind="warning", message=": ".join(part for part in parts if part))


def _model_rerouted(params: Mapping[str, Any]) -> Event:
    wanted, used = text(params.get("fromModel")), text(params.get("toModel"))
    reason = text(params.get("reason"))
    message = f"Codex uses the model {used} instead of {wanted}" + (f" ({reason})." if reason else ".")
    return Notice(**_where(params), kind="warning", message=message)


def _mcp_server_status(params: Mapping[str, Any]) -> Event | None:
    if text(params.get("status")) != "failed":
        of_session = bool(params.get("threadId"))  # of whose, Codex says since 0.145
        return Untranslated(**_where(params), name=_MCP_SERVER_STATUS) if of_session else None
    message, error = f"The MCP server {text(params.get('name'))} could not be started", text(params.get("error"))
    return Notice(**_where(params), kind="warning", message=f"{message}: {error}" if error else f"{message}.")


_HANDLERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Event | None]]] = {
    "account/rateLimits/updated": _rate_limits,
    "configWarning": _warning,
    "deprecationNotice": _warning,
    "error": _error,
    "guardianWarning": _warning,
    "item/agentMessage/delta": _delta("agent_message"),
    "item/commandExecution/outputDelta": _delta("command_execution"),
    "item/completed": _item_completed,
    "item/fileChange/patchUpdated": _patch_updated,
    "item/mcpToolCall/progress": _delta("mcp_tool_call", "message"),
    "item/plan/delta": _delta("plan"),
    "item/reasoning/summaryPartAdded": _reasoning_part_added,
    "item/reasoning/summaryTextDelta": _delta("reasoning"),
    "item/reasoning/textDelta": _delta("reasoning"),
    "item/started": _item_started,
    _MCP_SERVER_STATUS: _mcp_server_status,
    "model/rerouted": _model_rerouted,
    "thread/name/updated": _renamed,
    "thread/settings/updated": _settings,
    "thread/tokenUsage/updated": _token_usage,
    "turn/completed": _turn_completed,
    "turn/diff/updated": _turn_diff,
    "turn/plan/updated": _turn_plan,
    "turn/started": _turn_started,
    "warning": _warning,
}

_SILENT: Final = frozenset(
    {
        "account/updated",
        "app/list/updated",
        "item/commandExecution/terminalInteraction",
        "item/fileChange/outputDelta",
        "remoteControl/status/changed",
        "serverRequest/resolved",
        "skills/changed",
        "thread/archived",
        "thread/closed",
        "thread/compacted",
        "thread/deleted",
        "thread/goal/cleared",
        "thread/readState/changed",
        "thread/started",
        "thread/status/changed",
        "thread/unarchived",
    }
)
"""Known, and nothing a session would want to know: what they say comes another way, or concerns other clients."""

_SILENT_FAMILIES: Final = (
    "codex/event/",  # 0.93 says everything a second time in this older form
    "command/exec/",
    "fs/",
    "fuzzyFileSearch/",
    "process/",
    "rawResponseItem/",
    "thread/realtime/",
)


# --- pieces ----------------------------------------------------------------------------------------------------------

_PIECES: Final = ("item/agentMessage/delta", "item/commandExecution/outputDelta", "item/reasoning/textDelta")


def join_pieces(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages, with the pieces of an item in one that have nothing of their session between them.

    Codex sends what a model writes and what a command prints in small pieces, thousands a second when many sessions are at
    work. Pieces that have come at once are of use to nobody one by one.
    """
    joined: list[dict[str, Any]] = []
    last: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    for message in messages:
        params = message.get("params")
        thread_id = params.get("threadId") if isinstance(params, dict) else None
        if not isinstance(params, dict) or not isinstance(thread_id, str):
            last.clear()  # what is about no session may be about any
        elif (method := message.get("method")) in _PIECES and isinstance(delta := params.get("delta"), str):
            get = params.get
            of = method, get("itemId"), get("turnId"), get("contentIndex")
            before = last.get(thread_id)
            if before is not None and before[0] == of:
                before[1]["delta"] += delta
                continue
            last[thread_id] = of, params
        else:
            last.pop(thread_id, None)
        joined.append(message)
    return joined
