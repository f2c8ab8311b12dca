"""A worktree's changes into the main tree: all of them, or nothing (`helmsman.base.patches`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from helmsman.base.patches import apply_tree, one_at_a_time, refuse_repositories
from helmsman.base.snapshot import scratch, take_snapshot
from helmsman.errors import WorktreeError
from helmsman.worktrees.changes import check_present, compare
from helmsman.worktrees.merging import merge

if TYPE_CHECKING:
    from collections.abc import Callable

    from helmsman.worktrees.changes import FileStat, TreeDiff
    from helmsman.worktrees.records import Worktree


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was brought over. `three-way`: the main tree had moved on since the worktree was made, so both were merged.

    `files` are those of the main tree that are different for it; `diff` is what had been changed in the worktree.
    """

    files: tuple[FileStat, ...]
    how: Literal["clean", "three-way"]
    diff: TreeDiff


def apply(tree: Worktree, *, allow_dirty: bool = False, check: Callable[[TreeDiff], None] | None = None) -> Applied:
    """Bring all that was changed in a worktree into the main tree. Blocks; call it in a thread.

    The worktree stays as it is.

    Args:
        tree: The worktree.
        allow_dirty: Go on where the main tree has uncommitted changes, as long as they are in other files.
        check: Given the very changes that are about to be brought over, whatever happens in the worktree meanwhile. What
            it raises refuses them.

    Raises:
        DirtyTree: The main tree has uncommitted changes. Untracked files do not count unless they are in the way.
        ApplyConflict: The changes do not fit. Nothing was touched.
        WorktreeError: Git cannot do it, or a file cannot be written. Nothing was touched, or all was put back.
    """
    check_present(tree)
    if not tree.repository.is_dir() or not tree.main_git.has("HEAD^{commit}"):
        raise WorktreeError(f"{tree.repository} is gone or has no commit at HEAD. Check out the branch to apply to.")
    with one_at_a_time(tree.main_git), scratch(tree.own_git) as own, scratch(tree.main_git, own.objects) as main:
        snapshot = take_snapshot(own)
        diff = compare(own, tree.base, snapshot.tree, nested=snapshot.nested)
        if check is not None:
            check(diff)
        refuse_repositories(snapshot.nested)
        head, base = (main.text("rev-parse", "--verify", f"{commit}^{{tree}}") for commit in ("HEAD", tree.base))
        wanted = snapshot.tree if head == base else merge(main, base, head, snapshot.tree)
        apply_tree(main, wanted, allow_dirty=allow_dirty)
        files = diff.files if head == base else compare(main, head, wanted).files
        return Applied(files=files, how="clean" if head == base else "three-way", diff=diff)
