"""Commit a session's changes, and push the commits. All functions block.

Git sees the repository through a view (`helmsman.base.git`): hooks of the repository do not run, its programs neither, and
logins come from the user's own configuration alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.snapshot import take_snapshot
from helmsman.base.structs import replace
from helmsman.base.temporary import temporary_directory
from helmsman.errors import DiffChanged, InvalidInput, WorktreeError
from helmsman.worktrees.changes import check_present, compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.base.git import Git
    from helmsman.model.worktree import Worktree

_BRANCHES: Final = "refs/heads/"
_BRANCH: Final = re.compile(r"(?!-)[\w./+-]{1,200}")
_FIRST_REMOTE: Final = "origin"
_PROTOCOLS: Final = re.compile(r"(https?|ssh|git|file)://|[\w.-]+@[\w.-]+:|/")


@dataclass(frozen=True, kw_only=True)
class CommitMade:
    """A new commit. `branch` is the branch that it is on."""

    commit: str
    branch: str
    message: str
    directory: Path

    @property
    def title(self) -> str:
        return self.message.splitlines()[0]


@dataclass(frozen=True, kw_only=True)
class PushTarget:
    """Where commits are pushed: a remote of the repository and its address, and the branch that is the base there."""

    remote: str
    url: str
    base: str


def commit_worktree(tree: Worktree, message: str, *, digest: str) -> CommitMade:
    """Commit everything in a worktree on its branch, if its digest is still the shown one.

    Raises:
        DiffChanged: The worktree has changed since.
        InvalidInput: There is nothing to commit, or the message is empty.
        WorktreeError: Another branch is checked out, or git fails.
    """
    check_present(tree)
    git = tree.own_git
    branch = _branch_of(git)
    if branch != tree.branch:
        raise WorktreeError(
            f"{tree.path} is on {branch or 'no branch'}, not on {tree.branch}. Check that out there, or commit by hand."
        )
    with git.viewed() as seen, temporary_directory(git.place, "git-index") as folder:
        own = replace(seen, index=Path(folder) / "index")
        snapshot = take_snapshot(own, tree.included)
        if compare(own, tree.base, snapshot.tree, snapshot).digest != digest:
            raise DiffChanged(f"What is in {tree.path} is not what was shown. Nothing was committed; look again.")
        made = _commit(seen, branch, snapshot.tree, message)
        seen.run("read-tree", made.commit)
    return made


def commit_files(git: Git, paths: Sequence[str], message: str) -> CommitMade:
    """Commit these files of a working tree as they are, on the branch that is checked out, and nothing else.

    Raises:
        InvalidInput: There is nothing to commit, or the message is empty.
        WorktreeError: No branch is checked out, or git fails.
    """
    branch = _branch_of(git)
    if branch is None:
        raise WorktreeError(f"No branch is checked out in {git.work_tree}. Check one out, and try again.")
    listed = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)
    add = ("update-index", "--add", "--remove", "-z", "--stdin")
    with git.viewed() as seen, temporary_directory(git.place, "git-index") as folder:
        own = replace(seen, index=Path(folder) / "index")
        own.run("read-tree", f"{_BRANCHES}{branch}")
        own.run(*add, stdin=listed)
        made = _commit(seen, branch, own.text("write-tree"), message)
        seen.run(*add, stdin=listed)
    return made


def is_committed(tree: Worktree) -> bool:
    """Return whether everything in a worktree is committed."""
    check_present(tree)
    with tree.own_git.viewed() as seen, temporary_directory(tree.state_dir, "git-index") as folder:
        snapshot = take_snapshot(replace(seen, index=Path(folder) / "index"), tree.included)
        return snapshot.tree == seen.text("rev-parse", f"{_BRANCHES}{tree.branch}^{{tree}}")


def push_target(git: Git, *, branch: str, base: str | None = None, remote: str | None = None) -> PushTarget:
    """Return where a branch is pushed: the named remote, or `origin`, or the only one.

    Raises:
        InvalidInput: There is no such remote, or its address is none that git pushes to.
        WorktreeError: Git fails.
    """
    remotes = git.run("remote").output.decode("utf-8", "replace").split()
    name = remote or (_FIRST_REMOTE if _FIRST_REMOTE in remotes else remotes[0] if len(remotes) == 1 else None)
    if name is None or name not in remotes:
        known = f"There are: {', '.join(remotes)}." if remotes else "There is none: git remote add origin URL"
        raise InvalidInput(f"{git.work_tree} has no remote {name or _FIRST_REMOTE}. {known}", parameter="remote")
    # As it is configured: git itself applies the user's `insteadOf` when it pushes.
    url = git.ask("config", "--get", f"remote.{name}.pushurl") or git.ask("config", "--get", f"remote.{name}.url") or ""
    if _PROTOCOLS.match(url) is None:
        raise InvalidInput(f"Remote {name} is {url!r:.200}, which is no address to push to.", parameter="remote")
    if base is None:
        head = git.ask("symbolic-ref", "--quiet", "--short", f"refs/remotes/{name}/HEAD")
        base = (
            head.removeprefix(f"{name}/")
            if head
            else next(
                (one for one in ("main", "master") if one != branch and git.has(f"refs/remotes/{name}/{one}")), "main"
            )
        )
    return PushTarget(remote=name, url=url, base=base)


def push(git: Git, url: str, commit: str, branch: str) -> None:
    """Push a commit to a branch of another repository. It is never forced.

    Raises:
        InvalidInput: The branch has a name that is not pushed.
        WorktreeError: The other side refuses, or cannot be reached.
    """
    if _BRANCH.fullmatch(branch) is None or ".." in branch:
        raise InvalidInput(f"{branch!r:.100} is no name for a branch. Use letters, digits, '-', '.' and '/'.")
    git.run("push", "--porcelain", "--no-verify", "--", url, f"{commit}:{_BRANCHES}{branch}")


def commits_since(git: Git, base: str, branch: str) -> list[str]:
    """Return the titles of the commits of a branch that are not in `base`, oldest first."""
    listed = git.run("log", "--reverse", "--format=%s", f"{base}..{_BRANCHES}{branch}").output
    return listed.decode("utf-8", "replace").splitlines()


def head_of(git: Git, branch: str) -> str:
    """Return the commit at the end of a branch."""
    return git.text("rev-parse", "--verify", f"{_BRANCHES}{branch}^{{commit}}")


def _branch_of(git: Git) -> str | None:
    name = git.ask("symbolic-ref", "--quiet", "HEAD")
    return name.removeprefix(_BRANCHES) if name is not None and name.startswith(_BRANCHES) else None


def _commit(git: Git, branch: str, tree: str, message: str) -> CommitMade:
    text = message.strip()
    if not text:
        raise InvalidInput("The message is empty. Nothing was committed.", parameter="message")
    before = head_of(git, branch)
    if git.text("rev-parse", f"{before}^{{tree}}") == tree:
        raise InvalidInput(f"There is nothing to commit in {git.work_tree}.")
    author = git.with_variables(**_author(git))
    stdin = f"{text}\n".encode("utf-8", "surrogateescape")
    commit = author.run("commit-tree", tree, "-p", before, "-F", "-", stdin=stdin).output.decode().strip()
    title = text.splitlines()[0]
    author.run("update-ref", "-m", f"commit: {title}"[:200], f"{_BRANCHES}{branch}", commit, before)
    return CommitMade(commit=commit, branch=branch, message=text, directory=git.work_tree)


def _author(git: Git) -> dict[str, str]:
    """Return the person's name and address as git is configured there, as variables.

    Raises:
        WorktreeError: They are not configured.
    """
    found: dict[str, str] = {}
    for key in ("name", "email"):
        answer = git.run_unviewed("config", "--default", "", "--get", f"user.{key}")
        value = answer.output.decode("utf-8", "replace").strip()
        if not value:
            raise WorktreeError(f"Git does not know who commits. Tell it: git config --global user.{key} …")
        found |= {f"GIT_AUTHOR_{key.upper()}": value, f"GIT_COMMITTER_{key.upper()}": value}
    return found
