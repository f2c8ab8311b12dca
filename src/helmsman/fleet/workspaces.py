"""Trees that sessions of a fleet work on: packed by a client, checked out by the machine that runs a task, and stored.

The changed tree is stored while the task runs, for the machine that resumes it or the client that applies it. A client packs
the tree before it returns the id of the first task, so that any machine can run an accepted task. It packs remote and commit
if everything is pushed, otherwise also the unpushed part. A stored tree records the matching length of the transcript. A
session has one packed tree, stored with its first task, and one changed tree, stored with the last task that has one.
"""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import anyio
import anyio.to_thread

from helmsman.base.files import temporary_directory
from helmsman.base.structs import pack, unpack
from helmsman.errors import WorkspaceIncomplete, WorktreeError
from helmsman.git import lifecycle
from helmsman.git.bundles import Limits, PackedTree, Parts, digest_of, packing, pieces
from helmsman.git.remote_trees import (
    Placed,
    Result,
    arriving,
    came_from_elsewhere,
    check_packed,
    go_on_from,
    pack_result,
    place,
    placed,
    remove_unused,
)
from helmsman.git.turn_snapshots import mark_of
from helmsman.git.worktree import read_records
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from helmsman.fleet.database import FleetDatabase
    from helmsman.fleet.owned_task import OwnedTask
    from helmsman.git.bundles import Packer
    from helmsman.git.worktree import Worktree
    from helmsman.steering.core import Steering

log = logging.getLogger(__name__)

WORKSPACE: Final = "workspace"
INCLUDED: Final = "included"
RESULT: Final = "result"
_LEAST_SECONDS: Final = 0.5
_SHARE: Final = 10
"""Divisor of a turn's time: scanning a tree takes at most this fraction, regardless of its size."""
_NEW: Final = timedelta(hours=1)
Bundles: TypeAlias = "Mapping[str, tuple[Mapping[str, Any], Path | None]]"


@contextmanager
def packed_for_fleet(
    directory: Path, state_dir: Path, limits: Limits, *, from_remote: bool = True
) -> Iterator[tuple[Packer, PackedTree, Bundles]]:
    """Pack a directory for a task and yield the bundles for `FleetDraft.bundles`, valid inside the block. Blocks.

    Raises:
        InvalidInput: There is no repository, or it has no commit.
        WorkspaceTooLarge: It is more than may travel.
        WorktreeError: Something in it cannot be read.
    """
    with packing(directory, state_dir, limits) as packer:
        try:
            tree, parts = packer.pack(from_remote=from_remote)
            bundles = {WORKSPACE: ({"tree": pack(tree)}, parts.bundle)}
            if parts.included is not None:
                bundles[INCLUDED] = ({}, parts.included)
            yield packer, tree, bundles
        finally:
            packer.forget()  # the database keeps it


# --- stored trees -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptTree:
    """Changed tree at some time. `data` names the bundle. `rollouts` has the size of each transcript file then."""

    task: str
    result: Result
    data: str
    session_id: str
    rollouts: Mapping[str, int]
    at: datetime


