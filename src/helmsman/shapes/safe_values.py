"""Values for the dashboard, with texts sanitized on the server, so that the page only has to insert them.

Diffs are sent as parsed lines, so that only one parser exists. JavaScript splits lines differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from helmsman.base import sanitize
from helmsman.base.json_values import present
from helmsman.base.sanitize import exact, in_sight, plain_output, shell_script, visible
from helmsman.base.truncate import shortened, shortened_text
from helmsman.git.diff import FileDiff, read_change
from helmsman.model.events import CommandExecution, FileChange, Item

_SUMMARY_CHARS: Final = 200


def safe(value: Any) -> Any:
    """Sanitize every string in a value."""
    match value:
        case str():
            # Files and commands with Windows line ends are common, and would show a mark on each line.
            return visible(value.replace("\r\n", "\n"))
        case Mapping():
            # Keys come from agents as well, e.g. arguments of a tool.
            return {visible(str(key)): safe(content) for key, content in value.items()}
        case list() | tuple():
            return [safe(content) for content in value]
        case _:
            return value


def one_line(text: str | None, width: int = _SUMMARY_CHARS) -> str | None:
    """Return the beginning of a text, sanitized and on one line, or None if it is empty."""
    # Cut before it is sanitized, which takes longer the longer the text is.
    return sanitize.one_line((text or "")[: 10 * width])[:width] or None


def shown_item(item: Item, text_limit: int) -> tuple[dict[str, Any], int]:
    """Return an item with each text cut to about `text_limit`, and the number of characters left out."""
    fields = item.to_json()
    match item:
        case CommandExecution():
            output, missing = shortened_text(fields.pop("output"), text_limit)
            fields["script"] = shell_script(item.command)
            shown, more = shortened(fields, text_limit)
            # Colours and lines drawn over are dropped, not marked: build tools print them everywhere.
            return safe(shown) | {"output": plain_output(output)}, missing + more
        case FileChange():
            del fields["changes"]
            shown, more = shortened(fields, text_limit)
            files, missing = shown_files(map(read_change, item.changes), text_limit)
            return safe(shown) | {"changes": files}, missing + more
        case _:
            shown, missing = shortened(fields, text_limit)
            return safe(shown), missing


def shown_files(files: Iterable[FileDiff], chars: int) -> tuple[list[dict[str, Any]], int]:
    """Return the files of a diff with as many lines as fit into `chars`, and the number of characters left out.

    Every file has its counts. A line is `[kind, text, number before, number after]`. A file's `missing` counts lines
    that are absent or cut.
    """
    shown: list[dict[str, Any]] = []
    missing = 0
    for file in files:
        lines: list[list[Any]] = []
        not_whole = 0
        for line in file.lines:
            if chars < 0:
                break
            text = in_sight(line.text)
            lines.append([line.kind, text[: chars + 1], line.before, line.after])
            cut = max(0, len(text) - chars - 1)
            missing += cut
            not_whole += cut > 0
            chars -= len(text) + 1
        # Later files still get their heading and counts, so that the reader sees that they changed.
        left_out = file.lines[len(lines) :]
        missing += sum(len(line.text) + 1 for line in left_out)
        told = {
            "path": exact(file.path),
            "oldPath": None if file.old_path is None else exact(file.old_path),
            "kind": file.kind,
            "added": file.added,
            "removed": file.removed,
            "lines": lines,
            "missing": len(left_out) + not_whole or None,
        }
        shown.append(present(told))
    return shown, missing
