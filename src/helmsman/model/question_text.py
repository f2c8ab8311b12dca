"""Text of a question, for every front end that shows one: all that a yes would grant, in words that no model can forge.

A question becomes a title and lines, each with a label of Helmsman and a value. Text from a model appears only in a value:
behind a label, on one line, with invisible characters written out (`helmsman.base.sanitize`). A value of several lines
continues in lines without a label, which every front end marks (`│`), so that no text can look like a line of Helmsman.
Nothing is left out: unrecognized details are shown as they came.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.sanitize import exact, in_sight, named, shell_script
from helmsman.base.structs import Value
from helmsman.base.truncate import TEXT_CHARS, counted
from helmsman.git.diff import read_diff

if TYPE_CHECKING:
    from helmsman.model.questions import Question

_ACCESS_VERBS: Final = {
    "read": "read",
    "write": "write to",
    "none": "no access to",
    "deny": "no access to",
}


# --- Describe the permissions that Codex asks for ---------------------------------------------------------------------

# Unknown ones are shown as they came.

_EVERYWHERE: Final = {"read": "read everything", "write": "write anywhere"}
_SPECIAL: Final = {
    "minimal": "what every program needs (Codex's minimal set)",
    "project_roots": "the project's own directories",
    "tmpdir": "the temporary directory ($TMPDIR)",
    "slash_tmp": "/tmp",  # noqa: S108 - words
}


def permission_words(granted: Any) -> list[str]:
    """Return each permission in a few words, without duplicates: Codex names some of them in two ways."""
    return list(dict.fromkeys(_words(granted)))


def _words(granted: Any) -> Iterator[str]:
    if not isinstance(granted, Mapping):
        yield _raw(granted)
        return
    for key, value in granted.items():
        # A permission with an unknown detail is shown raw: that detail may widen the grant.
        match key, value:
            case _, None:
                pass
            case "network", {"enabled": True, **rest} if not rest:
                yield "network access"
            case "network", {"enabled": False | None, **rest} if not rest:
                pass
            case "fileSystem", Mapping():
                yield from _file_words(value)
            case _:
                yield f"{named(key)}: {_raw(value)}"


def _file_words(files: Mapping[str, Any]) -> Iterator[str]:
    for key, value in files.items():
        match key, value:
            case _, None:
                pass
            case "read" | "write", [*paths] if all(isinstance(path, str) for path in paths):
                yield from (_path_words(key, path) for path in paths)
            case "entries", [*entries]:
                yield from map(_entry_words, entries)
            case _:
                yield f"files, {named(key)}: {_raw(value)}"


def _entry_words(entry: Any) -> str:
    match entry:
        # Again, any unknown detail makes the whole entry raw.
        case {"access": str(access), "path": {} as path, **rest} if access in _ACCESS_VERBS and not rest:
            match path:
                case {"type": "path", "path": str(name), **more} if not more:
                    return _path_words(access, name)
                case {"type": "glob_pattern", "pattern": str(pattern), **more} if not more:
                    return f"{_ACCESS_VERBS[access]} whatever matches {named(pattern)}"
                case {"type": "special", "value": {"kind": "root", **of_kind}, **more} if not more and not of_kind:
                    return _path_words(access, "/")
                case {"type": "special", "value": {"kind": str(kind), **of_kind}, **more} if (
                    not more and kind in _SPECIAL
                ):
                    inside = of_kind.pop("subpath", None)
                    if not of_kind:
                        return f"{_ACCESS_VERBS[access]} {_SPECIAL[kind]}" + (
                            f", in there {named(inside)}" if inside else ""
                        )
                case _:
                    pass
        case _:
            pass
    return f"files: {_raw(entry)}"


def _path_words(access: str, path: str) -> str:
    # `/`, `//` and `/.` are all the root.
    if posixpath.normpath(path).strip("/") == "" and path.startswith("/") and access in _EVERYWHERE:
        return _EVERYWHERE[access]
    return f"{_ACCESS_VERBS[access]} {named(path)}"


def _raw(value: Any) -> str:
    return exact(json.dumps(value, ensure_ascii=False, default=repr))


GUTTER: Final = "    │ "
"""Prefix of every further line of a value."""

_SANDBOX: Final = {
    "inside": "in the sandbox",
    "inside-then-outside": "in the sandbox, and again outside if it refuses",
    "outside": "outside the sandbox",
}
_NOT_SHOWN: Final = frozenset(["sandbox", "prefixes", "headers", "approvalKind", "mode"])
"""Details that the title contains, or that grant nothing."""
_GRANTS: Final = frozenset(["Permission", "Adds", "Changes", "Copies", "Deletes", "Moves"])
"""Labels that may repeat, each with one thing that a yes grants."""
_LONG_VALUE: Final = TEXT_CHARS
"""Length from which a parameter is cut: it may be a whole file.

