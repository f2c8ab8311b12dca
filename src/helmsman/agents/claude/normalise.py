"""Convert Claude Code's output to events, and its files to items.

One message of the model arrives as several `assistant` lines, one per content block. So the id of a text item consists
of the message and the position of the block. Tools have their own ids, and end with the `tool_result` in a `user` line.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.changes import as_details, counted, update_of
from helmsman.agents.claude.binary import TITLE
from helmsman.base.json_values import amount, count, integer, mapping, optional_text, sequence, text
from helmsman.base.redaction import redact
from helmsman.base.structs import replace
from helmsman.model.change_diff import file_change_diff
from helmsman.model.events import (
    USAGE_LIMIT,
    AgentMessage,
    CollabToolCall,
    CommandExecution,
    ContextCompaction,
    DynamicToolCall,
    Event,
    Failure,
    FileChange,
    Item,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    McpToolCall,
    Notice,
    PathChange,
    PlanStep,
    ProposedPlan,
    Reasoning,
    SessionRenamed,
    SettingsApplied,
    TodoList,
    Unknown,
    Untranslated,
    Usage,
    WebSearch,
)
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
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from helmsman.model.events import ItemStatus, NoticeKind, StepStatus
    from helmsman.model.questions import QuestionType, WhereItRuns

EDITS: Final = frozenset({"Edit", "MultiEdit", "NotebookEdit", "Write"})
"""Tools that change files."""

SYNTHETIC: Final = "<synthetic>"
"""Model name in messages that were not written by a model."""

_ANSWER: Final = "StructuredOutput"
"""Tool with which the model returns structured output."""

_EXIT_CODE: Final = re.compile(r"\A(?:Error: )?Exit code (-?\d+)\n?")
_NO_OUTPUT: Final = "(Bash completed with no output)"
_INTERRUPTED: Final = ("aborted_streaming", "aborted_tools")
_KNOWN_SYSTEM: Final = frozenset(
    {
        "hook_progress",
        "hook_response",
        "hook_started",
        "informational",
        "permission_denied",
        "session_state_changed",
        "status",
        "task_notification",
        "task_progress",
        "task_started",
        "task_updated",
        "thinking_tokens",
    }
)
_KNOWN_LINES: Final = frozenset(
    {"command_lifecycle", "control_response", "keep_alive", "prompt_suggestion", "tool_progress", "tool_use_summary"}
)
_STEP_STATUS: Final[Mapping[str, StepStatus]] = {"completed": "completed", "in_progress": "in_progress"}


class TurnReader:
    """Reads the lines of one turn. Which items are open, and which blocks came, is all it remembers."""

    def __init__(self, session_id: str, turn_id: str | None, directory: str | None) -> None:
        self._session_id = session_id
        self._turn_id = turn_id
        self._directory = directory
        self._blocks: dict[str, int] = {}
        self._streamed: dict[str | None, str] = {}
        self._open: dict[str, Item] = {}

    def read(self, line: Mapping[str, Any]) -> Iterator[Event]:
        """Return the events of a line; for a result, all except the end of the turn."""
        # Set in the messages of a sub-agent.
        agent_id = optional_text(line.get("parent_tool_use_id"))
        where: dict[str, Any] = {"session_id": self._session_id, "turn_id": self._turn_id, "agent_id": agent_id}
        match line.get("type"):
            case "stream_event":
                yield from self._read_piece(mapping(line.get("event")), agent_id, where)
            case "assistant":
                yield from self._read_message(line, where)
            case "user":
                yield from self._read_results(line, where)
            case "system":
                yield from self._read_system(line, where)
            case "result":
                return
            case kind if kind in _KNOWN_LINES:
                yield Untranslated(**where, name=str(kind))
            case kind:
                yield Unknown(**where, name=str(kind), payload=line)

    def close(self) -> Iterator[Event]:
        """Fail the items that are still open at the end of the turn."""
        for item in list(self._open.values()):
            self._open.pop(item.id)
            yield ItemEnded(session_id=self._session_id, turn_id=self._turn_id, item=replace(item, status="failed"))

    # --- messages and thoughts ---------------------------------------------------------------------------------------

    def _read_piece(self, event: Mapping[str, Any], agent_id: str | None, where: dict[str, Any]) -> Iterator[Event]:
        kind = event.get("type")
        if kind == "message_start":
            self._streamed[agent_id] = text(mapping(event.get("message")).get("id"))
            return
        # Deltas name the position of the block only, so remember the message for each agent: sub-agents stream at the
        # same time.
        item_id = f"{self._streamed.get(agent_id)}.{integer(event.get('index'))}"
        if kind == "content_block_start":
            block = mapping(event.get("content_block")).get("type")
            if block in ("text", "thinking"):
                empty: Item = AgentMessage(id=item_id) if block == "text" else Reasoning(id=item_id)
                yield ItemStarted(**where, item=replace(empty, status="in_progress"))
        elif kind == "content_block_delta":
            delta = mapping(event.get("delta"))
            if delta.get("type") == "text_delta":
                yield ItemDelta(**where, item_id=item_id, item_type=AgentMessage.type, text=text(delta.get("text")))
            elif delta.get("type") == "thinking_delta":
                yield ItemDelta(**where, item_id=item_id, item_type=Reasoning.type, text=text(delta.get("thinking")))

    def _read_message(self, line: Mapping[str, Any], where: dict[str, Any]) -> Iterator[Event]:
        message = mapping(line.get("message"))
        if message.get("model") == SYNTHETIC:
            return  # the reason why a turn failed, which its result says too; or that there is nothing to say
        message_id = text(message.get("id"))
        for block in sequence(message.get("content")):
            # Blocks are counted in order of arrival: each comes in a separate line, without its position.
            place = self._blocks.get(message_id, 0)
            self._blocks[message_id] = place + 1
            item = item_of_block(mapping(block), f"{message_id}.{place}", self._directory)
            if item is None:
                continue
            if item.status == "in_progress":
                self._open[item.id] = item
                yield ItemStarted(**where, item=item)
            else:
                yield ItemEnded(**where, item=item)

    # --- tools -------------------------------------------------------------------------------------------------------

    def _read_results(self, line: Mapping[str, Any], where: dict[str, Any]) -> Iterator[Event]:
        for item_id, block in results_in(line):
            item = self._open.pop(item_id, None)
            if item is not None:
                yield ItemEnded(**where, item=ended(item, block, line, self._directory))

    # --- the rest ----------------------------------------------------------------------------------------------------

    def _read_system(self, line: Mapping[str, Any], where: dict[str, Any]) -> Iterator[Event]:
        match line.get("subtype"):
            case "init":
                yield SettingsApplied(**where, model=optional_text(line.get("model")))
            case "api_retry":
                yield Notice(**where, kind=_retry_kind(line), message=_retry_words(line))
            case "session_title_changed":
                yield SessionRenamed(**where, name=text(line.get("title")))
            case "compact_boundary":
                yield ItemEnded(**where, item=ContextCompaction(id=text(line.get("uuid")) or "compaction"))
            case kind if kind in _KNOWN_SYSTEM:
                yield Untranslated(**where, name=f"system/{kind}")
            case kind:
                yield Unknown(**where, name=f"system/{kind}", payload=line)


# --- items -----------------------------------------------------------------------------------------------------------


def item_of_block(block: Mapping[str, Any], item_id: str, directory: str | None) -> Item | None:
    """Convert a content block of the model: text, thinking, or a tool call."""
    match block.get("type"):
        case "text":
            return AgentMessage(id=item_id, text=text(block.get("text")))
        case "thinking":
            return Reasoning(id=item_id, text=text(block.get("thinking")))
        case "tool_use" if block.get("name") == _ANSWER:
            # Structured output is the model's answer, so it is shown as a message and not as a tool.
            return AgentMessage(
                id=text(block.get("id")) or item_id, text=json.dumps(block.get("input"), ensure_ascii=False)
            )
        case "tool_use":
            return _tool(
                text(block.get("id")) or item_id, text(block.get("name")), mapping(block.get("input")), directory
            )
        case _:
            return None


def _tool(item_id: str, name: str, given: Mapping[str, Any], directory: str | None) -> Item:
    if name == "Bash":
        return CommandExecution(
            id=item_id, status="in_progress", command=text(given.get("command")), directory=directory
        )
    if name in EDITS:
        return FileChange(id=item_id, status="in_progress", changes=(change_of(name, given),))
    if name == "TodoWrite":
        return TodoList(id=item_id, status="in_progress", steps=tuple(map(_step, sequence(given.get("todos")))))
    if name in ("WebSearch", "WebFetch"):
        return WebSearch(id=item_id, status="in_progress", query=text(given.get("query")) or text(given.get("url")))
    if name == "ExitPlanMode":
        return ProposedPlan(id=item_id, status="in_progress", text=text(given.get("plan")))
    if name in ("Agent", "Task"):
        return CollabToolCall(id=item_id, status="in_progress", tool=name, prompt=optional_text(given.get("prompt")))
    if name.startswith("mcp__"):
        _, server, tool = [*name.split("__", 2), "", ""][:3]
        return McpToolCall(id=item_id, status="in_progress", server=server, tool=tool, arguments=given)
    return DynamicToolCall(id=item_id, status="in_progress", tool=name, arguments=given)


def _step(todo: Any) -> PlanStep:
    about = mapping(todo)
    return PlanStep(text(about.get("content")), _STEP_STATUS.get(text(about.get("status")), "pending"))


def results_in(line: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tool results in a `user` line, with the id of each call."""
    for block in sequence(mapping(line.get("message")).get("content")):
        about = mapping(block)
        if about.get("type") == "tool_result":
            yield text(about.get("tool_use_id")), about


