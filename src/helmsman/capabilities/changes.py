"""Changes of sessions: show, apply or discard them; and list worktrees.

For a session in its own worktree the changes are known exactly. For any other, Codex reports the edits of its last turn
while Helmsman listens; otherwise only the uncommitted changes of its directory are known. Each answer states its scope.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import anyio.to_thread

from helmsman.agents.supervisor.records import end_left
from helmsman.base.files import is_inside, refuse_outside
from helmsman.base.structs import Value, replace
from helmsman.capabilities.worktree_setup import tear_down
from helmsman.errors import (
    InvalidInput,
    OutcomeUnknown,
    RegistryUnavailable,
    SessionBusy,
    SessionNotFound,
    WorkspaceTooLarge,
    WorktreeError,
)
from helmsman.git import lifecycle, tree_changes
from helmsman.git.bundles import PIECE, Limits, PackedTree, Parts
from helmsman.git.diff import FileStat
from helmsman.git.remote_trees import (
    Placed,
    Result,
    arriving,
    came_from_elsewhere,
    known_commits,
    pack_result,
    place,
    remove_unused,
    remove_workspace,
    workspace_of,
)
from helmsman.git.tree_changes import TreeDiff
from helmsman.git.turn_snapshots import read_snapshots
from helmsman.git.worktree import Worktree, is_owned, read_records, remember_place, worktree_of
from helmsman.model.events import ApplyRequested, WorktreeAssigned
from helmsman.model.nature import ACTS, MOVES_CHANGES, READS, STOPS, verb
from helmsman.settings import WORKTREES
from helmsman.tasks.call_key import is_repeated
from helmsman.tasks.model import RUNNING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.git.lifecycle import Discarded, Leftover
    from helmsman.git.tree_changes import Applied, DiffView, Selection, Unsaved
    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering

log = logging.getLogger(__name__)

_MANY_TASKS: Final = 1000
"""More tasks than ever run concurrently on one machine."""

DiffScope = Literal["worktree", "turn", "uncommitted"]
WorktreeUse = Literal["running", "in use", "left over"]

ABOUT: Final[dict[DiffScope, str]] = {
    "worktree": "Everything changed in the session's worktree since it was made, committed or not.",
    "turn": "What the session's last turn edited. Changes made by commands, and by earlier turns, are not in it.",
    "uncommitted": "All uncommitted changes where the session works, by any program.",
}
"""Description of a diff by scope."""


class SessionDiff(Value, frozen=True, kw_only=True):
    """Diff of a session, and the `scope` that it covers."""

    session_id: str
    scope: DiffScope
    diff: TreeDiff

    @property
    def about(self) -> str:
        left_out = self.diff.left_out
        return ABOUT[self.scope] + (f" Not in it: {', '.join(left_out)}." if left_out else "")


class AppliedSession(Value, frozen=True, kw_only=True):
    """Changes applied from a session's worktrees to their repositories. `three-way`: merged, because a repository has
    changed. `others` are the further repositories of the session, `notes` remarks on the tear-down.

    `digest` and `stat` are of the applied diff, `ended` lists commands that were still running in the worktree.
    """

    session_id: str
    repository: Path
    files: tuple[FileStat, ...]
    how: Literal["clean", "three-way"]
    digest: str
    stat: str
    ended: tuple[str, ...]
    others: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        session_id: str,
        repository: Path,
        applied: Applied,
        ended: tuple[str, ...] = (),
        others: tuple[Path, ...] = (),
    ) -> AppliedSession:
        return cls(
            session_id=session_id,
            repository=repository,
            others=others,
            files=applied.files,
            how=applied.how,
            digest=applied.diff.digest,
            stat=applied.diff.stat + "".join(f" not brought over: {name}\n" for name in applied.diff.left_out),
            ended=ended,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorktree:
    """Worktree and its user: a running turn, a running process, or none."""

    worktree: Worktree
    use: WorktreeUse


class Changes:
    """Diff, apply, discard. Made by `helmsman.capabilities.extras.Extras`."""

    def __init__(self, helm: Steering, tasks: Tasks) -> None:
        self._helm = helm
        self._tasks = tasks
        self.shown = tasks.shown

    @verb(READS)
    async def diff(self, session_id: str, *, viewer: str | None = None) -> SessionDiff:
        """Return the changes of a session, running or not, also of an earlier process.

        `viewer` identifies the reader: applying without a digest later means this diff.

        Raises:
            SessionNotFound: There is no such session.
            InvalidInput: It works outside of git, so its changes are unknown.
            WorktreeError: Its worktree is gone, or git cannot read it.
        """
        changed = await self._changed(session_id)
        self.shown.show(viewer, session_id, changed.diff.patch)
        return changed

    @verb(READS)
    async def view(self, session_id: str, view: DiffView, *, since: datetime | None = None) -> tuple[SessionDiff, str]:
        """Return the changes of a session in its own worktree, and the text of a view of them.

        `since`: the view compares with the files before the first turn that began after this time.

        Raises:
            SessionNotFound: There is no such session.
            InvalidInput: It has no worktree.
            WorktreeError: Its worktree is gone, or git cannot read it.
        """
        tree = await self.own_tree(session_id)

        def look() -> tuple[TreeDiff, str]:
            before = None if since is None else _tree_before(self._helm.settings.state_dir, session_id, since)
            if since is not None and before is None:
                return tree_changes.diff(tree), ""
            return tree_changes.diff_and_view(tree, replace(view, since=before))

        diff, text = await anyio.to_thread.run_sync(look)
        self.shown.show(None, session_id, diff.patch)
        return SessionDiff(session_id=session_id, scope="worktree", diff=diff), text

    async def _changed(self, session_id: str) -> SessionDiff:
        session, tree = await self._find(session_id)
        if tree is not None:
            diff = await anyio.to_thread.run_sync(tree_changes.diff, tree)
            return SessionDiff(session_id=session_id, scope="worktree", diff=diff)
        assert session is not None
        if session.state.diff:
            return SessionDiff(session_id=session_id, scope="turn", diff=TreeDiff.of_text(session.state.diff))
        look = partial(tree_changes.diff_of_directory, _directory(session), state_dir=self._helm.settings.state_dir)
        diff = await anyio.to_thread.run_sync(look)
        return SessionDiff(session_id=session_id, scope="uncommitted", diff=diff)

    @verb(MOVES_CHANGES)
    async def apply(
        self,
        session_id: str,
        *,
        allow_dirty: bool = False,
        digest: str | None = None,
        viewer: str | None = None,
        only: Selection | None = None,
    ) -> AppliedSession:
        """Apply the changes of a session's worktree to the main tree, unstaged: all that are selected, or none.

        Commands that it left running there are ended first.

        Args:
            session_id: The session.
            allow_dirty: Continue if the main tree has uncommitted changes in other files.
            digest: Digest of the diff that was shown: only those changes are applied. Without it, the diff that `viewer` was
                shown last; without a viewer, the current one.
            viewer: Caller, by the name that `diff` got. It must have been shown the whole diff.
            only: Files and hunks of that diff; by default all of it. The others stay in the worktree.

        Raises:
            DiffChanged: The changes are not those that were shown. Nothing was touched.
            ConfirmationNeeded: The viewer was not shown all of them. Nothing was touched.
            SessionBusy: It is still at work.
            InvalidInput: It has no worktree.
            DirtyTree: The main tree has uncommitted changes, and `allow_dirty` is not set.
            ApplyConflict: The changes do not fit. Nothing was touched.
            WorktreeError: Git fails. Nothing was touched.
        """
        tree = await self._tree_to_change(session_id, "apply its changes")
        if came_from_elsewhere(tree):
            raise InvalidInput(
                f"The files of session {session_id} came from another machine, and are brought back to it: run `helmsman "
                "apply` there."
            )
        await self._check_idle(tree)
        for one in tree.each:
            refuse_outside(one.repository, self._helm.settings.allowed_roots, "session_id")  # as they are today
        expected = self.shown.expected(viewer, session_id, digest)
        # Ended first, because they could change files while these are compared.
        ended = await self.end_commands(tree)
        # Run by `apply` on the diff that it is about to apply, since the worktree may change until then.
        check = self.shown.check_of(session_id, expected)
        with suppress(SessionNotFound):  # a worktree may outlive its session
            # Recorded before it happens: after a crash, the next hub knows that it may have been applied.
            (await self._helm.session(session_id)).apply(ApplyRequested(session_id=session_id, digest=expected))
            await self._helm.task_writer.write_intents()
        applied = await anyio.to_thread.run_sync(
            lambda: tree_changes.apply(tree, allow_dirty=allow_dirty, check=check, only=only)
        )
        others = tuple(one.repository for one in tree.others)
        done = AppliedSession.of(session_id, tree.repository, applied, ended, others)
        return replace(done, notes=await tear_down(self._helm, tree))

    @verb(ACTS)
    async def discard_part(self, session_id: str, only: Selection, *, digest: str) -> tuple[FileStat, ...]:
        """Take some changes back in a session's worktree. Return the files that differ.

        Args:
            session_id: The session.
            only: The files and hunks.
            digest: Digest of the diff that was shown.

        Raises:
            DiffChanged: The changes are not those that were shown. Nothing was touched.
            SessionBusy: It is still at work.
            InvalidInput: It has no worktree, or no such change.
            ApplyConflict: A file is in the way. Nothing was touched.
            WorktreeError: Git fails. Nothing was touched.
        """
        tree = await self._tree_to_change(session_id, "discard some of its changes")
        await self._check_idle(tree)
        await self.end_commands(tree)
        check = self.shown.check_of(session_id, digest)
        return await anyio.to_thread.run_sync(lambda: tree_changes.discard_part(tree, only, check=check))

    @verb(ACTS)
    async def stop_work(self, session_id: str) -> tuple[str, ...]:
        """Check that a session's worktree is idle, and end commands left running there. Return them in words.

        Raises:
            SessionBusy: A session works there.
            InvalidInput: It has no worktree.
        """
        tree = await self.own_tree(session_id)
        await self._check_idle(tree)
        return await self.end_commands(tree)

    @verb(READS)
    async def unsaved(self, session_id: str) -> Unsaved:
        """Return what `discard` would lose: content of the session's worktree that exists nowhere else.

        Raises:
            InvalidInput: It has no worktree.
        """
        return await anyio.to_thread.run_sync(tree_changes.unsaved, await self.own_tree(session_id))

    @verb(MOVES_CHANGES)
    async def discard(self, session_id: str, *, losing: Unsaved | None = None) -> Discarded:
        """Delete a session's worktree with its branch and content. The session itself stays readable.

        Args:
            session_id: The session.
            losing: Confirmed loss; nothing is deleted if more would be lost now.

        Raises:
            SessionBusy: It is still at work.
            InvalidInput: It has no worktree, or there is more in it now.
            OutcomeUnknown: It has no worktree any longer: an earlier hub got the same request.
            WorktreeError: It cannot be removed.
        """
        tree = await self._tree_to_change(session_id, "discard its worktree")
        await self._check_idle(tree)
        await self.end_commands(tree)
        # Only now, when nothing runs there that could still add to it.
        if losing is not None and await anyio.to_thread.run_sync(tree_changes.unsaved, tree) != losing:
            raise InvalidInput(f"There is other work in {tree.path} than was shown. Nothing was dropped; look again.")
        session = self._helm.sessions.get(session_id)
        # Before the files are deleted, because the tear-down commands may need them.
        notes = await tear_down(self._helm, tree)
        discarded = await anyio.to_thread.run_sync(_discard, tree)
        if session is not None:
            session.apply(WorktreeAssigned(session_id=session.id))
        return replace(discarded, notes=notes)

    async def end_commands(self, tree: Worktree) -> tuple[str, ...]:
        """End what the sessions in a worktree have left running; in words, what that was. All of them are idle."""
        known = _in_tree(tree, {session.id: session.directory for session in self._helm.sessions.values()})
        sessions = {*known, *([tree.session_id] if tree.session_id is not None else [])}
        agents = tuple(self._helm.agents)
        running = await anyio.to_thread.run_sync(
            lambda: tuple(
                left for agent in agents for one in tree.each for left in agent.commands_left(sessions, one.path)
            )
        )
        # This hub ends what its own engines left, then the agents that earlier hubs left, then commands that
        # outlived both.
        for session_id in known:
            if self._helm.sessions[session_id].engine is not None:
                await self._helm.end_leftovers(session_id)
        await self._end_left(sessions)
        for agent in agents:
            for one in tree.each:
                await anyio.to_thread.run_sync(agent.end_commands, sessions, one.path)
        return running

    async def _end_left(self, session_ids: Collection[str]) -> None:
        """End the agents that an earlier hub has left in these sessions, and in which nothing runs."""
        for session_id in session_ids:
            for agent in self._helm.agents:
                await anyio.to_thread.run_sync(end_left, self._helm.settings.state_dir, agent.name, session_id)

    # --- all worktrees -----------------------------------------------------------------------------------------------

    @verb(READS)
    async def worktrees(self) -> tuple[KnownWorktree, ...]:
        """Return all worktrees of sessions, oldest first."""
        trees = await anyio.to_thread.run_sync(self._trees)
        at_work = await self._at_work()

        def used(tree: Worktree) -> WorktreeUse:
            if _in_tree(tree, at_work):
                return "running"
            return "in use" if is_owned(tree) else "left over"

        return await anyio.to_thread.run_sync(
            lambda: tuple(KnownWorktree(worktree=tree, use=used(tree)) for tree in trees)
        )

    @verb(READS)
    async def leftovers(self) -> tuple[Leftover, ...]:
        """Return the worktrees without a process or a running turn, with their changes."""
        state_dir = self._helm.settings.state_dir
        trees = await anyio.to_thread.run_sync(self._trees)
        at_work = await self._at_work()
        running = {tree.session_id for tree in trees if tree.session_id is not None and _in_tree(tree, at_work)}
        found = await anyio.to_thread.run_sync(lambda: lifecycle.leftovers(state_dir, running=running))
        seen = {tree.path for tree in trees}
        return tuple(leftover for leftover in found if leftover.worktree.path in seen)

    @verb(ACTS)
    async def prune(self, found: Sequence[Leftover]) -> tuple[Discarded, ...]:
        """Discard leftovers, except those that a process has begun to use since.

        Raises:
            WorktreeError: One cannot be removed.
        """
        await self._end_left({one.worktree.session_id for one in found if one.worktree.session_id is not None})
        for one in found:
            await tear_down(self._helm, one.worktree)
        return await anyio.to_thread.run_sync(_prune, found)

    def _trees(self) -> tuple[Worktree, ...]:
        """Return the worktrees that this client may see. Blocks."""
        roots = self._helm.allowed_roots
        trees = read_records(self._helm.settings.state_dir)
        return tuple(tree for tree in trees if not roots or all(is_inside(one.repository, roots) for one in tree.each))

    async def _at_work(self) -> Mapping[str, str | None]:
        """Return active and starting sessions of all processes and engines, with their directories."""
        places = {
            session.id: session.directory
            for session in self._helm.sessions.values()
            # A message that waits begins work there as soon as it can.
            if session.state.is_running or session.queue
        }
        try:
            tasks, _ = await self._tasks.list(status=RUNNING, origin="local", limit=_MANY_TASKS)
        except RegistryUnavailable as error:
            log.warning("which sessions other processes run is not known: %s", error)
            tasks = []
        return places | {task.session_id: task.directory for task in tasks if task.session_id is not None}

    # --- which session and which tree --------------------------------------------------------------------------------

    async def _find(self, session_id: str) -> tuple[Session | None, Worktree | None]:
        """Return a session and its worktree. A worktree may outlive Codex's files of its session."""
        try:
            session = await self._helm.session(session_id)
        except SessionNotFound:
            tree = await anyio.to_thread.run_sync(worktree_of, self._helm.settings.state_dir, session_id)
            if tree is None:
                raise
            for one in tree.each:
                refuse_outside(one.repository, self._helm.allowed_roots, "session_id")
            return None, tree
        return session, session.worktree

    async def _tree_to_change(self, session_id: str, doing: str) -> Worktree:
        """Return the worktree of a session that is to be applied or dropped.

        A fork, a handover and a session that was started in the directory share the worktree of another session. The
        client that opened them does not own it.

        Raises:
            NotYours: A client's model asks, and another client or a person opened the session or the worktree.
        """
        await self._helm.require_own(session_id, doing)
        tree = await self.own_tree(session_id)
        if tree.session_id is not None and tree.session_id != session_id:
            await self._helm.require_own(tree.session_id, doing)
        return tree

    async def own_tree(self, session_id: str) -> Worktree:
        session, tree = await self._find(session_id)
        if tree is None:
            if is_repeated() and session is not None and _had_tree(session, self._helm.settings.state_dir):
                raise OutcomeUnknown(
                    f"The worktree of session {session_id} is gone: dropped by a hub that was asked for this before and has "
                    "died, or by another process since. There is nothing left to do."
                )
            raise InvalidInput(
                f"Session {session_id} has no worktree: it worked in its directory itself, or its worktree was discarded. "
                "Start one with the option worktree to keep its changes apart.",
                parameter="session_id",
            )
        return tree

    async def _check_idle(self, tree: Worktree) -> None:
        """Refuse to apply or discard a worktree in use: by its session, a fork or a reviewer."""
        busy = _in_tree(tree, await self._at_work())
        if busy:
            raise SessionBusy(
                f"Session {', '.join(busy)} is still at work in {tree.path}. Nothing was touched. Wait for it, or "
                "interrupt it, then try again.",
                running=busy,
            )


