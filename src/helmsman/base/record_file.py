"""Records of one kind in a JSON file of the state directory, which several processes change."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from helmsman.base.files import file_lock, replace_file
from helmsman.base.structs import Value, pack, unpack_if_valid
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RecordT = TypeVar("RecordT", bound=Value)

# A stale lock must not hold a login up.
_LOCK_SECONDS: Final = 10


class RecordFile(Generic[RecordT]):
    """Records in a file, those with the highest `rank` first, at most `most`. All methods block.

    Records that are no longer valid (`is_valid`) are left out, and dropped with the next change. A missing or damaged file
    counts as empty.
    """

    def __init__(
        self,
        path: Path,
        kind: type[RecordT],
        *,
        most: int,
        rank: Callable[[RecordT], Any],
        is_valid: Callable[[RecordT], bool],
    ) -> None:
        self._path = path
        self._kind = kind
        self._most = most
        self._rank = rank
        self._is_valid = is_valid
        # Cached by the file's version: each request looks here.
        self._read: tuple[tuple[int, int], tuple[RecordT, ...]] | None = None

    def all(self) -> tuple[RecordT, ...]:
        try:
            found = self._path.stat()
            # Each change replaces the file, so it has another inode then, and two changes may have the same time.
            version = (found.st_mtime_ns, found.st_ino)
            if self._read is None or self._read[0] != version:
                content = unpack_if_valid(json.loads(self._path.read_bytes()), list[self._kind])  # type: ignore[name-defined]
                self._read = (version, tuple(content or ()))
        except (OSError, ValueError):
            return ()
        return tuple(filter(self._is_valid, self._read[1]))

    @contextmanager
    def changing(self) -> Iterator[list[RecordT]]:
        """Yield the records as a list to change. It is written at the end of the block."""
        lock = self._path.with_name(f"{self._path.name}.lock")
        ensure_state_dir(self._path.parent)
        with file_lock(lock, timeout=_LOCK_SECONDS):
            records = list(self.all())
            yield records
            records.sort(key=self._rank, reverse=True)
            replace_file(self._path, json.dumps([pack(one) for one in records[: self._most]]))