def ended(item: Item, result: Mapping[str, Any], line: Mapping[str, Any], directory: str | None) -> Item:
    """Return an item with the result of its tool."""
    said = _words(result.get("content"))
    failed = result.get("is_error") is True
    # The stream and the files name the field differently.
    detail = line.get("tool_use_result", line.get("toolUseResult"))
    about = mapping(detail)
    decided = [mapping(mapping(one).get("permission_decision")) for one in sequence(line.get("tool_result_meta"))]
    declined = any(one.get("decision") == "reject" for one in decided)
    status: ItemStatus = "failed" if failed else "completed"
    match item:
        case CommandExecution():
            found = _EXIT_CODE.match(said)
            # Only failures state an exit code. A command that was stopped has none.
            code = int(found[1]) if found is not None else None if failed or about.get("interrupted") else 0
            output = "" if said == _NO_OUTPUT else said if found is None else said[found.end() :]
            return replace(item, status=status, output="" if declined else output, exit_code=code, declined=declined)
        case FileChange():
            changes = item.changes if failed else (_changed(item.changes[0], about),)
            return replace(item, status=status, changes=changes, declined=declined)
        case McpToolCall():
            return replace(item, status=status, result=None if failed else said, error=said if failed else None)
        case DynamicToolCall():
            return replace(item, status=status, result=said)
        case ProposedPlan():
            return replace(item, status="completed")  # it is stopped there to be reviewed
        case _:
            return replace(item, status=status)


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(text(mapping(block).get("text")) for block in sequence(content) if "text" in mapping(block))