def _tree_before(state_dir: Path, session_id: str, since: datetime) -> str | None:
    """Return the tree before the first turn that began after this time; None if none did. Blocks."""
    known = read_snapshots(state_dir, session_id)
    if known is None:
        raise InvalidInput("There are no snapshots of this session's files, so what changed since then is not known.")
    return next((turn.before.tree for turn in known.turns if turn.taken_at > since), None)


def _had_tree(session: Session, state_dir: Path) -> bool:
    place = Path(session.directory or "")
    # The directory may be recorded with its links resolved or not.
    return any(place.is_relative_to(root / WORKTREES) for root in (state_dir, state_dir.resolve()))


def _discard(tree: Worktree) -> Discarded:
    remember_place(tree)
    return lifecycle.discard(tree)


def _prune(found: Sequence[Leftover]) -> tuple[Discarded, ...]:
    for leftover in found:
        remember_place(leftover.worktree)
    return lifecycle.prune(found)


def _in_tree(tree: Worktree, places: Mapping[str, str | None]) -> list[str]:
    """Return the sessions that work in these worktrees: their own, a fork, a reviewer."""
    roots = [path for one in tree.each for path in (one.path, one.path.resolve())]
    return sorted(
        session_id
        for session_id, place in places.items()
        if session_id == tree.session_id or (place is not None and any(map(Path(place).is_relative_to, roots)))
    )


