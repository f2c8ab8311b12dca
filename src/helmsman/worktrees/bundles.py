"""Write and read git bundles: part of a repository's history in one file.

Bundles are not written by `git bundle`, because the commit need not have a reference and the size must be limited. They
are not read by it either, because a bundle may come from an untrusted machine. Its references are ignored; its objects
are unpacked next to the repository, checked as git checks a push, and moved into it only if they are complete. All
functions block; call them in threads.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from helmsman.base.snapshot import scratch
from helmsman.errors import WorkspaceIncomplete, WorktreeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.base.git import Git

NAME: Final = "refs/helmsman/workspace"
"""Reference of the single commit in a bundle."""
_SIGNATURES: Final = {b"# v2 git bundle\n": "sha1", b"# v3 git bundle\n": "sha256"}
_SHA256: Final = b"@object-format=sha256\n"
_NEEDS: Final = re.compile(rb"-(?P<id>[0-9a-f]{40}|[0-9a-f]{64})(?: [^\n]*)?\n")
_HAS: Final = re.compile(rb"(?P<id>[0-9a-f]{40}|[0-9a-f]{64}) " + NAME.encode() + rb"\n")
_LONGEST_LINE: Final = 1024
_MOST_NEEDS: Final = 1000
_OLD_SLIPS: Final = (
    *("badDate", "badDateOverflow", "badEmail", "badTimezone", "missingEmail", "missingNameBeforeEmail"),
    *("missingSpaceBeforeDate", "missingSpaceBeforeEmail", "zeroPaddedDate", "zeroPaddedFilemode"),
)
"""Harmless errors of old tools, found in many repositories."""
_STRICTLY: Final = "--strict=" + ",".join(f"{slip}=ignore" for slip in _OLD_SLIPS)
_PIECE: Final = 1024 * 1024
_SIZE: Final = re.compile(rb"(?:^|\0)\d+ blob [0-9a-f]+ +(\d+)\t")
_MOST_LISTED: Final = 128 * 1024 * 1024
"""Enough for the names of more than a million files."""
_LARGEST_FILE: Final = 1024 * 1024 * 1024
_MOST_BYTES: Final = 16 * _LARGEST_FILE
_MOST_MEMORY: Final = 2 * _LARGEST_FILE
"""Limits against bombs: a delta of a few bytes can unpack to any size. Git makes no deltas of files above 512 MB."""
_SMALL_WINDOWS: Final = {"core.packedGitWindowSize": "32m", "core.packedGitLimit": "256m", "pack.threads": "1"}
"""Mapped parts of packs count as memory."""


@dataclass(frozen=True, slots=True)
class _Header:
    commit: str
    needs: tuple[str, ...]
    object_format: str


def write_bundle(git: Git, commit: str, known: Sequence[str], path: Path, most: int) -> bool:
    """Write a commit with its history to a file, without the history of the `known` commits.

    Returns False, and removes the file, if it would exceed `most` bytes.

    Raises:
        WorktreeError: An object is missing or unreadable.
    """
    known = known[:_MOST_NEEDS]
    is_sha256 = git.text("rev-parse", "--show-object-format") == "sha256"
    head = b"# v3 git bundle\n" + _SHA256 if is_sha256 else b"# v2 git bundle\n"
    wanted = "".join(f"{name}\n" for name in (commit, *(f"^{one}" for one in known)))
    fits = False
    try:
        with path.open("xb") as file:
            file.write(head + "".join(f"-{one}\n" for one in known).encode() + f"{commit} {NAME}\n\n".encode())
            options = ("--revs", "--stdout", "--thin", "--delta-base-offset", "--quiet")
            fits = git.write("pack-objects", *options, stdin=wanted.encode(), into=file, most=most)
    finally:
        if not fits:
            path.unlink(missing_ok=True)
    return fits


def take_bundle(git: Git, path: Path, commit: str) -> None:
    """Unpack a bundle, which must contain this commit, into a repository. Changes no reference.

    Raises:
        WorkspaceIncomplete: The bundle requires commits that are missing here.
        WorktreeError: The file is no bundle, contains another commit, or is damaged or not allowed.
    """
    with path.open("rb", buffering=0) as file, scratch(git) as own:
        header = _read_header(file, path)
        if header.commit != commit or header.object_format != own.text("rev-parse", "--show-object-format"):
            raise WorktreeError(f"{path.name} is incomplete or damaged. Send it again.")
        missing = [one for one in header.needs if not own.has(f"{one}^{{commit}}")]
        if missing:
            raise WorkspaceIncomplete(
                f"{path.name} builds on commits that are not here: {', '.join(missing[:3])}. Send all of it.",
                missing=missing,
            )
        indexing = own.with_settings(_SMALL_WINDOWS)
        indexing.run("index-pack", "--stdin", "--fix-thin", _STRICTLY, stdin=file, most_memory=_MOST_MEMORY)
        check_whole(own, commit)
        _refuse_bombs(own, commit)
        _move_packs(own, git.common_dir)


def check_whole(git: Git, commit: str) -> None:
    """Check that a commit and all its objects are present.

    Raises:
        WorkspaceIncomplete: An object is missing.
        WorktreeError: It is not a commit.
    """
    if git.text("cat-file", "-t", commit) != "commit":
        raise WorktreeError(f"{commit} is no commit. Send it again.")
    all_of_it = ("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all")
    if git.run(*all_of_it, stdin=f"{commit}\n".encode(), accept=range(256)).code:
        raise WorkspaceIncomplete(f"Not all that commit {commit} needs is here. Send all of it.", missing=[commit])


def _refuse_bombs(git: Git, commit: str) -> None:
    """Reject a commit that unpacks to excessive size: a few objects can refer to each other many times.

    Raises:
        WorktreeError: The commit is too large.
    """
    bad = WorktreeError(f"The files of commit {commit} are more than any tree that is worked on. It is not taken.")
    with tempfile.TemporaryFile() as listed:
        if not git.write("ls-tree", "-r", "-l", "-z", "--full-tree", commit, stdin=b"", into=listed, most=_MOST_LISTED):
            raise bad
        listed.seek(0)
        sizes = [int(found[1]) for found in _SIZE.finditer(listed.read())]
    if max(sizes, default=0) > _LARGEST_FILE or sum(sizes) > _MOST_BYTES:
        raise bad


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def _read_header(file: IO[bytes], path: Path) -> _Header:
    """Parse the header; leaves the file at the start of the pack."""
    bad = WorktreeError(f"{path.name} is no bundle that Helmsman has made. Send it again.")
    object_format = _SIGNATURES.get(_line(file))
    if object_format is None:
        raise bad
    line = _line(file)
    if object_format == "sha256":
        if line != _SHA256:
            raise bad
        line = _line(file)
    needs: list[str] = []
    while (found := _NEEDS.fullmatch(line)) is not None and len(needs) < _MOST_NEEDS:
        needs.append(found["id"].decode())
        line = _line(file)
    commit = _HAS.fullmatch(line)
    if commit is None or _line(file) != b"\n":
        raise bad
    return _Header(commit["id"].decode(), tuple(needs), object_format)


def _line(file: IO[bytes]) -> bytes:
    """Read a line byte by byte, because git reads the rest from the same descriptor."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
        one = file.read(1)
        if not one:
            break
        line += one
    return line


def _move_packs(own: Git, common_dir: Path) -> None:
    """Move unpacked packs into a repository, each index last: git looks for those first."""
    assert own.objects is not None
    target = common_dir / "objects" / "pack"
    try:
        target.mkdir(exist_ok=True)
        found = sorted((own.objects / "pack").glob("pack-*"), key=lambda one: (one.suffix == ".idx", one.name))
        for file in found:
            if not (target / file.name).exists():
                beside = target / f"tmp_{file.name}-{os.getpid()}"
                shutil.copyfile(file, beside)
                beside.chmod(0o444)
                beside.replace(target / file.name)
    except OSError as error:
        raise WorktreeError(f"{target} cannot be written: {error}. Make room, or make it writable.") from error