# --- changes of files ------------------------------------------------------------------------------------------------


def change_of(tool: str, given: Mapping[str, Any], before: str | None = None) -> PathChange:
    """Return the change that a tool call describes; `before` is the current content of the file, if it exists."""
    path = text(given.get("file_path")) or text(given.get("notebook_path"))
    if tool == "Write":
        new = text(given.get("content"))
        if before is None:
            return counted(PathChange(path=path, kind="add", diff=new))
        return update_of(path, before, new)
    edits = [mapping(edit) for edit in sequence(given.get("edits"))] or [given]
    # Without the file's content, show the replaced pieces one after the other.
    old = "".join(text(edit.get("old_string")) for edit in edits)
    new = "".join(text(edit.get("new_string", edit.get("new_source"))) for edit in edits)
    if before is not None and (after := edited(before, given)) is not None:
        old, new = _as_edited(before), after
    return update_of(path, old, new)


def edited(before: str, given: Mapping[str, Any]) -> str | None:
    """Return the text of a file after the edits of a call; None where Claude Code would do something else, or nothing.

    It looks for a text in lines that end with a line feed, and takes one that is there once, unless it replaces all. One
    that is not there as it is written may be found with other quotation marks: which, is not known here.
    """
    after = _as_edited(before)
    for edit in [mapping(edit) for edit in sequence(given.get("edits"))] or [given]:
        old, new = edit.get("old_string"), edit.get("new_string")
        if not isinstance(old, str) or not isinstance(new, str) or (not old and after):
            return None
        is_all = edit.get("replace_all") is True
        # Claude Code refuses a text that occurs more than once, unless it replaces all.
        if old and after.count(old) != 1 and not (is_all and old in after):
            return None
        if not new and not old.endswith("\n") and f"{old}\n" in after:
            return None  # a line that becomes empty may go with its end
        after = after.replace(old, new) if old else new
    return after