def _directory(session: Session) -> Path:
    directory = None if session.directory is None else Path(session.directory)
    if directory is None or not directory.is_dir():
        raise WorktreeError(
            f"The directory of session {session.id} ({directory or 'unknown'}) is gone: a worktree that was discarded, or a "
            "directory that was removed. What it changed is no longer known. Read its transcript instead."
        )
    return directory


# --- Working trees of other machines: received piece by piece, placed, and sent back with the changes made in them -----

# Every request may be repeated after a broken connection: a piece is written at its offset, a workspace that was
# placed stays the same one, and its changes are collected anew.


class Workspaces:
    """Made by `helmsman.capabilities.extras.Extras`."""

    def __init__(self, helm: Steering, changes: Changes) -> None:
        self._state_dir = helm.settings.state_dir
        self._limits = Limits.of(helm.settings)
        self._changes = changes

    @verb(READS)
    async def known(self, repository: str, commits: Sequence[str]) -> list[str]:
        """Return which commits of a repository of another machine are here."""
        return await anyio.to_thread.run_sync(known_commits, self._state_dir, repository, commits)

    @verb(STOPS)
    async def put(self, workspace_id: str, part: str, offset: int, data: bytes) -> None:
        """Receive a piece of a workspace.

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
            # An earlier attempt may have left more bytes.
            written.truncate()

    @verb(STOPS)
    async def place(self, workspace: PackedTree) -> Placed:
        """Place a workspace, of which all pieces were received.

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

    @verb(READS)
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

    @verb(READS)
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

    @verb(ACTS)
    async def stop_work(self, session_id: str) -> tuple[str, ...]:
        """Check that a session's files are idle, and end commands left running. Return them in words.

        Raises:
            SessionBusy: It is still at work.
        """
        return await self._changes.stop_work(session_id)

    @verb(STOPS)
    async def remove(self, workspace_id: str) -> None:
        """Remove a workspace; what sessions made of it is theirs."""
        await anyio.to_thread.run_sync(remove_workspace, self._state_dir, workspace_id)