Shorter values are shown in full, since the end may matter.
"""
_EMPTY_LINES: Final = 3
_CUT: Final = "    (cut here:"
_LINE_CHARS: Final = 200


class Line(Value, frozen=True):
    """Line of a question. `text` is safe to show, on one line; without a label it continues the previous value."""

    label: str
    text: str


class QuestionText(Value, frozen=True):
    """Question in words. `diff` is that of a patch, unchanged: a front end parses it (`unified_diff`) or mentions it.

    `rule` is the rule that "always" would add. A front end that confirms that answer with the rule may omit it.
    """

    title: str
    lines: tuple[Line, ...]
    diff: str | None = None
    rule: tuple[Line, ...] = ()

    def text(self, *, diff_chars: int = 0) -> str:
        """Return all of it as plain text, with at most this many characters of the diff."""
        shown = [self.title]
        every = (*self.lines, *self.rule)
        shown += [f"{line.label}: {line.text}" if line.label else GUTTER + line.text for line in every]
        if self.diff and diff_chars:
            shown += _diff_text(self.diff, diff_chars)
        return "\n".join(shown)

    def is_cut(self, diff_chars: int) -> bool:
        """Return whether `text` with this many characters of the diff leaves some of it out."""
        return self.diff is not None and any(line.startswith(_CUT) for line in _diff_text(self.diff, diff_chars))


def describe(question: Question) -> QuestionText:
    """Describe a question and everything that a yes to it would grant."""
    details = dict(question.details)
    # A diff of another type stays in the details, which are shown as they came.
    diff: str = details.pop("diff") if isinstance(details.get("diff"), str) else ""
    rule = details.pop("alwaysRule", None)
    title, lines = _DESCRIBED[question.type](question, details, diff)
    added = tuple(_value("Always would add the rule", str(rule).strip("\n"))) if rule else ()
    return QuestionText(title, (*lines, *_unknown(details)), diff or None, added)


def in_a_line(question: Question) -> str:
    """Return the question in one line that is safe to show."""
    words = describe(question)
    line = ": ".join([words.title, *(line.text for line in words.lines[:1])])
    line = line if len(line) <= _LINE_CHARS else line[: _LINE_CHARS - 1] + "…"
    further = words.lines[1:]
    if further and not further[0].label:
        line = line.removesuffix("…") + "…"
    more = sum(one.label in _GRANTS for one in further)
    return line + (f" and {more} more" if more else "")


def part_texts(question: Question) -> list[str]:
    """Return the text of each part of a question: of an approval, all that it grants, with the diff of a patch."""
    own = [marked(prompt.text) for prompt in question.prompts]
    return own if question.type == "user_input" else [describe(question).text(diff_chars=TEXT_CHARS), *own[1:]]


def question_as_dict(question: Question) -> dict[str, Any]:
    """Return the question as `pendingQuestion` shows it."""
    parts = zip(part_texts(question), question.prompts, strict=True)
    return {
        "id": question.id,
        "type": question.type,
        "questions": [{"question": text, "options": list(prompt.options)} for text, prompt in parts],
        "details": dict(question.details),
    }


def marked(text: str) -> str:
    """Return a text of a model as a value in plain text: its further lines are marked."""
    return ("\n" + GUTTER).join(value_lines(text))


def value_lines(text: str) -> list[str]:
    """Return a model's text, line by line, safe to show.

    A long run of empty lines, which could hide text below, is one line.
    """
    shown: list[str] = []
    for is_empty, group in groupby(text.removesuffix("\n").split("\n"), key=lambda line: not line.strip(" \t")):
        lines = list(group)
        many = is_empty and len(lines) > _EMPTY_LINES
        shown += [f"({len(lines)} empty lines)"] if many else [exact(line) for line in lines]
    return shown


def _who(question: Question) -> str:
    return question.asker if question.agent_id is None else f"A sub-agent of {question.asker}"


# --- the kinds of questions ------------------------------------------------------------------------------------------


def _command(question: Question, details: dict[str, Any], _diff: str) -> tuple[str, list[Line]]:
    # Unknown places count as outside: the question must not promise a sandbox that may not be there.
    where = _SANDBOX.get(str(details.get("sandbox")), _SANDBOX["outside"])
    command, kind, network = (details.pop(name, None) for name in ("command", "kind", "networkContext"))
    lines: list[Line] = []
    if kind == "writeStdin":
        title = f"{_who(question)} asks to type into a command that runs {where}"
        command = exact(str(command))  # its last line break is the Enter key
    elif command is None and network is not None:
        title = f"{_who(question)} asks to reach the network"
    else:
        title = f"{_who(question)} asks to run a command {where}"
        lines += _value("Kind", kind) if kind is not None else []
    if isinstance(command, list | tuple):  # some agents give a list of words
        lines += _value("Command", json.dumps(command, ensure_ascii=False, default=str))
    elif command is not None or network is None:
        lines += _value("Command", shell_script(str(command)) if command else f"{question.asker} does not say which")
    lines += _where(details)
    if question.environment not in (None, "local"):
        lines += _value("Environment", question.environment)
    lines += _permissions(details.pop("additionalPermissions", None))
    if network is not None:
        lines.append(Line("Network", _network(network)))
    return title, [*lines, *_why(details)]


def _patch(question: Question, details: dict[str, Any], diff: str) -> tuple[str, list[Line]]:
    # Unknown places count as outside here too.
    where = _SANDBOX.get(str(details.get("sandbox")), _SANDBOX["outside"])
    lines = list(_files(details, diff)) or [Line("Files", f"{question.asker} does not say which")]
    led, root = details.pop("leadsTo", None), details.pop("grantRoot", None)
    if (unknown := details.pop("unknown", None)) is not None:
        lines.append(Line("Not known", exact(str(unknown))))
    # The patch names links. What changes is the files behind them.
    if isinstance(led, Mapping):
        lines += [Line("Changes", f"{named(real)}, where {named(path)} leads") for path, real in led.items()]
    if root is not None:
        lines.append(Line("Permission", f"write to everything under {named(root)}, for the rest of the session"))
    return f"{_who(question)} asks to change files, {where}", [*lines, *_where(details), *_why(details)]


def _permission(question: Question, details: dict[str, Any], _diff: str) -> tuple[str, list[Line]]:
    granted = _permissions(details.pop("permissions", None)) or [
        Line("Permission", f"{question.asker} does not say which")
    ]
    return f"{_who(question)} asks for more permissions", [*granted, *_where(details), *_why(details)]


def _elicitation(question: Question, details: dict[str, Any], _diff: str) -> tuple[str, list[Line]]:
    kind = details.get("approvalKind")
    is_call = kind is not None
    who = _who(question)
    title = f"An MCP server asks you, through {who[0].lower() + who[1:] if question.agent_id else who}"
    if is_call:
        title = f"{who} asks to use an MCP tool, outside the sandbox"
    lines = [*_value("Server", details.pop("server", None) or f"{question.asker} does not say which")]
    lines += _value("Kind", kind) if kind not in (None, "mcp_tool_call") else []
    lines += _value("Tool", details.pop("tool")) if "tool" in details else []
    lines += _value("Asks", question.prompts[0].text) if question.prompts else []
    parameters = details.pop("toolParams", None)
    if is_call or parameters is not None:
        lines += _value("Parameters", _json(parameters) if parameters else "none")
    lines += _value("Opens", details.pop("url")) if "url" in details else []
    lines += _value("The tool says of itself", details.pop("toolDescription")) if "toolDescription" in details else []
    return title, [*lines, *_why(details)]


def _user_input(question: Question, details: dict[str, Any], _diff: str) -> tuple[str, list[Line]]:
    plan = details.pop("plan", None)
    lines = list(_value("Plan", plan)) if plan else []
    seen = details.pop("evidence", None)
    if details.pop("verified", None) is not None and seen:
        lines += _value("Verified", "\n".join(f"{'✓' if one['ok'] else '✗'} {one['what']}" for one in seen))
    if len(question.prompts) == 1:  # with several prompts, each text is shown where it is answered
        lines += _value("Question", question.prompts[0].text)
    return f"{_who(question)} asks you", [*lines, *_where(details)]


_DESCRIBED: Final = {
    "command_approval": _command,
    "patch_approval": _patch,
    "permission_approval": _permission,
    "user_input": _user_input,
    "mcp_elicitation": _elicitation,
}

# --- parts of questions -----------------------------------------------------------------------------------------------


def _value(label: str, value: Any) -> Iterator[Line]:
    first, *more = value_lines(value if isinstance(value, str) else _json(value))
    yield Line(label, first)
    yield from (Line("", line) for line in more)


def _where(details: dict[str, Any]) -> Iterator[Line]:
    directory = details.pop("directory", None)
    if directory is not None:
        yield Line("Directory", named(directory))


def _why(details: dict[str, Any]) -> Iterator[Line]:
    reason = details.pop("reason", None)
    if reason:
        yield from _value("Reason given", reason)


def _permissions(granted: Any) -> list[Line]:
    return [] if granted is None else [Line("Permission", words) for words in permission_words(granted)]


def _network(context: Any) -> str:
    match context:
        case {"host": str(host), "protocol": str(protocol), **rest} if not rest:
            return f"{exact(protocol)} to {named(host)}"
        case _:
            return exact(_json(context, indent=None))


def _files(details: dict[str, Any], diff: str) -> Iterator[Line]:
    """Yield every file of a patch. Codex's own list takes precedence over the diff derived from it."""
    changes, files, paths = (details.pop(key, None) for key in ("changes", "files", "paths"))
    if changes:
        yield from map(_change, changes)
    elif diff:
        for file in read_diff(diff):
            moved = {"path": file.old_path, "movedTo": file.path} if file.old_path else {"path": file.path}
            yield _change({"kind": file.kind, "added": file.added, "removed": file.removed, **moved})
    elif isinstance(files, Mapping):
        for path, content in files.items():
            yield Line("Changes", named(path))
            yield from (Line("", line) for line in value_lines(_json(content)))
    else:
        yield from (Line("Changes", named(path)) for path in paths or ())


