"""A process of an agent in a keeper, which goes on without us: started and owned; and what is below it, or our own child."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.child_process import MARK as CHILD_MARK
from helmsman.agents.keeper.below import MARK as KEPT_MARK
from helmsman.agents.keeper.owner import own_child
from helmsman.agents.keeper.places import forget, private_directory, socket_path, try_attach, try_own
from helmsman.agents.keeper.starting import start_keeper
from helmsman.agents.kept_records import KEPT, read_record
from helmsman.base.lazy_dataclass import dataclass
from helmsman.base.processes import KILL, Process, descendants, kill, started_before, started_now, with_variable
from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.child_process import Child
    from helmsman.agents.keeper.owner import KeptChild, Owner
    from helmsman.agents.kept_records import KeptRecord

_ATTACH_TIMEOUT: Final = 10.0
_POLL: Final = 0.02
GREETING_ID: Final = "helmsman"
"""Of the request with which a process is greeted: what the keeper waits for answers it."""
OWN: Final = "own"
"""Under which an `Own` is noted for the next owner: who finds it in the middle of a turn cannot tell."""


async def start_kept(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    directory: Path,
    state_dir: Path,
    idle: float,
    owner: Owner,
    watcher: str,
    greeting: str,
    about: Mapping[str, Any],
    ready_seconds: float | None = None,
) -> KeptRecord:
    """Have a keeper start it; `about` is what its record says beside: `agent` and `engine_id` at least.

    Raises:
        EngineLost: It did not come up. No process is left behind. Details: `exit_code`, `stderr`.
    """
    place = await anyio.to_thread.run_sync(lambda: private_directory(state_dir.resolve() / KEPT))
    kept = place / secrets.token_hex(4)
    order = {
        "argv": list(argv),
        "env": dict(env),
        "cwd": str(directory),
        "idle": idle,
        "watcher": watcher,
        "pipe": {"greeting": [greeting], "answer": GREETING_ID, "epoch": owner.epoch},
        "for_starter": True,  # it is of no use to anybody else
        "successor": owner.successor,
        "about": {**about, "place": str(directory)},
        **({} if ready_seconds is None else {"ready_seconds": ready_seconds}),
    }
    await start_keeper(kept, order, owner.leash)
    record = await anyio.to_thread.run_sync(read_record, kept)
    if record is None:
        forget(kept, socket_path(kept))
        raise EngineLost("It ended at once. Run `helmsman doctor` to find out why.")
    return record


@asynccontextmanager
async def own_kept(record: KeptRecord, *, epoch: int, title: str) -> AsyncIterator[KeptChild]:
    """Own what a keeper has, for the length of the block. It goes on without us; what a killed keeper leaves does not.

    Raises:
        EngineLost: It has ended, or is not ours to have.
    """
    deadline = anyio.current_time() + _ATTACH_TIMEOUT
    with try_own(record.directory, epoch) as owned:
        if not owned:
            raise EngineLost(f"Another Helmsman process has this {title}. Wait until that has ended.")
        while True:
            with try_attach(record.directory) as attached:
                if attached:
                    async with own_child(record.socket, epoch=epoch) as child:
                        try:
                            yield child
                        finally:
                            if child.is_lost:
                                with anyio.CancelScope(shield=True):
                                    await anyio.to_thread.run_sync(record.stop)
                    return
            if not record.is_kept or anyio.current_time() > deadline:
                raise EngineLost(f"This {title} has ended. Send the next message to go on from what was saved.")
            await anyio.sleep(_POLL)


def input_position_of(record: KeptRecord, child: KeptChild) -> str:
    """How much an agent has been told, by whichever owner: its keeper counts, and hears none of those before us any more."""
    return f"{record.id} {child.inputs}"


# --- what is below it ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Own:
    """What runs below an agent while it has nothing to do, and so is its own and no command of a turn.

    It is all that is older than `since`. Where the system does not tell how old a process is, it is what was `seen` then.
    """

    since: str | None = None
    seen: frozenset[Process] = frozenset()

    @classmethod
    def by_age(cls) -> Own | None:
        """What there is now, without a look at it; None where it takes one."""
        since = started_now()
        return None if since is None else cls(since)

    def without(self, found: frozenset[Process]) -> frozenset[Process]:
        """The commands among what is below it."""
        since = self.since
        if since is None:
            return found - self.seen
        return frozenset(one for one in found if not started_before(one, since))

    def noted(self) -> str | list[Process]:
        """As JSON."""
        return sorted(self.seen) if self.since is None else self.since

    @classmethod
    def of(cls, noted: Any) -> Own:
        """As it was noted."""
        if isinstance(noted, str):
            int(noted.rpartition(":")[2])
            return cls(noted)
        return cls(seen=frozenset(Process(int(pid), str(started)) for pid, started in noted))


class BelowChild:
    """All that runs below our own child or was started by it. Methods block, briefly."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def now(self) -> frozenset[Process]:
        return _below(self._child.pid, CHILD_MARK, self._child.mark)

    def kill_all(self) -> None:
        """Kill it and all that runs below it, at once."""
        found = self.now()
        self._child.signal(KILL)
        kill(found)

    def note_own(self) -> Own:
        """What there is while it has nothing to do."""
        return Own.by_age() or Own(seen=self.now())


class BelowKept:
    """All that runs below what a keeper has. Methods block, briefly."""

    def __init__(self, record: KeptRecord) -> None:
        self._record = record

    def now(self) -> frozenset[Process]:
        return _below(self._record.keeper.pid, KEPT_MARK, str(self._record.directory)) - {self._record.child}

    def kill_all(self) -> None:
        """Kill it and all that runs below it, at once; its keeper says that it is gone."""
        kill(self.now() | {self._record.child})

    def note_own(self) -> Own:
        """What there is while it has nothing to do. Written down for the next owner."""
        own = Own.by_age() or Own(seen=self.now())
        self._record.note(**{OWN: own.noted()})
        return own

    def noted_own(self) -> Own:
        """What was noted before; where that is lost, everything, so that nothing of its own is taken for a command."""
        try:
            return Own.of(self._record.notes()[OWN])
        except (LookupError, ValueError, TypeError):
            return Own(seen=self.now())


def _below(root: int, variable: str, value: str) -> frozenset[Process]:
    return frozenset(one for one in descendants(root) | with_variable(variable, value) if one.pid != root)
