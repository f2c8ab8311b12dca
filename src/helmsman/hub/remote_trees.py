"""Work on another machine with a tree of this one: the hub sends the tree there, and fetches the changes back.

The tree travels through the hub's own interface, in small pieces, each of which may be sent again. The record of it here is
written before the work begins (`helmsman.git.remote_trees`).
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from helmsman.base.caller_context import from_here
from helmsman.base.files import temporary_directory
from helmsman.base.structs import replace
from helmsman.capabilities.changes import AppliedSession, SessionDiff
from helmsman.capabilities.shown_diffs import ShownDiffs
from helmsman.errors import HelmsmanError, InvalidInput, WorkspaceIncomplete, WorkspaceTooLarge, WorktreeError
from helmsman.git.bundles import PIECE, Limits, packing
from helmsman.git.remote_trees import (
    RemoteTree,
    apply_result,
    diff_of_result,
    find_remote_tree,
    forget_remote_tree,
    take_result,
    write_remote_tree,
)
from helmsman.model.events import RemarksChanged
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from helmsman.git.bundles import PackedTree, Packer, Parts
    from helmsman.git.lifecycle import Discarded
    from helmsman.git.remote_trees import Placed, Result
    from helmsman.git.tree_changes import Unsaved
    from helmsman.hub.client import HubClient
    from helmsman.model.options import PathLike
    from helmsman.sessions.session import Session
    from helmsman.settings import Settings

log = logging.getLogger(__name__)


class RemoteTrees:
    """Work on another machine with trees of this one. `Helmsman.workspaces` returns it."""

    def __init__(self, hub: HubClient, host: str, settings: Settings) -> None:
        self._hub = hub
        self._host = host
        self._state_dir = settings.state_dir.absolute()
        self._limits = Limits.of(settings)
        self._shown = ShownDiffs()

    async def start(self, bring: PathLike, prompt: str, **named: Any) -> Session:
        """Bring a tree there, and begin a session in a worktree of it."""
        if named.get("cwd") is not None or named.get("idempotency_key") is not None:
            raise InvalidInput(
                "`bring` names the directory: leave out cwd, and idempotency_key, with it.", parameter="bring"
            )
        if named.get("worktree") not in (None, False, True):
            raise InvalidInput(
                "`bring` sends one repository as it is: leave start and add_dirs out.", parameter="bring"
            )
        remote, placed = await self._bring(from_here(bring).resolve())
        named |= {"cwd": str(placed.directory), "worktree": True}
        try:
            session: Session = await self._hub.call("start", (prompt,), named)
        except HelmsmanError as error:
            # The session may have started there, and use the tree.
            if error.code != "outcome_unknown":
                await self._drop(remote)
            raise
        remarks = (*session.notes, *placed.workspace.notes)
        session.fold(RemarksChanged(session_id=session.id, remarks=remarks))
        await self._write(replace(remote, session_id=session.id, task_id=session.task_id))
        return session

    async def diff(self, session_id: str, *, viewer: str | None = None) -> SessionDiff:
        """Return the changes that a session on another machine has made so far to a tree of this machine.

        Raises:
            InvalidInput: It does not work on such a tree.
            WorktreeError: Its changes cannot be transferred.
        """
        remote, notes = await self._fetched(self.find(session_id))
        diff = await anyio.to_thread.run_sync(diff_of_result, remote)
        diff = replace(diff, nested=(*diff.nested, *notes))
        self._shown.show(viewer, session_id, diff.patch)
        return SessionDiff(session_id=session_id, scope="worktree", diff=diff)

    async def apply(
        self, session_id: str, *, allow_dirty: bool = False, digest: str | None = None, viewer: str | None = None
    ) -> AppliedSession:
        """Apply the changes of a session there to the tree here that it was sent: all of them, or none. Works like
        `extras.changes.apply` does for worktrees of this machine.

        Raises:
            DiffChanged: The changes are not those that were looked at. Nothing was touched.
            SessionBusy: It is still at work.
            DirtyTree: The tree has uncommitted changes that were not sent, and `allow_dirty` is not set.
            ApplyConflict: The changes do not fit. Nothing was touched.
            WorktreeError: Git cannot do it. Nothing was touched.
        """
        remote = self.find(session_id)
        expected = self._shown.expected(viewer, session_id, digest)
        # First: a command that still runs could change files during the transfer.
        ended = await self._call("stop_work", remote.session_id)
        remote, _ = await self._fetched(remote)
        check = self._shown.check_of(session_id, expected)
        applied = await anyio.to_thread.run_sync(lambda: apply_result(remote, allow_dirty=allow_dirty, check=check))
        return AppliedSession.of(session_id, remote.repository, applied, ended)

    async def unsaved(self, session_id: str) -> Unsaved:
        """Return the changes that `discard` would lose: all changes there, because they may not have been applied."""
        found: Unsaved = await self._hub.call("extras.changes.unsaved", (self.find(session_id).session_id,), {})
        return found

    async def discard(self, session_id: str, **named: Any) -> Discarded:
        """Drop the changes of a session there to a tree of this machine, here and there. Works like
        `extras.changes.discard`.
        """
        remote = self.find(session_id)
        gone: Discarded = await self._hub.call("extras.changes.discard", (remote.session_id,), named)
        await self._drop(remote)
        return gone

    def find(self, session_id: str) -> RemoteTree:
        """Return the local record of a session there.

        Raises:
            InvalidInput: There is no record.
        """
        found = [remote for remote in find_remote_tree(self._state_dir, session_id) if remote.host == self._host]
        if len(found) != 1:
            raise InvalidInput(f"Session {session_id} on {self._host} does not work with a tree of this machine.")
        return found[0]

    # --- there -------------------------------------------------------------------------------------------------------

    async def _bring(self, directory: Path) -> tuple[RemoteTree, Placed]:
        with ExitStack() as stack:
            packer: Packer = await anyio.to_thread.run_sync(
                stack.enter_context, packing(directory, self._state_dir, self._limits)
            )
            try:
                candidates = await anyio.to_thread.run_sync(packer.candidates)
                known = await self._call("known", packer.workspace.repository, candidates)
                packed = await anyio.to_thread.run_sync(lambda: packer.pack(known, from_remote=True))
                try:
                    placed = await self._send(*packed)
                except WorkspaceIncomplete:  # it has not what we thought, or cannot fetch it
                    packed = await anyio.to_thread.run_sync(packer.pack)
                    placed = await self._send(*packed)
            # A cancelled call must not leave the packed tree on this disk.
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(packer.forget)
                raise
            remote = RemoteTree(
                id=placed.workspace.id,
                host=self._host,
                repository=packer.work_tree,
                git_dir=packer.git_dir,
                base=placed.workspace.commit,
                state_dir=self._state_dir,
                sent_at=datetime.now(UTC),
            )
            await self._write(remote)
            return remote, placed

    async def _send(self, workspace: PackedTree, parts: Parts) -> Placed:
        for part, path in (("bundle", parts.bundle), ("included", parts.included)):
            if path is not None:
                async with await anyio.open_file(path, "rb") as file:
                    offset = 0
                    while piece := await file.read(PIECE):
                        await self._call("put", workspace.id, part, offset, piece)
                        offset += len(piece)
        placed: Placed = await self._call("place", workspace)
        return placed

    # --- and back ----------------------------------------------------------------------------------------------------

    async def _fetched(self, remote: RemoteTree) -> tuple[RemoteTree, tuple[str, ...]]:
        """Return the record with the current changes fetched."""
        if remote.session_id is None:
            raise InvalidInput(f"No session is known here that works with the tree sent to {remote.host}.")
        result: Result = await self._call("result", remote.session_id)
        if result.base != remote.base:
            raise WorktreeError(
                f"The tree on {remote.host} is not the one that was sent there. Look at it there: helmsman --host."
            )
        if result.digest is None or result.commit == remote.result:
            return await anyio.to_thread.run_sync(take_result, remote, result.commit, None), result.notes
        place = ensure_state_dir(self._state_dir)
        with temporary_directory(place, "result") as folder:
            bundle = Path(folder) / "bundle"
            digest, size = hashlib.sha256(), 0
            async with await anyio.open_file(bundle, "wb") as file:
                while piece := await self._call("read", remote.id, size):
                    size += len(piece)
                    # Counted here, since the other machine must not fill this disk.
                    if size > self._limits.total:
                        raise WorkspaceTooLarge(
                            f"{remote.host} sends back more than {self._limits.total} bytes. Set workspace_limit_mb.",
                            limit=self._limits.total,
                        )
                    digest.update(piece)
                    await file.write(piece)
            if digest.hexdigest() != result.digest:
                raise WorktreeError(f"What {remote.host} sent back is not whole: it is being changed. Try again.")
            return await anyio.to_thread.run_sync(take_result, remote, result.commit, bundle), result.notes

    async def _drop(self, remote: RemoteTree) -> None:
        try:
            await self._call("remove", remote.id)
        except HelmsmanError as error:
            log.warning("the tree that was sent to %s stays there: %s", remote.host, error)
        await anyio.to_thread.run_sync(forget_remote_tree, remote)

    async def _write(self, remote: RemoteTree) -> None:
        # Without its record, a tree that was sent could never be fetched.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(write_remote_tree, remote)

    async def _call(self, verb: str, *arguments: Any) -> Any:
        return await self._hub.call(f"extras.workspaces.{verb}", arguments, {})
