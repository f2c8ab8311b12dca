"""Files that others read while they are written: each reader sees the old one or the new one, whole."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def replace_file(
    path: Path,
    content: str | bytes,
    *,
    mode: int | None = 0o600,
    last_look: Callable[[], None] | None = None,
    durable: bool = True,
) -> None:
    """Put `content` where `path` is, for this user alone unless `mode` says otherwise; nothing is left of a failure.

    A `mode` of None is that of any new file. `last_look` is called just before the new file takes the place of the old
    one; what it raises keeps the old one. What need not survive a crash of the machine is not `durable`, and quicker.

    Raises:
        OSError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    data = content.encode("utf-8") if isinstance(content, str) else content
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        if last_look is not None:
            last_look()
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
