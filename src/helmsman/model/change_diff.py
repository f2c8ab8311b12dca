"""Build a unified diff for `git apply` from the file changes that an agent reports."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.model.events import PathChange


_NO_FINAL_NEWLINE: Final = "\\ No newline at end of file\n"


def file_change_diff(changes: Iterable[PathChange], directory: str | None = None) -> str:
    """Return one unified diff of all changes, which `git apply` accepts in `directory`.

    Agents name files by absolute paths. Those under `directory` become relative to it. Others keep their whole path
    with its leading slash (`a//etc/hosts`): without the slash, it would be a path inside the directory.
    """
    return "".join(_one_file(change, directory) for change in changes)


def diff_lines(content: str) -> list[str]:
    """Split content into the lines of a diff. Git ends lines at line feeds only, and marks a last line without one."""
    lines = [line + "\n" for line in content.split("\n")]
    last = lines.pop()
    return lines if last == "\n" else [*lines, last + _NO_FINAL_NEWLINE]


def _one_file(change: PathChange, directory: str | None) -> str:
    old_path = _shown_path(change.path, directory)
    new_path = old_path if change.moved_to is None else _shown_path(change.moved_to, directory)
    old, new = _quoted("a/" + old_path), _quoted("b/" + new_path)
    lines = [f"diff --git {old} {new}\n"]
    body = change.diff or ""
    old_name, new_name = _after_mark(old), _after_mark(new)
    if change.kind == "add":
        # Agents report no modes, and git needs one for a new file.
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
    """Return the single hunk that adds (`+`) or deletes (`-`) a whole file."""
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
    """Return the path as git writes it: quoted in C style if it contains a quote, a backslash or a control character."""
    if not any(char in '"\\\x7f' or char < " " for char in path):
        return path
    return '"' + "".join(_escaped(char) for char in path) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return f"\\{ord(char):03o}" if char < " " or char == "\x7f" else char


def _after_mark(path: str) -> str:
    """Return the path for the --- and +++ lines.

    A path with spaces ends with a tab, or git would look for a date in it.
    """
    return path + "\t" if " " in path and not path.startswith('"') else path
