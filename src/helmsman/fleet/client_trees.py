"""Trees of a fleet's sessions at the client: packed where the work is requested, and their results fetched back.

Any client with the repository can fetch the result: into the repository that the tree was packed in, or into the one
around the caller's directory if it has the commit that was checked out then. The result is a commit there, with a
separate reference (`refs/helmsman/fleet/…`), and is shown and applied like every result of another machine
(`helmsman.git.remote_trees`).
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.base.caller_context import from_here
from helmsman.base.files import is_inside, temporary_directory
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, WorkspaceIncomplete, WorktreeError
from helmsman.fleet.workspaces import WORKSPACE, StoredTree, packed_for_fleet
from helmsman.git.bundles import REFERENCES, Limits
from helmsman.git.command import find_git
from helmsman.git.remote_trees import RemoteTree, have_commit
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from helmsman.fleet.client import FleetClient
    from helmsman.fleet.values import FleetDraft
    from helmsman.fleet.workspaces import KeptTree
    from helmsman.git.bundles import PackedTree
    from helmsman.git.command import Git
    from helmsman.settings import Settings

_RESULTS: Final = "refs/helmsman/fleet"
_MANY: Final = 100
"""Number of references in a repository from which unused ones are removed."""


class ClientTrees:
    """Trees of one client. `roots` limit the directories that it may use."""

    def __init__(self, client: FleetClient, settings: Settings, roots: Sequence[Path]) -> None:
        self._client = client
        self._settings = settings
        self._roots = roots

    @asynccontextmanager
    async def packed(self, draft: FleetDraft, directory: Path) -> AsyncIterator[tuple[FleetDraft, tuple[str, ...]]]:
        """Yield a draft with the tree around a directory, and descriptions of the parts that are not sent.

        Raises:
            InvalidInput: There is no repository, or it is outside the allowed roots.
            WorkspaceTooLarge: It is too large to send.
            WorktreeError: A file cannot be read.
        """
        settings, limits = self._settings, Limits.of(self._settings)
        packing = packed_for_fleet(directory, settings.state_dir, limits, from_remote=settings.workspace_from_remote)
        await anyio.to_thread.run_sync(self._require_repository, directory)
        # Entered in a thread, since packing reads the whole tree.
        _, tree, bundles = await anyio.to_thread.run_sync(packing.__enter__)
        try:
            yield replace(draft, bundles={**draft.bundles, **bundles}), tree.notes
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(packing.__exit__, None, None, None)

    def _require_repository(self, directory: Path) -> None:
        git = find_git(directory, ensure_state_dir(self._settings.state_dir))
        if git is None:
            raise InvalidInput(
                f"{directory} is in no git repository, and a fleet's machines get the tree that they work on from one. Name "
                "a repository; or say in_place (`helmsman run --detach --in-place`), to work in the directory of this path "
                "on the machine that takes it.",
                parameter="cwd",
            )
        # The whole repository is sent, not only the directory.
        if self._roots and not is_inside(git.work_tree, self._roots):
            raise InvalidInput(
                f"The repository {git.work_tree} is not within the allowed roots, and all of it would be sent. Allow it, or "
                "name another directory.",
                parameter="cwd",
            )

    async def brought_back(self, session_id: str, place: str | None) -> tuple[RemoteTree, tuple[str, ...]] | None:
        """Fetch the current tree of a session into the local repository. Return it with descriptions of what is
        missing; None without a tree.

        Raises:
            InvalidInput: The repository is not here.
            WorktreeError: It cannot be fetched.
        """
        stored = StoredTree(self._client.database, self._soon, session_id)
        packed = await stored.packed()
        if packed is None:
            return None
        git = await anyio.to_thread.run_sync(self._repository, packed, place)
        if git is None:
            raise InvalidInput(
                f"The repository of this session is not here: it was {place}, where the session was begun, at commit "
                f"{packed.head or packed.commit}. Ask in a clone of it that has this commit."
            )
        await self._have_base(git, stored, packed)
        kept = await self._have_result(git, stored, session_id)
        away = RemoteTree(
            id=packed.id,
            host="",
            repository=git.work_tree,
            git_dir=git.git_dir,
            base=packed.commit,
            state_dir=self._settings.state_dir.absolute(),
            sent_at=datetime.now(UTC) if kept is None else kept.at,
            result=None if kept is None else kept.result.commit,
        )
        return away, () if kept is None else kept.result.notes

    async def _soon(self, do: Callable[[], Awaitable[Any]]) -> Any:
        return await self._client.database.soon(do)

    def _repository(self, packed: PackedTree, place: str | None) -> Git | None:
        """Return the repository that a tree came from, or another clone of it. Blocks."""
        state_dir = ensure_state_dir(self._settings.state_dir.absolute())
        # A client elsewhere may have another clone of the same repository.
        for directory in (*(() if place is None else (Path(place),)), from_here(Path())):
            git = find_git(directory, state_dir) if directory.is_dir() else None
            if git is None or (self._roots and not is_inside(git.work_tree, self._roots)):
                continue
            # A result applies to any clone that has one of these commits.
            if any(git.commit(commit) == commit for commit in (packed.commit, packed.head) if commit is not None):
                return git
        return None

    async def _have_base(self, git: Git, stored: StoredTree, packed: PackedTree) -> None:
        if await anyio.to_thread.run_sync(git.commit, packed.commit) == packed.commit:
            return
        with temporary_directory(ensure_state_dir(self._settings.state_dir), "base") as folder:
            bundle = Path(folder) / "bundle"
            await stored.read_packed(WORKSPACE, bundle)
            try:
                await anyio.to_thread.run_sync(have_commit, git, packed.commit, bundle)
            except WorkspaceIncomplete as error:
                raise WorktreeError(
                    f"{git.work_tree} does not have what this session began with. Fetch {packed.branch} of "
                    f"{packed.remote} there, then ask again."
                ) from error

    async def _have_result(self, git: Git, stored: StoredTree, session_id: str) -> KeptTree | None:
        reference = f"{_RESULTS}/{session_id.rpartition('-')[2]}"
        # A newer result may replace the pieces while they are read.
        while True:
            kept = await stored.kept()
            if kept is None:
                return None
            commit, bundle = kept.result.commit, None
            if await anyio.to_thread.run_sync(git.commit, commit) == commit:
                await anyio.to_thread.run_sync(have_commit, git, commit, None, reference)
                return kept
            with temporary_directory(ensure_state_dir(self._settings.state_dir), "result") as folder:
                bundle = Path(folder) / "bundle"
                if await stored.read_kept(kept, bundle):
                    await self._drop_references(git)
                    await anyio.to_thread.run_sync(have_commit, git, commit, bundle, reference)
                    return kept
            now = await stored.kept()
            # Nothing has changed in between, so reading again would not help.
            if now is None or now.data == kept.data:
                raise WorktreeError("What became of this tree is damaged in the fleet's database. Look at it there.")

    async def _drop_references(self, git: Git) -> None:
        """Remove references to results of sessions that the fleet no longer has, if there are many."""
        listed = await anyio.to_thread.run_sync(
            lambda: git.text("for-each-ref", "--format=%(refname:lstrip=3)", _RESULTS)
        )
        names = listed.split()
        # Asking the database costs more than some unused references.
        if len(names) < _MANY:
            return
        sql: Final = "select session_id from helmsman_store.tasks where session_id = any(%s)"
        rows = await self._soon(lambda: self._client.database.all(sql, ([f"fleet-{name}" for name in names],)))
        known = {row["session_id"] for row in rows}
        gone = [name for name in names if f"fleet-{name}" not in known]

        def drop() -> None:
            for name in gone:
                git.with_settings(REFERENCES).run("update-ref", "-d", f"{_RESULTS}/{name}")

        await anyio.to_thread.run_sync(drop)
