"""Changes of files as coloured lines.

Two forms come in: a unified diff of many files (`diff_lines`), and one file of a file change, which Codex gives as
bare hunks or as the whole content of a file (`change_lines`). Nothing in a diff is left out: who judges one sees all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from helmsman.terminal.text import one_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.events import PathChange

ADDED: Final = "green"
REMOVED: Final = "red"
HUNK: Final = "cyan"
HEADING: Final = "bold"

_STYLES: Final = {"+": ADDED, "-": REMOVED, "@": HUNK, "\\": "dim"}
_VERBS: Final = {"add": "add", "delete": "delete", "update": "change"}


def change_lines(change: PathChange, directory: str | None = None) -> list[Text]:
    """One file of a file change: a heading and its lines. Paths under `directory` are shown relative to it."""
    path = relative_path(change.path, directory)
    if change.moved_to:
        path += f" → {relative_path(change.moved_to, directory)}"
    heading = Text(f"{_VERBS[change.kind]} {one_line(path)}", HEADING)
    if change.added is not None:
        heading.append(f"  +{change.added}", ADDED)
        heading.append(f" -{change.removed or 0}", REMOVED)
    if not change.diff:
        return [heading]
    body = change.diff.removesuffix("\n").split("\n")
    if change.kind == "update":
        return [heading, *map(_body_line, body)]
    return [heading, *(_body_line(("+" if change.kind == "add" else "-") + line) for line in body)]


def diff_lines(diff: str) -> list[Text]:
    """A unified diff, each file under a heading of its own."""
    lines: list[Text] = []
    header: list[str] = []
    for line in diff.removesuffix("\n").split("\n"):
        if line.startswith("diff --git "):
            lines += _heading(header)
            header = [line]
        elif header and not line.startswith("@@"):
            header.append(line)
        else:
            lines += _heading(header)
            header = []
            lines.append(_body_line(line))
    return lines + _heading(header)


def _body_line(line: str) -> Text:
    return Text(visible(line), _STYLES.get(line[:1], ""))


def _heading(header: Iterable[str]) -> list[Text]:
    """What stands above a file's first hunk, in one line."""
    names: dict[str, str] = {}
    rest: list[Text] = []
    for line in header:
        for mark in (
            "diff --git ",
            "--- ",
            "+++ ",
            "new file mode ",
            "deleted file mode ",
            "rename from ",
            "rename to ",
        ):
            if line.startswith(mark):
                names[mark.strip()] = line.removeprefix(mark).rstrip("\t")
                break
        else:
            if not line.startswith(("index ", "similarity index ")):
                rest.append(_body_line(line))
    if not names:
        return rest
    old, new = names.get("---", ""), names.get("+++", "")
    both = names.get("diff --git", "").partition(" b/")
    if "rename from" in names:
        verb, path = "change", f"{names['rename from']} → {names.get('rename to', '')}"
    elif "deleted file mode" in names:
        verb, path = "delete", old.removeprefix("a/") or both[2]
    else:
        verb = "add" if "new file mode" in names else "change"
        path = new.removeprefix("b/") or both[2]
    return [Text(f"{verb} {one_line(path)}", HEADING), *rest]


def relative_path(path: str, directory: str | None) -> str:
    """The path as seen from a directory, where it lies in there."""
    return path.removeprefix(directory.rstrip("/\\") + "/") if directory else path
