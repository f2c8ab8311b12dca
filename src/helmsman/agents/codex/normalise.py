"""Convert the output of Codex to Helmsman's events and items.

`from_app_server` reads notifications of `codex app-server`, through a table of one function per method, because it runs for
every streamed token. `from_exec` reads lines of `codex exec --json`, whose items are those of the app-server in snake case.
All functions are pure and total: unknown types and fields become `Unknown` and `UnknownItem`, and no input raises.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.changes import counted
from helmsman.agents.codex.access import approval_name, sandbox_name
from helmsman.base.json_values import camel_case, integer, mapping, optional_text, sequence, snake_case, text, texts
from helmsman.base.redaction import redact
from helmsman.base.truncate import KEPT_CHARS, cut
from helmsman.model.events import (
    USAGE_LIMIT,
    AgentMessage,
    AgentState,
    ChangeKind,
    CollabToolCall,
    CommandExecution,
    ContextCompaction,
    DiffUpdated,
    DynamicToolCall,
    ErrorItem,
    Event,
    Failure,
    FileChange,
    ImageView,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    McpToolCall,
    Notice,
    NoticeKind,
    PathChange,
    PlanStep,
    ProposedPlan,
    RateLimit,
    RateLimitsReported,
    Reasoning,
    Review,
    SessionRenamed,
    SettingsApplied,
    TodoList,
    TurnEnded,
    TurnStarted,
    Unknown,
    UnknownItem,
    Untranslated,
    Usage,
    UsageReported,
    UserMessage,
    WebSearch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from helmsman.model.events import Item, ItemStatus, StepStatus, TurnOutcome

# --- failures --------------------------------------------------------------------------------------------------------


OTHER: Final = "other"

_RETRYABLE: Final = frozenset(
    {
        "flex_unavailable",
        "http_connection_failed",
        "internal_server_error",
        "model_cap",
        "policy_capacity_unavailable",
        "rate_limit_exceeded",
        "response_stream_connection_failed",
        "response_stream_disconnected",
        "response_too_many_failed_attempts",
        "server_overloaded",
    }
)
_RATE_LIMITS: Final = frozenset({"model_cap", "rate_limit_exceeded", USAGE_LIMIT})
_TOO_MANY_REQUESTS: Final = 429
_NEEDS_LOGIN: Final = frozenset({401, 403})
"""Errors that only a login can fix, although Codex retries them."""

_STREAM_LOST: Final = "stream disconnected"
_UNREACHABLE: Final = ("waiting for network", "error sending request")

_SENTENCES: Final = (
    ("hit your usage limit", USAGE_LIMIT),
    ("Quota exceeded", USAGE_LIMIT),
    ("exceeded retry limit", "response_too_many_failed_attempts"),
    ("experiencing high demand", "internal_server_error"),
    ("unexpected status", "http_connection_failed"),
    ("ran out of room in the model's context window", "context_window_exceeded"),
    ("rate limit exceeded", "rate_limit_exceeded"),
)
_AGAIN_AT: Final = re.compile(
    r"[Tt]ry again at (?:(?P<month>[A-Z][a-z]{2}) (?P<day>\d{1,2})(?:st|nd|rd|th), (?P<year>\d{4}) )?"
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})\s?(?P<half>AM|PM)"
)
"""Time at which a limit is reset, as Codex (0.93 to 0.166) writes it: local time, with the date if it is not today."""
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MINUTE: Final = timedelta(minutes=1)
_STATUS: Final = re.compile(r"(?:last status: |unexpected status )([0-9]{3})")


def turn_failure(error: Any) -> Failure:
    """Convert the `error` of a failed turn, from the app-server or from a session's file."""
    fields = mapping(error)
    # The app-server writes camel case, session files snake case.
    code, http_status = _error_info(fields.get("codexErrorInfo", fields.get("codex_error_info")))
    return _failure(code, _message(fields), http_status)


def failure_from_sentence(message: str) -> Failure:
    """Convert a failure that exec describes in a sentence."""
    # Exec gives no code, only the sentence.
    code = next((code for fragment, code in _SENTENCES if fragment in message), OTHER)
    status = _STATUS.search(message)
    return _failure(code, message, None if status is None else int(status[1]))


