"""Record of the values that `install` replaced, so that `uninstall` can restore them.

Only changed values are stored, as source text. Other fields of an entry stay in its file, because `env` may contain
secrets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.files import replace_file
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = "client-entries.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Changed value: path, source text before (None if absent) and the new value."""

    path: tuple[str, ...]
    before: str | None
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEntry:
    """Record of one entry of a file.

    `pieces` are the changed fields of a rewritten entry. An added entry has none: the first `present` keys of its path
    existed before, `empty_source` is the text of the empty object at their end, and `new_file` means that the file was
    empty or missing.
    """

    file: str
    path: tuple[str, ...]
    pieces: tuple[Piece, ...] = ()
    present: int = 0
    empty_source: str | None = None
    new_file: bool = False

    @property
    def rewritten(self) -> bool:
        return bool(self.pieces)


class Record:
    """All recorded entries. Read on creation; `save` writes them."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / _NAME
        self._kept = {(kept.file, kept.path): kept for kept in self._read()}

    def get(self, file: str, path: tuple[str, ...]) -> KeptEntry | None:
        return self._kept.get((file, path))

    def keep(self, kept: KeptEntry) -> None:
        self._kept[kept.file, kept.path] = kept

    def forget(self, file: str, path: tuple[str, ...]) -> None:
        self._kept.pop((file, path), None)

    def save(self) -> None:
        """Write the record atomically, readable by the user only.

        Raises:
            HelmsmanError: The file cannot be written.
        """
        content = {"version": _VERSION, "entries": [_as_dict(kept) for kept in self._kept.values()]}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(content, indent=2))
        except OSError as error:
            raise HelmsmanError(
                f"{self.path} cannot be written: {error.strerror}. Fix its permissions, or set HELMSMAN_STATE_DIR."
            ) from error

    def _read(self) -> list[KeptEntry]:
        """Read the record. An unreadable file counts as empty: `uninstall` then removes the entries it recognizes."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            return [_from_dict(entry) for entry in content["entries"]] if content["version"] == _VERSION else []
        except (OSError, ValueError, KeyError, TypeError):
            return []


def _as_dict(kept: KeptEntry) -> dict[str, Any]:
    return {
        "file": kept.file,
        "path": list(kept.path),
        "pieces": [{"path": list(piece.path), "before": piece.before, "after": piece.after} for piece in kept.pieces],
        "present": kept.present,
        "emptySource": kept.empty_source,
        "newFile": kept.new_file,
    }


def _from_dict(entry: dict[str, Any]) -> KeptEntry:
    return KeptEntry(
        file=entry["file"],
        path=tuple(entry["path"]),
        pieces=tuple(Piece(tuple(piece["path"]), piece["before"], piece["after"]) for piece in entry["pieces"]),
        present=entry["present"],
        empty_source=entry["emptySource"],
        new_file=entry["newFile"],
    )
