"""Determine the target of a review with git, before an agent starts. All functions block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.git.command import Git, find_git
from helmsman.git.snapshot import scratch
from helmsman.git.tree_changes import TreeDiff, compare, diff_of_directory
from helmsman.model.options import ReviewTarget

if TYPE_CHECKING:
    from pathlib import Path


_EMPTY_TREE: Final = ("hash-object", "-t", "tree", "--stdin")
_FINDINGS: Final = "Provide prioritized, actionable findings."


def resolve(directory: Path, target: ReviewTarget, state_dir: Path) -> ReviewTarget | None:
    """Return the target with unambiguous names for Codex; None if there is nothing to review.

    Raises:
        InvalidInput: The branch or the commit does not exist, or this is not a git repository.
        WorktreeError: Git cannot be run, or fails.
    """
    if target.kind == "custom":
        return target
    git = find_git(directory, state_dir)
    if git is None:
        raise InvalidInput(
            f"{directory} is not in a git repository, so there are no changes to review. Name a repository, or say with "
            "instructions what to review.",
            parameter="working_directory",
        )
    match target.kind:
        case "uncommitted":
            return target if git.run("status", "--porcelain", "--untracked-files=normal").output else None
        case "base":
            return target if _differs(git, comparison(git, target.value)) else None
        case "commit":
            commit = _commit(git, target.value, "commit")
            return replace(target, value=commit) if _changes_something(git, commit) else None


def diff_of(directory: Path, target: ReviewTarget, state_dir: Path) -> TreeDiff:
    """Return the diff of a target in the repository around a directory.

    Raises:
        InvalidInput: As `resolve`.
        WorktreeError: Git cannot be run, or fails.
    """
    found = find_git(directory, state_dir)
    if found is None or target.kind == "custom":
        raise InvalidInput(f"What is to be reviewed is no change of a repository around {directory}.")
    if target.kind == "uncommitted":
        return diff_of_directory(directory, state_dir=state_dir)
    if target.kind == "base":
        return diff_of_directory(directory, comparison(found, target.value), state_dir=state_dir)
    with scratch(found) as git:
        commit = _commit(git, target.value, "commit")
        return compare(git, before_commit(git, commit), git.text("rev-parse", f"{commit}^{{tree}}"))


def nothing_in_words(target: ReviewTarget) -> str:
    """Return a sentence that there is nothing to review."""
    match target.kind:
        case "base":
            return f"There is nothing to review: nothing differs from {target.value}."
        case "commit":
            return f"There is nothing to review: commit {target.value} changes nothing."
        case _:
            return "There is nothing to review: there are no uncommitted changes."


def in_words(target: ReviewTarget) -> str:
    """Describe a target in a sentence."""
    match target.kind:
        case "uncommitted":
            return "Review the uncommitted changes."
        case "base":
            return f"Review the changes against {target.value}."
        case "commit":
            return f"Review commit {target.value}."
        case "custom":
            return target.value


def with_instructions(directory: Path, target: ReviewTarget, instructions: str, state_dir: Path) -> ReviewTarget:
    """Combine a target with instructions.

    Codex accepts only one of the two, so the target becomes words as in Codex.
    """
    match target.kind:
        case "uncommitted":
            what = "Review the current code changes (staged, unstaged, and untracked files)."
        case "base":
            git = find_git(directory, state_dir)
            base = comparison(git, target.value) if git is not None else target.value
            what = (
                f"Review the code changes against the base branch '{target.value}'. Run `git diff {base}` to inspect the "
                "changes."
            )
        case "commit":
            what = f"Review the code changes introduced by commit {target.value}."
        case _:
            what = target.value
    return ReviewTarget(kind="custom", value=f"{what} {_FINDINGS}\n\n{instructions}")


def commit_named(directory: Path, name: str, state_dir: Path) -> str:
    """Return the commit that a name means.

    Raises:
        InvalidInput: It does not exist.
    """
    git = find_git(directory, state_dir)
    if git is None:
        raise InvalidInput(f"{directory} is not in a git repository. Name one.", parameter="cwd")
    return _commit(git, name, "base")


def _commit(git: Git, name: str, parameter: str) -> str:
    commit = git.commit(name)
    if commit is None:
        raise InvalidInput(
            f"{git.work_tree} has no {parameter} {name!r:.200}. Name one that exists, as `git log` or `git branch --all` "
            "shows.",
            parameter=parameter,
        )
    return commit


def comparison(git: Git, branch: str) -> str:
    """Return the merge base with the branch, to compare the working tree with."""
    base = _commit(git, branch, "branch")
    # 1: there is no common history. 128: HEAD has no commit.
    answer = git.run("merge-base", base, "HEAD", accept=(0, 1, 128))
    return answer.output.decode("ascii").strip() if answer.code == 0 else base


def default_target(directory: Path, base: str | None, state_dir: Path) -> ReviewTarget:
    """Return the default target: uncommitted changes, and in a worktree everything since its `base`."""
    git = None if base is None else find_git(directory, state_dir)
    # Without a new commit, all changes since `base` are uncommitted ones.
    if git is None or base is None or git.commit("HEAD") == base:
        return ReviewTarget()
    return ReviewTarget(kind="base", value=base)


def has_untracked(directory: Path, state_dir: Path) -> bool:
    """Return whether there are files that a comparison with a commit does not show."""
    git = find_git(directory, state_dir)
    return git is not None and _has_untracked(git)


def _has_untracked(git: Git) -> bool:
    return bool(git.run("ls-files", "--others", "--exclude-standard", "--directory").output)


def _differs(git: Git, commit: str) -> bool:
    return _has_untracked(git) or _is_changed(git, commit)


def _is_changed(git: Git, commit: str) -> bool:
    # Exits with 1 if something differs.
    # Neither external diffs nor text conversions: a repository chooses those programs.
    return git.run("diff", "--quiet", "--no-ext-diff", "--no-textconv", commit, "--", accept=(0, 1)).code == 1


def before_commit(git: Git, commit: str) -> str:
    """Return the parent tree of a commit; an empty tree for the first commit."""
    parent = f"{commit}^1"
    return git.text("rev-parse", f"{parent}^{{tree}}") if git.has(parent) else git.text(*_EMPTY_TREE)


def _changes_something(git: Git, commit: str) -> bool:
    return git.text("rev-parse", f"{commit}^{{tree}}") != before_commit(git, commit)
