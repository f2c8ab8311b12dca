"""Tests that long text uses the user's pager, and never a program of a repository."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from helmsman.cli.host import page

pytestmark = [
    pytest.mark.needs_git,
    pytest.mark.skipif(os.name != "posix", reason="pagers are command lines of a shell"),
]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)


@pytest.mark.parametrize("named", ["./pager", "{repository}/pager", "LESS=x {repository}/pager -R", "less"])
def test_a_pager_in_a_repository_is_not_started(git_repo: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    for name in ("pager", "less"):
        (git_repo / name).write_text(f"#!/bin/sh\ntouch {git_repo}/ran\n")
        (git_repo / name).chmod(0o755)
    monkeypatch.chdir(git_repo)
    monkeypatch.setenv("PATH", f"{git_repo}{os.pathsep}/nowhere")
    for variable, show in (("PAGER", page), ("GIT_PAGER", partial(page, as_git=True))):
        monkeypatch.setenv(variable, named.format(repository=git_repo))
        show("text\n")
    assert not (git_repo / "ran").exists()


def test_the_users_own_command_line_is_run_by_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", f"tr a-z A-Z > {tmp_path}/shown")
    assert page("text\n")
    assert (tmp_path / "shown").read_text() == "TEXT\n"
    monkeypatch.setenv("PAGER", "there-is-no-such-pager")
    assert not page("text\n")
