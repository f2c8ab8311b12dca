"""A process of an agent in a keeper, which goes on without us: started and owned."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.keeper.owner import own_child
from helmsman.agents.keeper.places import forget, private_directory, socket_path, try_attach, try_own
from helmsman.agents.keeper.starting import start_keeper
from helmsman.agents.kept_records import KEPT, read_record
from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.keeper.owner import KeptChild, Owner
    from helmsman.agents.kept_records import KeptRecord

_ATTACH_TIMEOUT: Final = 10.0
_POLL: Final = 0.02
GREETING_ID: Final = "helmsman"
"""Of the request with which a process is greeted: what the keeper waits for answers it."""


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
