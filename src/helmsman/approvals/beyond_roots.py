"""Questions that no yes can answer: what they ask for would write outside the allowed roots.

Allowed roots hold whoever is asked. A patch, a root or a permission names the places it is about, so those that are
outside are refused before anybody sees the question, and so is what cannot be read. A command that leaves the sandbox
names none: a person may let it, and a rule of the user's own, but no agent.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.approvals.policy import named_paths
from helmsman.base.allowed_roots import is_inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helmsman.model.questions import Question

_UNREADABLE: Final = "/ (what it asks for cannot be read)"
_NO_WRITING: Final = frozenset({"read", "none", "deny"})
_NO_PLACES: Final = frozenset({"read", "globScanMaxDepth"})


def beyond_roots(question: Question, roots: Sequence[Path], directory: str | None) -> str | None:
    """Why a yes would write outside the roots; None where the question names no such place.

    `directory` is where the session works, and where relative paths begin.
    """
    base = Path(directory or "")
    outside = [place for place in _places(question) if not is_inside(base / place, roots)] if roots else []
    if not outside:
        return None
    return (
        f"This would write outside the allowed roots: {', '.join(outside)}. Work inside: {', '.join(map(str, roots))}."
    )


def leaves_the_sandbox(question: Question) -> bool:
    """Whether a yes may run a command outside the sandbox, where it can write anywhere. What is not said is assumed."""
    return question.type == "command_approval" and question.details.get("sandbox") != "inside"


def _places(question: Question) -> Iterator[str]:
    """Every place that a yes would let Codex write to, as far as the question names it."""
    details = question.details
    match question.type:
        case "patch_approval":
            yield from map(str, named_paths(question)) if named_paths(question) else (_UNREADABLE,)
            if details.get("grantRoot") is not None:
                yield str(details["grantRoot"])
        case "permission_approval":
            yield from _permitted(details.get("permissions"))
        case "command_approval":
            if details.get("additionalPermissions") is not None:
                yield from _permitted(details["additionalPermissions"])
        case _:
            pass


def _permitted(permissions: Any) -> Iterator[str]:
    wanted = _given(permissions)
    is_read = wanted is not None and wanted.keys() <= {"network", "fileSystem"}
    files = _given((wanted or {}).get("fileSystem", {})) if is_read else None
    if files is None:
        yield _UNREADABLE
        return
    for key, value in files.items():
        if key in _NO_PLACES:
            continue
        if key not in ("write", "entries") or not isinstance(value, list):
            yield _UNREADABLE
        elif key == "write":
            yield from map(str, value)
        else:
            yield from (place for entry in value for place in _entry(entry))


def _entry(entry: Any) -> Iterator[str]:
    access, path = (entry.get("access"), entry.get("path")) if isinstance(entry, dict) else (None, None)
    if access in _NO_WRITING:
        return
    if isinstance(path, dict):
        path = path.get("path") if path.get("type") == "path" else None
    yield path if isinstance(path, str) else _UNREADABLE


def _given(value: Any) -> dict[str, Any] | None:
    return {key: inner for key, inner in value.items() if inner is not None} if isinstance(value, dict) else None
