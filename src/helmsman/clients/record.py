"""What `install` replaced, so that `uninstall` can put it back: a small file in the state directory.

Only what was changed is kept, piece by piece in the text of the file it came from; other fields of an entry (its `env`
may hold keys) are left where they are.
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
    """One value that was changed: where, its text before (None: there was none), and the value it was given."""

    path: tuple[str, ...]
    before: str | None
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEntry:
    """What was done for one entry of one file.

    The `pieces` of a rewritten entry are its changed fields. An added entry has none; of the way to it the first
    `present` keys were there before, `empty_source` is how the object at their end was written if it held nothing, and
    `new_file` says that the file held nothing at all.
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
    """All that is kept. It is read when it is made; `save` writes it."""

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
        """Write it whole, for this user alone.

        Raises:
            HelmsmanError: It cannot be written.
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
        """What was kept. A file that nobody can read keeps nothing: `uninstall` then removes what it recognises."""
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