def _as_edited(content: str) -> str:
    return content.replace("\r\n", "\n")


def _changed(change: PathChange, detail: Mapping[str, Any]) -> PathChange:
    """Return a change with the details that Claude Code reports afterwards."""
    kind = "add" if detail.get("type") == "create" else change.kind
    hunks = [mapping(hunk) for hunk in sequence(detail.get("structuredPatch"))]
    # A file that was written again without a change has no hunks.
    if not hunks:
        return replace(change, kind=kind)
    diff = "".join(
        f"@@ -{hunk.get('oldStart')},{hunk.get('oldLines')} +{hunk.get('newStart')},{hunk.get('newLines')} @@\n"
        + "".join(f"{one}\n" for one in sequence(hunk.get("lines")))
        for hunk in hunks
    )
    return counted(replace(change, kind=kind, diff=diff))


# --- how a turn went -------------------------------------------------------------------------------------------------


def usage_of(told: Any) -> Usage | None:
    """Tokens as Anthropic counts them: what came from the cache, or went there, stands beside the rest of the input."""
    about = mapping(told)
    if not about:
        return None
    cached = count(about.get("cache_read_input_tokens"))
    written = count(about.get("cache_creation_input_tokens"))
    return Usage(
        # Anthropic counts cached input beside the rest; Helmsman's input includes it.
        input_tokens=count(about.get("input_tokens")) + cached + written,
        cached_input_tokens=cached,
        output_tokens=count(about.get("output_tokens")),
        reasoning_output_tokens=count(mapping(about.get("output_tokens_details")).get("thinking_tokens")),
    )


def cost_of(result: Mapping[str, Any]) -> float | None:
    """Return the cost of the session so far, in USD; None if Claude Code has no price for a model and used another
    one's.
    """
    used = (mapping(one) for one in mapping(result.get("modelUsage")).values())
    return None if any(one.get("costBasis") == "unknown" for one in used) else amount(result.get("total_cost_usd"))


def was_interrupted(result: Mapping[str, Any]) -> bool:
    """Return whether a turn was interrupted."""
    return result.get("terminal_reason") in _INTERRUPTED


def failure_of(result: Mapping[str, Any]) -> Failure | None:
    """Why a turn failed, as its `result` says; None if it did not."""
    # A turn without a success is a failure, even if the flag is missing.
    if result.get("is_error") is not True and result.get("subtype") == "success":
        return None
    said = text(result.get("result")) or "; ".join(text(one) for one in sequence(result.get("errors")))
    return failure(said, integer(result.get("api_error_status")), text(result.get("subtype")))


def failure(said: str, status: int | None, subtype: str = "") -> Failure:
    """Convert Claude Code's description of a model failure."""
    code, retryable = _CODES.get(status or 0, ("other", status is not None and status >= _SERVER_ERROR))
    lowered = said.lower()
    # The status does not tell a rate limit, which passes, from a used-up plan.
    if "usage limit" in lowered or "limit reached" in lowered:
        code, retryable = USAGE_LIMIT, False
    elif "prompt is too long" in lowered:
        code, retryable = "context_window_exceeded", False
    elif subtype == "error_max_turns":
        code = "max_turns"
    message = redact(said) or "Claude Code ended the turn as failed and did not say why."
    return Failure(code=code, message=message, retryable=retryable, http_status=status)


_SERVER_ERROR: Final = 500
_CODES: Final[Mapping[int, tuple[str, bool]]] = {
    400: ("bad_request", False),
    401: ("unauthorized", False),
    403: ("unauthorized", False),
    404: ("bad_request", False),
    429: ("rate_limit_exceeded", True),
    500: ("internal_server_error", True),
    529: ("server_overloaded", True),
}


def _retry_kind(line: Mapping[str, Any]) -> NoticeKind:
    status = integer(line.get("error_status"))
    if status is None:
        return "network"
    return "rate_limit" if _CODES.get(status, ("", False))[0] == "rate_limit_exceeded" else "retry"


def _retry_words(line: Mapping[str, Any]) -> str:
    status = integer(line.get("error_status"))
    what = text(line.get("error")).replace("_", " ") or "no answer"
    seconds = (integer(line.get("retry_delay_ms")) or 0) / 1000
    return (
        f"The model gave {what}{'' if status is None else f' ({status})'}; attempt {line.get('attempt')} of "
        f"{line.get('max_retries')} failed, the next is in {seconds:.1f} s."
    )