def _failure(code: str, message: str, http_status: int | None) -> Failure:
    # 401 is retried by Codex, but no retry succeeds without a login.
    retryable = (code in _RETRYABLE or (code == OTHER and _STREAM_LOST in message)) and http_status not in _NEEDS_LOGIN
    return Failure(
        code=code,
        message=redact(message) or "Codex ended the turn as failed and did not say why.",
        retryable=retryable,
        http_status=http_status,
    )


def resets_at(message: str, now: datetime) -> datetime | None:
    """Parse the time at which a limit is reset, in the time zone of `now`; None if the message has none.

    It has no seconds, so it is the end of that minute.
    """
    found = _AGAIN_AT.search(message)
    if found is None:
        return None
    hour = int(found["hour"]) % 12 + (12 if found["half"] == "PM" else 0)
    try:
        # The message has no time zone: Codex writes the user's local time.
        at = now.replace(hour=hour, minute=int(found["minute"]), second=0, microsecond=0)
        if found["month"] is not None:
            at = at.replace(year=int(found["year"]), month=_MONTHS.index(found["month"]) + 1, day=int(found["day"]))
        elif at < now - _MINUTE:  # said just before midnight
            at += timedelta(days=1)
        # The minute is the last in which the limit may still hold.
        return (at + _MINUTE).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def notice_kind(failure: Failure) -> NoticeKind:
    """Return the kind of wait after a failed attempt that Codex retries."""
    if any(fragment in failure.message for fragment in _UNREACHABLE):
        return "network"
    if failure.code in _RATE_LIMITS or failure.http_status == _TOO_MANY_REQUESTS:
        return "rate_limit"
    return "retry"


def _message(fields: Mapping[str, Any]) -> str:
    """Return the message of an app-server error, with useful details in brackets."""
    message, details = text(fields.get("message")), optional_text(fields.get("additionalDetails"))
    return f"{message} ({details})" if details and details not in message else message


def _error_info(info: Any) -> tuple[str, int | None]:
    # A string, or an object with one key.
    if isinstance(info, str):
        return snake_case(info) or OTHER, None
    for name, details in mapping(info).items():
        about = mapping(details)
        return snake_case(text(name)) or OTHER, integer(about.get("httpStatusCode", about.get("http_status_code")))
    return OTHER, None


# --- usage -----------------------------------------------------------------------------------------------------------


def read_usage(raw: object) -> Usage | None:
    """Parse counts in any spelling; None if there are none. Invalid counts are zero."""
    if not isinstance(raw, dict):
        return None
    counts = raw if "input_tokens" in raw else {snake_case(name): count for name, count in raw.items()}
    return Usage(
        _natural(counts.get("input_tokens")),
        _natural(counts.get("cached_input_tokens")),
        _natural(counts.get("output_tokens")),
        _natural(counts.get("reasoning_output_tokens")),
    )


