"""The trees that tasks of a fleet bring: packed by the door, placed by the machine that runs the task, and what was done to
them stored for whoever applies it.

A door packs before the id of the task is given out, so that what is acknowledged can be run by any machine: remote and
commit where all is pushed, else everything. Pieces of a bundle are rows, and no more than one is held at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias, overload

import anyio.to_thread

from helmsman.base.temporary import temporary_directory
from helmsman.base.values import decoded, encoded
from helmsman.errors import WorktreeError
from helmsman.settings import ensure_state_dir
from helmsman.worktrees.packing import PackedTree, Parts, packing
from helmsman.worktrees.placing import Result, arriving, came_from_elsewhere, pack_result, place
from helmsman.worktrees.returning import take_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from helmsman.fleet.database import FleetDatabase
    from helmsman.fleet.owned import OwnedTask
    from helmsman.worktrees import Worktree
    from helmsman.worktrees.packing import Limits, Packer
    from helmsman.worktrees.placing import Placed
    from helmsman.worktrees.returning import Away

WORKSPACE: Final = "workspace"
INCLUDED: Final = "included"
RESULT: Final = "result"
_PIECE: Final = 256 * 1024
Bundles: TypeAlias = "Mapping[str, tuple[Mapping[str, Any], Sequence[bytes]]]"


class Pieces(Sequence[bytes]):
    """A file in pieces, each read when it is asked for. There is one at least, be it empty."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._size = 0 if path is None else path.stat().st_size

    def __len__(self) -> int:
        return max(1, -(-self._size // _PIECE))

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if self._path is None:
            return b""
        with self._path.open("rb") as file:
            file.seek(index * _PIECE)
            return file.read(_PIECE)


@contextmanager
def packed_for_fleet(directory: Path, state_dir: Path, limits: Limits) -> Iterator[tuple[Packer, PackedTree, Bundles]]:
    """What travels with a task, as a draft takes it (`FleetDraft.bundles`), for the length of the block. Blocks.

    Raises:
        InvalidInput: There is no repository, or it has no commit.
        WorkspaceTooLarge: It is more than may travel.
        WorktreeError: Something in it cannot be read.
    """
    with packing(directory, state_dir, limits) as packer:
        tree, parts = packer.pack(from_remote=True)
        bundles = {WORKSPACE: ({"tree": encoded(tree)}, Pieces(parts.bundle))}
        if parts.included is not None:
            bundles[INCLUDED] = ({}, Pieces(parts.included))
        yield packer, tree, bundles


async def place_workspace(owned: OwnedTask, state_dir: Path) -> Placed | None:
    """Place what a task brought, on the machine that runs it; None where it brought nothing.

    Raises:
        WorkspaceIncomplete: It is to be fetched from where it was pushed, and this machine cannot.
        WorktreeError: It is damaged, or git says no.
    """
    about = await _about(owned.database, owned.id, WORKSPACE)
    if about is None:
        return None
    tree = decoded(about["tree"])
    if not isinstance(tree, PackedTree):
        raise WorktreeError("What this task brought is not understood here. Upgrade this machine.")
    parts: list[Path | None] = []
    for kind, name, digest in (WORKSPACE, "bundle", tree.digest), (INCLUDED, "included", tree.included):
        path = None if digest is None else arriving(state_dir, tree.id, name)
        if path is not None:
            with path.open("wb") as file:
                await _read(owned.database, owned.id, kind, file)
        parts.append(path)
    try:
        return await anyio.to_thread.run_sync(place, tree, Parts(*parts), state_dir)
    finally:
        for path in parts:
            if path is not None:
                path.unlink(missing_ok=True)


async def store_result(owned: OwnedTask, tree: Worktree, limits: Limits) -> None:
    """Store what became of the tree that a task brought, under its epoch.

    Raises:
        NotOwner: Somebody else has the task by now.
        WorkspaceTooLarge: It is more than may travel.
        WorktreeError: It cannot be read.
    """
    if not came_from_elsewhere(tree):
        return
    with temporary_directory(ensure_state_dir(tree.state_dir), "result") as folder:
        into = Path(folder) / "bundle"
        result = await anyio.to_thread.run_sync(pack_result, tree, into, limits)
        pieces = Pieces(None if result.digest is None else into)
        # The first comes last, and says how many there are: until then what was stored before counts, or nothing.
        for number in reversed(range(len(pieces))):
            about = {"result": encoded(result), "parts": len(pieces)}
            await owned.put_bundle(RESULT, number, about, pieces[number])


async def fetch_result(database: FleetDatabase, task_id: str, away: Away) -> Away | None:
    """Have what became of a tree in the repository that it came from; None while nothing is stored.

    Raises:
        WorktreeError: It is damaged, or something else.
    """
    about = await _about(database, task_id, RESULT)
    result = None if about is None else decoded(about["result"])
    if not isinstance(result, Result):
        return None
    if result.base != away.base:
        raise WorktreeError(f"What task {task_id} has is not what was sent with it. Look at it on its machine.")
    if result.digest is None:
        return await anyio.to_thread.run_sync(take_result, away, result.commit, None)
    with temporary_directory(ensure_state_dir(away.state_dir), "result") as folder:
        bundle = Path(folder) / "bundle"
        with bundle.open("xb") as file:
            await _read(database, task_id, RESULT, file, (about or {}).get("parts"))
        return await anyio.to_thread.run_sync(take_result, away, result.commit, bundle)


async def _about(database: FleetDatabase, task_id: str, kind: str) -> Mapping[str, Any] | None:
    sql = "select about from helmsman.bundles where task = %(task)s and kind = %(kind)s and part = 0"
    row = await database.one(sql, {"task": task_id, "kind": kind})
    return None if row is None else row["about"]


async def _read(database: FleetDatabase, task_id: str, kind: str, into: IO[bytes], parts: int | None = None) -> None:
    """Write the pieces of a bundle to a file, one after the other."""
    number = 0
    sql = "select data from helmsman.bundles where task = %(task)s and kind = %(kind)s and part = %(part)s"
    while parts is None or number < parts:
        row = await database.one(sql, {"task": task_id, "kind": kind, "part": number})
        if row is None:
            return
        into.write(row["data"])
        number += 1
