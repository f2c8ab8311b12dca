"""Small git repository for Codex to work in."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import time
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_AUTHOR = {
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.org",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.org",
    # The user's configuration may sign commits or run hooks.
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
_GIT_SECONDS = 30
_ENTRY = struct.Struct(">10L20sH")  # index entry: the file's `stat`, content id and name length

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
    """Create a repository on branch `main` with one commit, a README.md.

    It writes the files that `git init`, `git add` and `git commit` would write. Most tests need one, and running git
    would take longer than many tests.
    """
    readme, git_folder = folder / "README.md", folder / ".git"
    for name in ("objects", "refs/heads", "logs/refs/heads"):
        (git_folder / name).mkdir(parents=True, exist_ok=True)
    readme.write_text("# A repository\n", encoding="utf-8")
    blob = _store(git_folder, "blob", readme.read_bytes())
    tree = _store(git_folder, "tree", b"100644 README.md\0" + blob)
    author = f"Test <test@example.org> {int(time.time())} +0000"
    about = f"tree {tree.hex()}\nauthor {author}\ncommitter {author}\n\nFirst\n"
    commit = _store(git_folder, "commit", about.encode()).hex()
    move = f"{'0' * len(commit)} {commit} {author}\tcommit (initial): First\n"
    for name, content in {
        "HEAD": "ref: refs/heads/main\n",
        "config": _CONFIG,
        "refs/heads/main": f"{commit}\n",
        "logs/HEAD": move,
        "logs/refs/heads/main": move,
    }.items():
        (git_folder / name).write_text(content, encoding="utf-8", newline="\n")
    (git_folder / "index").write_bytes(_index(readme, blob))
    return folder


def _store(git_folder: Path, kind: str, content: bytes) -> bytes:
    """Store an object in a repository and return its id."""
    data = f"{kind} {len(content)}\0".encode() + content
    found = hashlib.sha1(data, usedforsecurity=False)
    file = git_folder / "objects" / found.hexdigest()[:2] / found.hexdigest()[2:]
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(zlib.compress(data))
    # Objects are read-only, as git writes them.
    file.chmod(0o444)
    return found.digest()


def _index(file: Path, blob: bytes) -> bytes:
    """Return an index with one file whose `stat` matches, so that git does not read the file again."""
    # git trusts a file whose status is the same as in the index.
    status, name = file.stat(), file.name.encode()
    times = (part for stamp in (status.st_ctime_ns, status.st_mtime_ns) for part in divmod(stamp, 10**9))
    numbers = (*times, status.st_dev, status.st_ino, 0o100644, status.st_uid, status.st_gid, status.st_size)
    entry = _ENTRY.pack(*(number & 0xFFFFFFFF for number in numbers), blob, len(name)) + name
    # Padded to eight bytes, with at least one zero.
    entry += b"\0" * (8 - len(entry) % 8)
    data = struct.pack(">4sLL", b"DIRC", 2, 1) + entry
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


def git(folder: Path, *arguments: str) -> str:
    """Run git there without the user's configuration and return its output."""
    return subprocess.run(
        ["git", "-C", folder, *arguments],
        env=os.environ | _AUTHOR,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=_GIT_SECONDS,
        check=True,
    ).stdout
