"""Working trees that come from other machines: taken in, piece by piece, placed, and given back as what became of them.

All of it may be asked for again, whenever a line has broken: a piece is written where it belongs, a workspace that is placed
is the one that was placed, and what became of it is looked at anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread

from helmsman.errors import InvalidInput, WorkspaceTooLarge
from helmsman.worktrees.remote_bundle import PIECE, Limits, Parts
from helmsman.worktrees.remote_checkout import (
    arriving,
    known_commits,
    pack_result,
    place,
    remove_unused,
    remove_workspace,
    workspace_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.capabilities.changes import Changes
    from helmsman.steering.core import Steering
    from helmsman.worktrees.remote_bundle import PackedTree
    from helmsman.worktrees.remote_checkout import Placed, Result


class Workspaces:
    """Made by `helmsman.capabilities.Extras`."""

    def __init__(self, helm: Steering, changes: Changes) -> None:
        self._state_dir = helm.settings.state_dir
        self._limits = Limits.of(helm.settings)
        self._changes = changes

    async def known(self, repository: str, commits: Sequence[str]) -> list[str]:
        """Return which commits of a repository of another machine are here."""
        return await anyio.to_thread.run_sync(known_commits, self._state_dir, repository, commits)

    async def put(self, workspace_id: str, part: str, offset: int, data: bytes) -> None:
        """Take in a piece of a workspace.

        Raises:
            WorkspaceTooLarge: It is more than this machine takes in.
            InvalidInput: One before it is missing.
        """
        await anyio.to_thread.run_sync(self._put, workspace_id, part, offset, data)

    def _put(self, workspace_id: str, part: str, offset: int, data: bytes) -> None:
        file = arriving(self._state_dir, workspace_id, part)
        if offset + len(data) > self._limits.total:
            raise WorkspaceTooLarge(
                f"This machine takes in {self._limits.total} bytes of a workspace at most. Set workspace_limit_mb here.",
                limit=self._limits.total,
            )
        file.touch(mode=0o600)
        with file.open("r+b") as written:
            if offset > written.seek(0, 2):
                raise InvalidInput(
                    f"What comes before byte {offset} of workspace {workspace_id} is missing. Send it first."
                )
            written.seek(offset)
            written.write(data)
            written.truncate()

    async def place(self, workspace: PackedTree) -> Placed:
        """Have a workspace here, of which all pieces were taken in.

        Raises:
            WorkspaceIncomplete: It builds on commits that are not here.
            WorktreeError: It did not arrive whole, or git says no.
        """
        return await anyio.to_thread.run_sync(self._place, workspace)

    def _place(self, workspace: PackedTree) -> Placed:
        remove_unused(self._state_dir)
        bundle, included = (arriving(self._state_dir, workspace.id, part) for part in ("bundle", "included"))
        parts = Parts(bundle if workspace.digest else None, included if workspace.included else None)
        try:
            return place(workspace, parts, self._state_dir)
        finally:
            for file in (bundle, included):
                file.unlink(missing_ok=True)

    async def result(self, session_id: str) -> Result:
        """Pack a session's current changes to its workspace, for `read`.

        Raises:
            InvalidInput: It does not work in one.
            WorkspaceTooLarge: It is too large to transfer.
            WorktreeError: It is gone, or cannot be read.
        """
        tree = await self._changes.own_tree(session_id)
        found = workspace_of(tree)
        if found is None:
            raise InvalidInput(
                f"The files of session {session_id} are this machine's own. Look at them with `diff` here."
            )
        into = arriving(self._state_dir, found.workspace.id, "result")
        return await anyio.to_thread.run_sync(pack_result, tree, into, self._limits)

    async def read(self, workspace_id: str, offset: int) -> bytes:
        """Return a chunk of a packed `result`; empty after its end."""
        return await anyio.to_thread.run_sync(self._read, workspace_id, offset)

    def _read(self, workspace_id: str, offset: int) -> bytes:
        try:
            with arriving(self._state_dir, workspace_id, "result").open("rb") as file:
                file.seek(max(offset, 0))
                return file.read(PIECE)
        except FileNotFoundError:
            return b""

    async def stop_work(self, session_id: str) -> tuple[str, ...]:
        """Check that a session's files are idle, and end commands left running. Return them in words.

        Raises:
            SessionBusy: It is still at work.
        """
        return await self._changes.stop_work(session_id)

    async def remove(self, workspace_id: str) -> None:
        """Remove a workspace; what sessions made of it is theirs."""
        await anyio.to_thread.run_sync(remove_workspace, self._state_dir, workspace_id)