_VERBS: Final = {"add": "Adds", "added": "Adds", "delete": "Deletes", "deleted": "Deletes", "copied": "Copies"}


def _change(change: Any) -> Line:
    if not isinstance(change, Mapping):
        return Line("Changes", exact(str(change)))
    moved, kind = change.get("movedTo"), str(change.get("kind"))
    verb = _VERBS.get(kind, "Changes" if moved is None else "Moves")
    path = named(change.get("path") or "(no name)") + (f" → {named(moved)}" if moved is not None else "")
    added, removed = change.get("added"), change.get("removed")
    counts = f"+{added} -{removed}" if added is not None and removed is not None else "lines not counted"
    return Line(verb, f"{path}  {counts}")


def _unknown(details: Mapping[str, Any]) -> Iterator[Line]:
    for key, value in details.items():
        if key not in _NOT_SHOWN and value is not None:
            yield Line("Also", f"{named(key)}: {exact(_json(value, indent=None))}")


def _json(value: Any, *, indent: int | None = 2) -> str:
    try:
        return json.dumps(_bounded(value), ensure_ascii=False, indent=indent, default=repr)
    # The details come from an agent, and may nest without end.
    except RecursionError:
        return "nested too deeply to be shown"


def _bounded(value: Any) -> Any:
    match value:
        case str() if len(value) > _LONG_VALUE:
            return f"{value[:_LONG_VALUE]}… (cut here: it has {len(value)} characters)"
        case Mapping():
            return {key if isinstance(key, str) else repr(key): _bounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_bounded(one) for one in value]
        case _:
            return value


def _diff_text(diff: str, chars: int) -> Iterator[str]:
    lines = diff.removesuffix("\n").split("\n")
    yield "Diff:"
    for number, line in enumerate(lines):
        shown = in_sight(line)
        yield GUTTER + shown[:chars]
        chars -= len(shown)
        if chars < 0 or (chars == 0 and number + 1 < len(lines)):
            yield f"{_CUT} of {counted(len(lines), 'line')}, {len(lines) - number - 1} are not shown; this one may go on)"
            return