def _natural(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def spent_between(before: Usage, after: Usage) -> Usage:
    """Return the difference of two counts; the second one if counting began again."""
    # A smaller count means that Codex has begun to count again.
    began_anew = after.input_tokens < before.input_tokens or after.output_tokens < before.output_tokens
    return after if began_anew else after - before


# --- items -----------------------------------------------------------------------------------------------------------


_STATUSES: Final[Mapping[str, ItemStatus]] = {
    "inProgress": "in_progress",
    "in_progress": "in_progress",
    "completed": "completed",
    "failed": "failed",
    "declined": "failed",
    "interrupted": "failed",
}
_IMAGE_INPUTS: Final = frozenset({"image", "localImage"})
_DECLINED_OUTPUT: Final = "exec command rejected by user"
"""Codex 0.93 ends a declined command twice, the second time as failed with this output."""


def app_server_item(raw: Any, *, stage: ItemStatus | None = None) -> Item:
    """Convert an item of a notification or of a thread's history.

    `stage` is the state of the item, if the caller knows; a failed item stays failed.
    """
    fields = mapping(raw)
    kind = text(fields.get("type"))
    status = item_status(fields, stage)
    reader = _READERS.get(kind)
    if reader is None:
        return UnknownItem(id=text(fields.get("id")), status=status, name=kind, payload=fields)
    return reader(fields, text(fields.get("id")), status)


def item_status(fields: Mapping[str, Any], stage: ItemStatus | None) -> ItemStatus:
    """Return the status of an item in either dialect. Types without a status count as completed."""
    status = _STATUSES.get(text(fields.get("status")), "completed")
    return status if stage is None or status == "failed" else stage


def sub_agents(item: Item) -> tuple[str, ...]:
    """Return the threads of the sub-agents that an item names."""
    return tuple(agent.id for agent in item.agents) if isinstance(item, CollabToolCall) else ()


# --- one reader a type -----------------------------------------------------------------------------------------------


def _user_message(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    inputs = [mapping(entry) for entry in sequence(fields.get("content"))]
    return UserMessage(
        id=item_id,
        status=status,
        text="\n".join(text(entry.get("text")) for entry in inputs if entry.get("type") == "text"),
        images=sum(text(entry.get("type")) in _IMAGE_INPUTS for entry in inputs),
    )


def _agent_message(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return AgentMessage(
        id=item_id,
        status=status,
        text=text(fields.get("text")),
        phase=optional_text(fields.get("phase")),
    )


def _reasoning(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    parts = texts(fields.get("summary")) or texts(fields.get("content"))
    return Reasoning(id=item_id, status=status, text=text(fields.get("text")) or "\n\n".join(parts))


def _proposed_plan(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return ProposedPlan(id=item_id, status=status, text=text(fields.get("text")))


def _command_execution(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    # Codex cuts output at about 1 MiB, which is more than an event should hold.
    output = cut(text(fields.get("aggregatedOutput")), KEPT_CHARS)
    return CommandExecution(
        id=item_id,
        status=status,
        command=text(fields.get("command")),
        directory=optional_text(fields.get("cwd")),
        exit_code=integer(fields.get("exitCode")),
        output=output,
        # Codex 0.130 and newer names a command before it asks; one that runs has a process.
        announced=status in ("started", "in_progress")
        and fields.get("source") == "agent"
        and fields.get("processId") is None,
        declined=fields.get("status") == "declined" or output == _DECLINED_OUTPUT,
        duration_ms=integer(fields.get("durationMs")),
    )


def file_change(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    """Convert a file change, or an update of one."""
    return FileChange(
        id=item_id,
        status=status,
        changes=tuple(path_change(change) for change in sequence(fields.get("changes"))),
        declined=fields.get("status") == "declined",
    )


def _mcp_tool_call(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    result, error = mapping(fields.get("result")), fields.get("error")
    return McpToolCall(
        id=item_id,
        status=status,
        server=text(fields.get("server")),
        tool=text(fields.get("tool")),
        arguments=fields.get("arguments"),
        result=_tool_result(result) if result else None,
        error=optional_text(error) or optional_text(mapping(error).get("message")),
    )


def _tool_result(result: Mapping[str, Any]) -> str:
    shown = _content_text(result.get("content"))
    if shown:
        return shown
    structured = result.get("structuredContent", result.get("structured_content"))
    if structured is None:
        return ""
    try:
        return json.dumps(structured, ensure_ascii=False)
    except (RecursionError, TypeError, ValueError):  # nested beyond what can be written
        return ""


def _content_text(content: Any) -> str:
    """Return the text of a tool's result; other content is named by its type."""
    blocks = [mapping(block) for block in sequence(content)]
    return "\n".join(optional_text(block.get("text")) or f"[{text(block.get('type'))}]" for block in blocks)


def _dynamic_tool_call(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return DynamicToolCall(
        id=item_id,
        status="failed" if fields.get("success") is False else status,
        tool=text(fields.get("tool")),
        arguments=fields.get("arguments"),
        result=_content_text(fields["contentItems"]) if isinstance(fields.get("contentItems"), list) else None,
    )


def _web_search(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    """Convert a web search. If its query is empty, use its action."""
    action = mapping(fields.get("action"))
    query = (
        text(fields.get("query"))
        or text(action.get("query"))
        or ", ".join(texts(action.get("queries")))
        or text(action.get("pattern"))
        or text(action.get("url"))
    )
    return WebSearch(id=item_id, status=status, query=query)


def _collab_tool_call(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    known = mapping(fields.get("agentsStates"))
    # Either list may name agents that the other lacks.
    ids = dict.fromkeys([*texts(fields.get("receiverThreadIds")), *known])
    return CollabToolCall(
        id=item_id,
        status=status,
        tool=snake_case(text(fields.get("tool"))),
        prompt=optional_text(fields.get("prompt")),
        agents=tuple(_agent_state(agent_id, mapping(known.get(agent_id))) for agent_id in ids),
    )


def _agent_state(agent_id: str, state: Mapping[str, Any]) -> AgentState:
    return AgentState(
        id=agent_id,
        status=snake_case(text(state.get("status"))) or "unknown",
        message=optional_text(state.get("message")),
    )


def _sub_agent_activity(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    """Newer models' sub-agents announce themselves; the path is the name the agent was given."""
    kind = text(fields.get("kind"))
    agent = AgentState(
        id=text(fields.get("agentThreadId")), status=kind, message=optional_text(fields.get("agentPath"))
    )
    return CollabToolCall(id=item_id, status=status, tool="sub_agent_activity", agents=(agent,) if agent.id else ())


def _image_view(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return ImageView(id=item_id, status=status, path=text(fields.get("path")))


def _context_compaction(_fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return ContextCompaction(id=item_id, status=status)


def _review(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return Review(
        id=item_id,
        status=status,
        text=text(fields.get("review")),
        finished=fields.get("type") == "exitedReviewMode",
    )


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], str, ItemStatus], Item]]] = {
    "agentMessage": _agent_message,
    "collabAgentToolCall": _collab_tool_call,
    "commandExecution": _command_execution,
    "contextCompaction": _context_compaction,
    "dynamicToolCall": _dynamic_tool_call,
    "enteredReviewMode": _review,
    "exitedReviewMode": _review,
    "fileChange": file_change,
    "imageView": _image_view,
    "mcpToolCall": _mcp_tool_call,
    "plan": _proposed_plan,
    "reasoning": _reasoning,
    "subAgentActivity": _sub_agent_activity,
    "userMessage": _user_message,
    "webSearch": _web_search,
}


# --- file changes -----------------------------------------------------------------------------------------------------

# Codex gives the whole content of a file added or deleted, hunks without file headers for a file updated, and, where a file
# is also moved, a sentence about it after the hunks.

_MOVE_TRAILER: Final = "\n\nMoved to: "
_KINDS: Final[dict[str, ChangeKind]] = {"add": "add", "delete": "delete", "update": "update"}


def path_change(raw: Any) -> PathChange:
    """Convert an entry of a file change's `changes`, in either dialect (exec gives no diff)."""
    change = mapping(raw)
    kind_value = change.get("kind")
    kind_fields = mapping(kind_value)
    kind = _KINDS.get(text(kind_value) or text(kind_fields.get("type")), "update")
    moved_to = optional_text(kind_fields.get("move_path"))
    diff = optional_text(change.get("diff"))
    if moved_to is not None and diff is not None:
        diff = diff.removesuffix(_MOVE_TRAILER + moved_to)
    return counted(PathChange(path=text(change.get("path")), kind=kind, moved_to=moved_to, diff=diff))


# --- the app-server --------------------------------------------------------------------------------------------------


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
    """Convert a notification to an event, or return None if it is irrelevant."""
    name, fields = text(method), mapping(params)
    handler = _HANDLERS.get(name)
    if handler is not None:
        event = handler(fields)
        if event is None or (isinstance(event, ItemDelta) and event.item_type != "reasoning"):
            return event  # most events are deltas, and only those of reasoning need Codex's own message
        return event.with_raw(fields)
    # A known notification without meaning here; unknown ones are shown.
    if name in _SILENT or name.startswith(_SILENT_FAMILIES):
        return None
    return Unknown(**_where(fields), name=name, payload=fields).with_raw(fields)


def turn_as_events(thread_id: str, raw: Any) -> Iterator[Event]:
    """Convert a turn of a thread's history to events: its beginning, its items, and its end if it has ended."""
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
    # An unknown status with an error is a failure.
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
    # Codex reports no end of a plan.
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
    """Add a part to the summary. Parts are joined by an empty line, in the item and in the live text."""
    # The first part has nothing before it.
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
"""Id of the limit for the account as a whole; others are for single models."""

_ABSURD_PERCENT: Final = 1e6
"""Limit of plausible percentages. JSON integers are unbounded, floats are not."""


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
    """Convert a failed attempt.

    If Codex does not retry, `turn/completed` has the failure, and this is only a remark.
    """
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
        of_session = bool(params.get("threadId"))  # Codex names the session since 0.145
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
    """Join the deltas of an item if no other message of their session is between them.

    Codex sends the text of models and commands in small chunks, thousands per second with many active sessions. Chunks
    that arrived together need not be handled one by one.
    """
    joined: list[dict[str, Any]] = []
    last: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    for message in messages:
        params = message.get("params")
        thread_id = params.get("threadId") if isinstance(params, dict) else None
        if not isinstance(params, dict) or not isinstance(thread_id, str):
            last.clear()  # a message without a session may concern any
        elif (method := message.get("method")) in _PIECES and isinstance(delta := params.get("delta"), str):
            get = params.get
            of = method, get("itemId"), get("turnId"), get("contentIndex")
            before = last.get(thread_id)
            if before is not None and before[0] == of:
                # The merged message was appended already, and its params are changed in place.
                before[1]["delta"] += delta
                continue
            last[thread_id] = of, params
        else:
            # Any other message ends the run of deltas, so that the order within a session stays.
            last.pop(thread_id, None)
        joined.append(message)
    return joined


# --- exec ------------------------------------------------------------------------------------------------------------


_RETRYING: Final = "Reconnecting..."
_ITEM_TYPES: Final = {
    "agent_message": "agentMessage",
    "assistant_message": "agentMessage",
    "collab_tool_call": "collabAgentToolCall",
    "command_execution": "commandExecution",
    "file_change": "fileChange",
    "mcp_tool_call": "mcpToolCall",
    "reasoning": "reasoning",
    "web_search": "webSearch",
}
"""Names of the app-server for items of exec."""


def from_exec(line: object, session_id: str, turn_id: str) -> tuple[Event, ...]:
    """Return the events that a line means; none for `thread.started`, which the engine reads itself."""
    fields = mapping(line)
    return tuple(event.with_raw(fields) for event in _events(fields, {"session_id": session_id, "turn_id": turn_id}))


def _events(fields: Mapping[str, Any], where: dict[str, Any]) -> tuple[Event, ...]:
    match fields.get("type"):
        case "thread.started":
            return ()
        case "turn.started":
            return (TurnStarted(**where),)
        case "turn.completed":
            ended = TurnEnded(**where, outcome="completed")
            # exec counts the whole thread here, what earlier processes spent on it included
            total = read_usage(fields.get("usage"))
            return (ended,) if total is None else (UsageReported(**where, total=total), ended)
        case "turn.failed":
            failure = failure_from_sentence(text(mapping(fields.get("error")).get("message")))
            return (TurnEnded(**where, outcome="failed", failure=failure),)
        case "error":  # not fatal: Codex may retry, and says so, or `turn.failed` follows
            message = text(fields.get("message"))
            kind = notice_kind(failure_from_sentence(message)) if message.startswith(_RETRYING) else "warning"
            return (Notice(**where, kind=kind, message=message),)
        case "item.started":
            return (ItemStarted(**where, item=exec_item(fields.get("item"), stage="started")),)
        case "item.updated":
            return (ItemUpdated(**where, item=exec_item(fields.get("item"), stage="in_progress")),)
        case "item.completed":
            return (ItemEnded(**where, item=exec_item(fields.get("item"), stage="completed")),)
        case unknown:
            return (Unknown(**where, name=text(unknown), payload=fields),)


def exec_item(raw: Any, *, stage: ItemStatus) -> Item:
    """Convert an item of exec. `stage` is its state, unless the item itself has failed."""
    fields = mapping(raw)
    kind = text(fields.get("type")) or text(fields.get("item_type"))
    item_id, status = text(fields.get("id")), item_status(fields, stage)
    if kind == "todo_list":
        return TodoList(id=item_id, status=status, steps=tuple(map(_step, sequence(fields.get("items")))))
    if kind == "error":
        return ErrorItem(id=item_id, status=status, message=text(fields.get("message")))
    if kind not in _ITEM_TYPES:
        return UnknownItem(id=item_id, status=status, name=kind, payload=fields)
    spelled = {camel_case(name): value for name, value in fields.items()}
    return app_server_item({**spelled, "type": _ITEM_TYPES[kind]}, stage=stage)


def _step(raw: Any) -> PlanStep:
    """exec only says which steps are done; which one is being worked on it does not tell."""
    entry = mapping(raw)
    return PlanStep(text(entry.get("text")), "completed" if entry.get("completed") is True else "pending")
