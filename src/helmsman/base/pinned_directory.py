"""Directories that a session may write, compared with what they were when it was opened.

A session keeps the real path of its directory, and its sandbox is built around that path. If a part of the path has become a
symbolic link since, the sandbox would be built around the link's target, and the user would still read the old path. So a
turn is refused if the real path has changed.

The device and the inode are kept too, and a turn in a directory that has another identity at the same real path begins with
a warning. It is not refused. A checkout of another branch makes directories anew, and file systems without a device of their
own (network, overlay, btrfs) have another device number after every restart. And such a replacement gains nothing: to move a
directory to that path, a session must be able to write to both its old and its new parent, so it could have written to all
that is in them before; and a mount that a sandboxed process makes is not seen outside its namespace.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable


class DirectoryIdentity(NamedTuple):
    """Device and inode of a directory."""

    device: int
    inode: int

    @classmethod
    def at(cls, path: Path | None) -> DirectoryIdentity | None:
        """Return the identity of the directory at a path, or, or None."""
        if path is not None:
            with suppress(OSError):
                status = path.stat()
                return cls(status.st_dev, status.st_ino)
        return None

    @classmethod
    def from_json(cls, kept: Any) -> DirectoryIdentity | None:
        """Parse a stored identity, or None."""
        with suppress(TypeError, ValueError):
            device, inode = kept
            return cls(int(device), int(inode))
        return None

    def replaced_at(self, path: Path) -> str | None:
        """Return a warning if another directory is at the path now."""
        now = self.at(path)
        if now is None or now == self:
            return None
        return (
            f"{path} is another directory than before: it was removed and made again, or replaced. Check its content."
        )


def refuse_moved(whose: str, paths: Iterable[Path]) -> None:
    """Check that a session's directories still have the same real paths. Blocks briefly.

    Raises:
        InvalidInput: One leads elsewhere now.
    """
    for path in paths:
        real = Path(os.path.realpath(path))
        if real != path:
            raise InvalidInput(
                f"The directory of {whose} was {path}, and that path leads to {real} now: a part of it has been replaced "
                f"by a symbolic link. Nothing was started. Put the directory back, or, if {real} is meant, start a new "
                "session there.",
                parameter="cwd",
                directory=str(path),
                leads_to=str(real),
            )
