"""File changes as Codex describes them, and as the unified diff that `git apply` takes.

Codex gives the whole content of a file added or deleted, hunks without file headers for a file updated, and, where a
file is also moved, a sentence about it after the hunks. `path_change` reads one such change, `file_change_diff` makes
one real diff of many.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import mapping, optional_text, text
from helmsman.model.events import ChangeKind, PathChange
from helmsman.model.unified_diff import read_change

if TYPE_CHECKING:
    from collections.abc import Iterable


_MOVE_TRAILER: Final = "\n\nMoved to: "
_NO_FINAL_NEWLINE: Final = "\\ No newline at end of file\n"
_KINDS: Final[dict[str, ChangeKind]] = {"add": "add", "delete": "delete", "update": "update"}


def path_change(raw: Any) -> PathChange:
    """One entry of a file change's `changes`, in either dialect (exec gives no diff)."""
    change = mapping(raw)
    kind_value = change.get("kind")
    kind_fields = mapping(kind_value)
    kind = _KINDS.get(text(kind_value) or text(kind_fields.get("type")), "update")
    moved_to = optional_text(kind_fields.get("move_path"))
    diff = optional_text(change.get("diff"))
    if moved_to is not None and diff is not None:
        diff = diff.removesuffix(_MOVE_TRAILER + moved_to)
    bare = PathChange(path=text(change.get("path")), kind=kind, moved_to=moved_to, diff=diff)
    read = read_change(bare)
    return replace(bare, added=read.added, removed=read.removed)


def file_change_diff(changes: Iterable[PathChange], directory: str | None = None) -> str:
    """One unified diff of all changes, which `git apply` accepts in `directory`.

    Codex names files by absolute paths. Those under `directory` become relative to it; others keep their whole path, with
    the slash that it begins with (`a//etc/hosts`): without it, it would be the path of a file in there.
    """
    return "".join(_one_file(change, directory) for change in changes)


def _one_file(change: PathChange, directory: str | None) -> str:
    old_path = _shown_path(change.path, directory)
    new_path = old_path if change.moved_to is None else _shown_path(change.moved_to, directory)
    old, new = _quoted("a/" + old_path), _quoted("b/" + new_path)
    lines = [f"diff --git {old} {new}\n"]
    body = change.diff or ""
    old_name, new_name = _after_mark(old), _after_mark(new)
    if change.kind == "add":
        lines.append("new file mode 100644\n")
        old_name, body = "/dev/null", _whole_file("+", body)
    elif change.kind == "delete":
        lines.append("deleted file mode 100644\n")
        new_name, body = "/dev/null", _whole_file("-", body)
    else:
        if new_path != old_path:
            lines += [f"rename from {_quoted(old_path)}\n", f"rename to {_quoted(new_path)}\n"]
        if body and not body.endswith("\n"):
            body += "\n"
    if body:
        lines += [f"--- {old_name}\n", f"+++ {new_name}\n", body]
    return "".join(lines)


def _whole_file(mark: str, content: str) -> str:
    """The single hunk that adds (`+`) or deletes (`-`) all of a file."""
    if not content:
        return ""
    lines = content.split("\n")
    ends_with_newline = lines[-1] == ""
    if ends_with_newline:
        lines.pop()
    count = "1" if len(lines) == 1 else f"1,{len(lines)}"
    header = f"@@ -0,0 +{count} @@\n" if mark == "+" else f"@@ -{count} +0,0 @@\n"
    body = "".join(f"{mark}{line}\n" for line in lines)
    return header + body + ("" if ends_with_newline else _NO_FINAL_NEWLINE)


def _shown_path(path: str, directory: str | None) -> str:
    path, directory = _with_slashes(path), None if directory is None else _with_slashes(directory)
    path = posixpath.normpath(path) if path else path
    return path if directory is None else path.removeprefix(directory.rstrip("/") + "/")


def _with_slashes(path: str) -> str:
    is_windows = path[1:3] == ":\\" or path.startswith("\\\\")
    return path.replace("\\", "/") if is_windows else path


def _quoted(path: str) -> str:
    """The path as git writes it: quoted in C style where it holds a quote, a backslash or a control character."""
    if not any(char in '"\\\x7f' or char < " " for char in path):
        return path
    return '"' + "".join(_escaped(char) for char in path) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return f"\\{ord(char):03o}" if char < " " or char == "\x7f" else char


def _after_mark(path: str) -> str:
    """A name with spaces ends with a tab in the --- and +++ lines, or git would look for a date in it."""
    return path + "\t" if " " in path and not path.startswith('"') else path
