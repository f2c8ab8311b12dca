"""A small git repository to let Codex work in."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_AUTHOR = {
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.org",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
_GIT_SECONDS = 30
_QUICK = ("-c", "core.fsync=none", "-c", "maintenance.auto=false")
"""Nobody needs this commit after a power failure."""

_INDEX_ENTRY = 12
_INDEX_CHECKSUM = 20

_first_commit: dict[str, bytes] = {}
"""What git made of the first repository of this process: two commands take longer than most of what a test does itself."""

_CONFIG = f"""\
[core]
\trepositoryformatversion = 0
\tfilemode = {str(os.name == "posix").lower()}
\tbare = false
\tlogallrefupdates = true
[user]
\tname = Test
\temail = test@example.org
"""


def make_repository(folder: Path) -> Path:
    """A repository on branch `main` with one commit, a README.md.

    Without git it is only what Codex needs to take the folder for a repository: a `.git` with no commit in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("# A repository\n", encoding="utf-8")
    git_folder = folder / ".git"
    _make_by_hand(git_folder)
    if shutil.which("git") is not None:
        if not _first_commit:
            git(folder, *_QUICK, "add", "README.md")
            git(folder, *_QUICK, "commit", "--quiet", "--message=First")
            _first_commit.update(_files(git_folder))
        else:
            _write(git_folder, _first_commit)
            index = git_folder / "index"
            index.write_bytes(_of_the_file(index.read_bytes(), folder / "README.md"))
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git there, untouched by the person's own configuration; its output."""
    return subprocess.run(
        ["git", "-C", folder, *arguments],
        env=os.environ | _AUTHOR,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=_GIT_SECONDS,
        check=True,
    ).stdout


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _of_the_file(index: bytes, file: Path) -> bytes:
    """An index of one entry with what the system says of the file: some git commands look no closer than that."""
    about = file.stat()
    times = [number for time in (about.st_ctime_ns, about.st_mtime_ns) for number in divmod(time, 10**9)]
    (mode,) = struct.unpack_from(">I", index, _INDEX_ENTRY + 24)
    fields = [*times, about.st_dev, about.st_ino, mode, about.st_uid, about.st_gid, about.st_size]
    entry = struct.pack(">10I", *(number & 0xFFFFFFFF for number in fields))
    content = index[:_INDEX_ENTRY] + entry + index[_INDEX_ENTRY + len(entry) : -_INDEX_CHECKSUM]
    return content + hashlib.sha1(content, usedforsecurity=False).digest()


def _make_by_hand(git_folder: Path) -> None:
    """As `git init` does, without a process for it."""
    for name in ("objects", "refs/heads"):
        (git_folder / name).mkdir(parents=True, exist_ok=True)
    (git_folder / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (git_folder / "config").write_text(_CONFIG, encoding="utf-8")
