"""A small git repository to let Codex work in."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def make_repository(folder: Path) -> Path:
    """A repository on branch `main` with one commit, a README.md.

    Without git it is only what Codex needs to take the folder for a repository: a `.git` with no commit in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("# A repository\n", encoding="utf-8")
    if shutil.which("git") is None:
        _make_by_hand(folder / ".git")
        return folder
    git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    with (folder / ".git" / "config").open("a", encoding="utf-8") as config:
        config.write("[user]\n\tname = Test\n\temail = test@example.org\n")
    git(folder, "add", "README.md")
    git(folder, "-c", "maintenance.auto=false", "commit", "--quiet", "--message=First")
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


def _make_by_hand(git_folder: Path) -> None:
    for name in ("objects", "refs/heads"):
        (git_folder / name).mkdir(parents=True)
    (git_folder / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (git_folder / "config").write_text("[core]\n\trepositoryformatversion = 0\n", encoding="utf-8")
