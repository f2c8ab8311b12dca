"""Convert an agent's updates in a turn to events: text becomes messages; tool calls become commands, file changes and
others.

An agent may begin a tool call with an update or with a permission request, may repeat fields or leave them out, and may
never report the end. So the fields of a call are gathered from all messages, and calls that are open when the turn ends are
closed then.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.changes import as_details, change_of, update_of
from helmsman.agents.forms import form_content, form_prompts
from helmsman.base.json_values import mapping, optional_text, sequence, text
from helmsman.base.structs import replace
from helmsman.model.change_diff import file_change_diff
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    FileChange,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    PathChange,
    PlanStep,
    Reasoning,
    TodoList,
    UnknownItem,
    WebSearch,
)
from helmsman.model.questions import ABORT, ACCEPT, APPROVE, APPROVE_SESSION, DECLINE, DENY, Prompt, Question

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from helmsman.agents.acp.profile import Profile
    from helmsman.base.jsonrpc import RequestId
    from helmsman.model.events import ChangeKind, Event, Item, ItemStatus, StepStatus
    from helmsman.model.questions import Choice, QuestionType

EDITS: Final = frozenset({"edit", "delete", "move"})
_STATUS: Final[Mapping[str, ItemStatus]] = {
    "pending": "started",
    "in_progress": "in_progress",
    "completed": "completed",
    "failed": "failed",
}
_STEPS: Final[Mapping[str, StepStatus]] = {"in_progress": "in_progress", "completed": "completed"}
PLACES: Final = ("workdir", "directory", "dir_path", "cwd")
"""Names that agents use for the directory of a command. OpenCode also reports the session's directory as `cwd`."""
_FILE_BYTES: Final = 1024 * 1024
"""Limit up to which a change of a file is shown with context lines."""
_PIECES: Final[Mapping[str, type[AgentMessage | Reasoning]]] = {
    "agent_message_chunk": AgentMessage,
    "agent_thought_chunk": Reasoning,
}


@dataclass(slots=True)
class AgentCall:
    """Tool call, as far as it is known."""

    id: str
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    began: bool = False
    ended: bool = False
    changes: tuple[PathChange, ...] = ()

    def changed(self) -> tuple[PathChange, ...]:
        """Return the files it changes. They are kept once the call is done: the previous content is gone by then."""
        is_done = self.fields.get("status") in ("completed", "failed")
        if not is_done or not any(change.diff for change in self.changes):
            self.changes = changes_of(self.fields)
        return self.changes

    def take(self, update: Mapping[str, Any]) -> None:
        """Merge an update into the fields. Fields that it leaves out stay."""
        for name, value in update.items():
            # An empty value means "not reported", not "cleared": agents send partial updates.
            if value in (None, [], {}) or name == "sessionUpdate":
                continue
            # Agents spread these over several updates.
            is_joined = name in ("rawInput", "_meta") and isinstance(value, dict)
            self.fields[name] = {**mapping(self.fields.get(name)), **value} if is_joined else value


@dataclass(slots=True)
class _Text:
    """Message that is being written."""

    kind: type[AgentMessage | Reasoning]
    id: str
    message_id: str | None
    pieces: list[str]