# --- questions -------------------------------------------------------------------------------------------------------
# Nothing here gives a lasting approval: the permissions that Claude Code suggests to keep are never sent back. Each
# call is allowed once, with exactly the arguments that were shown. Lasting approvals are rules of Helmsman.


REFUSED: Final = "The user refused this."
NOBODY_ASKED: Final = "Refused: this needs approval, and this session asks no questions."
_BEFORE_BYTES: Final = 4 * 1024 * 1024
_YES: Final = frozenset({APPROVE, APPROVE_SESSION, ACCEPT})
_IN_THE_DIFF: Final = frozenset(
    {"file_path", "notebook_path", "content", "old_string", "new_string", "new_source", "edits", "replace_all"}
)
"""Arguments of file changes that the diff shows."""
_ASK_USER: Final = "AskUserQuestion"
EXIT_PLAN: Final = "ExitPlanMode"
"""Tool with which it proposes its plan."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Open request, by Claude Code's own id."""

    request_id: str
    question: Question
    tool: str
    given: Mapping[str, Any]


def read_question(
    line: Mapping[str, Any], session_id: str, turn_id: str | None, directory: str | None, sandbox: WhereItRuns
) -> Asked | None:
    """Convert a `control_request` to a question; None if a user cannot answer it."""
    request, request_id = mapping(line.get("request")), text(line.get("request_id"))
    # Only permission requests concern the user.
    if request.get("subtype") != "can_use_tool" or not request_id:
        return None
    tool, given = text(request.get("tool_name")), mapping(request.get("input"))
    kind, prompts, details = _read(tool, given, request, directory, sandbox)
    question = Question(
        # Claude Code's request ids are random, so the pair names this question after a restart of the hub too.
        id="q_" + hashlib.sha256(f"{session_id} {request_id}".encode()).hexdigest()[:10],
        type=kind,
        session_id=session_id,
        turn_id=turn_id,
        item_id=optional_text(request.get("tool_use_id")),
        agent_id=optional_text(request.get("agent_id")),
        prompts=prompts,
        details={key: value for key, value in details.items() if value is not None},
        asker=TITLE,
    )
    return Asked(request_id, question, tool, given)


_Read = tuple["QuestionType", tuple[Prompt, ...], dict[str, Any]]


def _read(
    tool: str, given: Mapping[str, Any], request: Mapping[str, Any], directory: str | None, sandbox: WhereItRuns
) -> _Read:
    approval = (APPROVE, APPROVE_SESSION, DENY, ABORT)
    reason = optional_text(given.get("description")) or optional_text(request.get("decision_reason"))
    if tool == "Bash":
        # A timeout does not widen what the command may do.
        more = {key: value for key, value in given.items() if key not in ("command", "description", "timeout")}
        details = {
            "command": given.get("command"),
            "directory": directory,
            "reason": reason,
            "sandbox": sandbox,
            "more": more or None,
        }
        return "command_approval", (Prompt(text=f"{TITLE} asks to run a command.", options=approval),), details
    if tool in EDITS:
        before, is_known = _before(text(given.get("file_path")))
        unknown = _unknown(tool, given, before, is_known=is_known)
        # The diff must be against the file as it is now, or it would show less than the edit does.
        change = change_of(tool, given, before if is_known or tool == "Write" else None)
        replaces_all = any(mapping(edit).get("replace_all") for edit in (given, *sequence(given.get("edits"))))
        details = {
            "diff": None if unknown and replaces_all else file_change_diff((change,), directory),
            "unknown": unknown,
            # If the diff is uncertain, show the arguments themselves.
            "input": dict(given) if unknown and tool != "NotebookEdit" else None,
            "changes": [as_details(change if unknown is None else replace(change, added=None, removed=None))],
            "paths": [change.path],
            "sandbox": sandbox,
            "more": {key: value for key, value in given.items() if key not in _IN_THE_DIFF} or None,
        }
        return "patch_approval", (Prompt(text=f"{TITLE} asks to change files.", options=approval),), details
    if tool == _ASK_USER:
        return "user_input", tuple(_prompt(mapping(one)) for one in sequence(given.get("questions"))), {}
    if tool.startswith("mcp__"):
        _, server, name = [*tool.split("__", 2), "", ""][:3]
        # Where the server's name ends is not certain if there are more marks: then no rule allows it.
        is_clear = "__" not in tool[len("mcp__" + server) + 1 :]
        kind = "mcp_tool_call" if is_clear else "mcp_tool_call of this server or another"
        details = {"server": server, "tool": name, "toolParams": dict(given), "approvalKind": kind}
        prompt = Prompt(text=f"{TITLE} asks to call {name} of {server}.", options=(ACCEPT, DECLINE, CANCEL))
        return "mcp_elicitation", (prompt,), details
    details = {"permissions": {tool: dict(given)}, "directory": directory, "reason": reason}
    # No "for this session": no rule would match a tool that Helmsman does not know.
    return "permission_approval", (Prompt(text=f"{TITLE} asks to use {tool}.", options=(APPROVE, DENY)),), details


