"""A unified diff onto a repository's working tree: all of it, or nothing.

The diff is first put into an index of its own, beside HEAD: plainly, else merged three-way with the version that it was
made from. What comes out fits HEAD exactly, names every file it touches, and only then is written to the working tree,
where nothing uncommitted may be in its way. A conflict is therefore found before anything is touched, and a failure to
write (a full disk, a file one may not replace) puts back what was there.

The change is left in the working tree unstaged, as if a person had typed it. No program of the repository is run.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.git import find_git
from helmsman.errors import ApplyConflict, DirtyTree, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.base.git import Git

_ANY: Final = range(256)
_NAMED_FILES: Final = 10
"""So many files are named in a message; `details` has all of them."""

_COMPLAINT: Final = re.compile(
    r"^error: (?:patch failed: (?P<hunk>.+):\d+|(?P<file>.+): (?:patch does not apply|does not .+|already exists .+))$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPatch:
    """What was changed. `three_way` says that the diff did not fit HEAD as it was and had to be merged."""

    repository: Path
    files: tuple[str, ...]
    three_way: bool


def diff_digest(patch: bytes) -> str:
    """What a diff is called, so that the one that is applied can be told from the one that was shown: its SHA-256."""
    return hashlib.sha256(patch).hexdigest()


def apply_patch(
    directory: Path, diff: str, *, allow_dirty: bool = False, state_dir: Path | None = None
) -> AppliedPatch:
    """Bring a diff into the working tree around `directory`. Blocks; call it in a thread.

    Args:
        directory: Any directory of the repository; the paths in the diff begin at the repository's root.
        diff: A unified diff as git makes it.
        allow_dirty: Go on where there are uncommitted changes, as long as they are in other files.
        state_dir: The state directory, where it is not the usual one.

    Raises:
        InvalidInput: There is no repository, or no commit in it.
        WorktreeError: Git cannot be run, or refuses.
        DirtyTree: There are uncommitted changes (or untracked files), and `allow_dirty` is not set.
        ApplyConflict: The diff does not fit. Nothing was touched.
    """
    found = find_git(directory.absolute(), state_dir)
    if found is None:
        raise InvalidInput(f"{directory} is not in a git repository. Name a directory of the repository.")
    with found.viewed() as git:
        return _apply(git, diff, allow_dirty=allow_dirty)


def _apply(git: Git, diff: str, *, allow_dirty: bool) -> AppliedPatch:
    root = git.work_tree
    if not git.has("HEAD^{commit}"):
        raise InvalidInput(f"The repository {root} has no commit yet, so nothing can be applied. Commit first.")
    dirty = _uncommitted_files(git)
    if dirty and not allow_dirty:
        raise DirtyTree(
            f"The working tree {root} has uncommitted changes: {_named(dirty)}. Commit or stash them, or allow a dirty "
            "tree; nothing was touched.",
            files=_shown(dirty),
        )
    # A person's editor may have removed the last newline of a diff, and git takes such a diff for a damaged one.
    patch = diff if diff.endswith("\n") else diff + "\n"
    with tempfile.TemporaryDirectory(prefix="helmsman-apply-", dir=git.place) as scratch:
        fitted = _fitted_to_head(replace(git, index=Path(scratch) / "index"), patch)
    overlapping = [file for file in fitted.files if file in set(dirty)]
    if overlapping:
        raise ApplyConflict(
            f"The change touches files with uncommitted changes: {_named(overlapping)}. Commit or stash them first; "
            "nothing was touched.",
            conflicts=_shown(overlapping),
        )
    if fitted.files:
        _write(git, root, fitted)
    return AppliedPatch(repository=root, files=tuple(_shown(fitted.files)), three_way=fitted.three_way)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """The change as it is from HEAD to what is wanted."""

    patch: bytes
    files: tuple[str, ...]
    three_way: bool


def _fitted_to_head(git: Git, patch: str) -> _Fitted:
    """Work out the change in an index of its own."""
    git.run("read-tree", "HEAD")
    content = patch.encode("utf-8", "surrogateescape")
    plain = git.run("apply", "--cached", "--whitespace=nowarn", stdin=content, accept=_ANY)
    if plain.code:
        git.run("read-tree", "HEAD")
        merged = git.run("apply", "--cached", "--3way", "--whitespace=nowarn", stdin=content, accept=_ANY)
        if merged.code:
            raise _conflict(git, plain.complaint, content)
    tree = git.text("write-tree")
    changes = ("diff-tree", "-r", "--no-renames", "--no-ext-diff", "--no-textconv", "HEAD", tree)
    names = git.run(*changes[:2], "--name-only", "-z", *changes[2:]).output
    return _Fitted(
        patch=git.run(*changes[:2], "-p", "--binary", "--full-index", *changes[2:]).output,
        files=tuple(os.fsdecode(name) for name in names.split(b"\0") if name),
        three_way=plain.code != 0,
    )


def _conflict(git: Git, complaint: bytes, content: bytes) -> ApplyConflict:
    """Why it does not fit: files that merged with conflicts, else those git complains about."""
    said = complaint.decode("utf-8", "replace").strip()
    unmerged = [
        os.fsdecode(line.partition(b"\t")[2]) for line in git.run("ls-files", "-u", "-z").output.split(b"\0") if line
    ]
    git.run("read-tree", "HEAD")
    if git.run("apply", "--cached", "--check", "--reverse", stdin=content, accept=_ANY).code == 0:
        return ApplyConflict(
            "The change is in this tree already; nothing was touched. There is nothing to do.", said=said
        )
    refused = [found["hunk"] or found["file"] for found in _COMPLAINT.finditer(said)]
    conflicts = list(dict.fromkeys(unmerged or refused))
    where = _named(conflicts) or said.partition("\n")[0] or "git does not say where"
    return ApplyConflict(
        f"The change does not fit this tree: {where}. Nothing was touched. Check out the commit it was made from, or "
        "take the diff and merge it by hand.",
        conflicts=_shown(conflicts),
        said=said,
    )


def _write(git: Git, root: Path, fitted: _Fitted) -> None:
    """Write the change to the working tree; if that fails half-way, put back what was there."""
    before = [_Kept.of(root / file) for file in fitted.files]
    done = git.run("apply", "--whitespace=nowarn", stdin=fitted.patch, accept=_ANY)
    if done.code:
        for kept in before:
            kept.restore()
        said = done.complaint.decode("utf-8", "replace").strip()
        refused = list(dict.fromkeys(found["hunk"] or found["file"] for found in _COMPLAINT.finditer(said)))
        raise ApplyConflict(
            f"The change could not be written to {root}: {_named(refused) or said}. The tree is as it was. Move those "
            "files away, or make them writable, and apply again.",
            conflicts=refused,
            said=said,
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    """A path of the working tree as it was: a file's content, a link's target, or None for nothing (or a directory)."""

    path: Path
    content: bytes | str | None
    mode: int = 0

    @classmethod
    def of(cls, path: Path) -> _Kept:
        try:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                return cls(path, os.readlink(path))  # noqa: PTH115 - as it stands there, whatever it is
            return cls(path, path.read_bytes(), stat.S_IMODE(mode)) if stat.S_ISREG(mode) else cls(path, None)
        except OSError:
            return cls(path, None)

    def restore(self) -> None:
        if _Kept.of(self.path) == self:
            return
        self.path.unlink(missing_ok=True)
        if self.content is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self.content, str):
            self.path.symlink_to(self.content)
        elif self.content is not None:
            self.path.write_bytes(self.content)
            self.path.chmod(self.mode)


def _uncommitted_files(git: Git) -> list[str]:
    """What is changed, staged or untracked; a renamed file with both its names."""
    shown = git.run("status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames").output
    return [os.fsdecode(entry[3:]) for entry in shown.split(b"\0") if entry]


def _shown(files: Iterable[str]) -> list[str]:
    """Names as text that can be printed: a file's name need not be valid UTF-8."""
    return [os.fsencode(name).decode("utf-8", "replace") for name in files]


def _named(files: Iterable[str]) -> str:
    names = _shown(files)
    more = len(names) - _NAMED_FILES
    return ", ".join(names[:_NAMED_FILES]) + (f" and {more} more" if more > 0 else "")