class StoredTree:
    """Tree of a session in the database. `ask` runs queries, and handles an unavailable database."""

    def __init__(
        self, database: FleetDatabase, ask: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]], session_id: str
    ) -> None:
        self._database = database
        self._ask = ask
        self._session_id = session_id

    async def packed(self) -> PackedTree | None:
        """Return the tree packed for the first task, or None if the session works in a directory of its machine."""
        row = await self._row(WORKSPACE)
        if row is None:
            return None
        try:
            tree = unpack(row["about"]["tree"], PackedTree)
        except ValueError as error:
            raise WorktreeError("This machine cannot read the files of the task. Upgrade it.") from error
        # It comes from another machine, and names refs and paths.
        check_packed(tree)
        return tree

    async def kept(self) -> KeptTree | None:
        """Return the changed tree as last stored."""
        row = await self._row(RESULT)
        if row is None:
            return None
        about = row["about"]
        try:
            result = unpack(about["result"], Result)
        except ValueError as error:
            raise WorktreeError("This machine cannot read the result of the task. Upgrade it.") from error
        result.check()
        return KeptTree(row["task"], result, about["data"], about["session"], about["rollouts"], row["at"])

    async def read_packed(self, kind: str, into: Path) -> None:
        """Write a packed part to a file."""
        row = await self._row(kind)
        with into.open("wb") as file:
            await self._read("" if row is None else row["task"], kind, file)

    async def read_kept(self, kept: KeptTree, into: Path) -> bool:
        """Write the bundle to a file. Return False if a newer bundle has replaced it."""
        with into.open("wb") as file:
            await self._read(kept.task, kept.data, file)
        # Pieces of two results could have been read, if it was replaced in between.
        return digest_of(into) == kept.result.digest

    async def _row(self, kind: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = await self._ask(
            lambda: self._database.one(
                "select task, about, at from helmsman.bundles join helmsman_store.tasks on id = task "
                "where session_id = %s and kind = %s and part = 0 order by number desc limit 1",
                (self._session_id, kind),
            )
        )
        return found

    async def _read(self, task: str, kind: str, into: IO[bytes]) -> None:
        # One piece per query, so that memory stays bounded.
        number = 0
        sql: Final = "select data from helmsman.bundles where task = %s and kind = %s and part = %s"
        while True:
            asked = (task, kind, number)
            row = await self._ask(partial(self._database.one, sql, asked))
            if row is None:
                return
            into.write(row["data"])
            number += 1


# --- on the machine that works on it ---------------------------------------------------------------------------------


class SharedTree:
    """Tree of a session with a task that this machine has claimed.

    `kept` is the tree that was stored at the time of the claim.
    """

    def __init__(self, helm: Steering, owned: OwnedTask, stored: StoredTree, packed: PackedTree) -> None:
        self._owned = owned
        self._stored = stored
        self._packed = packed
        self._state_dir = helm.settings.state_dir
        self._limits = Limits.of(helm.settings)
        self.kept: KeptTree | None = None
        self._keeping = anyio.Lock()
        self._moment: Any = None
        self._not_before = 0.0
        self._mark: str | None = None
        self._excludes: tuple[str, ...] | None = None
        self._result: Result | None = None
        self._rollouts: Mapping[str, int] = {}

    @classmethod
    async def of(cls, helm: Steering, owned: OwnedTask) -> SharedTree | None:
        """None of a task that works in a directory of this machine."""

        async def ask(do: Callable[[], Awaitable[Any]]) -> Any:
            return await owned.database.keep_trying(do, "a tree")

        stored = StoredTree(owned.database, ask, owned.session_id)
        packed = await stored.packed()
        if packed is None:
            return None
        tree = cls(helm, owned, stored, packed)
        tree.kept = await stored.kept()
        return tree

    def is_here(self, session_id: str) -> bool:
        """Return whether the session has its worktree on this machine. Blocks."""
        return any(tree.path.is_dir() for tree in self._worktrees(session_id))

    def _worktrees(self, session_id: str) -> list[Worktree]:
        return [
            tree
            for tree in read_records(self._state_dir)
            if tree.session_id == session_id and came_from_elsewhere(tree)
        ]

    async def make(self) -> Worktree:
        """Create a worktree with the current state of the tree.

        Raises:
            WorkspaceIncomplete: It must be fetched from a remote, and this machine cannot.
            WorktreeError: It is corrupt, or git refuses.
        """
        found = await self._place()
        tree = await anyio.to_thread.run_sync(lifecycle.create, found.directory, self._state_dir)
        try:
            await self._go_on(tree)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(lifecycle.discard, tree)
            raise
        return tree

    async def drop_others(self, session_id: str, tree: Worktree) -> None:
        """Discard worktrees that the session left here earlier. It now works in this worktree."""
        for other in await anyio.to_thread.run_sync(self._worktrees, session_id):
            if other.path != tree.path:
                await anyio.to_thread.run_sync(lifecycle.discard, other)

    async def _place(self) -> Placed:
        packed, parts = self._packed, list[Path | None]()
        found = await anyio.to_thread.run_sync(placed, self._state_dir, packed.id)
        if found is not None:
            return found
        for kind, name, digest in (WORKSPACE, "bundle", packed.digest), (INCLUDED, "included", packed.included):
            path = None if digest is None else arriving(self._state_dir, packed.id, name)
            parts.append(path)
            if path is not None:
                await self._stored.read_packed(kind, path)
        try:
            return await anyio.to_thread.run_sync(place, packed, Parts(*parts), self._state_dir)
        except WorkspaceIncomplete as error:
            if packed.remote is None:
                raise
            raise WorkspaceIncomplete(
                f"The machine that took this cannot fetch branch {packed.branch} of {packed.remote}. Give git there access "
                "to it, or set workspace_from_remote = false where you ask for it: then all of it is sent.",
                **error.details,
            ) from error
        finally:
            for path in parts:
                if path is not None:
                    path.unlink(missing_ok=True)

    async def _go_on(self, tree: Worktree) -> None:
        while (kept := self.kept) is not None and kept.result.digest is not None:
            with temporary_directory(ensure_state_dir(self._state_dir), "result") as folder:
                bundle = Path(folder) / "bundle"
                # A newer result may have replaced it; then read that one.
                if await self._stored.read_kept(kept, bundle):
                    await anyio.to_thread.run_sync(go_on_from, tree, kept.result, bundle)
                    return
            self.kept = await self._stored.kept()
            if self.kept is not None and self.kept.data == kept.data:
                raise WorktreeError("What became of the tree of this task is damaged in the database. Start it anew.")

    # --- and back ----------------------------------------------------------------------------------------------------

    async def keep(
        self, tree: Worktree, session_id: str, rollouts: Mapping[str, int], moment: Any = None, *, at_once: bool = False
    ) -> None:
        """Store the worktree with the sizes of the transcript files, which must already be stored.

        The tree is scanned only if `moment` has changed since the last call, unless `at_once` is set.

        Raises:
            NotOwner: Another machine has claimed the task.
            WorkspaceTooLarge: It is more than may travel.
            WorktreeError: It cannot be read.
        """
        async with self._keeping:
            began = time.monotonic()
            # Scanning a large tree takes long; it may use only a fraction of the time.
            if not at_once and (moment == self._moment or began < self._not_before):
                return
            try:
                mark = await anyio.to_thread.run_sync(self._mark_of, tree)
                # Unchanged files need no new result.
                if at_once or mark is None or mark != self._mark:
                    await self._keep(tree, session_id, rollouts)
                self._mark, self._moment = mark, moment
            finally:
                took = time.monotonic() - began
                self._not_before = time.monotonic() + max(_LEAST_SECONDS, _SHARE * took)
            await self._belongs_to(rollouts)

    async def belongs_to(self, rollouts: Mapping[str, int]) -> None:
        """Record that the stored tree also belongs to the later part of the transcript, because no work changed it since."""
        async with self._keeping:
            await self._belongs_to(rollouts)

    async def _belongs_to(self, rollouts: Mapping[str, int]) -> None:
        if self._result is not None and rollouts != self._rollouts:
            sizes = dict(rollouts)
            await self._owned.database.keep_trying(lambda: self._owned.move_result(sizes), "a tree")
            self._rollouts = sizes

    async def _keep(self, tree: Worktree, session_id: str, rollouts: Mapping[str, int]) -> None:
        with temporary_directory(ensure_state_dir(self._state_dir), "result") as folder:
            into = Path(folder) / "bundle"
            result = await anyio.to_thread.run_sync(pack_result, tree, into, self._limits)
            known = self._result
            # The same tree again, for example after a file was touched.
            if known is not None and (known.commit, known.head) == (result.commit, result.head):
                return
            data = f"{RESULT}-{secrets.token_hex(6)}"
            about = {"result": pack(result), "data": data, "session": session_id, "rollouts": dict(rollouts)}
            keep_trying = self._owned.database.keep_trying
            for number, piece in enumerate(pieces(None if result.digest is None else into)):
                await keep_trying(partial(self._owned.put_piece, data, number, piece), "a tree")
            # Last: the result counts only when all its pieces are stored.
            await keep_trying(partial(self._owned.put_result, data, about), "a tree")
            self._result, self._rollouts = result, dict(rollouts)

    def _mark_of(self, tree: Worktree) -> str | None:
        git = tree.own_git
        # Git's own view of ignored files costs a process, so it is read once.
        if self._excludes is None:
            with git.viewed() as seen:
                self._excludes = None if seen.view is None else seen.view.excludes
        return None if self._excludes is None else mark_of(git, tree.included, self._excludes, settled=True)


# --- upkeep ----------------------------------------------------------------------------------------------------------


async def drop_worktrees(database: FleetDatabase, state_dir: Path, machine: str) -> int:
    """Remove worktrees on this machine whose sessions moved to another machine or were deleted. Return their number.

    The database holds their changed trees.
    """
    trees = await anyio.to_thread.run_sync(_not_new, state_dir)
    rows = await database.all(
        """
        select agents_session from (
            select distinct on (agents_session) agents_session, status, worker from helmsman_store.tasks
            where agents_session = any(%s) order by agents_session, number desc
        ) last
        where status in ('pending', 'working') or split_part(worker, '~', 1) = %s
        """,
        ([tree.session_id for tree in trees if tree.session_id is not None], machine),
    )
    # A session that the database does not know was deleted.
    needed, dropped = {row["agents_session"] for row in rows}, 0
    for tree in trees:
        if tree.session_id not in needed:
            with suppress(WorktreeError, OSError):
                await anyio.to_thread.run_sync(lifecycle.discard, tree)
                dropped += 1
    await anyio.to_thread.run_sync(remove_unused, state_dir)
    return dropped


def _not_new(state_dir: Path) -> list[Worktree]:
    """Return worktrees that are old enough for the database to know their sessions, if they are still needed."""
    since = datetime.now(UTC) - _NEW
    return [tree for tree in read_records(state_dir) if tree.created_at < since and came_from_elsewhere(tree)]