def _unknown(tool: str, given: Mapping[str, Any], before: str | None, *, is_known: bool) -> str | None:
    """Return why the diff of a change may not be all that it does; None where it is."""
    if tool == "NotebookEdit":
        return "What the cell holds now is not shown."
    if not is_known:
        return "The file cannot be read as text here, so what this replaces, and how often, is not known."
    if tool != "Write" and edited(before or "", given) is None:
        return "The text to be replaced is not in the file exactly once as it is written here, so what happens is not known."
    return None


def _prompt(asked: Mapping[str, Any]) -> Prompt:
    options = [mapping(option) for option in sequence(asked.get("options"))]
    labels = {text(option.get("label")): text(option.get("description")) for option in options}
    return Prompt(
        text=text(asked.get("question")),
        options=tuple(labels),
        free_text=True,
        key=text(asked.get("question")),
        descriptions={label: said for label, said in labels.items() if said and said != label},
    )


def _before(path: str) -> tuple[str | None, bool]:
    """Return the current content of a file, None if it does not exist; and whether it is known: it may be too large or
    binary.
    """
    try:
        file = Path(path)
        if not file.is_absolute():
            return None, False
        if not file.is_file() or file.stat().st_size > _BEFORE_BYTES:  # a pipe or a device would be read for ever
            return ("", False) if os.path.lexists(file) else (None, True)
        return _decoded(file.read_bytes()), True
    except (OSError, ValueError):
        return "", False


def _decoded(content: bytes) -> str:
    """Decode a file as Claude Code does, which takes all but little-endian UTF-16 for UTF-8.

    Raises:
        ValueError: It is neither.
    """
    return content.decode("utf-16-le" if content.startswith(codecs.BOM_UTF16_LE) else "utf-8")


# --- answers ---------------------------------------------------------------------------------------------------------


def write_answer(asked: Asked, choices: tuple[Choice, ...] | None) -> dict[str, Any]:
    """Return the answer to a question; None refuses."""
    if asked.tool == _ASK_USER:
        if choices is None:
            return _response(asked.request_id, {"behavior": "deny", "message": REFUSED})
        # Fewer choices than questions: the rest stays unanswered.
        given = zip(asked.question.prompts, choices, strict=False)
        answers = {prompt.key: choice.in_full for prompt, choice in given}
        return _response(asked.request_id, {"behavior": "allow", "updatedInput": {**asked.given, "answers": answers}})
    choice = choices[0] if choices else Choice(DENY)
    if choice.value in _YES:
        return allowed(asked)
    return refused(asked, choice.reason or REFUSED, stop=choice.value in (ABORT, CANCEL))


def allowed(asked: Asked) -> dict[str, Any]:
    """Return a permission for this call only, exactly as shown."""
    return _response(asked.request_id, {"behavior": "allow", "updatedInput": dict(asked.given)})


def refused(asked: Asked, message: str, *, stop: bool = False) -> dict[str, Any]:
    """Return a refusal. The model reads the message as the result of its tool."""
    return _response(
        asked.request_id, {"behavior": "deny", "message": message, **({"interrupt": True} if stop else {})}
    )


def not_answered(request_id: str, subtype: str) -> dict[str, Any]:
    """Refuse a request that is not a question: it must not wait, and nothing is granted."""
    error = f"Helmsman does not answer {subtype}"
    return {"type": "control_response", "response": {"subtype": "error", "request_id": request_id, "error": error}}


def _response(request_id: str, response: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "control_response",
        "response": {"subtype": "success", "request_id": request_id, "response": response},
    }
