"""A hub that is killed just before, or just after, one of its durable writes. Run as a program in place of the hub's own.

It wraps the functions through which the hub writes, and then is the ordinary hub. Its environment says at which write, and
names a file that gets a line for each of them.
"""

from __future__ import annotations

import inspect
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helmsman.approvals.audit import AuditLog
from helmsman.base.files import replace_file
from helmsman.cli.hub_process import main
from helmsman.store.database import Database

KILL_AT, WRITES = "HELMSMAN_TEST_KILL_AT", "HELMSMAN_TEST_WRITES"


class Kills:
    """Counts the writes of this process, and kills it at one of them."""

    def __init__(self, when: str, number: int, writes: Path) -> None:
        self._point = (when, number)
        self._writes = writes
        self._numbers = itertools.count(1)

    def counted(self, write: Callable[..., Any], label: Callable[..., str]) -> Callable[..., Any]:
        """Return a function that writes as `write` does, and is counted. `label` says what, given its arguments."""

        def write_or_die(*arguments: Any, **named: Any) -> Any:
            number = next(self._numbers)
            with self._writes.open("a", encoding="utf-8") as log:
                log.write(f"{number} {label(*arguments)}\n")
            self._die_at("before", number)
            result = write(*arguments, **named)
            self._die_at("after", number)
            return result

        return write_or_die

    def _die_at(self, when: str, number: int) -> None:
        if (when, number) == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


def patch(kills: Kills) -> None:
    """Count every durable write of the hub. The one place that knows through which functions it writes."""
    setattr(Database, "write", kills.counted(Database.write, lambda _, work: f"database {_name(work)}"))  # noqa: B010
    setattr(AuditLog, "_append", kills.counted(AuditLog._append, lambda *_: "audit log"))  # noqa: B010
    counted = kills.counted(replace_file, lambda path, *_: f"file {path.name}")
    for module in [one for one in sys.modules.values() if getattr(one, "replace_file", None) is replace_file]:
        setattr(module, "replace_file", counted)  # noqa: B010


def _name(work: Callable[..., object]) -> str:
    """Name the function that a transaction runs; some are wrapped in another."""
    inner = inspect.getclosurevars(work).nonlocals.get("work", work)
    return str(getattr(inner, "__qualname__", inner)).removesuffix(".<locals>.work")


if __name__ == "__main__":
    when, number = os.environ.pop(KILL_AT).split()
    patch(Kills(when, int(number), Path(os.environ.pop(WRITES))))
    main()