class TurnItems:
    """Items of one turn."""

    def __init__(self, profile: Profile, session_id: str, turn_id: str, directory: str) -> None:
        self._profile = profile
        self._session_id = session_id
        self._turn_id = turn_id
        self._directory = directory
        self._text: _Text | None = None
        self._texts = 0
        self._calls: dict[str, AgentCall] = {}
        self._has_plan = False
        self.declined = set[str]()
        """Calls that were refused."""
        self.failure: str | None = None
        """Failure that the agent reports only in its text."""

    def take(self, update: Mapping[str, Any]) -> Iterator[Event]:
        """Return the events of an update."""
        kind = text(update.get("sessionUpdate"))
        if kind in _PIECES:
            yield from self._piece(kind, update)
        elif kind in ("tool_call", "tool_call_update"):
            yield from self.call(update)
        elif kind == "plan":
            yield from self._plan(update)

    def call(self, update: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the events for an update of, or a question about, a tool call."""
        call_id = text(update.get("toolCallId"))
        call = self._calls.setdefault(call_id, AgentCall(call_id))
        # Agents may send updates for a call after its end. An item ends once.
        if call.ended:
            return
        yield from self._end_text()
        call.take(update)
        status = text(update.get("status"))
        item = self._item(call)
        if not call.began:
            call.began = True
            yield ItemStarted(session_id=self._session_id, turn_id=self._turn_id, item=item)
            # The first update of some agents is also the last.
            if status not in ("completed", "failed"):
                return
        if status in ("completed", "failed"):
            call.ended = True
            yield ItemEnded(session_id=self._session_id, turn_id=self._turn_id, item=item)
        else:
            yield ItemUpdated(session_id=self._session_id, turn_id=self._turn_id, item=item)

    def known(self, call_id: str) -> AgentCall | None:
        """Return a tool call of this turn."""
        return self._calls.get(call_id)

    def pause(self) -> Iterator[Event]:
        """End the current message. The next text begins another one."""
        yield from self._end_text()

    def end(self, *, completed: bool) -> Iterator[Event]:
        """Close all open messages and calls at the end of the turn."""
        yield from self._end_text()
        for call in self._calls.values():
            if not call.ended:
                call.ended = True
                # Most agents do not report the end of a refused call. A call open at a successful end has run.
                call.fields["status"] = "completed" if completed and call.id not in self.declined else "failed"
                yield ItemEnded(session_id=self._session_id, turn_id=self._turn_id, item=self._item(call))

    # --- text --------------------------------------------------------------------------------------------------------

    def _piece(self, kind: str, update: Mapping[str, Any]) -> Iterator[Event]:
        said = text(mapping(update.get("content")).get("text"))
        if not said or self._profile.is_remark(said):
            # Qwen sends empty chunks that only carry usage.
            return
        if (failure := self._profile.failure_in(said)) is not None:
            self.failure = failure
            return
        message_id = optional_text(update.get("messageId"))
        made = _PIECES[kind]
        # Agents without message ids begin a new message when another kind of update comes between.
        if self._text is None or self._text.kind is not made or self._text.message_id != message_id:
            yield from self._end_text()
            self._texts += 1
            self._text = _Text(made, f"{self._turn_id}.{self._texts}", message_id, [])
            item = made(id=self._text.id, status="in_progress")
            yield ItemStarted(session_id=self._session_id, turn_id=self._turn_id, item=item)
        self._text.pieces.append(said)
        yield ItemDelta(
            session_id=self._session_id, turn_id=self._turn_id, item_id=self._text.id, item_type=made.type, text=said
        )

    def _end_text(self) -> Iterator[Event]:
        if self._text is not None:
            item = self._text.kind(id=self._text.id, text="".join(self._text.pieces))
            self._text = None
            yield ItemEnded(session_id=self._session_id, turn_id=self._turn_id, item=item)

    # --- tools -------------------------------------------------------------------------------------------------------

    def _item(self, call: AgentCall) -> Item:
        fields = call.fields
        kind, given = text(fields.get("kind")), mapping(fields.get("rawInput"))
        status = _STATUS.get(text(fields.get("status")), "in_progress")
        if kind == "execute":
            output, code = self._profile.command_end(fields)
            return CommandExecution(
                id=call.id,
                status=status,
                command=command_of(fields),
                directory=place_of(fields, self._directory),
                output=output if output is not None else "",
                exit_code=code if status in ("completed", "failed") else None,
                declined=call.id in self.declined,
            )
        if kind in EDITS:
            return FileChange(id=call.id, status=status, changes=call.changed(), declined=call.id in self.declined)
        if kind == "fetch":
            return WebSearch(
                id=call.id, status=status, query=text(given.get("url")) or text(given.get("query")) or _title(fields)
            )
        if sequence(given.get("todos")):
            return TodoList(id=call.id, status=status, steps=_steps(given.get("todos")))
        payload: dict[str, Any] = {name: fields[name] for name in ("kind", "rawInput", "locations") if name in fields}
        return UnknownItem(id=call.id, status=status, name=_title(fields), payload=payload)

    def _plan(self, update: Mapping[str, Any]) -> Iterator[Event]:
        item = TodoList(id=f"{self._turn_id}.plan", steps=_steps(update.get("entries")))
        made = ItemUpdated if self._has_plan else ItemStarted
        self._has_plan = True
        yield made(session_id=self._session_id, turn_id=self._turn_id, item=item)


def joined(profile: Profile, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with consecutive text chunks joined.

    Chunks that a profile recognizes by their beginning stay separate: they are not text of the model.
    """
    made: list[tuple[dict[str, Any], list[str]]] = []
    newest: tuple[object, ...] = ()
    for message in messages:
        params = mapping(message.get("params"))
        update = mapping(params.get("update"))
        kind, said = text(update.get("sessionUpdate")), text(mapping(update.get("content")).get("text"))
        # Usage in an update counts once per message, so such chunks cannot be joined.
        is_plain = kind in _PIECES and profile.update_usage(update) is None and not profile.is_remark(said)
        about: tuple[object, ...] = ()
        if is_plain and said and profile.failure_in(said) is None:
            about = (kind, params.get("sessionId"), update.get("messageId"))
        if about and about == newest:
            made[-1][1].append(said)
        else:
            made.append((message, [said]))
        newest = about
    return [message if len(pieces) == 1 else _with_text(message, "".join(pieces)) for message, pieces in made]


def _with_text(message: dict[str, Any], said: str) -> dict[str, Any]:
    params = message["params"]
    return {**message, "params": {**params, "update": {**params["update"], "content": {"type": "text", "text": said}}}}


def command_of(fields: Mapping[str, Any]) -> str:
    """Return the command of a call; some agents have it only in the title."""
    return text(mapping(fields.get("rawInput")).get("command")) or _title(fields)


def place_of(fields: Mapping[str, Any], directory: str) -> str:
    """Return the directory of a call's command from its arguments, or the session's directory."""
    given = mapping(fields.get("rawInput"))
    return str(Path(directory, next((text(given[name]) for name in PLACES if text(given.get(name))), "")))


def words_of(fields: Mapping[str, Any]) -> str:
    """Return the text content of a call."""
    parts = (mapping(mapping(part).get("content")) for part in sequence(fields.get("content")))
    return "\n".join(text(part.get("text")) for part in parts if text(part.get("text")))


def _title(fields: Mapping[str, Any]) -> str:
    return text(fields.get("title")) or text(fields.get("name"))


def _steps(entries: object) -> tuple[PlanStep, ...]:
    return tuple(
        PlanStep(text(entry.get("content")), _STEPS.get(text(entry.get("status")), "pending"))
        for entry in sequence(entries)
        if isinstance(entry, dict)
    )


# --- file changes ----------------------------------------------------------------------------------------------------


_REPLACES_ALL: Final = ("replaceAll", "replace_all", "allow_multiple", "allowMultiple", "multiple")


def changes_of(fields: Mapping[str, Any]) -> tuple[PathChange, ...]:
    """Return the files that a call changes, from any of its forms: diffs, one unified diff, or the tool's input."""
    shown = [mapping(part) for part in sequence(fields.get("content")) if mapping(part).get("type") == "diff"]
    given, result = mapping(fields.get("rawInput")), mapping(fields.get("rawOutput"))
    path = next(
        (text(given[name]) for name in ("fileName", "filePath", "file_path", "path") if text(given.get(name))), ""
    )
    places = [text(mapping(place).get("path")) for place in sequence(fields.get("locations"))]
    kind: ChangeKind = "delete" if fields.get("kind") == "delete" else "update"
    if shown:
        changes = [
            _change(text(part.get("path")), optional_text(part.get("oldText")), optional_text(part.get("newText")))
            for part in shown
        ]
        # A path in the arguments that no diff shows is shown by name: nothing may be hidden behind a partial diff.
        others = (place for place in dict.fromkeys([path, *places]) if place)
        unseen = (place for place in others if not any(_is_same_file(place, change.path) for change in changes))
        return (*changes, *(PathChange(path=place, kind=kind) for place in unseen))
    unified = optional_text(mapping(result.get("metadata")).get("diff")) or optional_text(given.get("diff"))
    if path and unified:
        return (_from_unified(path, unified),)
    if path and text(fields.get("kind")) == "edit":
        old = optional_text(given.get("oldString")) or optional_text(given.get("old_string"))
        new = next(
            (text(given[name]) for name in ("newString", "new_string", "content", "file_text") if name in given), None
        )
        if new is not None:
            # No old text means the whole file is written.
            return (_change(path, old if old is not None else _content(path), new),)
    return tuple(PathChange(path=place, kind=kind) for place in ([path] if path else places) if place)


def is_piece_of_many(fields: Mapping[str, Any]) -> bool:
    """Return whether a call replaces a piece of a file that it shows once, but perhaps in several places."""
    given = mapping(fields.get("rawInput"))
    expected = given.get("expected_replacements")
    is_many = any(given.get(name) for name in _REPLACES_ALL) or (isinstance(expected, int) and expected != 1)
    pieces = [
        (text(part.get("path")), text(part.get("oldText")))
        for part in map(mapping, sequence(fields.get("content")))
        if part.get("type") == "diff"
    ]
    path = next((text(given[name]) for name in ("fileName", "filePath", "file_path", "path") if given.get(name)), "")
    if not pieces and optional_text(given.get("diff")):
        return False  # the agent has computed the result
    pieces = pieces or [(path, text(given.get("oldString")) or text(given.get("old_string")))]
    for place, old in pieces:
        before = _content(place)
        # Agents match lines regardless of their ends, so compare likewise.
        now = None if before is None else before.replace("\r\n", "\n")
        piece = old.replace("\r\n", "\n")
        if piece and piece != now and (is_many or (now is not None and now.count(piece) > 1)):
            return True
    return False


def _is_same_file(one: str, other: str) -> bool:
    """Return whether two names, of which one may be relative, are the same file's."""
    long, short = sorted((os.path.normpath(one), os.path.normpath(other)), key=len, reverse=True)
    return long == short or (not os.path.isabs(short) and long.endswith("/" + short))  # noqa: PTH117 - they are texts


def _change(path: str, old: str | None, new: str | None) -> PathChange:
    """Return a change from one text of a file, or a part of it, to another."""
    before = _content(path)
    if old and new is not None and before is not None and before != old and before.count(old) == 1:
        old, new = before, before.replace(old, new)  # a piece: the text around it gives the lines their numbers
    if not old and before:  # it says that there is no such file
        old = before
    if not old:
        return change_of(path, "add", new or "")
    if new is None:
        return change_of(path, "delete", old)
    return update_of(path, old, new)


def _from_unified(path: str, diff: str) -> PathChange:
    head, mark, hunks = diff.partition("\n@@ ")
    added = "\n--- /dev/null" in f"\n{head}" or "new file mode" in head
    if added:
        whole = "".join(line[1:] for line in hunks.splitlines(keepends=True) if line.startswith("+"))
        return change_of(path, "add", whole)
    return change_of(path, "update", f"@@ {hunks}" if mark else diff)


def _content(path: str) -> str | None:
    """Return the current content of a file; None if it is missing, too large or not text."""
    try:
        file = Path(path)
        if not file.is_absolute() or not file.is_file() or file.stat().st_size > _FILE_BYTES:
            return None
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


# --- questions -------------------------------------------------------------------------------------------------------
# An option is chosen by its kind, never by its place or its name. The only approval ever sent is `allow_once`: an
# agent's own "always" covers more than was shown (a first word, all edits, other sessions), and some agents write it
# into the repository. Lasting approvals are rules of Helmsman.


REQUEST: Final = "session/request_permission"
ELICITATION: Final = "elicitation/create"
CANCELLED: Final[Mapping[str, Any]] = {"outcome": {"outcome": "cancelled"}}
_ALLOW: Final = "allow_once"
_REJECT: Final = "reject_once"
ACTS: Final = frozenset({"execute", *EDITS})
_UNKNOWN: Final = "It replaces a text that may occur several times in the file. Helmsman cannot tell how often."
_SHOWN: Final = frozenset({"command", "description", *PLACES})
_GRANTS_NOTHING: Final = frozenset({"timeout", "initial_wait"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Context of a request that the request itself does not contain."""

    title: str
    session_id: str
    turn_id: str
    directory: str
    request_id: RequestId
    sandbox: str
    tool: str | None = None
    """Name of the tool, as its program reports it."""
    announced: str | None = None
    """Title of the call before the question."""
    times: int = 0
    """Number of earlier questions about this call in other words, because it had changed."""


def read_question(params: Mapping[str, Any], call: Mapping[str, Any], asking: Asking) -> Question:
    """Convert a permission request to a question.

    `call` has the earlier facts of the tool call; the request takes precedence.
    """
    whole = AgentCall("", dict(call))
    whole.take(mapping(params.get("toolCall")))
    call = whole.fields
    if is_form(params):
        message, prompts = text(params.get("message")), form_prompts(params)
        if not prompts:  # it asks only whether
            prompts = [Prompt(text=message, options=(ACCEPT, DECLINE))]
        elif message:
            prompts[0] = replace(prompts[0], text=f"{message}\n{prompts[0].text}")
        return _question(params, asking, "user_input", tuple(prompts), {})
    # Text questions come as permission requests; they are not approvals.
    if asked := user_questions(params, text(call.get("kind"))):
        return _question(params, asking, "user_input", _user_prompts(asked), {})
    directory = asking.directory
    details: dict[str, Any]
    made: QuestionType
    kind = text(call.get("kind"))
    if kind == "execute":
        details = {**_command(call, directory), "sandbox": asking.sandbox}
        says, made = "run a command", "command_approval"
    elif kind in EDITS and (changes := changes_of(call)):
        is_unknown = is_piece_of_many(call)
        # An unclear edit is never shown as a diff: the diff would show less than the approval grants.
        is_shown = any(change.diff for change in changes) and not is_unknown
        details = {
            "diff": None if is_unknown else file_change_diff(changes, directory),
            "changes": [
                {"path": change.path, "kind": change.kind} if is_unknown else as_details(change) for change in changes
            ],
            "paths": [change.path for change in changes],
            "sandbox": asking.sandbox,
            "unknown": _UNKNOWN if is_unknown else None,
            "input": None if is_shown else dict(mapping(call.get("rawInput"))) or None,
            "says": sequence(call.get("content")) or None if is_unknown else None,
        }
        says, made = "change files", "patch_approval"
    else:
        title = text(call.get("title"))
        # The program's own name of the tool before its title, which the model may write.
        tool = asking.tool or text(call.get("name")) or title
        details = {
            "permissions": {"tool": tool, "kind": kind or "other"},
            "title": title if title != tool else None,
            "announced": asking.announced if asking.announced not in (title, tool) else None,
            "input": dict(mapping(call.get("rawInput"))) or None,
            "call": optional_text(call.get("toolCallId")),
            "says": words_of(call) or None,
            "directory": directory,
        }
        says, made = "use a tool", "permission_approval"
    can_allow = allowing(params) is not None
    # Only denials if the agent offers no option that allows once.
    options = (*((APPROVE, APPROVE_SESSION) if can_allow else ()), DENY, ABORT)
    if made == "permission_approval":  # there is no rule that would cover the next one
        options = tuple(option for option in options if option != APPROVE_SESSION)
    return _question(params, asking, made, (Prompt(text=f"{asking.title} asks to {says}.", options=options),), details)


def write_answer(
    params: Mapping[str, Any], question: Question, choices: tuple[Choice, ...] | None
) -> Mapping[str, Any]:
    """Return the result with the choices for the agent; None refuses.

    Choices have the meaning of the question as shown, even if the request now differs.
    """
    if is_form(params):
        if choices is None:
            return cancelling(params)
        if question.prompts[0].key:  # in a field, the word that declines is a value
            return {"action": ACCEPT, "content": form_content(params, choices)}
        return {"action": ACCEPT, "content": None} if choices[0].value == ACCEPT else cancelling(params)
    if question.type == "user_input" and choices:
        # By index: Qwen finds no answer if the question's text is the key.
        given = {str(index): choice.value for index, choice in enumerate(choices[: len(question.prompts)])}
        chosen = allowing(params)
        return CANCELLED if chosen is None else {**_selected(chosen), "answers": given}
    # "For this session" is a rule of Helmsman; the agent is only ever allowed this once.
    if choices and choices[0].value in (APPROVE, APPROVE_SESSION) and (allowed := allowing(params)) is not None:
        return _selected(allowed)
    return refusing(params)


def unasked(params: Mapping[str, Any], *, yes: bool) -> Mapping[str, Any]:
    """Return Helmsman's own answer. Only a user can answer free text."""
    if is_form(params):
        return cancelling(params)
    allowed = allowing(params) if yes and not user_questions(params) else None
    return refusing(params) if allowed is None else _selected(allowed)


def allowing(params: Mapping[str, Any]) -> str | None:
    """Return the option that allows this once, or None if no option or several do."""
    return _the_only(params, _ALLOW)


def is_form(params: Mapping[str, Any]) -> bool:
    """Return whether a request is a form to be filled in, and not one for a permission."""
    return params.get("mode") == "form" and "options" not in params


def cancelling(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer to a request that no user has answered."""
    return {"action": "cancel"} if is_form(params) else CANCELLED


def refusing(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer that refuses everything."""
    if is_form(params):
        return cancelling(params)
    rejected = _the_only(params, _REJECT)
    return CANCELLED if rejected is None else _selected(rejected)


def user_questions(params: Mapping[str, Any], kind: str = "") -> list[Mapping[str, Any]]:
    """Return the agent's questions for text, if there are any. `kind` is the kind of the call."""
    call = mapping(params.get("toolCall"))
    is_act = kind in ACTS or call.get("kind") in ACTS  # a yes in disguise
    meta = {} if is_act else mapping(call.get("_meta"))
    return [mapping(one) for one in sequence(meta.get("qwenQuestions")) if isinstance(one, dict)]


def _the_only(params: Mapping[str, Any], kind: str) -> str | None:
    options = [mapping(option) for option in sequence(params.get("options"))]
    found = [optional_text(option.get("optionId")) for option in options if option.get("kind") == kind]
    # Two options of one kind, or one id for two kinds, are ambiguous. Guessing could grant too much.
    is_clear = len(found) == 1 and [option.get("optionId") for option in options].count(found[0]) == 1
    return found[0] if is_clear else None


def _selected(option: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option}}


def _question(
    params: Mapping[str, Any],
    asking: Asking,
    kind: QuestionType,
    prompts: tuple[Prompt, ...],
    details: Mapping[str, Any],
) -> Question:
    item_id = optional_text(mapping(params.get("toolCall")).get("toolCallId"))
    # The agent numbers its requests from 0 in each process; turns are never the same.
    again = (asking.times,) if asking.times else ()
    identity = repr((asking.session_id, asking.turn_id, asking.request_id, *again)).encode()
    return Question(
        id="q_" + hashlib.sha256(identity).hexdigest()[:10],
        type=kind,
        session_id=asking.session_id,
        turn_id=asking.turn_id,
        item_id=item_id,
        prompts=prompts,
        asker=asking.title,
        details={name: value for name, value in details.items() if value is not None},
    )


def _command(call: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Return a command, its directory, and other input that can change its effect."""
    given = mapping(call.get("rawInput"))
    command = text(given.get("command"))
    details: dict[str, Any] = {"command": command_of(call)}
    if not command and (words := words_of(call)):
        return details | _in_words(words, directory)
    more: dict[str, Any] = {}
    for name, value in given.items():
        parts = sequence(value) if name == "commands" else ()  # Copilot's own reading of the command
        is_same = bool(parts) and all(isinstance(part, str) and part in command for part in parts)
        is_shown = name in _SHOWN and isinstance(value, str)
        # Only fields that are known to grant nothing are left out. Unknown ones are shown.
        if value and not is_shown and not is_same and name not in _GRANTS_NOTHING and (name, value) != ("mode", "sync"):
            more[name] = value
    reason = optional_text(given.get("description"))
    return details | {"directory": place_of(call, directory), "reason": reason, "more": more or None}


def _in_words(words: str, directory: str) -> dict[str, Any]:
    """Parse the directory of a command from words, as with Gemini. Unclear words are shown unchanged."""
    # The agent may report the directory as given, or with its links resolved.
    for here in (directory, os.path.realpath(directory)):
        said = f"[current working directory {here}]"
        if words.startswith(said):
            rest = words.removeprefix(said).strip()
            is_reason = not rest or (rest.startswith("(") and rest.endswith(")"))
            return (
                {"directory": directory, "reason": rest[1:-1] or None, "more": None} if is_reason else {"more": words}
            )
    return {"more": words}


def _user_prompts(asked: list[Mapping[str, Any]]) -> tuple[Prompt, ...]:
    prompts: list[Prompt] = []
    for one in asked:
        options = [mapping(option) for option in sequence(one.get("options"))]
        labels = {text(option.get("label")): text(option.get("description")) for option in options}
        prompts.append(
            Prompt(
                text=text(one.get("question")) or text(one.get("header")),
                options=tuple(label for label in labels if label),
                free_text=True,
                key=str(len(prompts)),
                descriptions={label: words for label, words in labels.items() if label and words},
            )
        )
    return tuple(prompts)
