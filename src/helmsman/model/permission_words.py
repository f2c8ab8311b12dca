"""Describe the permissions that Codex asks for. Unknown ones are shown as they came."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Final

from helmsman.base.sanitize import exact, named

_VERBS: Final = {"read": "read", "write": "write to", "none": "no access to", "deny": "no access to"}
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
        case {"access": str(access), "path": {} as path, **rest} if access in _VERBS and not rest:
            match path:
                case {"type": "path", "path": str(name), **more} if not more:
                    return _path_words(access, name)
                case {"type": "glob_pattern", "pattern": str(pattern), **more} if not more:
                    return f"{_VERBS[access]} whatever matches {named(pattern)}"
                case {"type": "special", "value": {"kind": "root", **of_kind}, **more} if not more and not of_kind:
                    return _path_words(access, "/")
                case {"type": "special", "value": {"kind": str(kind), **of_kind}, **more} if (
                    not more and kind in _SPECIAL
                ):
                    inside = of_kind.pop("subpath", None)
                    if not of_kind:
                        return f"{_VERBS[access]} {_SPECIAL[kind]}" + (f", in there {named(inside)}" if inside else "")
                case _:
                    pass
        case _:
            pass
    return f"files: {_raw(entry)}"


def _path_words(access: str, path: str) -> str:
    if posixpath.normpath(path).strip("/") == "" and path.startswith("/") and access in _EVERYWHERE:
        return _EVERYWHERE[access]
    return f"{_VERBS[access]} {named(path)}"


def _raw(value: Any) -> str:
    return exact(json.dumps(value, ensure_ascii=False, default=repr))
