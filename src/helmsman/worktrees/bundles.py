"""Part of a repository's history in one file, for another repository: a bundle, in git's own format.

It is written here and not by `git bundle`: what is in it need not have a name in the repository, and it stops at a limit. It
is read here, too: a bundle may come from a machine that lies. Nothing that it says of references is ever believed; what it
holds is unpacked beside the repository, checked as git checks what it is pushed, and must be whole, before it becomes part
of the repository. All of it blocks; call it in threads.
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
"""What the one commit of a bundle is called in it."""
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
"""What old tools got wrong in many a repository, and harms nobody."""
_STRICTLY: Final = "--strict=" + ",".join(f"{slip}=ignore" for slip in _OLD_SLIPS)
_PIECE: Final = 1024 * 1024
_SIZE: Final = re.compile(rb"(?:^|\0)\d+ blob [0-9a-f]+ +(\d+)\t")
_MOST_LISTED: Final = 128 * 1024 * 1024
"""The names of more than a million files."""
_LARGEST_FILE: Final = 1024 * 1024 * 1024
_MOST_BYTES: Final = 16 * _LARGEST_FILE
_MOST_MEMORY: Final = 2 * _LARGEST_FILE
"""A delta of some bytes can become any size in memory. Git makes no deltas of files of more than 512 MB."""
_SMALL_WINDOWS: Final = {"core.packedGitWindowSize": "32m", "core.packedGitLimit": "256m", "pack.threads": "1"}
"""Parts of packs that are mapped count as memory."""


@dataclass(frozen=True, slots=True)
class _Header:
    commit: str
    needs: tuple[str, ...]
    object_format: str


def write_bundle(git: Git, commit: str, known: Sequence[str], path: Path, most: int) -> bool:
    """Write a commit with its history to a file, but for what these `known` commits have. False where that would be more
    than `most` bytes; the file is not there then.

    Raises:
        WorktreeError: Something of it is missing, or cannot be read.
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
    """Have in a repository what a bundle holds, which is to be this commit. No reference is changed.

    Raises:
        WorkspaceIncomplete: It builds on commits that are not here.
        WorktreeError: It is none, holds something else, or something in it is damaged or not allowed.
    """
    with path.open("rb", buffering=0) as file, scratch(git) as own:
        header = _read_header(file, path)
        if header.commit != commit or header.object_format != own.text("rev-parse", "--show-object-format"):
            raise WorktreeError(f"{path.name} does not hold what it should. Send it again.")
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
    """Refuse a commit of which not everything is here.

    Raises:
        WorkspaceIncomplete: Something is missing.
        WorktreeError: It is no commit.
    """
    if git.text("cat-file", "-t", commit) != "commit":
        raise WorktreeError(f"{commit} is no commit. Send it again.")
    all_of_it = ("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all")
    if git.run(*all_of_it, stdin=f"{commit}\n".encode(), accept=range(256)).code:
        raise WorkspaceIncomplete(f"Not all that commit {commit} needs is here. Send all of it.", missing=[commit])


def _refuse_bombs(git: Git, commit: str) -> None:
    """Refuse a commit that is small in a bundle and far too much as files: a few objects can name each other many times.

    Raises:
        WorktreeError: It is.
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
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def _read_header(file: IO[bytes], path: Path) -> _Header:
    """What stands before the objects; the file then stands where these begin."""
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
    """The next line, byte by byte: what follows is git's to read."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
        one = file.read(1)
        if not one:
            break
        line += one
    return line


def _move_packs(own: Git, common_dir: Path) -> None:
    """Have what was unpacked beside a repository in it. Its index comes last: git looks for those."""
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
