"""A repository, a state directory, and git untouched by the person's own configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helmsman.git import lifecycle
from helmsman.git.worktree import Worktree
from helmsman.testing.repository import git, make_repository


@pytest.fixture(scope="session", autouse=True)
def _plain_git() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
        yield


@pytest.fixture
def own_filter(main: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Defines a filter in the person's own configuration, as `git lfs install` does."""
    own = tmp_path / "gitconfig"
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(own))

    def define(name: str, **commands: str) -> None:
        for key, value in commands.items():
            git(main, "config", "--file", str(own), f"filter.{name}.{key}", value)

    return define


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def main(tmp_path: Path) -> Path:
    """A repository with a few files of several kinds."""
    root = make_repository(tmp_path / "main")
    (root / "poem.txt").write_text("".join(f"line {number}\n" for number in range(1, 21)), encoding="utf-8")
    (root / "picture").write_bytes(bytes(range(256)))
    (root / "run.sh").write_text("#!/bin/sh\necho hi\n", encoding="utf-8")
    (root / "pack").mkdir()
    (root / "pack" / "inner.txt").write_text("inner\n", encoding="utf-8")
    (root / ".gitignore").write_text("*.log\n", encoding="utf-8")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=Files")
    return root


@pytest.fixture
def tree(main: Path, state_dir: Path) -> Worktree:
    return lifecycle.create(main, state_dir)
